"""vLLM's truth table; started by ../run inside the engine's environment.

    table.py FOLDER [PART ...]

Parts: truth (unsplit, vLLM's example connector, mmx), cases (what may happen
to a request), tp (two ranks), time (encoder done to rows usable), large (the
same of large items, without engines), lend (where that time goes, with rows
copied and lent), readme (its lines as written)."""

import asyncio
import os
import re
import shutil
import statistics
import sys
import time

import cases
import large
import lend
import readme
import serve
import servers
from marks import taken
from router import Router, session
from serve import PROCESSES, TP2, Engine, answer, compare, prompt
from servers import picture, video

ROWS = "embedding:bf16:128"


class Table(servers.Table):
    """vLLM's table: which answers are compared."""

    def engine(self, name, model, *args, **how):
        return Engine(self.folder, name, model, *args, **how)

    def transfer(self):
        """Returns (ms to save, ms until the consumer asks, ms until its rows
        are usable) of the last request's slowest picture, and forgets them.
        Until the consumer asks, vLLM and the router carry the request."""
        found = [(m["saved"] - m["encoded"], m["asked"] - m["saved"],
                  m["usable"] - m["asked"]) for m in taken().values()
                 if {"encoded", "saved", "asked", "usable"} <= set(m)]
        return [x / 1e6 for x in max(found, key=lambda m: m[0] + m[2])] \
            if found else None

    def compared(self, size, found):
        """Prints medians of {connector: [(save, way, fetch, both, first
        token) in ms]}, and the ratio of the second's to the first's."""
        for kind, rows in found.items():
            save, way, fetch, both, ttft = map(statistics.median, zip(*rows))
            self.line(True, f"{size}, {kind}",
                      f"encoder done to rows usable {both:.1f} ms (saved in "
                      f"{save:.1f}, fetched in {fetch:.1f}; least "
                      f"{min(r[3] for r in rows):.1f}), and {way:.0f} on the "
                      f"request's way; first token {ttft:.0f}")
        ours, theirs = ([r[3] for r in rows] for rows in found.values())
        pairs = sum(a < b for a, b in zip(ours, theirs))
        self.line(True, f"{size}: {list(found)[1]} takes",
                  f"{statistics.median(theirs) / statistics.median(ours):.2f}"
                  f" times mmx's; mmx was faster in {pairs} of {len(ours)} "
                  f"rounds; load {os.getloadavg()[0]:.1f}")

    async def same(self, s, base, router, case, body, exact=True):
        """Compares a request's answer with the unsplit engine's."""
        want = answer(await router.post(s, base.url, body, "unsplit"))
        self.transfer()
        got = answer(await router.chat(s, body))
        equal, worst = compare(want, got)
        took = self.transfer()
        self.line(equal and (worst == 0 or not exact), case,
                  "tokens equal" if equal else "tokens differ",
                  f"log-probability {worst:.3g}",
                  f"transfer {took[0] + took[2]:.1f} ms" if took else
                  "no transfer")


async def truth(t):
    e, d = t.pair()
    shared = os.path.join(t.folder, "example")
    shutil.rmtree(shared, ignore_errors=True)
    base = t.engine("unsplit", "right/m")
    producer = t.engine("mmx-producer", "right/m",
                        ec=serve.mmx("ec_producer", e, timed=True))
    consumer = t.engine("mmx-consumer", "wrong/m",
                        ec=serve.mmx("ec_consumer", d, timed=True))
    theirs = [t.engine(f"example-{role}", model, ec=serve.example(
        f"ec_{role}", shared)) for role, model in (("producer", "right/m"),
                                                   ("consumer", "wrong/m"))]
    for x in (base, producer, consumer, *theirs):
        x.wait()
    ours = {"mmx, pictures sent on": Router(producer.url, consumer.url),
            "mmx, references sent on": Router(producer.url, consumer.url,
                                              references=True)}
    routers = {"example, pictures sent on": Router(*(x.url for x in theirs)),
               **ours}
    async with session() as s:
        plain = Router("", "")
        body = prompt("what is ", picture(999), tokens=8)
        a, b = [answer(await plain.post(s, x.url, body, "which"))
                for x in (base, consumer)]
        t.line(a != b, "the consumer's own encoder answers otherwise")
        for n, (how, router) in enumerate(routers.items()):
            p = [picture(10 * n + i) for i in range(4)]
            for case, parts in (
                    ("text only", ["hello there"]),
                    ("one picture", ["what is ", p[0], " ?"]),
                    ("one of 320 rows", ["look: ",
                                         picture(100 + n, 560, 448)]),
                    ("three, one of them twice",
                     ["a ", p[1], " b ", p[2], "c ", p[1]]),
                    ("the first once more", ["again ", p[0]]),
                    ("a video", ["see ", video(50 + 10 * n), " ?"]),
                    ("a picture and a video",
                     ["a ", p[3], " b ", video(55 + 10 * n)])):
                await t.same(s, base, router, f"{how}: {case}",
                             prompt(*parts))
        before = d.stats()["rooms_succeeded"]
        one = ours["mmx, pictures sent on"]
        twin = picture(555)
        await asyncio.gather(*(one.chat(s, prompt(f"{i} ", twin))
                               for i in range(4)))
        moved = d.stats()["rooms_succeeded"] - before
        t.line(moved == 1, "one picture in four requests at once",
               f"moved {moved} times")
        for x in (base, producer, consumer):
            t.line(x.alive(), f"{x.name} lives")
        async with s.get(consumer.url + "/metrics") as r:
            said = [x for x in (await r.text()).splitlines()
                    if x.startswith("vllm:mmx_")]
        t.line(any("items_fetched_total" in x for x in said),
               "counters at /metrics", len(said))
    d.all_free()


