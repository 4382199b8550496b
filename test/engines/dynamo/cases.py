"""Faults in a fleet of Dynamo's whose rows go by mmx. With each fault every
answer equals the unsplit server's, every request ends, and no block is
lost."""

import asyncio
import collections
import contextlib
import time

from fleet import DEADLINE_S, MODEL, Fleet, ask
from servers import picture

FIELDS = "embedding:bf16:128"
LANGD_BLOCKS, BLOCK_ROWS = 16, 128
# for a request: Dynamo's own time comes on top, on a slow machine
LATEST_S = DEADLINE_S + 7
FORGOTTEN_S = 12  # until Dynamo's frontend and router forget a killed worker
UP_S = 240  # limit for the start of a worker
AGAIN_S = 60  # limit until all is well again
P = [picture(i) for i in range(20)]
BODIES = {
    "text only": ["hello there"],
    "one picture": ["what is ", P[0], " ?"],
    "one of 320 rows": ["look: ", picture(100, 560, 448)],
    "two": ["a ", P[4], " b ", P[5]],
    "three, one of them twice": ["a ", P[1], " b ", P[2], "c ", P[1]],
    "the first once more": ["again ", P[0]],
    **{f"picture {i}": [f"n {i} ", P[i]] for i in range(10, 14)}}
PICTURES = [k for k in BODIES if k != "text only"]


class Load:
    """Requests, some at once, and how they ended."""

    def __init__(self, fleet, want, count, width=4):
        self.fleet, self.want = fleet, want
        self.keys = [PICTURES[i % len(PICTURES)] for i in range(count)]
        self.gate = asyncio.Semaphore(width)
        self.ended, self.slowest = collections.Counter(), 0
        self.task = asyncio.gather(*map(self.one, self.keys))

    async def one(self, key):
        async with self.gate:
            began = time.monotonic()
            got = await ask(self.fleet, *BODIES[key])
            self.slowest = max(self.slowest, time.monotonic() - began)
        self.ended["right" if got == self.want[key] else
                   "otherwise" if isinstance(got, list) else
                   " ".join(got.split()[:2])] += 1

    async def answered(self, count):
        while self.ended.total() < count:
            await asyncio.sleep(0.01)

    async def done(self):
        await self.task
        return self

    @property
    def right(self):
        return self.ended["right"] == len(self.keys)

    @property
    def well(self):
        """True if every request that has no right answer failed in time."""
        return not self.ended["otherwise"] and self.slowest < LATEST_S

    def __str__(self):
        return f"{total([self])}; the slowest {self.slowest:.2f} s"


def total(loads):
    """Returns a text: the number of requests, and how many ended in each
    way."""
    ended = sum((x.ended for x in loads), collections.Counter())
    return f"{ended.total()} requests: " + ", ".join(
        f"{n} {how}" for how, n in sorted(ended.items()))


async def unsplit(t):
    """Returns the unsplit server's answers, and an answer of one with the
    prefill worker's encoder."""
    fleet = Fleet(t, "unsplit")
    for model in ("right", "wrong"):
        fleet.language(model, model=model, served=model,
                       env={"DYN_NAMESPACE": model})
    fleet.serves("right", "wrong")
    want = {k: await ask(fleet, *b, model="right") for k, b in BODIES.items()}
    wrong = await ask(fleet, *BODIES["one picture"], model="wrong")
    fleet.end()
    return want, wrong


