"""A fleet of Dynamo's SGLang workers whose rows go by mmx, on a CPU: The
frontend asks an encode worker, and this one asks the worker that prefills and
decodes. That worker gets rows in place of pictures, and has another encoder.
Dynamo passes no log-probabilities on from these workers, so only tokens are
compared, with those of an unsplit worker. Dynamo's encode worker refuses a
request without pictures."""

import asyncio
import contextlib
import os
import time

import aiohttp
from cases import FORGOTTEN_S
from fleet import DEADLINE_S, LIMIT_S, OURS, Fleet
from servers import HERE, SGLANG_ENV, SGLANG_FLAGS, picture

FIELDS = "embedding:bf16:128"
SGLANG = os.path.join(HERE, "sglang")
ENV = {**SGLANG_ENV, "PYTHONPATH": f"{SGLANG}/stand_in:{OURS}"}
FLAGS = (*SGLANG_FLAGS, "--chat-template", "qwen2-vl", "--disable-radix-cache")
P = [picture(i) for i in range(6)]
BODIES = {"one picture": ["what is ", P[0], " ?"],
          "another one": ["what is ", P[3], " ?"],
          "one of 320 rows": ["look: ", picture(100, 560, 448)],
          "two": ["a ", P[4], " b ", P[5]],
          "three, one of them twice": ["a ", P[1], " b ", P[2], "c ", P[1]],
          "the first once more": ["what is ", P[0], " ?"]}


class Workers(Fleet):
    """A frontend and workers, of the environment that has SGLang. Each of the
    models that it serves has workers of its own."""

    def __init__(self, t):
        super().__init__(t, "sglang", at=os.path.join(t.folder, "sglang"))

    def worker(self, served, name, model, *words, env=None):
        """served: the name of the model; "mmx" is served by several."""
        program = ("mmx.adapters.dynamo", "sglang") if served == "mmx" else \
            ("dynamo.sglang",)
        return self.start(
            f"{served}-{name}", "-m", *program, "--model-path",
            os.path.join(self.t.folder, "sglang", model),
            "--served-model-name", served, *FLAGS, *words,
            env={**ENV, "DYN_NAMESPACE": served, **(env or {})})

    def split(self, encoded, langd):
        """Returns an encode worker for each daemon, and one that prefills and
        decodes."""
        how = ("--embedding-transfer-mode", "mmx", "--disaggregation-mode")
        made = [self.worker("mmx", e.name, "right", *how, "encode",
                            env={"MMX_ENCODED_SOCKET": e.socket})
                for e in encoded]
        return [*made, self.worker(
            "mmx", "language", "wrong", *how, "pd", "--dedicated-mm-encoder",
            env={"MMX_LANGD_SOCKET": langd.socket})]


async def ask(fleet, model, body, tokens=12):
    """Returns the tokens, or how the request ended otherwise."""
    content = [{"type": "image_url", "image_url": {"url": p}}
               if p.startswith("data:") else {"type": "text", "text": p}
               for p in body]
    limit = aiohttp.ClientTimeout(LIMIT_S)
    async with aiohttp.ClientSession(timeout=limit) as s, s.post(
            fleet.frontend.url + "/v1/chat/completions", json={
                "model": model, "max_tokens": tokens, "temperature": 0,
                "nvext": {"extra_fields": ["completion_token_ids"]},
                "messages": [{"role": "user", "content": content}]}) as r:
        if r.status != 200:
            return r.status, (await r.text())[:300]
        return (await r.json())["nvext"]["completion_token_ids"]


async def run(t):
    encoded = [t.world.encoded(f"encs{i}", fields=FIELDS) for i in range(2)]
    d = t.world.langd([], "langs", fields=FIELDS, control={"allow": ["key"]})
    fleet = Workers(t)
    fleet.worker("unsplit", "right", "right")
    ours = fleet.split(encoded, d)
    fleet.serves("unsplit", "mmx")
    want = {k: await ask(fleet, "unsplit", b) for k, b in BODIES.items()}
    t.line(want["one picture"] != want["another one"],
           "answers differ by their pictures")

    def line(got, case, name):
        t.line(got == want[name], case,
               "tokens equal" if got == want[name] else got)

    async def twice():
        """Asks both encode workers, which take turns."""
        return await asyncio.gather(*(ask(fleet, "mmx", BODIES["two"])
                                      for _ in range(2)))
    for case, body in BODIES.items():
        line(await ask(fleet, "mmx", body), case, case)
    rooms = [x.stats()["rooms_succeeded"] for x in encoded]
    t.line(all(rooms) and sum(rooms) == len(BODIES),
           "rows came from both encode workers", *rooms, "rooms")
    got = await asyncio.gather(*(ask(fleet, "mmx", b)
                                 for _ in range(2) for b in BODIES.values()))
    equal = sum(g == w for g, w in zip(got, 2 * list(want.values())))
    # Some answers may differ, as SGLang's own do with the batch.
    t.line(all(isinstance(g, list) for g in got) and equal > len(got) // 2,
           "all of them at once, twice", f"{equal} of {len(got)} equal")
    began = time.monotonic()
    with encoded[0].stopped():
        got = sorted(await twice(), key=str)
    t.line(isinstance(got[0], tuple) and got[1] == want["two"] and
           time.monotonic() - began < DEADLINE_S + 7, "one mmx-encoded hung",
           f"HTTP {got[0][0]} after {time.monotonic() - began:.1f} s, and "
           "tokens equal")
    for daemon in (*encoded, d):
        daemon.kill()
        daemon.start()
        for got in await twice():
            line(got, f"{daemon.name} killed, and started again", "two")
    for i in range(16):
        task = asyncio.create_task(ask(fleet, "mmx", BODIES["two"], tokens=200))
        await asyncio.sleep(i % 8 * 0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for got in await twice():
        line(got, "16 clients left after 0 to 140 ms", "two")
    for daemon in (*encoded, d):
        daemon.all_free(2 * DEADLINE_S)
    asked = [asyncio.create_task(ask(fleet, "mmx", BODIES["two"]))
             for _ in range(8)]
    await asyncio.sleep(0.02)
    fleet.all.remove(ours[0])
    ours.pop(0).end()
    began, ended = time.monotonic(), await asyncio.gather(*asked)
    right = ended.count(want["two"])
    t.line(all(g == want["two"] or isinstance(g, tuple) for g in ended) and
           right and time.monotonic() - began < DEADLINE_S + 7,
           "an encode worker killed under load", f"{right} of 8 equal, others",
           *sorted({f"HTTP {g[0]}" for g in ended if isinstance(g, tuple)}))
    await asyncio.sleep(FORGOTTEN_S)
    for got in await twice():
        line(got, "when it is forgotten", "two")
    for worker in ours:
        t.line(worker.alive(), f"{worker.name} lives")
    for daemon in (*encoded, d):
        daemon.all_free(2 * DEADLINE_S)
    fleet.end()
