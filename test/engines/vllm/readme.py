"""Runs the README's lines for vLLM as they are written, and asks a question
about a picture through them; part `readme` of the table.

$MODEL has options that a CPU needs beside the model's name; the daemons'
sockets are said by their variables."""

import os

import serve
from router import Router, session
from serve import answer, prompt
from servers import Readme, Server, picture

FLAGS = ("m --enforce-eager --max-model-len 8192 --block-size 32 "
         "--kv-cache-memory-bytes 268435456 --host 127.0.0.1 "
         "--distributed-executor-backend uni")


async def run(t):
    e, d = t.pair(n="readme")
    r = Readme(t.folder, "vLLM", {
        **serve.ENV, "MODEL": FLAGS, "PYTHONPATH": "",
        "MMX_ENCODED_SOCKET": e.socket, "MMX_LANGD_SOCKET": d.socket},
        8000, 8001, 8002)
    encode, language, router = r.blocks
    r.install(encode[0], language[0])
    at = os.path.join(t.folder, "right")
    base = t.engine("unsplit", "right/m")
    made = [r.start("encode", encode[1], 8001, at),
            r.start("language", language[1], 8002, at)]
    for x in (base, *made):
        x.wait()
    made.append(r.start("router", router[0], 8000).wait(Server.listens))
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
    r.uninstall()
