"""Faults of a request in the real engines: clients that leave or lie, daemons
and servers that die. With each fault the servers go on, and no block is
lost."""

import asyncio
import contextlib
import os
import signal
import time

from serve import answer, ask, near, post, prompt
from servers import picture

LIES = (  # bodies for an encoder's /encode
    ("no JSON object", lambda r: [1]),
    ("no id", lambda r: {k: v for k, v in r.items() if k != "req_id"}),
    ("an id that names no secret", lambda r: {**r, "req_id": "r"}),
    ("an id with a secret of 3 digits", lambda r: {
        **r, "req_id": "r~abc_local_part_0"}),
    ("a part beyond the parts", lambda r: {**r, "part_idx": 7}),
    ("pictures that are none", lambda r: {
        **r, "mm_items": ["data:image/png;base64,AAAA"]}),
    ("no pictures", lambda r: {**r, "mm_items": []}))
DEADLINE = 5  # MMX_DEADLINE_S of the servers here
BOOTSTRAP = ([1], {}, {"url": ""}, {"url": 5}, {"url": ["x"]})


class Cases:
    def __init__(self, t):
        self.t, self.n = t, 0
        self.e, self.d = t.pair(n="case")
        self.base = t.engine("case-unsplit", "right")
        (self.encoder,), self.language = t.split(
            "case", "mmx", daemons=(self.e, self.d),
            env={"MMX_DEADLINE_S": str(DEADLINE)})
        for x in (self.base, self.encoder, self.language):
            x.wait()

    def fresh(self):
        """Returns a request that is in no cache."""
        self.n += 1
        return prompt(f"{self.n} ", picture(5000 + self.n, 224, 224))

    def well(self, case, *words):
        """The next request must be answered right, and its blocks be freed."""
        body = self.fresh()
        got = ask(self.language.url, *body)
        right = answer(got) == answer(ask(self.base.url, *body)) != []
        self.t.line(right and self.language.alive() and self.encoder.alive(),
                    case, *words, "" if right else str(got)[:200],
                    f"next answer after {got[2]:.2f} s")

    def free(self):
        """SGLang gives rows back when it has ended the request, a batch
        later."""
        for n in range(60):
            ask(self.language.url, "bye")
            with contextlib.suppress(AssertionError):
                self.d.all_free(0.5)
                self.e.all_free(0.5)
                break
            ask(self.language.url, *self.fresh())
        free = len({*self.d.free()}) == len({*self.e.free()}) == 1
        self.t.line(free, "all blocks are free at both daemons",
                    f"{self.d.free()} {self.e.free()}, {n + 1} batches later")

    def again(self, case, limit=30):
        """As well(), once restarted programs are connected."""
        end = time.monotonic() + limit
        while time.monotonic() < end and \
                ask(self.language.url, *self.fresh())[0] != 200:
            pass
        self.well(case)

    def ended(self, began, case, got, statuses):
        status, said, _ = got
        self.t.line(status in statuses and self.language.alive(), case,
                    f"HTTP {status} {time.monotonic() - began:.2f} s after",
                    str(said)[:160].replace("\n", " "))

    async def halted(self, case, statuses, ends):
        """A request waits for a stopped encoder; `ends` ends the request."""
        self.encoder.signal(signal.SIGSTOP)
        opened = self.d.stats()["rooms_opened"]
        task = asyncio.create_task(asyncio.to_thread(
            ask, self.language.url, *self.fresh()))
        while self.d.stats()["rooms_opened"] == opened and not task.done():
            await asyncio.sleep(0.05)
        began = time.monotonic()
        ends()
        self.ended(began, case, await task, statuses)

    async def leave(self):
        self.encoder.signal(signal.SIGSTOP)
        for i in range(3):
            await asyncio.to_thread(ask, self.language.url, *self.fresh(),
                                    limit=0.3 + i)
        self.d.all_free()
        self.t.line(True, "clients that left: blocks are free while the "
                    "encoder stands")
        self.encoder.signal(signal.SIGCONT)
        self.well("three clients that left")
        for i in range(8):
            await asyncio.to_thread(ask, self.language.url, *self.fresh(),
                                    tokens=400, limit=0.1 * i + 0.05)
        self.well("eight that left at other times")
        self.free()

    async def lies(self):
        request = {"mm_items": [picture(1)], "num_parts": 1, "part_idx": 0,
                   "req_id": "r~" + "ab" * 16 + "_local_part_0",
                   "modality": "IMAGE", "prefill_host": "127.0.0.1",
                   "embedding_port": None}
        for name, change in LIES:
            began = time.monotonic()
            got = await asyncio.to_thread(
                post, self.encoder.url + "/encode", change(request), 30)
            self.ended(began, f"/encode, {name}", got, range(400, 600))
        for data in BOOTSTRAP:
            got = await asyncio.to_thread(
                post, self.language.boot + "/register_encoder_url", data, 30)
            self.t.line(got[0], f"bootstrap, {data}", f"HTTP {got[0]}")
        self.well("after these have registered")
        for name, more in (("an id of 9,000 letters", {"rid": "x" * 9000}),
                           ("an id with a mark", {"rid": "a~b~c"}),
                           ("an id with part's name",
                            {"rid": "a_local_part_3"}),
                           ("what the tokenizer says", {
                               "need_wait_for_mm_inputs": True,
                               "num_items_assigned": {},
                               "encoder_urls": ["mmx:" + "ab" * 16]})):
            body = self.fresh()
            got = ask(self.language.url, *body, **more)
            self.t.line(answer(got) == answer(ask(self.base.url, *body)),
                        f"/generate, {name}", f"HTTP {got[0]}")
        began = time.monotonic()
        got = ask(self.language.url, "text", need_wait_for_mm_inputs=True,
                  num_items_assigned={}, encoder_urls=["mmx:" + "ab" * 16])
        self.ended(began, "/generate, no picture but what is said of one",
                   got, range(400, 600))
        text, p = self.fresh()
        began = time.monotonic()
        got = ask(self.language.url, text, p[:200])
        self.ended(began, "/generate, a picture that is cut", got,
                   range(400, 600))
        self.well("after what is malformed")
        self.free()

    async def deaths(self):
        def cont(*first):
            for what in first:
                what()
            self.encoder.signal(signal.SIGCONT)
        await self.halted("encoded killed under a request", range(500, 504),
                          lambda: cont(self.e.kill))
        began = time.monotonic()
        self.ended(began, "no encoded", ask(self.language.url, *self.fresh()),
                   (503,))
        self.e.start()
        self.again("encoded is back")
        await self.halted("langd killed under a request", range(500, 504),
                          lambda: cont(self.d.kill))
        began = time.monotonic()
        self.ended(began, "no langd", ask(self.language.url, *self.fresh()),
                   (503,))
        self.d.start()
        self.again("langd is back")
        await self.halted("the encoder's server killed under a request",
                          range(500, 504), self.encoder.end)
        self.free()
        self.encoder = self.t.encoder("case-encoder-2", "mmx", {
            "MMX_ENCODED_SOCKET": self.e.socket}, self.encoder.port).wait()
        self.again("another encoder's server")
        self.free()

    async def hangs(self):
        """Each daemon gets SIGSTOP, during a request and before one."""
        for name, daemon in (("encoded", self.e), ("langd", self.d)):
            def stop(*also):
                os.kill(daemon.pid, signal.SIGSTOP)
                for what in also:
                    what(signal.SIGCONT)
            began = time.monotonic()
            await self.halted(f"{name} hangs under a request",
                              range(500, 505),
                              lambda: stop(self.encoder.signal))
            self.intime(began, DEADLINE)
            os.kill(daemon.pid, signal.SIGCONT)
            self.again(f"{name} goes on")
            stop()
            began = time.monotonic()
            self.ended(began, f"{name} hangs", await asyncio.to_thread(
                ask, self.language.url, *self.fresh()), range(500, 505))
            self.intime(began, DEADLINE)
            os.kill(daemon.pid, signal.SIGCONT)
            self.again(f"{name} goes on again")
        self.free()

    def intime(self, began, deadline, slack=3):
        took = time.monotonic() - began
        self.t.line(took < deadline + slack, "and by the deadline",
                    f"{took:.1f} s, of which MMX_DEADLINE_S is {deadline}")

    async def full(self):
        """The pools have four blocks; a picture takes one."""
        e, d = daemons = self.t.pair(blocks=4, n="full",
                                     langd={"default_blocks": 1})
        made, language = self.t.split("full", "mmx", daemons=daemons)
        for x in (*made, language):
            x.wait()
        bodies = [self.fresh() for _ in range(12)]
        got = await asyncio.gather(*(asyncio.to_thread(
            ask, language.url, *b) for b in bodies))
        want = [ask(self.base.url, *b) for b in bodies]
        right = sum(near(answer(g), answer(w)) for g, w in zip(got, want))
        served = sum(g[0] == 200 for g in got)
        self.t.line(served == right == 12, "12 at once, 4 blocks",
                    f"{served} served, {right} right, the slowest in "
                    f"{max(g[2] for g in got):.1f} s")
        began = time.monotonic()
        big = prompt("big ", picture(4999, 784, 784))  # 784 rows
        self.ended(began, "a picture larger than the pool",
                   ask(language.url, *big), (413,))
        for i in range(12):
            await asyncio.to_thread(ask, language.url, *self.fresh(),
                                    limit=0.05 * i + 0.05)
        body = self.fresh()
        got = ask(language.url, *body)
        self.t.line(answer(got) == answer(ask(self.base.url, *body)) != [],
                    "12 that left, 4 blocks", f"next in {got[2]:.2f} s")
        before = d.stats()["rooms_succeeded"]
        body = self.fresh()
        await asyncio.gather(*(asyncio.to_thread(ask, language.url, *body)
                               for _ in range(4)))
        moved = d.stats()["rooms_succeeded"] - before
        self.t.line(moved == 4, "one picture in four requests at once",
                    f"moved {moved} times: a room is one request's")
        for x in (*made, language):
            x.end()
        e.all_free()
        d.all_free()

    async def narrow(self):
        """The pools have another width."""
        e, d = daemons = self.t.pair("embedding:bf16:64", n="narrow")
        made, language = self.t.split("narrow", "mmx", daemons=daemons)
        for x in (*made, language):
            x.wait()
        began = time.monotonic()
        got = ask(language.url, *self.fresh())
        self.ended(began, "a pool of another width", got, (500,))
        self.t.line("64 wide, the rows are 128" in str(got[1]) and
                    language.alive(), "and it is said")
        for x in (*made, language):
            x.end()
        e.all_free()
        d.all_free()


async def run(t):
    c = Cases(t)
    for part in (c.leave, c.lies, c.deaths, c.hangs, c.full, c.narrow):
        await part()
    for x in (c.base, c.language, c.encoder):
        t.line(x.alive(), f"{x.name} lives")
