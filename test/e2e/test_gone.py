"""What is known to be gone is not waited for: encoders that cannot be reached,
and rooms that their encoder does not have."""

import time

from pair import Case, eventually

import mmx

# The steps of an engine that encodes a room.
STEPS = (lambda enc, r: enc.announce(r, 300, 300),
         lambda enc, r: enc.granted(r),
         lambda enc, r: enc.write(r, 0, 100),
         lambda enc, r: enc.commit(r, 0, 100),
         lambda enc, r: enc.write(r, 100, 300),
         lambda enc, r: enc.commit(r, 100, 300, final=True),
         lambda enc, r: enc.done(r))
FINAL = 6  # number of steps after which the rows need no engine


def up(langd, name="enc0"):
    eventually(lambda: [r for r in langd.show("peers")
                        if (r["name"], r["state"]) == (name, "up")],
               f"{name} is there")


class Gone(Case):
    limit_s = 600

    def lost(self, lm, room, **more):
        """Requests a room that ends as peer-lost, long before the time that a
        room may be without an encoder (timeouts.bootstrap, 2 min)."""
        lm.request(room, "enc0", **more)
        self.assertEqual(lm.failed(room), "peer-lost")
        lm.release(room)

    # RULES 8.4
    def test_an_encoder_that_is_away(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e], timeouts={"unreachable": "2s"})
        lm = self.world.engine(d)
        self.lost(lm, 1)
        # from now on each room ends at once, however many there are
        begin = time.monotonic()
        for room in range(2, 202):
            self.lost(lm, room)
        # less than half of the sum of their waits
        self.assertLess(time.monotonic() - begin, 200)
        self.assertEqual(d.stats()["peers_unreachable"], 1)
        e.start()
        enc = self.world.engine(e)
        up(d)
        self.deliver(enc, lm, 202, 300)

    # RULES 8.4; F01
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


class Steps(Case):
    """The engine that encodes a room ends after each of its steps in turn. The
    room ends with the right reason, others go on, and every block is free."""

    def upto(self, k, room, others):
        """Opens a room whose engine ends after k steps; returns its end at
        langd."""
        enc, lm = self.world.process(self.e), self.world.engine(self.d)
        lm.request(room, "enc0")
        for step in STEPS[:k]:
            step(enc, room)
        if k > 0:  # a later request is told to encode again
            eventually(lambda: [r for r in self.e.show("rooms")
                                if (r["room"], r.get("asked")) == (room, 1)],
                       "the encoder has heard of it")
        others()
        enc.kill()
        if k == 0:
            lm.abort(room)  # it was never announced: the language side ends it
        try:
            self.assertEqual(lm.ready(room), 300)
            self.good(lm, room)
            end = "ready"
        except mmx.MmxError as e:
            end = e.reason
        lm.release(room)
        return end

    # F06
    def test_an_engine_that_dies_at_every_step(self):
        self.e, self.d = self.pair()
        mine, its = self.engines(self.e, self.d)
        for k in range(len(STEPS) + 1):
            with self.subTest(k=k):
                room = 100 + k

                def begun():
                    its.request(room, "enc0")
                    mine.opens(room, 500, 500)
                end = self.upto(k, 1 + k, begun)
                self.assertEqual(end, "aborted" if k == 0 else "ready"
                                 if k >= FINAL else "engine-lost")
                mine.finish(room, 0, 500)
                self.comes(mine, its, room, 500)
                self.world.all_free()


class Slow(Case):
    # F16
    def test_one_that_does_not_release_what_it_has_read(self):
        # The room of one pool does not affect the other pool. Those that wait
        # in its own pool time out, and say what they lacked.
        pools = [{"name": n, "blocks": 8, "block_rows": 128,
                  "layout": "embedding:u8:64"} for n in ("a", "b")]
        e, d = self.pair(encoded={"pools": pools}, langd={"pools": pools})
        enc, slow = (self.world.engine(x, pool="a") for x in (e, d))
        other = [self.world.engine(x, pool="b") for x in (e, d)]
        slow.request(1, "enc0")
        enc.encode(1, 1000)
        slow.ready(1)
        enc.ends(1)
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
        lent.clear()  # the garbage collector runs at last
        self.assertEqual(slow.ready(4), 1000)
        self.good(slow, 4)
        slow.release(4)
        enc.ends(4)
