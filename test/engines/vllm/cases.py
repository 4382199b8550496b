"""Faults of a request in the real engines: items larger than the prefill
budget, preemption, clients that leave or lie, daemons and engines that die.
With each fault the engines go on, and no block is lost."""

import asyncio
import contextlib
import time

import aiohttp
import serve  # adds the folder of the imports below

import mmx
from router import HTTPError, Router, session
from serve import answer, compare, prompt
from servers import picture

SMALL = ("--max-num-batched-tokens", "64", "--max-num-seqs", "8",
         "--num-gpu-blocks-override", "40", "--max-model-len", "1216")
PATIENCE_S, DEADLINE_S = 3, 8
LATEST_S = DEADLINE_S + 4  # the adapter's 1 s and vLLM's own time come on top
LIES = (("an entry of text", lambda p: "room"),
        ("an entry of a list", lambda p: [1]),
        ("a room of text", lambda p: {**p, "room": "x"}),
        ("no rows", lambda p: {"encoder": p["encoder"], "room": p["room"]}),
        ("other rows", lambda p: {**p, "rows": p["rows"] + 1}),
        ("a room beyond 64 bits", lambda p: {**p, "room": f"{1 << 70:x}"}),
        ("a long encoder", lambda p: {**p, "encoder": "e" * 5000}),
        ("an unknown room", lambda p: {**p, "room": f"{4711:016x}"}),
        ("an encoder that is not allowed",
         lambda p: {**p, "encoder": "tcp://192.0.2.1:7"}),
        ("an encoder that is not there",
         lambda p: {**p, "encoder": "tcp://127.0.0.1:1"}))


class Given(Router):
    """Sends changed params."""

    change = staticmethod(lambda p: p)

    async def encode(self, session_, body, name, params=None):
        sizes, params = await super().encode(session_, body, name)
        return sizes, {h: self.change(p) for h, p in params.items()}


async def ends(s, router, body, limit=60):
    """Returns how a request ended (its answer, or a text), and after how many
    seconds."""
    began = time.monotonic()
    try:
        got = answer(await asyncio.wait_for(router.chat(s, body), limit))
    except HTTPError as x:
        got = f"HTTP {x.status}"
    except asyncio.TimeoutError:
        got = "NOT ENDED"
    except aiohttp.ClientError as x:
        got = f"{type(x).__name__}"
    return got, time.monotonic() - began


def kind(got, right):
    return got if isinstance(got, str) else \
        "the producer's rows" if got == right else "encoded here"


async def metric(s, engine, name):
    async with s.get(engine.url + "/metrics") as r:
        return sum(float(x.split()[-1]) for x in
                   (await r.text()).splitlines() if x.startswith(name))


