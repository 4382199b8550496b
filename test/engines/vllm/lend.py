"""Where the time from an item's last commit until its rows are usable goes,
with `same_host: copy` beside `auto`, which lends (RULES 6.7): one producer, two
consumers, each with an mmx-langd of its own, in turn.

In vLLM all rows are committed before the consumer hears of the request. What
follows: "daemons", from langd's REQUEST to READY by its own clock, beside
vLLM's preprocessing where the room is asked for ahead; "steps", vLLM's, from
the scheduler's first look at the request, or READY if that is later, until the
worker loads; "gather", until each page of the rows in vLLM's cache has been
read once. Items larger than a prompt takes go through the connectors' own code
in one process (large.py)."""

import large
import serve
from large import WIDTH, touch
from marks import taken
from router import Router, session
from servers import LENT, picture

ITEMS = ((64, 224, 224), (2070, 1288, 1260))  # rows, width, height
SIZES = 0.262144, 8.5, 100, 535  # MB, without engines
ROUNDS, WARM = 15, 12
FIELDS = f"embedding:bf16:{WIDTH}"


def parts(langd):
    """Returns (how the rows of the last room came, ms of each part)."""
    row = max((r for r in langd.show("rooms") if r.get("ended")),
              key=lambda r: r["opened_ns"])
    m = next(m for m in taken().values() if "usable" in m)
    ready = row["opened_ns"] + row["done_us"] * 1000
    ms = [x / 1e6 for x in (
        ready - row["opened_ns"], m["asked"] - row["opened_ns"],
        m["loads"] - max(m["asked"], ready), m["usable"] - m["loads"])]
    return "copied" if row["blocks"] else "lent", ms


async def in_vllm(t):
    e, langds = t.lenders(FIELDS, 64, "lend")
    producer = t.engine("lend-producer", "large/m", ec=serve.mmx(
        "ec_producer", e, "lend-p", timed=True))
    consumers = {how: t.engine(f"lend-{how}", "large/m", ec=serve.mmx(
        "ec_consumer", d, f"lend-c-{how}", timed=True))
        for how, d in langds.items()}
    for x in (producer, *consumers.values()):
        x.wait()
    routers = {how: Router(producer.url, x.url)
               for how, x in consumers.items()}
    async with session() as s:
        async def one(how, seed, w, h):
            taken()
            await routers[how].chat(s, serve.prompt(
                "x ", picture(seed, w, h), tokens=1))
            return parts(langds[how])

        for rows, w, h in ITEMS:
            found = {how: [] for how in LENT}
            seed = rows * 1000
            for how in LENT:
                for _ in range(WARM):
                    seed += 1
                    if (await one(how, seed, w, h))[0] == how:
                        break
            for n in range(ROUNDS):
                for how in LENT[::-1] if n % 2 else LENT:
                    seed += 1
                    came, ms = await one(how, seed, w, h)
                    if came != how:
                        t.line(False, f"{rows} rows, {how}", f"are {came}")
                    found[how].append((*ms, sum(ms) - ms[1]))
            t.lending(f"vLLM, {rows * 2 * WIDTH / 1e6:.2f} MB", found,
                      "daemons {0:.2f} (beside {1:.1f} of preprocessing), "
                      "steps {2:.2f}, gather {3:.2f}")
    for d in langds.values():
        d.all_free()


async def without(t):
    import torch

    torch.set_num_threads(1)
    largest = int(SIZES[-1] * 1e6) // (2 * WIDTH)
    e, langds = t.lenders(FIELDS, -(-largest // 128) + 8, "huge")
    ways = {}
    for how, d in langds.items():
        ways[how] = large.Mmx(e, d, next(iter(ways.values())).producer
                              if ways else None)
    for size in SIZES:
        count = int(size * 1e6) // (2 * WIDTH)
        rows = torch.randint(-2**15, 2**15, (count, WIDTH),
                             dtype=torch.int16).view(torch.bfloat16)
        bits = rows.view(torch.int16)
        touch(rows)
        found, number = {how: [] for how in LENT}, 0

        def move(how):
            nonlocal number
            number += 1
            before = langds[how].stats()["rooms_lent"]
            got, took = ways[how].move(f"{size:g}-{number}", rows)
            lent = langds[how].stats()["rooms_lent"] > before
            if not torch.equal(got.view(torch.int16), bits):
                t.line(False, f"{size:g} MB, {how}: other rows")
            return lent == (how == "lent"), (*took, sum(took[1:]))

        for how in LENT:
            for _ in range(WARM):
                if move(how)[0]:
                    break
        for n in range(ROUNDS):
            for how in LENT[::-1] if n % 2 else LENT:
                right, took = move(how)
                if not right:
                    t.line(False, f"{size:g} MB are not {how}")
                found[how].append(took)
        t.lending(f"connectors, {size:.2f} MB", found,
                  "shown in {1:.2f}, gather {2:.2f} (saved in {0:.1f} before)")
    for way in ways.values():
        way.consumer.close()
    way.producer.close()


async def run(t):
    await in_vllm(t)
    await without(t)
