"""A shard that is behind its loop: what the daemons say to each other waits
until it has the commands, so that no row comes before its grant."""

import os

from pair import Case

BLOCKS = 2048


class Behind(Case):
    def scattered(self, lm):
        """Every other block is held: what is granted next has one run for
        each of its rows."""
        for room in range(1, BLOCKS + 1):
            lm.request(room, "enc0", rows=1)
        lm.conn.wait(lm.rooms[BLOCKS].opened, 20)
        return range(1, BLOCKS + 1, 2)

    # RULES 3.5
    def test_many_runs_through_a_short_ring(self):
        """More runs than the ring has places, with a shard on its thread."""
        core = str(min(os.sched_getaffinity(0)))
        e, d = self.pair(
            encoded={"blocks": 1024, "block_rows": 1},
            langd={"blocks": BLOCKS, "block_rows": 1, "default_blocks": 1,
                   "transfer": {"cpus": [core], "commands": 64}})
        enc, lm = self.world.engine(e), self.world.engine(d, cells=2 * BLOCKS)
        self.deliver(enc, lm, 10000, 1)  # the peers know each other
        for room in self.scattered(lm):
            lm.release(room)
        for room in range(10001, 10006):
            lm.request(room, "enc0", rows=500)
            enc.encode(room, 500)
            self.assertEqual(lm.ready(room), 500)
            self.good(lm, room)
            lm.release(room)
            enc.done(room)
            enc.release(room)
        self.assertEqual(d.stats()["segments_dropped"], 0)
        for room in range(2, BLOCKS + 1, 2):
            lm.release(room)
