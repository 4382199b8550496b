"""vLLM's servers, prompts for them, and how two answers differ."""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

from servers import (  # noqa: E402
    ON_A_CPU, PORT, ROOT, Server, picture)  # noqa: F401

MODEL = "m"
ENV = {**ON_A_CPU, "VLLM_SERVER_DEV_MODE": "1",
       "PYTHONPATH": f"{ROOT}/lib/client/python:{HERE}:{ROOT}/test/engines",
       "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
TP2 = ("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp")
AHEAD = "mmx.adapters.vllm_ahead.AskAhead"
PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


class Engine(Server):
    """One `vllm serve`; up after wait()."""

    fatal = ("EngineCore encountered a fatal", "EngineDeadError")

    def __init__(self, folder, name, model, *args, env=None, ec=None):
        words = ["nice", os.path.join(folder, "venv/bin/vllm"), "serve",
                 MODEL, "--host", "127.0.0.1", "--port", PORT,
                 "--enforce-eager", "--max-model-len", "8192", "--block-size",
                 "32", "--kv-cache-memory-bytes", str(256 << 20),
                 "--enable-request-id-headers", "--limit-mm-per-prompt",
                 '{"image": 8, "video": 1}', *args]
        if not any("executor" in a for a in args):
            words += ["--distributed-executor-backend", "uni"]
        if ec:
            words += ["--ec-transfer-config", json.dumps(ec)]
        if ec and ec["ec_role"] == "ec_consumer" and "Mmx" in \
                ec["ec_connector"]:
            words += ["--middleware", AHEAD]
        super().__init__(folder, name, words, {**ENV, **(env or {})},
                         cwd=os.path.dirname(os.path.join(folder, model)))


def mmx(role, daemon, engine_id=None, timed=False, **extra):
    """Returns the engine's setting for mmx."""
    return {"ec_connector": "TimedMmx" if timed else "MmxECConnector",
            "ec_connector_module_path":
                "timed" if timed else "mmx.adapters.vllm_ec",
            "ec_role": role, "engine_id": engine_id or f"engine-{role}",
            "ec_connector_extra_config": {"mmx_socket": daemon.socket,
                                          **extra}}


def example(role, path):
    """Returns the setting for vLLM's example: a file for each picture."""
    return {"ec_connector": "TimedExample",
            "ec_connector_module_path": "timed", "ec_role": role,
            "ec_connector_extra_config": {"shared_storage_path": path}}


def prompt(*parts, tokens=16, **more):
    """Returns a request; parts are texts and data URLs."""
    content = [{"type": "video_url", "video_url": {"url": p}}
               if p.startswith("data:video/") else
               {"type": "image_url", "image_url": {"url": p}}
               if p.startswith("data:") else {"type": "text", "text": p}
               for p in parts]
    return {"model": MODEL, "messages": [{"role": "user",
                                          "content": content}],
            "max_tokens": tokens, "temperature": 0, "logprobs": True,
            "top_logprobs": 5, "return_tokens_as_token_ids": True,
            "ignore_eos": True, "seed": 0, **more}


def answer(got):
    """Returns tokens with their log-probabilities, and the five best of
    each."""
    return [(t["token"], t["logprob"],
             tuple((x["token"], x["logprob"]) for x in t["top_logprobs"]))
            for t in got["choices"][0]["logprobs"]["content"]]


def compare(a, b):
    """Returns (True if the tokens are equal, the largest difference of
    log-probabilities)."""
    equal = [x[0] for x in a] == [x[0] for x in b]
    worst = max((abs(x[1] - y[1]) for x, y in zip(a, b)), default=0.0)
    return equal, worst
