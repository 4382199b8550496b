"""SGLang's truth table; started by ../run inside the engine's environment.

    table.py FOLDER [PART ...]

Parts: truth (unsplit, SGLang's zmq_to_scheduler, mmx), cases (what may happen
to a request), tp (two language ranks), dp (two groups of
one rank, by attention data parallelism), grpc (encoders that are gRPC servers
and register at run time), pd (other servers decode), time (encoder done to rows
usable), lend (where that time goes, with rows copied and lent), readme (its
lines as written), llama (SGLang encodes, llama.cpp answers)."""

import asyncio
import json
import os
import statistics
import sys
import time
import urllib.request
from concurrent import futures

import cases
import fed
import lend
import readme
import serve
import servers
from marks import taken
from pair import eventually
from serve import (Engine, Zygote, answer, ask, compare, halt, near, post,
                   prompt)
from servers import picture

ROWS = "embedding:bf16:128"
ZMQ = "zmq_to_scheduler"


class Table(servers.Table):
    """SGLang's table: which answers are compared."""

    zygote = None

    def engine(self, name, model, *args, **how):
        if not self.zygote:
            self.zygote = Zygote(self.folder)
        return Engine(self.zygote, self.folder, name, model, *args, **how)

    def encoder(self, name, backend, env=None, port=0, args=()):
        return self.engine(name, "right", "--encoder-only",
                           "--encoder-transfer-backend", backend, *args,
                           env=env, port=port)

    def split(self, name, backend, model="wrong", daemons=None, args=(),
              encoders=1, env=None):
        """Starts (encoders, language server). model: the language server's;
        its own encoder gives other answers."""
        e, d = daemons or (None, None)
        ours = {**({"MMX_ENCODED_SOCKET": e.socket,
                    "MMX_LANGD_SOCKET": d.socket} if e else {}),
                **(env or {})}
        made = [self.engine(
            f"{name}-encoder{i}", model.replace("wrong", "right"),
            "--encoder-only", "--encoder-transfer-backend", backend, env=ours)
            for i in range(encoders)]
        urls = [x.url for x in made]
        if e:
            ours["MMX_ENCODERS"] = json.dumps({u: e.address for u in urls})
        port = str(servers.free_port())
        language = self.engine(
            f"{name}-language", model, "--language-only", "--encoder-urls",
            *urls, "--encoder-bootstrap-port", port,
            "--encoder-transfer-backend", backend, *args, env=ours)
        language.boot = f"http://127.0.0.1:{port}"
        return made, language

    def transfer(self):
        """Returns the ms from the rows of a request's last part to their use,
        and forgets them."""
        found = [m["usable"] - m["encoded"] for m in taken(last={"encoded"}).values()
                 if {"encoded", "usable"} <= set(m)]
        return found[0] / 1e6 if found else None

    def same(self, want, language, case, parts, **more):
        taken()
        text, *pictures = prompt(*parts)
        got = ask(language.url, text, *pictures, **more)
        equal, worst = compare(want, answer(got))
        took = self.transfer()
        self.line(equal and worst == 0, case,
                  "tokens equal" if equal else f"tokens differ: {got[1]}"[:300],
                  f"log-probability {worst:.3g}",
                  f"transfer {took:.1f} ms" if took else "no transfer")


def unsplit(base, parts):
    text, *pictures = prompt(*parts)
    return answer(ask(base.url, text, *pictures))


async def truth(t):
    daemons = t.pair()
    base = t.engine("unsplit", "right")
    theirs = t.split("zmq", ZMQ)
    ours = t.split("mmx", "mmx", daemons=daemons)
    two = t.split("mmx2", "mmx", daemons=daemons, encoders=2)
    other = t.engine("other", "wrong")
    every = [base, other, *(x for made, y in (theirs, ours, two)
                     for x in (*made, y))]
    for x in every:
        x.wait()
    p = [picture(i) for i in range(4)]
    a, b = (unsplit(x, ["what is ", p[3], "?"]) for x in (base, other))
    t.line(not near(a, b), "the language servers' own encoder answers otherwise")
    other.end()
    for case, parts in (
            ("text only", ["hello there"]),
            ("one picture", ["what is ", p[0], " ?"]),
            ("one of 320 rows", ["look: ", picture(100, 560, 448)]),
            ("three, one of them twice",
             ["a ", p[1], " b ", p[2], "c ", p[1]]),
            ("the first once more", ["what is ", p[0], " ?"])):
        want = unsplit(base, parts)
        for how, (_, language) in ((ZMQ, theirs), ("mmx", ours),
                                   ("mmx, 2 encoders", two)):
            t.same(want, language, f"{how}: {case}", parts)
    want = unsplit(base, ["twice ", p[2]])
    for turn in ("the first", "the second"):
        t.same(want, ours[1], f"mmx: one request id twice, {turn}",
               ["twice ", p[2]], rid="the-same")
    bodies = [["n", picture(40 + i, 448, 336), str(i)] for i in range(8)]
    want = [unsplit(base, b) for b in bodies]
    got = await asyncio.gather(*(asyncio.to_thread(
        unsplit, ours[1], b) for b in bodies))
    equal = sum(compare(w, g)[0] for w, g in zip(want, got))
    # One answer may differ, as SGLang's own do with the batch.
    t.line(equal >= 7, "mmx: eight at once", f"{equal} of 8 equal")
    for x in every:
        t.line(x is other or x.alive(), f"{x.name} lives")
    unsplit(ours[1], ["bye"])
    unsplit(two[1], ["bye"])
    daemons[1].all_free()


