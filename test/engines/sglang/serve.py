"""SGLang's servers, requests with pictures, and how two answers differ."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

from servers import (  # noqa: E402
    PORT, ROOT, SGLANG_ENV, SGLANG_FLAGS, Server)

ENV = {**SGLANG_ENV, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
       "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
       "PYTHONPATH": f"{HERE}/stand_in:{HERE}:{ROOT}/test/engines"}


class Forked:
    """A process that the zygote forked, with Popen's interface."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        with contextlib.suppress(OSError), \
                open(f"/proc/{self.pid}/stat", encoding="utf-8") as f:
            if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                return None
        return 1

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)


class Zygote:
    def __init__(self, folder):
        self.log = os.path.join(folder, "logs/zygote.log")
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["nice", os.path.join(folder, "venv/bin/python"),
                 os.path.join(HERE, "zygote.py")], cwd=folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **ENV})
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"engines: SGLang cannot be imported: {self.log}")

    def fork(self, args, env, log):
        self.process.stdin.write(json.dumps(
            {"args": args, "env": env, "log": log}) + "\n")
        self.process.stdin.flush()
        return Forked(int(self.process.stdout.readline()))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Engine(Server):
    """One server of SGLang; up after wait()."""

    fatal = ("SIGQUIT received", "Scheduler hit an exception")

    def __init__(self, zygote, folder, name, model, *args, env=None, port=0):
        self.zygote = zygote
        super().__init__(folder, name, [
            "--model-path", model, "--host", "127.0.0.1", "--port", PORT,
            *SGLANG_FLAGS, *args], env or {}, port)

    def start(self, words, env, cwd):
        return self.zygote.fork(words, env, self.log)


def ask(url, text, *pictures, tokens=12, limit=100, **more):
    """Returns (HTTP status, answer or text, seconds) of /generate."""
    body = {"text": text, "sampling_params": {
        "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        "return_logprob": True, **more}
    if pictures:
        body["image_data"] = list(pictures)
    return post(url + "/generate", body, limit)


def post(url, body, limit=100):
    began = time.monotonic()
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=limit) as r:
            text = r.read().decode()
            got = r.status, json.loads(text) if text[:1] in "{[" else text
    except urllib.error.HTTPError as e:
        got = e.code, e.read().decode()[:400]
    except OSError as e:
        got = 0, f"{type(e).__name__}: {e}"
    return (*got, time.monotonic() - began)


PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


def halt(made, but):
    """Stops all servers (SIGSTOP) except those of one kind, which go on."""
    for how, (encoders, language) in made.items():
        for x in (*encoders, language):
            x.signal(signal.SIGCONT if how == but else signal.SIGSTOP)


def prompt(*parts):
    """Returns text with a place for each data URL, and the data URLs."""
    return ("".join(PICTURE if p.startswith("data:") else p for p in parts),
            *(p for p in parts if p.startswith("data:")))


def answer(got):
    """Returns tokens with their log-probabilities; of a refusal none."""
    status, body, _ = got
    return [(x[1], x[0]) for x in body["meta_info"]["output_token_logprobs"]] \
        if status == 200 else []


def compare(a, b):
    """Returns (True if the tokens are equal, the largest difference of
    log-probabilities)."""
    equal = [x[0] for x in a] == [x[0] for x in b] != []
    return equal, max((abs(x[1] - y[1]) for x, y in zip(a, b)), default=0.0)


def near(a, b):
    """True if two answers differ no more than SGLang's own do with how it
    batches requests: by some hundredths of a log-probability, until their
    tokens differ."""
    for x, y in zip(a, b):
        if abs(x[1] - y[1]) > 0.1:
            return False
        if x[0] != y[0]:
            return True
    return a != []
