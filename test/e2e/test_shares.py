"""One user fills all that the tables of both daemons give to one user; another
user's engines work meanwhile, and see only the end of the ids of that user's
rooms."""

import contextlib
import os
import unittest

from pair import Case, eventually
from rawengine import call, greeted, packet
import wire

HOG = 54321
CELLS = 512
LIMITS = {"rooms": 64, "attachments": 128, "aux_total": "64KiB"}
SPACES = {"connections": 24}


@contextlib.contextmanager
def user(uid):
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@unittest.skipIf(os.geteuid() != 0, "needs root to be another user")
class Shares(Case):
    def hog(self, daemon):
        with user(HOG):
            return greeted(daemon, cells=CELLS, session="hog")

    def until_refused(self, s, frame, key):
        """Sends frame(0), frame(1) and so on until this limit refuses one;
        returns how many were accepted."""
        n = 0
        while True:
            got = call(s, frame(n))[0].values
            if got["err"]:
                self.assertIn(key, got["text"])
                self.assertIn(f"user {HOG}", got["text"])
                return n
            n += 1

    def take_aux(self, at_e, at_d, d):
        """Opens rooms from 1 on with all the aux that there is, at both
        daemons."""
        n = self.until_refused(at_e, lambda i: wire.ANNOUNCE.encode(
            5, room=i + 1, cell=i, tag=1, storage=1, max_rows=0, total=0,
            aux=bytes(4096)), "limits.aux_total")
        call(at_d, b"".join(wire.REQUEST.encode(
            5, room=i + 1, cell=i, tag=1, encoder="enc0")
            for i in range(n)), n)
        eventually(lambda: d.show("status")[0]["aux_free_bytes"] == 16384,
                   "all aux is taken")
        return n

    def take_rest(self, at_e, at_d, had):
        def announce(i):
            return wire.ANNOUNCE.encode(
                5, room=1000 + i, cell=had + i, tag=1, storage=1, max_rows=0,
                total=0)

        def request(i):
            return wire.REQUEST.encode(
                5, room=1000 + i, cell=had + i, tag=1, encoder="null")

        def attach(i):
            return wire.ATTACH.encode(
                5, room=2000 + i, cell=64 + i, tag=1, rights=wire.READ,
                encoder="enc0")

        taken = [self.until_refused(at_e, announce, "limits.rooms"),
                 self.until_refused(at_d, request, "limits.rooms"),
                 self.until_refused(at_d, attach, "limits.attachments"),
                 self.until_refused(at_d, lambda i: wire.SPACE.encode(
                     5, name=f"s{i}", n_seq_max=1), "sequence spaces"),
                 self.until_refused(at_d, lambda i: wire.TICKET.encode(
                     5, space=0, cell=0xFFFFFFFF, request=f"r{i}"),
                     "sequence requests")]
        self.assertEqual(taken, [64 - had, 64 - had, 64, 24, 64])

    def seen_by(self, s):
        s.send(wire.QUERY.encode(9, what="rooms"))
        text, more = b"", 1
        while more:
            for f in packet(s):
                if f.message == wire.REPORT:
                    text += bytes(f.values["text"])
                    more = f.values["more"]
        return [r["room"] for r in wire.rows(text)]

    # RULES 7.6, 10.4; F30
    def test_a_user_that_takes_all_leaves_enough(self):
        os.chmod(self.world.dir, 0o755)
        mode = {"socket": {"mode": "0666"}}
        e, d = self.pair(encoded={"limits": LIMITS, **mode},
                         langd={"limits": {**LIMITS, **SPACES}, **mode})
        at_e, at_d = self.hog(e), self.hog(d)
        self.take_rest(at_e, at_d, self.take_aux(at_e, at_d, d))

        enc = self.world.engine(e)
        lm, rank = (self.world.engine(d, session="tp") for _ in range(2))
        for room in range(5000, 5020):
            self.deliver(enc, lm, room, 300)
        rank.attach(6000, "enc0")
        lm.request(6000, "enc0", readers=1)
        enc.encode(6000, 300, aux="grid")
        for engine in (lm, rank):
            self.assertEqual(engine.ready(6000), 300)
            self.assertEqual(engine.aux(6000), "grid")
        space = lm.conn.space("mine", 4)
        self.assertEqual(space.acquire("r").seq, 0)

        for daemon, s in ((e, at_e), (d, at_d)):
            self.assertIn(6000, [r["room"] for r in daemon.show("rooms")])
            seen = self.seen_by(s)
            self.assertIn(1000, seen)
            self.assertIn("-", seen)
            self.assertNotIn(6000, seen)
        for engine in (lm, rank, enc):
            engine.release(6000)


if __name__ == "__main__":
    unittest.main()
