"""Runs the README's lines for vLLM as they are written, and asks a question
about a picture through them; part `readme` of the table.

$MODEL has options that a CPU needs beside the model's name; the daemons'
sockets are said by their variables."""

import os
import re
import socket
import subprocess

import serve
from router import Router, session
from serve import answer, picture, prompt

FLAGS = ("m --enforce-eager --max-model-len 8192 --block-size 32 "
         "--kv-cache-memory-bytes 268435456 --host 127.0.0.1 "
         "--distributed-executor-backend uni")


def blocks():
    """Returns the indented blocks of the README's section, as scripts."""
    with open(os.path.join(serve.ROOT, "README.md"), encoding="utf-8") as f:
        text = f.read()
    section = text[text.index("\n### vLLM\n"):]
    end = re.search(r"\n##+ ", section[5:])
    section = section[:end.start() + 5] if end else section
    return [re.sub(r"^    ", "", b, flags=re.M) for b in
            re.findall(r"(?:^    .*\n)+", section, re.M)]


def commands(script):
    """Returns the commands of a block; a backslash joins lines."""
    return [c for c in script.replace("\\\n", " ").splitlines() if c.strip()]


def busy(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Started(serve.Engine):
    """A line of the README that goes on running."""

    def __init__(self, folder, name, line, port, env):
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}"
        self.log = os.path.join(folder, "logs", f"readme-{name}.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,
                cwd=serve.ROOT if "router" in line else
                os.path.join(folder, "right"), start_new_session=True)
        serve.started.append(self)


async def run(t):
    encode, language, router = [commands(b) for b in blocks()]
    if any(map(busy, (8000, 8001, 8002))):
        raise SystemExit("engines: a port of 8000 to 8002 is in use, which "
                         "the README's lines take")
    e, d = t.pair(n="readme")
    env = {**os.environ, **serve.ENV, "MODEL": FLAGS, "PYTHONPATH": "",
           "MMX_ENCODED_SOCKET": e.socket, "MMX_LANGD_SOCKET": d.socket,
           "PATH": f"{t.folder}/venv/bin:{os.environ['PATH']}"}
    subprocess.run(["make", "-s", "wheel"], cwd=serve.ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    for line in (encode[0], language[0]):
        subprocess.run(["bash", "-c", f"{line}"], cwd=serve.ROOT, env=env,
                       check=True, stdout=subprocess.DEVNULL)
    base = t.engine("unsplit", "right/m")
    made = [Started(t.folder, "encode", encode[1], 8001, env),
            Started(t.folder, "language", language[1], 8002, env)]
    for x in (base, *made):
        x.wait()
    made.append(Started(t.folder, "router", router[0], 8000, env))
    while not busy(8000) and made[-1].alive():
        pass
    async with session() as s:
        body = prompt("what is ", picture(4242, 224, 224))
        want = answer(await Router("", "").post(s, base.url, body, "u"))
        before = d.stats()["rooms_succeeded"]
        got = answer(await Router("", "").post(s, made[-1].url, body, "r"))
        moved = d.stats()["rooms_succeeded"] - before
    t.line(got == want and moved == 1, "the README's lines, as written",
           "tokens equal" if got == want else "tokens differ",
           f"{moved} room")
    for x in (base, *made):
        x.end()
    subprocess.run([f"{t.folder}/venv/bin/pip", "uninstall", "--quiet",
                    "--yes", "mmx"], check=True)
