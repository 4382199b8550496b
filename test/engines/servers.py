"""Common code of the engines' tables: servers as processes, daemons, counted
rows, pictures made here, and the rows of a page. Processes that it starts are
ended by their process group."""

import atexit
import base64
import contextlib
import io
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "test/e2e"), HERE]

from marks import taken  # noqa: E402
from page import Page  # noqa: E402
from pair import World, free_port  # noqa: E402

# For engines that run vLLM.
ON_A_CPU = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_CI_ENV": "0",
            "PYTHONDONTWRITEBYTECODE": "1"}
# For SGLang; without TORCHDYNAMO_DISABLE the first request compiles.
SGLANG_ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1",
              "TOKENIZERS_PARALLELISM": "false",
              "SGLANG_NCCL_SO_PATH": "/nonexistent"}
SGLANG_FLAGS = (
    "--device", "cpu", "--dtype", "bfloat16", "--mem-fraction-static", "0.3",
    "--max-total-tokens", "8192", "--max-running-requests", "8",
    "--context-length", "4096", "--disable-overlap-schedule",
    "--skip-server-warmup", "--enable-multimodal")
LENT = "lent", "copied"  # how rows come on one host
started = []


class Server:
    """A process that serves a port; up after wait()."""

    fatal = ()  # texts in its log that mean it does not serve any more

    def __init__(self, folder, name, words, env, port=0, cwd=None):
        self.name, self.port = name, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = os.path.join(folder, "logs", f"{name}.log")
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        self.process = self.start(
            [str(self.port) if w is PORT else w for w in words], env,
            cwd or folder)
        started.append(self)

    def start(self, words, env, cwd):
        """Starts a process in a group of its own; returns it."""
        with open(self.log, "w", encoding="utf-8") as log:
            return subprocess.Popen(
                words, cwd=cwd, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **env})

    def healthy(self):
        with contextlib.suppress(OSError), \
                urllib.request.urlopen(self.url + "/health", timeout=2):
            return True
        return False

    def listens(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def wait(self, up=healthy, limit=540):
        """Returns the server once it is up."""
        end = time.monotonic() + limit
        while time.monotonic() < end and self.process.poll() is None:
            if up(self):
                return self
            time.sleep(0.5)
        raise SystemExit(f"engines: {self.name} is not up: {self.log}")

    def alive(self):
        return self.process.poll() is None and not (
            self.fatal and self.said(*self.fatal))

    def said(self, *words):
        with open(self.log, errors="replace", encoding="utf-8") as f:
            return [x.rstrip() for x in f if any(w in x for w in words)]

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()


PORT = object()  # in a server's arguments: replaced by its port


def end_all():
    while started:
        started.pop().end()


atexit.register(end_all)


class Table:
    """The findings, printed line by line."""

    def __init__(self, folder, rows):
        """rows: the layout of the daemons' pools."""
        self.folder, self.rows = folder, rows
        self.passed, self.bad, self.page = 0, 0, Page(folder)
        os.environ["MMX_TIMES"] = os.path.join(folder, "times")
        taken()  # drops marks of an earlier run
        # When the run is given up, its children end as at the end of a run.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.world = World()

    def line(self, good, case, *words):
        self.passed += bool(good)
        self.bad += not good
        self.page.row(good, case, " ".join(map(str, words)))
        print(f"{'ok  ' if good else 'FAIL'} {case:46}", *words, flush=True)

    def pair(self, fields="", blocks=64, encoded=None, langd=None, n=""):
        how = {"fields": fields or self.rows, "blocks": blocks}
        e = self.world.encoded(f"enc{n}", **how, **(encoded or {}))
        return e, self.world.langd([e], f"lang{n}", **how, **{
            "control": {"allow": ["tcp://127.0.0.1:*"]}, **(langd or {})})

    def lenders(self, fields, blocks, n):
        """Returns encoded, and {how rows come: its langd}."""
        e = self.world.encoded(f"enc{n}", fields=fields, blocks=2 * blocks)
        return e, {how: self.world.langd(
            [e], how + n, fields=fields, blocks=blocks,
            control={"allow": ["tcp://127.0.0.1:*"]},
            transfer={"same_host": said})
            for how, said in zip(LENT, ("auto", "copy"))}

    def lending(self, size, found, say):
        """Prints medians of {how rows came: [ms of each part, and in all]},
        and what lending takes away."""
        medians = {}
        for how, rows in found.items():
            medians[how] = [statistics.median(x) for x in zip(*rows)]
            self.line(True, f"{size}, {how}", f"{medians[how][-1]:.2f} ms: " +
                      say.format(*medians[how]) +
                      f"; least {min(r[-1] for r in rows):.2f}")
        lent, copied = (medians[how][-1] for how in LENT)
        self.line(True, f"{size}: lending takes away",
                  f"{copied - lent:.2f} ms of {copied:.2f}, "
                  f"{100 * (1 - lent / copied):.0f} %; "
                  f"load {os.getloadavg()[0]:.1f}")

    async def play(self, engine, known, parts):
        """Plays the named parts, or all; returns the exit status."""
        for part in parts or known:
            if part not in known:
                raise SystemExit(
                    f"engines: {engine} has no part {part!r}; its parts are "
                    f"{', '.join(known)}")
        try:
            for part in parts or known:
                print(f"--- {part}", flush=True)
                self.page.begin(part)
                await known[part](self)
                self.page.end()
                end_all()
        finally:  # ends what a failed part has started, too
            end_all()
            wrong = self.world.close()
        self.line(not wrong, "the daemons end well", wrong or "")
        print(f"{self.passed} passed, {self.bad} failed")
        return 1 if self.bad else 0


def video(seed, frames=4):
    """Returns the frames of a video as a data URL."""
    return "data:video/jpeg;base64," + ",".join(
        picture(seed + i, kind="JPEG").split(",")[1] for i in range(frames))


def picture(seed, width=112, height=112, kind="PNG"):
    """Returns a picture as a data URL."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(height // 14, 1), max(width // 14, 1),
                                  3), "u1")
    image = Image.fromarray(small, "RGB").resize((width, height),
                                                 Image.BICUBIC)
    out = io.BytesIO()
    image.save(out, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(
        out.getvalue()).decode()


def blocks(page, heading):
    """Returns the indented blocks of a section of a page, as lists of
    commands; a backslash joins lines."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = f.read()
    section = text[text.index(f"\n## {heading}\n"):]
    end = re.search(r"\n##+ ", section[5:])
    section = section[:end.start() + 5] if end else section
    scripts = [re.sub(r"^    ", "", b, flags=re.M) for b in
               re.findall(r"(?:^    .*\n)+", section, re.M)]
    return [[c for c in s.replace("\\\n", " ").splitlines() if c.strip()]
            for s in scripts]


class Readme:
    """The commands of a section, run in the environment of an installed
    engine."""

    def __init__(self, folder, heading, env, *ports,
                 page="lib/client/README.md"):
        """ports: those that the commands use."""
        self.folder, self.blocks = folder, blocks(page, heading)
        self.env = {**os.environ, **env, "PATH":
                    f"{folder}/venv/bin:{os.environ['PATH']}"}
        for port in ports:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    raise SystemExit(f"engines: port {port} is in use, which "
                                     "the page's lines take")

    def install(self, *lines):
        """Runs the commands that install our package."""
        self.run("make -s wheel", *lines)

    def run(self, *lines):
        """Runs commands that end by themselves."""
        for line in lines:
            subprocess.run(["bash", "-c", line], cwd=ROOT, env=self.env,
                           check=True, stdout=subprocess.DEVNULL)

    def start(self, name, line, port, cwd=ROOT):
        """Starts a command that goes on running."""
        return Server(self.folder, f"readme-{name}",
                      ["bash", "-c", f"exec env {line}"], self.env, port, cwd)

    def uninstall(self):
        subprocess.run([f"{self.folder}/venv/bin/pip", "uninstall",
                        "--quiet", "--yes", "mmx"], check=True)
