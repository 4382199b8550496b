"""llama-server, unmodified, with and without libmmx-mtmd.so: one request with
two pictures, its tokens and their log-probabilities."""

import base64
import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request

from install import Refused

STEPS = 12


class Client:
    """A client of the server at this port."""

    def __init__(self, port):
        self.port = port

    def get(self, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def ask(self, *pictures):
        """Returns ([token, ...], [log-probability, ...])."""
        data = []
        for path in pictures:
            with open(path, "rb") as f:
                data.append(base64.b64encode(f.read()).decode())
        marker = self.get("/props").get("media_marker", "<__media__>")
        got = self.get("/completion", {
            "prompt": {"prompt_string": " and ".join(
                [f"see {marker}"] * len(data)) + " what is this?",
                "multimodal_data": data},
            "n_predict": STEPS, "temperature": 0, "n_probs": 5,
            "ignore_eos": True, "cache_prompt": False})
        rows = got["completion_probabilities"]
        return [r["id"] for r in rows], [r["logprob"] for r in rows]


class Server(Client):
    def __init__(self, c, program, log, **env):
        from pair import free_port
        super().__init__(free_port())
        self.log = log
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [program, "-m", c.model("qwen"), "--mmproj",
                 c.model("qwen", "-mmproj"), "--host", "127.0.0.1", "--port",
                 str(self.port), "-c", "4096", "-np", "2", "-t", "1",
                 "--no-mmproj-offload", "--no-warmup", "--no-webui", "-v"],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env={**os.environ, **env})

    def __enter__(self):
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Refused(f"llama-server ended; see {self.log}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                self.get("/health")
                return self
            time.sleep(0.2)
        raise Refused(f"llama-server does not answer; see {self.log}")

    def __exit__(self, *what):
        self.process.terminate()
        self.process.wait()

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()


def row(c, case, truth, got, ok, note):
    difference = max(abs(a - b) for a, b in zip(truth[1], got[1]))
    c.row(f"llama-server, {case}", ok and truth[0] == got[0] and
          difference < 0.01, truth[0] == got[0], difference, note)


def cases(c, program):
    import run
    a, b = c.path("a.png"), c.path("b.png")
    with Server(c, program, c.path("server.log")) as plain:
        truth = plain.ask(a, b)
    w = run.worlds()
    try:
        e = w.encoded(**run.pools("f32"))
        lang = w.langd([e], **run.pools("f32"))
        encode = c.encode_host("qwen", e, "--digest", "tiny")
        env = {"LD_PRELOAD": os.path.abspath(
            f"{c.build}/llama/libmmx-mtmd.so"), "MMX_ENCODER": "enc0",
            "MMX_MODEL": "tiny", "MMX_WAIT_MS": "20000",
            "MMX_LANGD_SOCKET": lang.socket}
        with Server(c, program, c.path("split.log"), **env) as split:
            encode.stdin.write(f"r {a},{b} x <__media__> y <__media__> z\n")
            encode.stdin.flush()
            encode.stdout.readline()
            got = split.ask(a, b)
            rows = split.said().count(" rows of ")
            row(c, "two pictures", truth, got, rows == 2,
                f"{rows} pictures' rows by mmx")
            c.end(encode)
            lang.all_free()
            w.close()
            got = split.ask(a, b)
            row(c, "daemons gone", truth, got,
                "pictures are encoded here" in split.said(), "encodes itself")
    finally:
        w.close()
