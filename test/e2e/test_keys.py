"""Item keys, kept rows, declines: rows are written once, served often, and
never given to an engine that they are not for."""

import os
import unittest

from pair import Case

import mmx


def key(n):
    return n.to_bytes(32, "little")


class Keys(Case):
    def keyed(self, enc, room, rows, n, **more):
        enc.announce(room, rows, rows, key=key(n), **more)

    def write(self, enc, room, rows, n, **more):
        self.keyed(enc, room, rows, n, **more)
        self.assertFalse(enc.have(room))
        enc.finish(room, 0, rows)

    def fetch(self, lm, room, rows, n, again=False):
        """Requests the room, checks its rows and releases it."""
        lm.request(room, "enc0", key=key(n))
        self.assertEqual(lm.ready(room), rows)
        self.good(lm, room)
        lm.release(room)

    def end(self, enc, *rooms):
        for room in rooms:
            enc.ends(room)


class Together(Keys):
    """Rooms of one key at the same time."""

    def setUp(self):
        super().setUp()
        self.e, self.d = self.pair(encoded={"blocks": 8})
        self.enc, self.lm = self.engines(self.e, self.d)
        for x in (self.enc, self.lm):
            x.item((1, 2, 3), 1)

    # RULES 1.7
    def test_written_once_for_both(self):
        enc, lm = self.enc, self.lm
        for room in (1, 2):
            lm.request(room, "enc0", key=key(7))
        self.keyed(enc, 1, 600, 7)
        self.assertFalse(enc.have(1))
        enc.write(1, 0, 600)
        enc.commit(1, 0, 300)
        self.keyed(enc, 2, 600, 7)
        self.assertTrue(enc.have(2))
        self.assertEqual(self.e.free(), (3, 8))
        self.refusal("not-owner", enc.commit, 2, 300, 600)
        with self.assertRaises(mmx.errors.NotOwner):
            enc.rooms[2]["embedding"][0:600] = 0
        enc.commit(1, 300, 600, final=True)
        for room in (1, 2):
            self.assertEqual(lm.ready(room), 600)
            self.good(lm, room)
            lm.release(room)
        self.end(enc, 1, 2)

    def test_the_same_picture_twice_in_a_batch(self):
        enc, lm = self.enc, self.lm
        made = enc.conn.announce_batch(enc.pool, [
            mmx.Item(1, 600, 600, key=key(7)),
            mmx.Item(2, 600, 600, key=key(7)),
            mmx.Item(4, 200, 200)])
        enc.rooms.update(zip((1, 2, 4), made))
        self.assertFalse(enc.have(1))
        self.assertTrue(enc.have(2))
        self.assertFalse(enc.have(4))
        self.assertEqual(self.e.free(), (1, 8))
        for room, rows in ((1, 600), (4, 200)):
            enc.finish(room, 0, rows)
        for room in (1, 2):
            self.fetch(lm, room, 600, 7)
        lm.request(4, "enc0")
        self.assertEqual(lm.ready(4), 200)
        self.good(lm, 4)
        lm.release(4)
        self.end(enc, 1, 2, 4)