class Cases:
    def __init__(self, t, want):
        self.t, self.want, self.fleet = t, want, Fleet(t, "mmx")
        self.d = t.world.langd(
            [], fields=FIELDS, blocks=LANGD_BLOCKS, block_rows=BLOCK_ROWS,
            default_blocks=1, control={"allow": ["key"]})
        self.daemons, self.workers = [self.d], []
        for _ in range(2):
            self.encode()
        self.prefill = self.language()

    def encode(self):
        """Starts an encode worker and its daemon; no other daemon is told of
        them."""
        n = len(self.workers)
        e = self.t.world.encoded(f"enc{n}", fields=FIELDS)
        self.daemons.append(e)
        self.workers.append(self.fleet.encode(
            f"encode{n}", env={"MMX_ENCODED_SOCKET": e.socket}))

    def language(self, name="prefill"):
        return self.fleet.prefill(name, env={"MMX_LANGD_SOCKET":
                                             self.d.socket})

    def load(self, *words, **more):
        return Load(self.fleet, self.want, *words, **more)

    def free(self, limit=2 * DEADLINE_S):
        """Returns the seconds until all blocks are free."""
        began = time.monotonic()
        for daemon in self.daemons:
            daemon.all_free(limit)
        return time.monotonic() - began

    async def again(self, case, steady=0):
        """Asks until all answers have been right for some time; returns the
        seconds."""
        began = failed = time.monotonic()
        tries = []
        while not (tries and tries[-1].right and
                   time.monotonic() - failed >= steady) and \
                time.monotonic() - began < AGAIN_S:
            tries.append(await self.load(8).done())
            if not tries[-1].right:
                failed = time.monotonic()
        self.t.line(tries[-1].right and all(x.well for x in tries),
                    f"{case}: right again",
                    f"after {failed - began:.1f} s; {total(tries)}; blocks "
                    f"free after {self.free():.1f} s more")

    def kill(self, worker):
        worker.end()
        self.fleet.all.remove(worker)

    async def truth(self):
        self.fleet.serves(MODEL)
        for case, body in BODIES.items():
            got = await ask(self.fleet, *body)
            self.t.line(got == self.want[case], case,
                        "tokens and log-probabilities equal"
                        if got == self.want[case] else got)
        got = await self.load(len(PICTURES), width=1).done()
        self.t.line(got.right, "all of them once more", got)
        rooms = [e.stats()["rooms_succeeded"] for e in self.daemons[1:]]
        self.t.line(all(rooms), "rows came from both encode workers",
                    *rooms, "rooms")

    async def bursts(self):
        got = await self.load(80, width=8).done()
        self.t.line(got.right, "eight at once", got)

    async def killed(self):
        got = self.load(48)
        await got.answered(12)
        self.kill(self.workers[1])
        await got.done()
        self.t.line(got.well, "an encode worker killed under load", got)
        await self.again("an encode worker killed", FORGOTTEN_S)

    async def added(self):
        self.encode()
        e, rounds = self.daemons[-1], []
        end = time.monotonic() + UP_S
        while not (rounds and e.stats()["rooms_succeeded"]) and \
                time.monotonic() < end:
            rounds.append(await self.load(8).done())
            await asyncio.sleep(0.5)
        rooms = e.stats()["rooms_succeeded"]
        self.t.line(rooms and all(x.right for x in rounds),
                    "an encode worker and its daemon added under load",
                    f"{total(rounds)}; {rooms} rooms were the new one's")

    async def leave(self):
        for i in range(24):
            task = asyncio.create_task(ask(
                self.fleet, *BODIES[PICTURES[i % len(PICTURES)]], tokens=200))
            await asyncio.sleep(i % 8 * 0.008)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.again("24 clients left after 0 to 56 ms")

    async def full(self):
        for side, rows in (("mmx-encoded's", 64 * BLOCK_ROWS),
                           ("mmx-langd's", LANGD_BLOCKS * BLOCK_ROWS)):
            e = self.daemons[1]
            enc, lm = (self.t.world.engine(x) for x in (e, self.d))
            enc.announce(1, rows, rows)
            enc.granted(1)
            if side == "mmx-langd's":
                enc.finish(1, 0, rows)
                lm.request(1, e.address)
                lm.ready(1)
            pool = (self.d if side == "mmx-langd's" else e).free()
            got = self.load(12)
            await asyncio.sleep(2)
            before = got.ended.total()
            for engine in (lm, enc):
                engine.close()
                self.t.world.engines.remove(engine)
            await got.done()
            self.t.line(pool[0] == 0 and got.right and before < 12,
                        f"{side} pool full for 2 s", got,
                        f"({before} of them before)")
        await self.again("full pools")

    async def hung(self):
        for daemon, name in ((self.daemons[1], "one mmx-encoded"),
                             (self.d, "mmx-langd")):
            with daemon.stopped():
                got = await self.load(8, width=8).done()
            self.t.line(got.well and not got.right, f"{name} hung", got)
            await self.again(f"{name} hung")

    async def daemons_killed(self):
        for daemon, name in ((self.daemons[1], "an mmx-encoded"),
                             (self.d, "mmx-langd")):
            got = self.load(48)
            await got.answered(12)
            daemon.kill()
            await asyncio.sleep(1)
            daemon.start()
            await got.done()
            self.t.line(got.right, f"{name} killed under load, back after "
                        "1 s", got)
        await self.again("daemons killed")

    async def prefill_killed(self):
        got = self.load(16)
        await got.answered(4)
        self.kill(self.prefill)
        await got.done()
        self.t.line(got.well, "the prefill worker killed under load", got,
                    f"blocks free after {self.free():.1f} s")
        self.prefill = self.language("prefill2")
        end = time.monotonic() + UP_S
        while isinstance(await ask(self.fleet, *BODIES["text only"]), str) \
                and self.prefill.alive() and time.monotonic() < end:
            await asyncio.sleep(1)
        await self.again("another prefill worker")

    def alive(self):
        for n, worker in enumerate(self.workers):
            if n != 1:
                self.t.line(worker.alive(), f"{worker.name} lives")
        self.t.line(self.prefill.alive(), f"{self.prefill.name} lives")


async def run(t):
    want, wrong = await unsplit(t)
    t.line(isinstance(wrong, list) and wrong != want["one picture"],
           "the prefill worker's own encoder answers otherwise")
    c = Cases(t, want)
    for case in (c.truth, c.bursts, c.killed, c.added, c.leave, c.full,
                 c.hung, c.daemons_killed, c.prefill_killed):
        await case()
    c.alive()
    c.fleet.end()