async def ranks(t):
    """Two language ranks: bytes move once. The reference is SGLang's own
    transfer: unsplit, the encoder has two ranks as well, and rounds
    differently."""
    daemons = t.pair(n="tp")
    how = {"args": ("--tp", "2"),
           "env": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}}
    (theirs, base), (ours, language) = (
        t.split("tp-zmq", ZMQ, **how),
        t.split("tp-mmx", "mmx", daemons=daemons, **how))
    for x in (*theirs, base, *ours, language):
        x.wait()
    p = [picture(700 + i, 448, 448) for i in range(3)]
    for case, parts in (("one", [p[0]]),
                        ("two, one twice", [p[1], "b", p[2], p[1]])):
        t.same(unsplit(base, parts), language,
               f"TP 2, mmx beside zmq: {case}", parts)
    rooms = daemons[1].stats()["rooms_succeeded"]
    t.line(rooms == 2, "TP 2, mmx: rows moved to the host",
           f"{rooms} rooms for 2 requests and 2 ranks")


async def groups(t):
    """Attention data parallelism, with which SGLang's own transfer does not
    answer. Ranks round differently from the unsplit server's single one."""
    daemons = t.pair(fields="embedding:bf16:256", n="dp")
    base, other = (t.engine(f"dp-{m}", m) for m in ("right3", "wrong3"))
    made, language = t.split(
        "dp-mmx", "mmx", "wrong3", daemons,
        args=("--tp", "2", "--attn-dp-size", "2"),
        env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"})
    for x in (*made, base, other, language):
        x.wait()
    bodies = [[f"b{i}", picture(700 + i, 448, 448)] for i in range(6)]
    want = [unsplit(base, b) for b in bodies]
    got = [unsplit(language, b) for b in bodies[:2]] + await asyncio.gather(
        *(asyncio.to_thread(unsplit, language, b) for b in bodies[2:]))
    t.line(not near(want[0], unsplit(other, bodies[0])),
           "the language servers' own encoder answers otherwise")
    right = sum(map(near, want, got))
    t.line(right == 6, "DP 2, mmx beside unsplit", f"{right} of 6 right, "
           f"{sum(w == g for w, g in zip(want, got))} equal")
    stats = daemons[1].stats()
    t.line(stats["bytes_moved"] == 6 * 256 * 512, "DP 2, mmx: rows moved once",
           f"{stats['rooms_succeeded']} rooms, {stats['bytes_moved']} bytes")
    daemons[1].all_free()


async def by_grpc(t):
    """Encoders as gRPC servers, for which SGLang's own transfer answers no
    picture: see _sglang_grpc.py."""
    e, d = t.pair(n="grpc")
    base = t.engine("grpc-unsplit", "right")
    ours = {"MMX_ENCODED_SOCKET": e.socket, "MMX_LANGD_SOCKET": d.socket,
            "SGLANG_ENCODER_MM_RECEIVER_MODE": "grpc",
            "SGLANG_ENCODER_BOOTSTRAP_HEALTH_CHECK_INTERVAL": "1"}
    made = [t.encoder(f"grpc-encoder{i}", "mmx", ours,
                      args=("--smg-grpc-mode",)) for i in range(2)]
    port = str(servers.free_port())
    language = t.engine(
        "grpc-language", "wrong", "--language-only",
        "--encoder-bootstrap-port", port, "--encoder-transfer-backend", "mmx",
        env=ours)
    for x in (base, language):
        x.wait()
    boot = f"http://127.0.0.1:{port}/"
    urls = [x.wait(servers.Server.listens).url.replace("http", "grpc")
            for x in made]
    for url in urls:
        post(boot + "register_encoder_url", {"url": url})

    def used():
        with urllib.request.urlopen(boot + "list_encoder_urls") as r:
            return sorted(json.load(r)["encoder_urls"])
    eventually(lambda: used() == sorted(urls), "they are in use", 60)
    began, equal = time.monotonic(), []
    # in this time SGLang checks at least three times
    while time.monotonic() < began + 6:
        parts = ["g", picture(900 + len(equal), 224, 112)]
        equal.append(compare(unsplit(base, parts), unsplit(language, parts)))
    t.line({*equal} == {(True, 0)}, "gRPC: one picture",
           f"{equal.count((True, 0))} of {len(equal)} requests equal")
    parts = ["g", picture(980), "h", picture(981, 224, 224)]
    rooms = d.stats()["rooms_succeeded"]
    # Unsplit, both pictures are encoded together, which rounds differently.
    t.line(near(unsplit(base, parts), unsplit(language, parts)) and
           d.stats()["rooms_succeeded"] == rooms + 2,
           "gRPC: two pictures, each by another encoder")
    t.line(used() == sorted(urls), "gRPC: SGLang finds them in health")
    got = ask(language.url, *prompt("x ", "data:image/png;base64,AAAA"))
    t.line(got[0] in range(400, 600) and "RPC that" not in str(got[1]),
           "gRPC: a picture that is none", f"HTTP {got[0]}",
           str(got[1])[:200].replace("\n", " "))
    made.pop().end()
    eventually(lambda: used() == urls[:1], "SGLang leaves it out", 60)
    parts = ["one ", picture(990), " left ", picture(991)]
    t.same(unsplit(base, parts), language, "gRPC: the encoder that is left",
           parts)
    for x in (*made, base, language):
        t.line(x.alive(), f"{x.name} lives")
    unsplit(language, ["bye"])
    d.all_free()


async def prefill(t):
    """Prefill and decoding run on servers of their own behind mmx; SGLang
    moves the KV cache by NIXL."""
    daemons = t.pair(n="pd")
    base, other = t.engine("pd-unsplit", "right"), t.engine("pd-o", "wrong")
    kv = ("--disaggregation-transfer-backend", "nixl")
    boot = servers.free_port()
    made, language = t.split(
        "pd", "mmx", daemons=daemons, args=(
            "--disaggregation-mode", "prefill", *kv,
            "--disaggregation-bootstrap-port", str(boot)))
    decode = t.engine("pd-decode", "wrong", "--disaggregation-mode", "decode",
                      *kv)
    for x in (*made, base, other, language, decode):
        x.wait()

    def both(n, parts):
        """Sends a request to both, as SGLang's router does."""
        place = {"bootstrap_host": "127.0.0.1", "bootstrap_port": boot,
                 "bootstrap_room": n + 1}
        with futures.ThreadPoolExecutor() as pool:
            first = pool.submit(ask, language.url, *prompt(*parts), **place)
            got = ask(decode.url, *prompt(*parts), **place)
            return first.result(), got
    bodies = [["pd", picture(1100 + n, 224, 112)] for n in range(4)]
    want, wrong = ([unsplit(x, b) for b in bodies] for x in (base, other))
    t.line(not near(want[0], wrong[0]),
           "the other servers' own encoder answers otherwise")
    got = [both(n, b) for n, b in enumerate(bodies)]
    right = sum(near(w, answer(g)) for w, (_, g) in zip(want, got))
    t.line(right == 4, "PD behind mmx, beside unsplit", f"{right} of 4 right, "
           f"{sum(w == answer(g) for w, (_, g) in zip(want, got))} equal",
           "" if right == 4 else f"{got[0]}"[:500])
    daemons[1].all_free()
    t.line(True, "PD: blocks are free when the prefill server has copied them")
    for x in (*made, base, other, language, decode):
        t.line(x.alive(), f"{x.name} lives")


def timed(t, made, how, parts, tries=5):
    """Returns the transfer's ms and the seconds to the first token. SGLang
    does not use an encoder that a health check found stopped, until the next
    check; then the request is repeated."""
    text, *pictures = parts
    for _ in range(tries):
        taken()
        halt(made, how)
        status, said, first = ask(made[how][1].url, text, *pictures, tokens=1)
        took = t.transfer()
        if took:
            return took, first
        time.sleep(10)
    raise SystemExit(f"engines: {how}: {status} {said}")


async def times(t, rounds=9):
    """Rounds of both transfers in turn, one request at a time. The other
    servers are stopped, since SGLang's schedulers never sleep."""
    daemons = t.pair("embedding:bf16:2048", blocks=64, n="big")
    made = {"mmx": t.split("time-mmx", "mmx", "large", daemons),
            ZMQ: t.split("time-zmq", ZMQ, "large")}
    for encoders, language in made.values():
        for x in (*encoders, language):
            x.wait()
    for rows, w, h in ((256, 448, 448), (2070, 1288, 1260)):
        found = {how: [] for how in made}
        for n in range(rounds + 1):
            for how in made:
                took, first = timed(t, made, how, prompt(
                    "x ", picture(rows + n, w, h)))
                if n:  # the first one warms up
                    found[how].append((took, first * 1e3))
        size = rows * 4096 / 1e6
        medians = {how: [statistics.median(x) for x in zip(*v)]
                   for how, v in found.items()}
        for how, (took, first) in medians.items():
            t.line(True, f"{size:.1f} MB, {how}",
                   f"transfer {took:.1f} ms; first token {first:.0f}")
        a, b = medians.values()
        t.line(True, f"{size:.1f} MB: {ZMQ}'s transfer takes",
               f"{b[0] / a[0]:.2f} times mmx's; load "
               f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")


async def main(folder, parts):
    t = Table(folder, ROWS)
    try:
        return await t.play("sglang", {
            "truth": truth, "cases": cases.run, "tp": ranks, "dp": groups,
            "grpc": by_grpc, "pd": prefill, "time": times, "lend": lend.run,
            "readme": readme.run, "llama": fed.run}, parts)
    finally:
        if t.zygote:
            t.zygote.end()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