class Cases:
    def __init__(self, t, daemons, engines):
        self.t, (self.e, self.d) = t, daemons
        self.base, self.producer, self.consumer = engines
        self.plain = Router("", "")

    async def unsplit(self, s, body):
        return answer(await self.plain.post(s, self.base.url, body, "u"))

    def router(self, kind_=Router, encoders="", **how):
        return kind_(encoders or self.producer.url, self.consumer.url, **how)

    async def well(self, s, case, seed, **how):
        body = prompt("well ", picture(seed, 224, 224), tokens=8)
        got, took = await ends(s, self.router(**how), body)
        right = await self.unsplit(s, body)
        self.t.line(got == right, case, kind(got, right), f"{took:.2f} s")

    async def budget(self, s):
        for w, h in ((224, 224), (560, 448), (784, 784)):
            await self.t.same(
                s, self.base, self.router(),
                f"{w * h // 784} rows, budget of 64 tokens",
                prompt("look: ", picture(w, w, h), " ?"))
        bodies = [prompt("n", picture(40 + i, 448, 336), f"{i}", tokens=100)
                  for i in range(6)]
        want = [await self.unsplit(s, b) for b in bodies]
        got = await asyncio.gather(*(self.router().chat(s, b)
                                     for b in bodies))
        equal = sum(compare(w, answer(g))[0] for w, g in zip(want, got))
        count = await metric(s, self.consumer, "vllm:num_preemptions_total")
        # One answer may differ, as vLLM's own do from run to run.
        self.t.line(equal >= len(bodies) - 1, "six at once, KV for 1,280 "
                    "tokens", f"{equal} of 6 equal, {count:.0f} preemptions")

    async def leave(self, s):
        for i in range(12):
            task = asyncio.create_task(self.router().chat(s, prompt(
                "x", picture(100 + i, 448, 448), tokens=400)))
            await asyncio.sleep(0.08 * i)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, HTTPError):
                await task
        await self.well(s, "after 12 clients that left", 1200)
        self.d.all_free()
        self.t.line(True, "blocks of clients that left are free")

    async def withdrawn(self, s):
        """A client leaves after the encode, before the decoder has the
        request."""
        for n, daemon in enumerate((self.d, self.e)):
            with mmx.connect(daemon.role, daemon.socket,
                             name="router") as conn:
                router = self.router(daemon=conn)
                body = prompt("w", picture(1250 + n, 224, 224))

                async def post(session_, url, body_, name, router=router):
                    if url == self.consumer.url:
                        raise asyncio.CancelledError
                    return await Router.post(router, session_, url, body_,
                                             name)
                router.post = post
                with contextlib.suppress(asyncio.CancelledError):
                    await router.chat(s, body)
                rooms = [int(p["room"][:16], 16)
                         for p in router.params.values()]
                row = self.e.ended(rooms[0])
            self.t.line(row["reason"] == "declined", "a router withdraws by "
                        f"{daemon.role} what no decoder will ask for",
                        row["reason"])

    async def lies(self, s):
        for references in (False, True):
            for n, (name, change) in enumerate(LIES):
                router = self.router(Given, references=references)
                router.change = change
                body = prompt("x", picture(7000 + n + 50 * references),
                              tokens=4)
                right = await self.unsplit(s, body)
                got, took = await ends(s, router, body)
                good = got == "HTTP 500" if references else \
                    not isinstance(got, str)
                self.t.line(
                    good and took < LATEST_S and self.consumer.alive(),
                    f"{'reference' if references else 'picture'}, {name}",
                    kind(got, right), f"{took:.2f} s")
        await self.well(s, "after lies", 1300)
        await self.well(s, "after lies, by reference", 1301, references=True)

    async def deaths(self, s):
        body = prompt("k", picture(820, 224, 224), tokens=4)
        right = await self.unsplit(s, body)
        for references in (False, True):
            # Between encode and decode.
            router = self.router(references=references)
            sizes, params = await router.encode(s, body, "k")
            self.e.kill()
            router.encode = lambda *_: asyncio.sleep(0, (sizes, params))
            got, took = await ends(s, router, body)
            good = got == "HTTP 500" if references else \
                not isinstance(got, str)
            self.t.line(good and took < LATEST_S,
                        "encoded killed with the rows in it, "
                        f"{'reference' if references else 'picture'}",
                        kind(got, right), f"{took:.2f} s")
            self.e.start()
            await self.well(s, "encoded is back", 830 + references, again=1)
        self.d.kill()
        task = asyncio.create_task(ends(s, self.router(), prompt(
            "m", picture(840, 224, 224), tokens=4)))
        await asyncio.sleep(1)
        self.d.start()
        got, took = await task
        self.t.line(not isinstance(got, str), "langd away during a request",
                    kind(got, right), f"{took:.2f} s")
        await self.well(s, "langd is back", 841)

    async def producer_dies(self, s):
        """The producer dies after its answer: the daemon has the rows."""
        encoded = []
        for references in (False, True):
            router = self.router(references=references)
            body = prompt("p", picture(850 + references, 224, 224), tokens=4)
            said = await router.encode(s, body, "p")
            encoded.append((router, body, said, await self.unsplit(s, body)))
        self.producer.end()
        ended = self.producer.url
        for router, body, said, right in encoded:
            router.encode = lambda *_, said=said: asyncio.sleep(0, said)
            got, took = await ends(s, router, body)
            self.t.line(got == right and self.consumer.alive(),
                        "producer killed after its answer, " +
                        ("reference" if router.references else "picture"),
                        kind(got, right), f"{took:.2f} s")
        self.producer = self.t.engine(
            "case-producer-2", "right/m", ec=serve.mmx(
                "ec_producer", self.e, "case-p2", timed=True)).wait()
        await self.well(s, "another producer", 860)
        for n, how in enumerate(("picture", "reference")):
            await self.well(s, f"two producers, one has ended, {how}",
                            861 + n, references=bool(n), again=1,
                            encoders=f"{ended} {self.producer.url}")


async def another_dtype(t, daemons):
    """The engines use float32, the pool has bf16."""
    e, d = daemons
    more = ("--dtype", "float32")
    made = [t.engine("f32-unsplit", "right/m", *more),
            t.engine("f32-producer", "right/m", *more,
                     ec=serve.mmx("ec_producer", e, "f32-p")),
            t.engine("f32-consumer", "right/m", *more,
                     ec=serve.mmx("ec_consumer", d, "f32-c"))]
    for x in made:
        x.wait()
    async with session() as s:
        body = prompt("f ", picture(901, 224, 224), tokens=8)
        right = answer(await Router("", "").post(s, made[0].url, body, "u"))
        got, took = await ends(s, Router(made[1].url, made[2].url), body)
    told = made[1].said("mmx is not used")
    t.line(got == right and all(x.alive() for x in made) and told,
           "float32 engines, pool of bf16", "encoded here, engines live",
           f"{took:.2f} s")
    print("    ", told[-1][-150:] if told else "no line in the log")
    for x in made:
        x.end()


async def run(t):
    daemons = t.pair(n="case")
    e, d = daemons
    engines = [
        t.engine("case-unsplit", "right/m", *SMALL),
        t.engine("case-producer", "right/m",
                 ec=serve.mmx("ec_producer", e, "case-p", timed=True,
                              mmx_deadline_s=DEADLINE_S)),
        t.engine("case-consumer", "wrong/m", *SMALL,
                 ec=serve.mmx("ec_consumer", d, "case-c", timed=True,
                              mmx_deadline_s=DEADLINE_S,
                              mmx_patience_s=PATIENCE_S))]
    for x in engines:
        x.wait()
    c = Cases(t, daemons, engines)
    async with session() as s:
        for part in (c.budget, c.leave, c.withdrawn, c.lies, c.deaths,
                     c.producer_dies):
            await part(s)
        for x in (c.base, c.producer, c.consumer):
            t.line(x.alive(), f"{x.name} lives")
            x.end()
    d.all_free()
    await another_dtype(t, daemons)