async def ranks(t):
    """Two ranks a side: bytes move once, compared with once per rank."""
    fields = ROWS
    e, d = t.pair(fields, n="tp")
    shared = os.path.join(t.folder, "example-tp")
    shutil.rmtree(shared, ignore_errors=True)
    made = [t.engine("tp-unsplit", "right/m", *TP2, env=PROCESSES)]
    for kind, p, c in (
            ("mmx", serve.mmx("ec_producer", e, "tp-p", timed=True),
             serve.mmx("ec_consumer", d, "tp-c", timed=True)),
            ("example", serve.example("ec_producer", shared),
             serve.example("ec_consumer", shared))):
        made.append(t.engine(f"tp-{kind}-producer", "right/m", *TP2, ec=p,
                             env=PROCESSES))
        made.append(t.engine(f"tp-{kind}-consumer", "wrong/m", *TP2, ec=c,
                             env=PROCESSES))
        for x in made[-3:]:
            x.wait()
    async with session() as s:
        for n, kind in enumerate(("mmx", "example")):
            router = Router(made[1 + 2 * n].url, made[2 + 2 * n].url,
                            references=kind == "mmx")
            p = [picture(700 + 10 * n + i, 448, 448) for i in range(3)]
            before = d.stats()
            for case, parts in (("one", [p[0]]),
                                ("two, one twice", [p[1], "b", p[2], p[1]])):
                await t.same(s, made[0], router, f"TP 2, {kind}: {case}",
                             prompt("tp ", *parts))
            rooms, size = (d.stats()[x] - before[x] for x in
                           ("rooms_succeeded", "bytes_moved"))
            if kind == "mmx":
                t.line(rooms == 3, "TP 2, mmx: rows moved to the host",
                       f"{size} bytes, once: {rooms} rooms for 3 pictures")
        size = sum(os.path.getsize(os.path.join(at, name))
                   for at, _, names in os.walk(shared) for name in names)
        t.line(True, "TP 2, example: read by each of two ranks",
               f"2 times {size} bytes")
    d.all_free()


async def times(t, rounds=15):
    """Rounds of both connectors in turn, one request at a time: from the
    encoder's output in the producer's cache until the consumer has read the
    rows, without the time in which the request is carried. See timed.py."""
    e, d = t.pair("embedding:bf16:2048", blocks=64, n="big")
    shared = os.path.join(t.folder, "example-times")
    shutil.rmtree(shared, ignore_errors=True)
    made = []
    for p, c in ((serve.mmx("ec_producer", e, "big-p", timed=True),
                  serve.mmx("ec_consumer", d, "big-c", timed=True)),
                 (serve.example("ec_producer", shared),
                  serve.example("ec_consumer", shared))):
        pair = [t.engine(f"time-{x['ec_connector']}-{x['ec_role']}",
                         "large/m", ec=x) for x in (p, c)]
        for x in pair:
            x.wait()
        made.append(Router(*(x.url for x in pair)))
    async with session() as s:
        for rows, w, h in ((256, 448, 448), (2070, 1288, 1260)):
            found = {"mmx": [], "vLLM's example": []}
            for n in range(rounds + 1):
                turns = list(zip(made, found))
                for router, kind in turns[::-1] if n % 2 else turns:
                    body = prompt("x ", picture(rows + n, w, h), tokens=1)
                    t.transfer()
                    began = time.monotonic()
                    await router.chat(s, body)
                    ttft = (time.monotonic() - began) * 1e3
                    if n:  # the first one warms up
                        took = t.transfer()
                        found[kind].append((*took, took[0] + took[2], ttft))
            t.compared(f"{rows * 4096 / 1e6:.1f} MB", found)
    x = t.engine("time-ECCPUConnector", "large/m", env={
        "VLLM_USE_V2_MODEL_RUNNER": "1"}, ec={
            "ec_connector": "ECCPUConnector", "ec_role": "ec_producer"})
    try:
        x.wait()
        t.line(True, "vLLM's connectors for CPU memory and NIXL", "run here")
    except SystemExit:
        t.line(True, "vLLM's connectors for CPU memory and NIXL do not run",
               *(re.sub(r" \[type=.*", "", said).strip()
                 for said in x.said("Value error", "Error: ")[-1:]))


async def main(folder, parts):
    return await Table(folder, ROWS).play("vllm", {
        "truth": truth, "cases": cases.run, "tp": ranks, "time": times,
        "large": large.run, "lend": lend.run, "readme": readme.run}, parts)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
