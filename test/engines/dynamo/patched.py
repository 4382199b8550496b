"""Tests what Dynamo's vLLM workers do with patches of Dynamo, which are applied
to a copy: the installed package stays as it is.

ec_transfer_params.patch: flags choose MmxECConnector. A producer is started as
a prefill worker, a consumer as a decode worker. Dynamo's frontend asks the
first for every request, and puts what it answers into the request for the
second. transfer_modes.patch: these workers look into Dynamo's tables of
transfer modes, as SGLang's do, so that the adapter has nothing to replace in
them."""

import json
import os
import shutil
import subprocess

import cases
from fleet import MODEL, OURS, Fleet, ask
from servers import HERE

PATCHES = os.path.join(HERE, "dynamo/patches")


def patched(folder):
    """Returns a folder with Dynamo, patched."""
    site = subprocess.run(
        [f"{folder}/venv/bin/python", "-c",
         "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True).stdout.strip()
    made = os.path.join(folder, "patched")
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(os.path.join(site, "dynamo"), f"{made}/dynamo",
                    copy_function=os.link)
    for name in sorted(os.listdir(PATCHES)):
        with open(os.path.join(PATCHES, name), encoding="utf-8") as f:
            subprocess.run(["patch", "--quiet", "-p1", "-d", made], stdin=f,
                           check=True)
    return made


def config(role, daemon):
    return json.dumps({
        "ec_connector": "MmxECConnector", "ec_role": role,
        "ec_connector_module_path": "mmx.adapters.vllm_ec",
        "ec_connector_extra_config": {"mmx_socket": daemon.socket}})


def connector(t, fleet, e, d, env):
    """Starts vLLM's engines with our connector. The name of the model, which is
    its path, is the same for both, as it is a part of rows' keys."""
    for name, model, role, daemon, mode in (
            ("producer", "right", "ec_producer", e, "prefill"),
            ("consumer", "wrong", "ec_consumer", d, "decode")):
        fleet.start(
            name, "-m", "dynamo.vllm", "--model", "m", "--served-model-name",
            MODEL, "--enable-multimodal", "--enforce-eager",
            "--max-model-len", "4096", "--kv-cache-memory-bytes",
            str(256 << 20), "--no-enable-prefix-caching",
            "--disaggregation-mode", mode, "--ec-transfer-config",
            config(role, daemon), env=env,
            cwd=os.path.join(t.folder, model))


def tables(_, fleet, e, d, env):
    """Starts Dynamo's encode and prefill worker with our transfer mode."""
    env = {**env, "MMX_TABLES_ALONE": "1"}
    fleet.encode("encode", env={**env, "MMX_ENCODED_SOCKET": e.socket})
    fleet.prefill("prefill", env={**env, "MMX_LANGD_SOCKET": d.socket})


async def run(t):
    made = patched(t.folder)
    want, wrong = await cases.unsplit(t)
    t.line(isinstance(wrong, list) and wrong != want["one picture"],
           "the consumer's own encoder answers otherwise")
    for how, start in (("connector", connector), ("tables", tables)):
        e = t.world.encoded(f"enc-{how}", fields=cases.FIELDS)
        d = t.world.langd([], f"lang-{how}", fields=cases.FIELDS,
                          control={"allow": ["key"]})
        fleet = Fleet(t, how, cwd=os.path.join(t.folder, "right"))
        start(t, fleet, e, d, {"PYTHONPATH": f"{made}:{OURS}"})
        fleet.serves(MODEL)
        for case, body in cases.BODIES.items():
            got = await ask(fleet, *body)
            t.line(got == want[case], f"{how}: {case}",
                   "tokens and log-probabilities equal"
                   if got == want[case] else got)
        rooms = [x.stats()["rooms_succeeded"] for x in (e, d)]
        t.line(all(rooms), f"{how}: rooms at both daemons", *rooms)
        d.all_free()  # at encoded rows are kept
        fleet.end()
