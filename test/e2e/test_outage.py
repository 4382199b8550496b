"""A data port that refuses for a while: rooms wait and succeed."""

import resource

from pair import Case, eventually

# UCX 1.13 ends the process when its own connection is refused.
SENT = {"transfer": {"same_host": "off", "carrier": "tcp"}}


class Refused(Case):
    def without_descriptors(self, d):
        """From now on langd can accept no data connection."""
        soft, hard = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (d.fds(), hard))
        self.addCleanup(lambda: d.alive() and self.limits(d, soft, hard))
        return lambda: self.limits(d, soft, hard)

    def limits(self, d, soft, hard):
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def test_rooms_outlive_it(self):
        e = self.world.encoded(**SENT)
        d = self.world.langd([e], **SENT)
        enc, lm = self.engines(e, d)
        rooms = range(1, 9)
        for room in rooms:  # the control connection stands
            lm.request(room, "enc0")
        eventually(lambda: len(e.show("rooms")) == len(rooms), "all have asked")
        mend = self.without_descriptors(d)
        for room in rooms:
            enc.encode(room, 100)
        # Four tries of each: once all that a room had.
        eventually(lambda: e.stats()["broken"] >= 4 * len(rooms),
                   "the port refuses")
        self.assertNotIn("FAILED", [lm.state(r)[0] for r in rooms])
        mend()
        for room in rooms:
            lm.ready(room)
            self.good(lm, room)
            lm.release(room)
            enc.done(room)
            enc.release(room)
        self.world.all_free()
        self.assertGreaterEqual(d.stats()["broken"], 4 * len(rooms))
