"""vLLM's servers as processes, prompts with pictures made here, and how two
answers differ. What is started here is ended here, by its process group."""

import atexit
import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.join(ROOT, "test/e2e"), HERE]

from pair import free_port  # noqa: E402

MODEL = "m"
ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
       "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
       "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_CI_ENV": "0",
       "VLLM_SERVER_DEV_MODE": "1", "PYTHONDONTWRITEBYTECODE": "1",
       "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
       "PYTHONPATH": f"{ROOT}/lib/client/python:{HERE}"}
TP2 = ("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp")
PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
started = []


class Engine:
    """One `vllm serve`; up after wait()."""

    def __init__(self, folder, name, model, *args, env=None, ec=None):
        self.name, self.port = name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = os.path.join(folder, "logs", f"{name}.log")
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        words = ["nice", os.path.join(folder, "venv/bin/vllm"), "serve",
                 MODEL, "--host", "127.0.0.1", "--port", str(self.port),
                 "--enforce-eager", "--max-model-len", "8192", "--block-size",
                 "32", "--kv-cache-memory-bytes", str(256 << 20),
                 "--enable-request-id-headers", "--limit-mm-per-prompt",
                 '{"image": 8, "video": 0}', *args]
        if not any("executor" in a for a in args):
            words += ["--distributed-executor-backend", "uni"]
        if ec:
            words += ["--ec-transfer-config", json.dumps(ec)]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                words, cwd=os.path.dirname(os.path.join(folder, model)),
                stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **ENV, **(env or {})})
        started.append(self)

    def wait(self, limit=540):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError), \
                    urllib.request.urlopen(self.url + "/health", timeout=2):
                return self
            time.sleep(0.5)
        raise SystemExit(f"engines: {self.name} is not up: {self.log}")

    def alive(self):
        return self.process.poll() is None and not self.said(
            "EngineCore encountered a fatal", "EngineDeadError")

    def said(self, *words):
        with open(self.log, errors="replace", encoding="utf-8") as f:
            return [x.rstrip() for x in f if any(w in x for w in words)]

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()


@atexit.register
def _end():
    for engine in started:
        engine.end()


def mmx(role, daemon, engine_id=None, timed=False, **extra):
    """The engine's own setting for mmx."""
    return {"ec_connector": "TimedMmx" if timed else "MmxECConnector",
            "ec_connector_module_path":
                "timed" if timed else "mmx.adapters.vllm_ec",
            "ec_role": role, "engine_id": engine_id or f"engine-{role}",
            "ec_connector_extra_config": {"mmx_socket": daemon.socket,
                                          **extra}}


def example(role, path):
    """vLLM's example: a file for each picture."""
    return {"ec_connector": "TimedExample",
            "ec_connector_module_path": "timed", "ec_role": role,
            "ec_connector_extra_config": {"shared_storage_path": path}}


def picture(seed, width=112, height=112):
    """Returns a picture as a data URL; PNG: both sides read the same."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(height // 14, 1), max(width // 14, 1),
                                  3), "u1")
    image = Image.fromarray(small, "RGB").resize((width, height),
                                                 Image.BICUBIC)
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(
        out.getvalue()).decode()


def prompt(*parts, tokens=16, **more):
    """Returns a request; parts are texts and data URLs."""
    content = [{"type": "image_url", "image_url": {"url": p}}
               if p.startswith("data:") else {"type": "text", "text": p}
               for p in parts]
    return {"model": MODEL, "messages": [{"role": "user",
                                          "content": content}],
            "max_tokens": tokens, "temperature": 0, "logprobs": True,
            "top_logprobs": 5, "return_tokens_as_token_ids": True,
            "ignore_eos": True, "seed": 0, **more}


def answer(got):
    """Returns tokens with their log-probabilities, and the five best."""
    return [(t["token"], t["logprob"],
             tuple((x["token"], x["logprob"]) for x in t["top_logprobs"]))
            for t in got["choices"][0]["logprobs"]["content"]]


def compare(a, b):
    """Returns (True if the tokens are equal, the largest difference of
    log-probabilities)."""
    equal = [x[0] for x in a] == [x[0] for x in b]
    worst = max((abs(x[1] - y[1]) for x, y in zip(a, b)), default=0.0)
    return equal, worst
