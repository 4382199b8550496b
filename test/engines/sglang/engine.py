"""SGLang: its package without the parts for GPUs, and what is run of it."""

import glob
import importlib.util
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.dirname(HERE))

import install  # noqa: E402

PACKAGE, VERSION = "sglang", "0.5.23"
NEED_BYTES = 12 * 10**9  # wheels while they are unpacked; 7 GB remain
PARTS = ("truth", "cases", "tp", "dp", "grpc", "pd", "time",
         "lend", "readme", "llama")
SHORT = ("truth",)
# Kernels for GPUs. The folder stand_in has what a CPU needs of them.
LEFT_OUT = {"cuda-python", "flash-attn-4", "flashinfer-python",
            "humming-kernels", "nvidia-cutlass-dsl", "nvidia-mathdx",
            "nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep",
            "sgl-deep-gemm", "sgl-flash-mla", "sglang-kernel", "tilelang"}
TINY = "../vllm/model.py"
MODELS = {  # folder: the script that makes it, and its options
    # One language model, two encoders: a language server with the wrong one
    # answers right only with its encoder's rows.
    "right": [TINY], "wrong": [TINY, "--vision-seed", "2"],
    "large": [TINY, "--hidden", "2048", "--layers", "1"],
    "qwen": ["checkpoint.py"],
    "right3": ["qwen3.py"], "wrong3": ["qwen3.py", "--vision-seed", "2"],
}


def requirements(meta):
    """Returns the package's requirements on a CPU, without extras."""
    return [install.plain(r) for r in meta.get_all("Requires-Dist")
            if "extra ==" not in r and
            re.match(r"[\w.-]+", r)[0].replace("_", "-").lower()
            not in LEFT_OUT]


def after(folder):
    pass


def models(folder):
    """Makes the models. SGLang needs a field of theirs under its old name,
    too."""
    for name, (script, *options) in MODELS.items():
        config = os.path.join(folder, name, "config.json")
        if os.path.exists(config):
            continue
        subprocess.run(
            [os.path.join(folder, "venv/bin/python"), "-B",
             os.path.join(HERE, script), os.path.join(folder, name),
             *options], check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        with open(config, encoding="utf-8") as f:
            made = json.load(f)
        vision = made["vision_config"]
        vision["in_chans"] = vision["in_channels"]
        with open(config, "w", encoding="utf-8") as f:
            json.dump(made, f)


def llama(at):
    """Installs llama.cpp, to which SGLang's encoder sends rows."""
    spec = importlib.util.spec_from_file_location(
        "llama_engine", os.path.join(HERE, "../llama/engine.py"))
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    install.install(engine, os.path.join(at, "llama"))


def nixl(folder):
    """Installs the library that moves SGLang's KV cache. Its first package
    chooses among the others by torch's CUDA."""
    install.pip(os.path.join(folder, "venv"), "install", "--quiet",
                "--no-deps", "nixl==1.5.1", "nixl-cu13==1.5.1")


def run(folder, parts):
    """Prints the table; returns 0 if all rows are well."""
    models(folder)
    if not parts or "llama" in parts:
        llama(os.path.dirname(folder))
    if not parts or "pd" in parts:
        nixl(folder)
    subprocess.run(["make", "-s", "wheel"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    install.pip(os.path.join(folder, "venv"), "install", "--quiet",
                "--no-deps", "--force-reinstall",
                *glob.glob(os.path.join(ROOT, "build/mmx-*.whl")))
    return install.follow(
        [os.path.join(folder, "venv/bin/python"), "-B",
         os.path.join(HERE, "table.py"), folder, *parts])
