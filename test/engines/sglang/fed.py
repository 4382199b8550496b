"""SGLang's encoder feeds the language host of llama.cpp: one checkpoint, one
prompt, and both engines alone beside it; part `llama` of the table."""

import asyncio
import base64
import contextlib
import os
import re
import sys

from serve import answer, ask, post, prompt


import mmx

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "llama"))


def prepared(folder):
    """Returns llama.cpp's cases, on our checkpoint."""
    import prepare
    import run
    from pair import BUILD

    out = os.path.join(folder, "llama")
    package = os.path.join(os.path.dirname(folder), "llama/venv/lib")
    site = [os.path.join(package, n, "site-packages")
            for n in os.listdir(package)]
    prepare.prefix(out, site[0])
    with contextlib.redirect_stdout(sys.stderr):
        prepare.everything(out, BUILD, os.path.join(folder, "qwen"))
    return run, run.Cases(out, BUILD)


async def run(t):
    llama, c = prepared(t.folder)
    e, d = t.pair("embedding:bf16:256", n="0")
    env = {"MMX_ENCODED_SOCKET": e.socket}
    encoder = t.engine("llama-encoder", "qwen", "--encoder-only",
                       "--encoder-transfer-backend", "mmx", env=env)
    base = t.engine("llama-unsplit", "qwen")
    encode = c.encode_host("qwen", e)  # prepares the tokens around the picture
    encode.stdin.write(f"unused {c.path('a.png')} {llama.PROMPT}\n")
    encode.stdin.flush()
    manifest = encode.stdout.readline()
    encode.kill()
    c.end(encode)
    for x in (encoder, base):
        x.wait()
    with open(c.path("a.png"), "rb") as f:
        picture = "data:image/png;base64," + base64.b64encode(
            f.read()).decode()
    secret = mmx.secret().hex()
    req_id = f"fed~{secret}_local_part_0"
    told = asyncio.create_task(asyncio.to_thread(
        post, encoder.url + "/encode", {
            "mm_items": [picture], "num_parts": 1, "part_idx": 0,
            "req_id": req_id, "modality": "IMAGE",
            "prefill_host": "127.0.0.1", "embedding_port": None}))
    room = mmx.Reference(mmx.room_id(req_id), bytes.fromhex(secret))
    line = re.sub(r"room:[\w-]+", f"room:{room}", manifest)
    said, got = await asyncio.to_thread(c.language_host, "qwen", d, line)
    status = (await told)[0]
    tokens = re.search(r"tokens (.*)", said)
    split = tokens[1].split() if tokens else [said]
    truth, logits = c.truth("qwen", f"r {c.path('a.png')} {llama.PROMPT}")
    before, behind = llama.PROMPT.split("<__media__>")
    alone = [str(x[0]) for x in answer(ask(
        base.url, *prompt(before, picture, behind), tokens=llama.STEPS))]
    worst = abs(logits - got).max() if got is not None else 9
    t.line(status == 200 and split == truth and worst < 0.1,
           "SGLang encodes, llama.cpp answers", "tokens",
           "equal to llama.cpp's alone" if split == truth else
           f"differ: {split} {truth}", f"log-probability {worst:.3g}")
    t.line(split == alone, "and SGLang alone", "the same tokens"
           if split == alone else f"other tokens: {alone}")
    for x in (encoder, base):
        x.end()
    d.all_free()
