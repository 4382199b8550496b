"""A shard that is behind its loop: the loop takes no step whose commands would
find no place, so that no row comes before its grant."""

import os
import subprocess
import sys

from pair import Case
import rawengine
import wire

CELLS = 16000
ROWS = 1900  # of a room; each row is in a run of its own
ROOMS = range(100001, 100009)


class Behind(Case):
    def scatter(self, langd, first):
        """Takes CELLS blocks and gives back every other one: of what is
        granted next each row is a run of its own."""
        s = rawengine.greeted(langd, cells=CELLS)
        self.addCleanup(s.close)
        for at in range(0, CELLS, 100):
            rawengine.call(s, b"".join(wire.REQUEST.encode(
                i, room=i + first, cell=i, tag=i + 1, rows=1, encoder="enc0")
                for i in range(at, at + 100)), 100)
        for at in range(0, CELLS, 200):
            rawengine.call(s, b"".join(wire.RELEASE.encode(
                i, cell=i, tag=i + 1, rows=wire.ALL)
                for i in range(at, at + 200, 2)), 100)
        return s

    def starve(self, pid, core):
        """Leaves next to no processor time to the shard, the only thread that
        is bound to this core."""
        for tid in map(int, os.listdir(f"/proc/{pid}/task")):
            if os.sched_getaffinity(tid) == {core}:
                os.setpriority(os.PRIO_PROCESS, tid, 19)
        spin = subprocess.Popen(
            [sys.executable, "-c",
             f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile 1: pass"])
        self.addCleanup(spin.wait)
        self.addCleanup(spin.kill)

    # RULES 3.5
    def test_more_runs_than_the_ring_has_places(self):
        """Each run takes a place in the ring of a shard on its own thread."""
        cores = os.sched_getaffinity(0)
        if len(cores) < 2:
            self.skipTest("one core only")
        core = min(cores)
        e, d = self.pair(
            encoded={"blocks": ROWS * len(ROOMS), "block_rows": 1},
            langd={"blocks": 2 * CELLS, "block_rows": 1, "default_blocks": 1,
                   "limits": {"rooms": 2 * CELLS + 64},
                   "transfer": {"cpus": [str(core)]}})
        enc, lm = self.world.engine(e), self.world.engine(d)
        self.deliver(enc, lm, 100000, 1)  # the daemons are connected then
        holders = [self.scatter(d, first) for first in (1, 1 + CELLS)]
        self.starve(d.pid, core)
        for room in ROOMS:
            lm.request(room, "enc0", rows=ROWS)
        for room in ROOMS:
            enc.encode(room, ROWS)
        for room in ROOMS:
            self.comes(enc, lm, room, ROWS)
        self.assertEqual(d.stats()["segments_dropped"], 0)
        for s in holders:
            s.close()
