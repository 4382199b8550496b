"""Where the time from an item's last commit until SGLang's scheduler has its
rows goes, with `same_host: copy` beside `auto`, which lends (RULES 6.7): two
pairs of servers over one mmx-encoded, in turn, each language server with an
mmx-langd of its own; the others are stopped meanwhile, since SGLang's
schedulers never sleep.

"saved": from the encoder's output to the last commit; "daemons": from there to
READY, both by the daemons' clocks; "taken": until the scheduler has all rows of
the request. On a CPU rows are read in place: there is no gather."""

import signal
import time

from marks import taken
from serve import ask, halt, prompt
from servers import LENT, picture

ITEMS = ((64, 224, 224), (2070, 1288, 1260))  # rows, width, height
ROUNDS, WARM = 9, 8


def newest(daemon):
    """Returns the row of the room that ended last."""
    return max((r for r in daemon.show("rooms") if r.get("ended")),
               key=lambda r: r["opened_ns"])


async def run(t):
    e, langds = t.lenders("embedding:bf16:2048", 64, "lend")
    made = {how: t.split(f"lend-{how}", "mmx", "large", (e, d))
            for how, d in langds.items()}
    for encoders, language in made.values():
        for x in (*encoders, language):
            x.wait()

    def one(how, seed, w, h):
        """Returns (how the rows came, ms of each part)."""
        text, *pictures = prompt("x ", picture(seed, w, h))
        for _ in range(5):
            taken()
            halt(made, how)
            status, said, _ = ask(made[how][1].url, text, *pictures, tokens=1)
            m = next((m for m in taken(last={"encoded"}).values()
                      if {"encoded", "usable"} <= set(m)), None)
            if m:
                break
            time.sleep(10)  # a health check found the encoder stopped
        else:
            raise SystemExit(f"engines: {how}: {status} {said}")
        there, here = newest(e), newest(langds[how])
        ready = here["opened_ns"] + here["done_us"] * 1000
        commit = there["opened_ns"] + there["committed_us"] * 1000
        return "copied" if here["blocks"] else "lent", [x / 1e6 for x in (
            commit - m["encoded"], ready - commit, m["usable"] - ready,
            m["usable"] - commit)]

    for rows, w, h in ITEMS:
        found, seed = {how: [] for how in LENT}, rows * 1000
        for how in LENT:
            for _ in range(WARM):
                seed += 1
                if one(how, seed, w, h)[0] == how:
                    break
        for n in range(ROUNDS):
            for how in LENT[::-1] if n % 2 else LENT:
                seed += 1
                came, ms = one(how, seed, w, h)
                if came != how:
                    t.line(False, f"{rows} rows, {how}", f"are {came}")
                found[how].append(ms)
        t.lending(f"{rows * 4096 / 1e6:.2f} MB", found,
                  "daemons {1:.2f}, taken {2:.2f} (saved in {0:.1f} before)")
    halt(made, None)
    for encoders, language in made.values():
        for x in (*encoders, language):
            x.signal(signal.SIGCONT)
