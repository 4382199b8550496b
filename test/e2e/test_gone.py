"""What is known to be gone is not waited for: encoders that cannot be reached,
and blocks that a slow engine keeps."""

import time

from pair import Case, eventually


def up(langd):
    eventually(lambda: langd.show("peers")[0]["state"] == "up",
               "the encoder is there")


class Gone(Case):
    limit_s = 600

    def lost(self, lm, room, **more):
        """Asks for a room that ends as peer-lost, long before the time that
        a room may be without an encoder (timeouts.bootstrap, 2 min)."""
        lm.request(room, "enc0", **more)
        self.assertEqual(lm.failed(room), "peer-lost")
        lm.release(room)

    # RULES 8.4
    def test_an_encoder_that_is_away(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e], timeouts={"unreachable": "2s"})
        lm = self.world.engine(d)
        self.lost(lm, 1)
        # from now on each ends at once, which is no matter of their number
        begin = time.monotonic()
        for room in range(2, 202):
            self.lost(lm, room)
        self.assertLess(time.monotonic() - begin, 200)  # half of all waits
        self.assertEqual(d.stats()["peers_unreachable"], 1)
        e.start()
        enc = self.world.engine(e)
        up(d)
        self.deliver(enc, lm, 202, 300)

    def test_a_name_that_does_not_resolve(self):
        e = self.world.encoded(start=False)
        e.address = "tcp://no-such-host.invalid:7601"
        d = self.world.langd([e], timeouts={"unreachable": "2s"})
        self.lost(self.world.engine(d), 1)

    # RULES 8.4
    def test_an_encoder_that_restarts(self):
        e, d, enc, lm = self.at_work(
            langd={"timeouts": {"unreachable": "60s"}})
        self.deliver(enc, lm, 1, 300)
        e.kill()
        eventually(lambda: d.show("peers")[0]["state"] != "up",
                   "the encoder is gone")
        lm.request(2, "enc0")
        e.start()
        enc = self.world.engine(e)
        enc.encode(2, 300)
        self.comes(enc, lm, 2, 300)


class Slow(Case):
    def test_one_that_does_not_release_what_it_has_read(self):
        # Its pool is its own affair: rooms of the other pool go on, those of
        # the same end by their own time and say what they lacked.
        pools = [{"name": n, "blocks": 8, "block_rows": 128,
                  "layout": "embedding:u8:64"} for n in ("a", "b")]
        e, d = self.pair(encoded={"pools": pools}, langd={"pools": pools})
        enc, slow = (self.world.engine(x, pool="a") for x in (e, d))
        other = [self.world.engine(x, pool="b") for x in (e, d)]
        slow.request(1, "enc0")
        enc.encode(1, 1000)
        slow.ready(1)
        enc.done(1)
        enc.release(1)
        lent = [slow.rooms[1].view("embedding", release=True)]
        enc.encode(2, 1000)
        slow.request(2, "enc0", deadline=2)
        self.assertEqual(slow.failed(2), "timeout")
        self.assertIn("it got none of the 8 blocks", slow.rooms[2].reason.text)
        slow.release(2)
        enc.failed(2)
        enc.release(2)
        self.deliver(*other, 3, 1000)
        slow.request(4, "enc0")
        enc.encode(4, 1000)
        lent.clear()  # collected at last
        self.assertEqual(slow.ready(4), 1000)
        self.good(slow, 4)
        slow.release(4)
        enc.done(4)
        enc.release(4)
