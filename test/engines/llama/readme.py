"""Runs the README's lines for llama.cpp as they are written, and asks the
llama-server about pictures; part `readme` of the table.

$MODEL has options that a CPU needs beside the model's name; `requests` is a
pipe; the daemons' sockets are said by their variables."""

import os
import tempfile

import server
from prepare import ROOT
from servers import Readme

PORT = 8080  # llama-server's default
CPU = "-c 4096 -np 2 -t 1 --no-warmup --no-webui"


def cases(c, program, at):
    """program: llama-server; at: llama.cpp's prefix."""
    import run
    a, b = c.path("a.png"), c.path("b.png")
    with server.Server(c, program, c.path("server.log")) as plain:
        truth = plain.ask(a, b)
    w = run.worlds()
    try:
        e = w.encoded("encoded-0", **run.pools("f32"))
        d = w.langd([e], **run.pools("f32"))
        r = Readme(c.out, "llama-server", {
            "B": c.build, "LLAMA": at, "MMPROJ": c.model("qwen", "-mmproj"),
            "MMX_WAIT_MS": "20000", "MMX_ENCODED_SOCKET": e.socket,
            "MMX_LANGD_SOCKET": d.socket}, PORT,
            page="lib/client/llama/README.md")
        r.env["PATH"] += f":{os.path.dirname(program)}"
        encode, language = r.blocks
        r.run(encode[0], language[0])
        with tempfile.TemporaryDirectory() as here:
            os.symlink(c.build, f"{here}/build")
            os.mkfifo(f"{here}/requests")
            r.env.update(PWD=here, MODEL=c.model("qwen"))
            host = r.start("encode", encode[1], 0, here)
            r.env["MODEL"] += f" {CPU}"
            made = r.start("language", language[1], PORT, here)
            with open(f"{here}/requests", "w", encoding="utf-8") as f:
                made.wait()
                f.write(f"r {a},{b} x <__media__> y <__media__> z\n")
                f.flush()
                got = server.Client(PORT).ask(a, b)
                moved = d.stats()["rooms_succeeded"]
                server.row(c, "the README's lines, as written", truth, got,
                           moved == 2, f"{moved} rooms")
            for x in (host, made):
                x.end()
        d.all_free()
    finally:
        w.close()
