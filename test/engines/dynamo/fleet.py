"""A fleet of Dynamo's: its frontend, encode workers, and a prefill worker with
another encoder, so that only rows that were sent give right answers. They find
each other in a folder; no encoder is listed anywhere, neither one of Dynamo's
nor one of mmx's. Each encode worker has an mmx-encoded of its own, as on a host
of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import urllib.request

import aiohttp
from servers import HERE, ON_A_CPU, PORT, ROOT, Server

DEADLINE_S = 8
LIMIT_S = 180  # of a request that does not end; the first one compiles
MODEL = "m"
WORKER = os.path.join(HERE, "dynamo/worker.py")
OURS = f"{ROOT}/lib/client/python:{HERE}"
ENV = {**ON_A_CPU, "VLLM_CPU_KVCACHE_SPACE": "1",
       "DYN_DISCOVERY_BACKEND": "file", "DYN_REQUEST_PLANE": "tcp",
       "DYN_EVENT_PLANE": "zmq", "DYN_TCP_RPC_HOST": "127.0.0.1",
       "DYN_SYSTEM_ENABLED": "false", "DYN_LOG": "info",
       "PYTHONPATH": OURS,
       "MMX_DEADLINE_S": str(DEADLINE_S)}


class Fleet:
    """A frontend, and workers that find it."""

    def __init__(self, t, name, at=None, cwd=None):
        """at: the folder of the environment, if it is another one. cwd: of the
        frontend."""
        self.t, self.name, self.all = t, name, []
        self.folder = os.path.join(t.folder, "fleets", name)
        shutil.rmtree(self.folder, ignore_errors=True)
        for part in ("found", "files"):
            os.makedirs(os.path.join(self.folder, part))
        self.python = os.path.join(at or t.folder, "venv/bin/python")
        self.frontend = self.start("frontend", "-m", "dynamo.frontend",
                                   "--http-host", "127.0.0.1", "--http-port",
                                   PORT, cwd=cwd)

    def start(self, name, *words, env=None, cwd=None):
        self.all.append(Server(
            self.t.folder, f"{self.name}-{name}",
            ["nice", self.python, *words],
            {**ENV, "DYN_FILE_KV": f"{self.folder}/found",
             "TMPDIR": f"{self.folder}/files", **(env or {})}, cwd=cwd))
        return self.all[-1]

    def worker(self, name, model, mode, *words, env=None, served=MODEL):
        """model: its folder."""
        return self.start(
            name, WORKER, "vllm", "--model",
            os.path.join(self.t.folder, model, "m"), "--served-model-name",
            served, "--enable-multimodal", "--enforce-eager",
            "--embedding-transfer-mode", mode, *words, env=env)

    def encode(self, name, mode="mmx", model="right", **more):
        return self.worker(name, model, mode, "--disaggregation-mode",
                           "encode", **more)

    def language(self, name, mode="mmx", model="wrong", *words, **more):
        return self.worker(
            name, model, mode, "--max-model-len", "4096",
            "--kv-cache-memory-bytes", str(256 << 20),
            "--no-enable-prefix-caching", "--no-mm-device-do-normalize", *words, **more)

    def prefill(self, name, mode="mmx", model="wrong", **more):
        return self.language(name, mode, model, "--route-to-encoder",
                             "--enable-mm-embeds", **more)

    def serves(self, *models):
        def up(_):
            if not all(w.alive() for w in self.all):
                raise SystemExit(f"engines: a worker of {self.name} ended: "
                                 f"{self.t.folder}/logs")
            with contextlib.suppress(OSError), urllib.request.urlopen(
                    self.frontend.url + "/v1/models", timeout=2) as r:
                return set(models) <= {m["id"] for m in json.load(r)["data"]}
        self.frontend.wait(up)

    def end(self):
        for server in self.all:
            server.end()
        shutil.rmtree(self.folder)


async def ask(fleet, *parts, model=MODEL, tokens=8):
    """Returns the tokens with their log-probabilities, or how the request
    ended otherwise."""
    content = [{"type": "image_url", "image_url": {"url": p}}
               if p.startswith("data:") else {"type": "text", "text": p}
               for p in parts]
    body = {"model": model, "max_tokens": tokens, "temperature": 0,
            "logprobs": True, "top_logprobs": 1,
            "messages": [{"role": "user", "content": content}]}
    limit = aiohttp.ClientTimeout(LIMIT_S)
    try:
        async with aiohttp.ClientSession(timeout=limit) as s, s.post(
                fleet.frontend.url + "/v1/chat/completions", json=body) as r:
            if r.status != 200:
                return f"HTTP {r.status} {(await r.text())[:200]}"
            got = await r.json()
    except asyncio.TimeoutError:
        return "NOT ENDED"
    except aiohttp.ClientError as e:
        return type(e).__name__
    return [(x["token"], x["logprob"])
            for x in got["choices"][0]["logprobs"]["content"]]