class Kept(Keys):
    """Rows that outlive their room."""

    def tearDown(self):
        if not self.broken:  # kept rows go when their space is needed
            for name in {row["pool"] for row in self.e.show("pools")}:
                self.enc.map_pool(name)
                self.enc.opens(999, 4 * 128, 4 * 128)
                self.enc.release(999)
        super().tearDown()

    def start(self, langd=None, **conf):
        self.e, self.d = self.pair(encoded={"blocks": 4, **conf}, langd=langd)
        self.enc, self.lm = self.engines(self.e, self.d)

    def keep(self, room, n, rows=100):
        """Takes a room through its life; its rows stay."""
        self.write(self.enc, room, rows, n, keep=True)
        self.fetch(self.lm, room, rows, n)
        self.end(self.enc, room)

    # RULES 1.7
    def test_have_and_a_new_room(self):
        self.start()
        self.keep(1, 7)
        self.assertEqual(self.e.free(), (3, 4))
        self.lm.item((2,), 1)
        self.keyed(self.enc, 2, 100, 7, keep=True)
        self.assertTrue(self.enc.have(2))
        self.assertEqual(self.e.free(), (3, 4))
        self.fetch(self.lm, 2, 100, 7)
        self.end(self.enc, 2)
        self.assertEqual(self.e.free(), (3, 4))

    def test_the_inventory_is_what_announces_find(self):
        self.start()
        enc, lm = self.enc, self.lm

        def there():
            return [(r["key"], r["pool"], r["state"], r.get("rows"),
                     r["blocks"], r["in_use"])
                    for r in self.e.show("inventory")]
        self.keyed(enc, 1, 100, 7, keep=True)
        enc.granted(1)
        self.assertEqual(there(), [
            (key(7).hex(), "vit", "written", 100, 1, 1)])
        self.keyed(enc, 9, 512, 9)  # needs all four blocks
        self.assertEqual(there()[1:], [
            (key(9).hex(), "vit", "waits", 512, 0, 1)])
        enc.release(9)
        enc.finish(1, 0, 100)
        self.fetch(lm, 1, 100, 7)
        self.end(enc, 1)
        held = [(key(7).hex(), "vit", "held", 100, 1, 0)]
        self.assertEqual(there(), held)
        lm.item((2,), 1)
        self.keyed(enc, 2, 100, 7)
        self.assertEqual(there(), [(*held[0][:5], 1)])
        enc.release(2)
        self.assertEqual(there(), held)
        enc.announce(3, 512, 512)  # pushes the kept rows out
        enc.granted(3)
        self.assertEqual(there(), [])
        enc.release(3)

    # RULES 1.7
    def test_gone_after_its_space_was_wanted(self):
        self.start()
        enc, lm = self.enc, self.lm
        self.keep(1, 7)
        self.write(enc, 9, 512, 9)  # needs all four blocks
        lm.request(1, "enc0", key=key(7))
        self.assertEqual(lm.failed(1), "gone")
        self.assertEqual(lm.rooms[1].reason.advice, "encode-locally")
        lm.release(1)
        self.fetch(lm, 9, 512, 9)
        self.end(enc, 9)
        self.write(enc, 2, 100, 7)  # not HAVE: these rows were pushed out
        self.fetch(lm, 2, 100, 7)
        self.end(enc, 2)
        self.world.all_free()

    def test_least_recently_used_goes_first(self):
        self.start()
        enc, lm = self.enc, self.lm
        for room in (1, 2, 3, 4):
            self.keep(room, room)
        # used again: now room 2's rows are the oldest
        self.fetch(lm, 1, 100, 1)
        # it takes two blocks: those of rooms 2 and 3
        self.write(enc, 8, 200, 8)
        for room, there in ((1, True), (2, False), (3, False), (4, True)):
            lm.request(room, "enc0", key=key(room))
            if there:
                self.assertEqual(lm.ready(room), 100)
                self.good(lm, room)
            else:
                self.assertEqual(lm.failed(room), "gone")
            lm.release(room)
        enc.release(8)

    def test_time_to_live(self):
        self.start(timeouts={"keep": "150ms", "drain": "1s"})
        self.keep(1, 7)
        self.e.all_free()
        self.lm.request(1, "enc0", key=key(7))
        self.assertEqual(self.lm.failed(1), "gone")
        self.lm.release(1)

    @unittest.skipIf(os.geteuid() != 0, "needs root to be another user")
    # RULES 1.7
    def test_users_do_not_share(self):
        os.chmod(self.world.dir, 0o755)
        self.start(socket={"mode": "0666"})
        self.keep(1, 7)
        os.seteuid(54321)
        try:
            other = self.world.engine(self.e)
        finally:
            os.seteuid(0)
        other.announce(2, 100, 100, key=key(7))
        self.assertFalse(other.have(2))
        self.assertEqual(self.e.free(), (2, 4))
        other.release(2)
        self.keyed(self.enc, 3, 100, 7)
        self.assertTrue(self.enc.have(3))
        self.enc.release(3)

    # RULES 1.7
    def test_pools_do_not_share(self):
        pools = [{"name": n, "blocks": 4, "block_rows": 128,
                  "layout": "embedding:u8:64"} for n in ("vit", "vit2")]
        self.start(pools=pools)
        self.keep(1, 7)
        enc = self.world.engine(self.e, pool="vit2")
        enc.announce(2, 100, 100, key=key(7))
        self.assertFalse(enc.have(2))
        enc.release(2)


class Declines(Keys):
    def decline(self, lm, room, n=0):
        lm.conn.wait(lm.conn.decline(room, "enc0", key(n)), 10)

    def test_the_source_goes_at_once(self):
        e, d, enc, lm = self.at_work(encoded={"blocks": 8})
        for room in range(1, 6):
            enc.encode(room, 1000)  # all blocks: the next room needs them
            self.decline(lm, room)
            self.assertEqual(enc.failed(room), "declined")
        # no engine writes after a final commit: no release is waited for
        e.all_free()
        for room in range(1, 6):
            enc.release(room)

    # RULES 7.4
    def test_another_key_declines_nothing(self):
        e, d, enc, lm = self.at_work()
        self.write(enc, 1, 100, 7)
        self.decline(lm, 1, 8)
        self.fetch(lm, 1, 100, 7)
        self.end(enc, 1)
