"""Runs the README's lines for SGLang as they are written, and asks a question
about a picture through them; part `readme` of the table.

$MODEL has options that a CPU needs beside the model's name; the daemons'
sockets are said by their variables."""

import json
import time
import urllib.request

import serve
from serve import answer, ask, compare, prompt
from servers import Readme, picture

PORTS = (30000, 30001, 8997)
LIMIT = 540


def registered():
    """Waits until the language server uses an encoder."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with urllib.request.urlopen(
                f"http://127.0.0.1:{PORTS[2]}/list_encoder_urls") as r:
            if json.load(r)["encoder_urls"]:
                return
        time.sleep(0.5)
    raise SystemExit("engines: the encoder has not registered")


async def run(t):
    e, d = t.pair(n="readme")
    r = Readme(t.folder, "SGLang", {
        **serve.ENV, "PYTHONPATH": f"{serve.HERE}/stand_in",
        "MMX_ENCODED_SOCKET": e.socket, "MMX_LANGD_SOCKET": d.socket}, *PORTS)
    encode, language = r.blocks
    r.install(encode[0], language[0])
    base = t.engine("readme-unsplit", "right")
    made = []
    for name, line, port, model in (
            ("encode", encode[1], PORTS[0], "right"),
            ("language", language[1], PORTS[1], "wrong")):
        r.env["MODEL"] = " ".join((model, *serve.SGLANG_FLAGS))
        made.append(r.start(f"sglang-{name}", line, port, t.folder))
    for x in (base, *made):
        x.wait()
    registered()
    body = prompt("what is ", picture(4242, 224, 224))
    want = answer(ask(base.url, *body))
    before = d.stats()["rooms_succeeded"]
    equal, worst = compare(want, answer(ask(made[1].url, *body)))
    moved = d.stats()["rooms_succeeded"] - before
    t.line(equal and worst == 0 and moved == 1,
           "the README's lines, as written",
           "tokens equal" if equal else "tokens differ",
           f"log-probability {worst:.3g}, {moved} room")
    for x in (base, *made):
        x.end()
