"""llama.cpp: a wheel with prebuilt libraries for CPUs, and what is run of
it."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import install  # noqa: E402
from prepare import PARTS  # noqa: E402,F401

PACKAGE, VERSION = "llama-cpp-py-sync", "0.11739"  # llama.cpp b11739
NEED_BYTES = 10**9
SHORT = ("split",)


def requirements(meta):
    """Returns what our scripts need; the package's own Python code is not
    run."""
    return ["numpy", "gguf"]


def after(folder):
    pass


def run(folder, parts):
    """Prints the table; returns 0 if all rows are well."""
    return install.follow(
        [os.path.join(folder, "venv/bin/python"), "-B",
         os.path.join(HERE, "run.py"), folder, *parts])
