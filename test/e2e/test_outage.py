"""A langd that can open no descriptor: rows come by the connection that was
opened, and tried, before any room."""

import resource

from pair import Case, eventually

# UCX 1.13 ends the process when its own connection is refused.
SENT = {"transfer": {"same_host": "off", "carrier": "tcp"}}


class Refused(Case):
    def without_descriptors(self, d):
        """Lets langd accept no connection from now on; returns what undoes
        it."""
        soft, hard = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (d.fds(), hard))
        self.addCleanup(lambda: d.alive() and self.limits(d, soft, hard))
        return lambda: self.limits(d, soft, hard)

    def limits(self, d, soft, hard):
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, hard))

    # RULES 1.5; F37
    def test_rooms_go_on_without_descriptors(self):
        e = self.world.encoded(**SENT)
        d = self.world.langd([e], **SENT)
        enc, lm = self.engines(e, d)
        rooms = range(1, 9)
        for room in rooms:
            lm.request(room, "enc0")
        eventually(lambda: len(e.show("rooms")) == len(rooms), "all have asked")
        eventually(lambda: d.ctl("health", check=False).returncode == 0,
                   "a row could come")
        mend = self.without_descriptors(d)
        for room in rooms:
            enc.encode(room, 100)
        for room in rooms:
            lm.ready(room)
            self.good(lm, room)
            self.over(enc, lm, room)
        mend()
        self.world.all_free()
        self.assertEqual(d.stats()["broken"], 0)
