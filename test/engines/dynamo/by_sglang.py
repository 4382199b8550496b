"""A fleet of Dynamo's SGLang workers, on a CPU: the frontend asks the encode
worker, and that one asks the worker that prefills and decodes, which gets rows in
the place of pictures, and has another encoder. Answers over mmx equal those over
Dynamo's mode local, which are not the unsplit worker's. Dynamo passes no
log-probabilities on from these workers, so tokens are compared; and its encode
worker refuses a request without pictures."""

import os
import time

import aiohttp
from fleet import DEADLINE_S, LIMIT_S, OURS, Fleet
from servers import HERE, picture

FIELDS = "embedding:bf16:128"
SGLANG = os.path.join(HERE, "sglang")
# As test/engines/sglang/serve.py has them.
ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1",
       "TOKENIZERS_PARALLELISM": "false",
       "SGLANG_NCCL_SO_PATH": "/nonexistent",
       "PYTHONPATH": f"{SGLANG}/stand_in:{OURS}"}
FLAGS = ("--device", "cpu", "--dtype", "bfloat16", "--mem-fraction-static",
         "0.3", "--max-total-tokens", "8192", "--max-running-requests", "8",
         "--context-length", "4096", "--disable-overlap-schedule",
         "--skip-server-warmup", "--chat-template", "qwen2-vl",
         "--enable-multimodal", "--disable-radix-cache")
P = [picture(i) for i in range(6)]
BODIES = {"one picture": ["what is ", P[0], " ?"],
          "another one": ["what is ", P[3], " ?"],
          "one of 320 rows": ["look: ", picture(100, 560, 448)],
          "two": ["a ", P[4], " b ", P[5]],
          "three, one of them twice": ["a ", P[1], " b ", P[2], "c ", P[1]],
          "the first once more": ["what is ", P[0], " ?"]}


class Workers(Fleet):
    """A frontend and workers, of the environment that has SGLang. Each of the
    models that it serves has workers of its own."""

    def __init__(self, t):
        super().__init__(t, "sglang", at=os.path.join(t.folder, "sglang"))

    def worker(self, served, name, model, *words, env=None):
        """served: the name of the model, and of a transfer mode, if it is
        one."""
        program = ("mmx.adapters.dynamo", "sglang") if served == "mmx" else \
            ("dynamo.sglang",)
        return self.start(
            f"{served}-{name}", "-m", *program, "--model-path",
            os.path.join(self.t.folder, "sglang", model),
            "--served-model-name", served, *FLAGS, *words,
            env={**ENV, "DYN_NAMESPACE": served, **(env or {})})

    def split(self, mode, env=None):
        """Returns an encode worker, and one that prefills and decodes."""
        how = ("--embedding-transfer-mode", mode, "--disaggregation-mode")
        return (self.worker(mode, "encode", "right", *how, "encode", env=env),
                self.worker(mode, "language", "wrong", *how, "pd",
                            "--dedicated-mm-encoder", env=env))


async def ask(fleet, model, body, tokens=12):
    """Returns the tokens, or how the request ended otherwise."""
    content = [{"type": "image_url", "image_url": {"url": p}}
               if p.startswith("data:") else {"type": "text", "text": p}
               for p in body]
    limit = aiohttp.ClientTimeout(LIMIT_S)
    async with aiohttp.ClientSession(timeout=limit) as s, s.post(
            fleet.frontend.url + "/v1/chat/completions", json={
                "model": model, "max_tokens": tokens, "temperature": 0,
                "nvext": {"extra_fields": ["completion_token_ids"]},
                "messages": [{"role": "user", "content": content}]}) as r:
        if r.status != 200:
            return r.status, (await r.text())[:300]
        return (await r.json())["nvext"]["completion_token_ids"]


async def run(t):
    e = t.world.encoded("encs", fields=FIELDS)
    d = t.world.langd([], "langs", fields=FIELDS, control={"allow": ["key"]})
    fleet = Workers(t)
    fleet.worker("right", "unsplit", "right")
    fleet.split("local")
    ours = fleet.split("mmx", {"MMX_ENCODED_SOCKET": e.socket,
                               "MMX_LANGD_SOCKET": d.socket})
    fleet.serves("right", "local", "mmx")
    want = {k: await ask(fleet, "local", b) for k, b in BODIES.items()}
    t.line(want["one picture"] != want["another one"],
           "mode local: answers differ by their pictures")
    alike = 0
    for case, body in BODIES.items():
        got = await ask(fleet, "mmx", body)
        t.line(isinstance(got, list) and got == want[case], case,
               "the tokens of mode local" if got == want[case] else got)
        alike += got == await ask(fleet, "right", body)
    rooms = d.stats()["rooms_succeeded"]
    t.line(rooms == len(BODIES), "rooms that succeeded", rooms,
           f"(answers that equal the unsplit worker's: {alike})")
    began = time.monotonic()
    with e.stopped():
        got = await ask(fleet, "mmx", BODIES["two"])
    t.line(isinstance(got, tuple) and
           time.monotonic() - began < DEADLINE_S + 7, "mmx-encoded hung",
           f"HTTP {got[0]} after {time.monotonic() - began:.1f} s")
    for daemon in (e, d):
        daemon.kill()
        daemon.start()
        got = await ask(fleet, "mmx", BODIES["two"])
        t.line(got == want["two"], f"{daemon.name} killed, and started again",
               "the tokens of mode local" if got == want["two"] else got)
    for worker in ours:
        t.line(worker.alive(), f"{worker.name} lives")
    for daemon in (e, d):
        daemon.all_free(2 * DEADLINE_S)
    fleet.end()
