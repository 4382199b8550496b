"""What is known to be gone is not waited for: encoders that cannot be reached,
and rooms that their encoder does not have."""

import time

from engine import LIMIT
from pair import Case, eventually


class Gone(Case):
    def lost(self, lm, room, **more):
        """Asks for a room that ends as peer-lost; how long that took."""
        begin = time.monotonic()
        lm.request(room, "enc0", **more)
        self.assertEqual(lm.failed(room), "peer-lost")
        lm.release(room)
        return time.monotonic() - begin

    def test_an_encoder_that_is_away(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e], timeouts={"unreachable": "2s"})
        lm = self.world.engine(d)
        self.assertLess(self.lost(lm, 1), LIMIT / 2)
        # from now on each ends at once, which is no matter of their number
        begin = time.monotonic()
        for room in range(2, 202):
            self.lost(lm, room)
        self.assertLess(time.monotonic() - begin, 100)
        self.assertEqual(d.stats()["peers_unreachable"], 1)
        e.start()
        enc = self.world.engine(e)
        eventually(lambda: d.show("peers")[0]["state"] == "up",
                   "the encoder is there")
        self.deliver(enc, lm, 202, 300)

    def test_a_name_that_does_not_resolve(self):
        e = self.world.encoded(start=False)
        e.address = "tcp://no-such-host.invalid:7601"
        d = self.world.langd([e], timeouts={"unreachable": "2s"})
        self.lost(self.world.engine(d), 1)

    def test_an_encoder_that_ends(self):
        e, d = self.pair(langd={"timeouts": {"unreachable": "2s"}})
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)
        lm.request(2, "enc0")
        eventually(lambda: [r for r in e.show("rooms") if r["room"] == 2],
                   "the encoder has heard of it")
        e.kill()
        self.assertEqual(lm.failed(2), "peer-lost")
        lm.release(2)
        self.assertLess(self.lost(lm, 3), LIMIT / 2)

    def test_an_encoder_that_restarts(self):
        e, d = self.pair(langd={"timeouts": {"unreachable": "60s"}})
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)
        e.kill()
        eventually(lambda: d.show("peers")[0]["state"] != "up",
                   "the encoder is gone")
        lm.request(2, "enc0")
        e.start()
        enc = self.world.engine(e)
        enc.encode(2, 300)
        self.assertEqual(lm.ready(2), 300)
        self.good(lm, 2)
        lm.release(2)
        enc.done(2)
        enc.release(2)

    def test_a_room_that_is_unknown(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0", announced=True)
        self.assertEqual(lm.failed(1), "unknown-room")
        lm.release(1)
        secret = "00112233445566778899aabbccddeeff"
        enc.encode(2, 300, secret=bytes.fromhex(secret))
        lm.request(2, "enc0", announced=True)  # this one has no secret
        self.assertEqual(lm.failed(2), "unknown-room")
        lm.release(2)
        lm.request(2, "enc0", announced=True, secret=bytes.fromhex(secret))
        self.assertEqual(lm.ready(2), 300)
        self.good(lm, 2)
        lm.release(2)
        enc.done(2)
        enc.release(2)
        self.deliver(enc, lm, 1, 300)  # its id is as good as ever
