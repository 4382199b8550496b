"""How long the rows of one picture take in a fleet of Dynamo's, over mmx and
over its mode local, in turn: two fleets behind one frontend."""

import os
import statistics
import time

from fleet import Fleet, ask
from marks import taken
from servers import picture

ROUNDS = 9
SIZES = ((256, 448, 448), (2070, 1288, 1260))
MODES = ("mmx", "local")


def transfer():
    """Returns the ms that the last request's rows took: into the transfer,
    out of it, and between the two, when Dynamo's answer is on its way."""
    m = taken().get("tensor", {})
    at = [m[x] / 1e6 for x in ("encoded", "sent", "asked", "usable")]
    return at[1] - at[0], at[3] - at[2], at[2] - at[1]


async def run(t):
    fields = "embedding:bf16:2048"
    e = t.world.encoded("enct", fields=fields)
    d = t.world.langd([], "langt", fields=fields, default_blocks=1,
                      control={"allow": ["key"]})
    fleet = Fleet(t, "times")
    for mode in MODES:
        how = {"mode": mode, "model": "large", "served": mode, "env": {
            "DYN_NAMESPACE": mode, "MMX_ENCODED_SOCKET": e.socket,
            "MMX_LANGD_SOCKET": d.socket,
            "MMX_TIMES": os.environ["MMX_TIMES"]}}
        fleet.encode(f"{mode}-encode", **how)
        fleet.prefill(f"{mode}-prefill", **how)
    fleet.serves(*MODES)
    for rows, w, h in SIZES:
        found = {mode: [] for mode in MODES}
        for n in range(ROUNDS + 1):
            for mode in sorted(MODES, reverse=n % 2):
                body = ["x ", picture(rows + n, w, h)]
                taken()
                began = time.monotonic()
                got = await ask(fleet, *body, model=mode, tokens=1)
                took = (time.monotonic() - began) * 1e3
                if isinstance(got, str):
                    t.line(False, f"{mode}: a request", got)
                    return
                if n:  # the first one warms up
                    found[mode].append((*transfer(), took))
        size = f"{rows * 4096 / 1e6:.1f} MB"
        for mode, rounds in found.items():
            put, out, way, all_ = map(statistics.median, zip(*rounds))
            both = [x[0] + x[1] for x in rounds]
            t.line(True, f"{size}, {mode}: encoder done to rows usable",
                   f"{statistics.median(both):.1f} ms, least {min(both):.1f} "
                   f"(sent in {put:.1f}, received in {out:.1f}), and "
                   f"{way:.1f} on the answer's way; the request {all_:.0f} "
                   f"ms; {ROUNDS} rounds, load {os.getloadavg()[0]:.1f}")
    left = os.listdir(os.path.join(fleet.folder, "files"))
    t.line(True, "local leaves files", len(
        [x for x in left if "encoder_cache" in x]), "for",
        len(SIZES) * (ROUNDS + 1), "requests")
    d.all_free()
    fleet.end()
