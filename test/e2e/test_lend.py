"""Rows that a language engine reads in the pool of an encoder on its host: no
byte is copied, and none changes under a reader, whichever process dies."""

import gc
import os
import random
import signal
import time
import unittest

from engine import Engine, cut, mmx, pattern
from mmx._handle import c

from pair import Case, Remote, eventually
from test_rights import GROUP, NAMED, OTHER, user

WIDE = "embedding:u8:4096"
ROWS = 2048  # 8 MiB, 16 blocks of 64


class Lend(Case):
    def lending(self, maps=2, **how):
        """Starts a pair, and a reader that has mapped this many pools; returns
        (encoded, langd, enc, reader)."""
        e, d = self.pair(fields=WIDE, blocks=64, **how)
        return e, d, self.world.engine(e), self.reader(d, maps)

    def reader(self, d, maps=2, **how):
        r = Remote(role="langd", socket=d.socket,
                   name=f"reader{len(self.world.engines)}", **how)
        self.world.engines.append(r)
        if maps:
            r.until_maps(maps)
        return r

    def pool(self, e, word):
        return sum(p[word] for p in e.show("pools"))

    def until(self, e, word, blocks):
        eventually(lambda: self.step() or self.pool(e, word) == blocks,
                   f"{blocks} blocks are {word}: {e.show('pools')}")

    def step(self):
        """Steps the engines of this process."""
        for x in self.world.engines:
            if isinstance(x, Engine):
                x.step()

    def borrow(self, enc, r, room, rows=ROWS, aux=""):
        """Has r read a room in the encoder's pool."""
        r.request(room, "enc0", rows=rows)
        enc.encode(room, rows, aux=aux)
        self.assertEqual(r.ready(room), rows)
        self.assertTrue(r.lent(room))
        self.assertEqual(r.wrong(room), [])

    def lend(self, enc, r, room):
        """Has r read a room that its encode engine has released."""
        self.borrow(enc, r, room)
        enc.ends(room)

    def churn(self, e, enc, r, room, first):
        """Writes new rooms into all blocks that are not lent: r's rows stay as
        they are."""
        for i in range(first, first + 3):
            enc.encode(i, ROWS)
            self.assertEqual(r.wrong(room), [])
        for i in range(first, first + 3):
            enc.release(i)
        self.assertEqual(r.wrong(room), [])


class Life(Lend):
    def test_rows_stay_where_they_are(self):
        e, d, enc, r = self.lending()
        for room in range(1, 9):  # twice as many rows as the pool holds
            self.borrow(enc, r, room, aux="grid")
            self.assertEqual(d.stats()["rooms_lent"], room)
            self.assertEqual(self.pool(e, "lent"), 16)
            self.assertEqual(enc.done(room), [1, 0])
            enc.release(room)
            self.assertEqual(r.wrong(room), [])
            r.release(room)
            self.until(e, "lent", 0)
            e.all_free()
        self.assertEqual(d.stats()["segments_copied"], 0)
        self.assertEqual(d.stats()["rows_landed"]
                         if "rows_landed" in d.stats() else 0, 0)

    def test_who_maps_is_shown(self):
        e, d, _, r = self.lending()
        self.assertEqual(
            sorted((row["name"], row["pid"]) for row in e.show("engines")
                   if row["state"] == "maps"),
            sorted([("lang0", d.pid), ("lang0", r.process.pid)]))

    def test_blocks_of_another_size(self):
        e, _, enc, r = self.lending(encoded={"block_rows": 48},
                                    langd={"block_rows": 96})
        self.borrow(enc, r, 1, 1000)
        self.assertEqual(enc.done(1), [1, 0])
        enc.release(1)
        r.release(1)
        self.until(e, "lent", 0)

    def test_small_rooms_are_copied(self):
        _, d, enc, r = self.lending()
        r.request(1, "enc0", rows=10)
        enc.encode(1, 10)
        self.assertEqual(r.ready(1), 10)
        self.assertFalse(r.lent(1))
        self.assertEqual(r.wrong(1), [])
        self.assertEqual(enc.done(1), [1, 0])
        enc.release(1)
        r.release(1)
        self.assertEqual(d.stats()["rooms_lent"], 0)

    def test_two_ranks(self):
        e, d, enc, r = self.lending()
        ranks = [self.reader(d, session="ranks") for _ in range(2)]
        ranks[0].request(1, "enc0", rows=ROWS, readers=1)
        ranks[1].attach(1, "enc0")
        enc.encode(1, ROWS)
        for rank in ranks:
            rank.ready(1)
            self.assertTrue(rank.lent(1))
            self.assertEqual(rank.wrong(1), [])
        self.assertEqual(enc.done(1), [1, 0])
        enc.release(1)
        ranks[0].release(1)
        self.churn(e, enc, ranks[1], 1, 10)
        self.assertEqual(self.pool(e, "lent"), 16)
        ranks[1].release(1)
        self.until(e, "lent", 0)


@unittest.skipIf(os.geteuid(), "to be another user takes root")
class Users(Lend):
    """A pool for one user and one group: encoded knows who maps it from its
    own accept."""

    def start(self):
        """Returns (encoded, langd, enc, a reader of the named user)."""
        mode = {"socket": {"mode": "0666"}}
        os.chmod(self.world.dir, 0o755)
        e, d = self.pair(langd=mode, encoded={**mode, "pools": [
            {"name": "vit", "blocks": 64, "block_rows": 128, "layout": WIDE,
             "uids": [NAMED], "gids": [GROUP]}]}, fields=WIDE, blocks=64)
        with user(NAMED):
            enc = self.world.engine(e)
        return e, d, enc, self.reader(d, 2, uid=NAMED)

    # RULES 6.7
    def test_those_that_the_pool_names_read_in_place(self):
        e, d, enc, named = self.start()
        grouped = self.reader(d, 2, uid=OTHER, groups=[GROUP])
        for room, r in ((1, named), (2, grouped)):
            self.lend(enc, r, room)
        self.assertEqual(d.stats()["rooms_lent"], 2)
        named.kill()
        self.churn(e, enc, grouped, 2, 10)
        grouped.release(2)
        self.until(e, "lent", 0)

    # RULES 6.7
    def test_others_map_nothing(self):
        _, d, enc, named = self.start()
        other = self.reader(d, 0, uid=OTHER)
        other.request(1, "enc0", rows=ROWS)
        enc.announce(1, ROWS, ROWS)
        self.assertEqual(other.failed(1), "not-owner")
        other.release(1)
        enc.release(1)
        self.lend(enc, named, 2)
        # this process is the encode engine, too
        pool = self.maps_of(os.getpid())
        self.assertTrue(pool & self.maps_of(named.process.pid))
        self.assertFalse(pool & self.maps_of(other.process.pid))
        named.release(2)

    def maps_of(self, pid):
        """Returns the inodes of memory that the process shares."""
        with open(f"/proc/{pid}/maps") as f:
            return {line.split()[4] for line in f if "/memfd:" in line}


KILLS = int(os.environ.get("MMX_KILLS", "5"))


class Storm(Lend):
    """Kills each process at any moment, also while it or another one is
    stopped: what a reader was shown stays until its release, and then every
    block is free."""

    limit_s = 180 + 3 * KILLS

    def setUp(self):
        super().setUp()
        self.draw = random.Random(int(os.environ.get("MMX_SEED", "1")))
        self.e, self.d = self.pair(fields=WIDE, blocks=64)
        self.enc = self.world.process(self.e)
        self.readers = [self.reader(self.d), self.reader(self.d)]
        self.room, self.encoded = 0, []
        self.kills = self.turn = 0

    def encode(self, room):
        self.enc.encode(room, 512)
        self.encoded.append((self.enc, room))

    def open(self, victim):
        """Opens four rooms, and kills the victim meanwhile. Returns the rooms
        with their readers."""
        rooms, deeds = [], []
        for r in self.readers * 2:
            self.room += 1
            rooms.append((r, self.room))
            deeds.append(lambda r=r, n=self.room: r.request(n, "enc0", rows=512))
            deeds.append(lambda n=self.room: self.encode(n))
        at = self.draw.randrange(1, len(deeds) + 1)
        for deed in deeds[:at]:
            deed()
            for r in self.readers:
                r.step()
        time.sleep(self.draw.choice((0, 0.001, 0.003, 0.01)))
        self.strike(victim)
        return [(r, n) for r, n in rooms[:(at + 1) // 2]
                if r is not victim or r.process.poll() is None]

    def strike(self, victim):
        """Kills the victim while one of the four processes, in turn, is
        stopped. The victim may run on for a moment before its end."""
        four = self.d, self.e, self.readers[0], self.enc
        still = (*four, None)[self.turn % 5]
        self.turn += 1
        if still:
            os.kill(still.process.pid, signal.SIGSTOP)
            for r in self.readers:
                if r is not still:
                    r.steps(self.draw.choice((1, 30)))
        if still is victim and self.draw.random() < 0.3:
            os.kill(still.process.pid, signal.SIGCONT)
            return
        victim.kill()
        self.kills += 1
        if still and still is not victim:
            os.kill(still.process.pid, signal.SIGCONT)

    def check(self, rooms):
        """Reads what was shown, while other rooms are written. Returns how
        many rooms were lent."""
        if self.enc.process.poll() is not None:
            self.world.engines.remove(self.enc)
            self.enc = self.world.process(self.e)
        for r, _ in rooms:
            r.steps(30)
        shown = [(r, n) for r, n in rooms if r.shown(n) is not None]
        for _ in range(2):
            others = range(self.room + 1, self.room + 9)
            if not self.e.alive():
                others = ()
            for n in others:
                self.enc.encode(n, 512)
            for r, n in shown:
                self.assertEqual(r.shown(n), [], f"room {n}")
            for n in others:
                self.enc.release(n)
            self.room += len(others)
        return sum(r.lent(n) for r, n in shown)

    def over(self, rooms):
        for r, n in rooms:
            r.release(n)
        for enc, n in self.encoded:
            if enc is self.enc:  # langd may never have asked for the room
                enc.release(n)
        self.encoded.clear()
        for r in self.readers:
            r.steps(30)
        for word in ("lent", "orphaned"):
            self.until(self.e, word, 0)
        self.e.all_free()
        self.d.all_free()

    def rounds(self, victim, back):
        shown = 0
        while self.kills < KILLS:
            one = victim()
            rooms = self.open(one)
            shown += self.check(rooms)
            if one.process.poll() is not None:
                back()
            shown += self.check(rooms)
            self.over(rooms)
        self.assertGreater(shown, 0)

    def test_langd(self):
        def back():
            self.d.start()
            for r in self.readers:
                r.steps(50)
                r.until_up()
        self.rounds(lambda: self.d, back)

    def test_encoded(self):
        def back():
            self.world.engines.remove(self.enc)
            self.enc.end()
            self.e.start()
            self.enc = self.world.process(self.e)
        self.rounds(lambda: self.e, back)

    # F06
    def test_readers(self):
        def back():
            self.world.engines.remove(self.readers[0])
            self.readers[0] = self.reader(self.d)
        self.rounds(lambda: self.readers[0], back)

    def test_encode_engine(self):
        def back():
            pass
        self.rounds(lambda: self.enc, back)


class Arrays(Lend):
    """Arrays that a Python engine has made over rows that were lent to it."""

    def reader(self, d, maps=2, **how):
        r = self.world.engine(d, **how)
        r.until_maps(maps)
        return r

    def loses_langd(self, e, d, r):
        d.kill()
        self.until(e, "orphaned", 16)
        eventually(lambda: not (r.step() or r.is_up()), "down")

    def shows(self, r, view, room):
        self.assertTrue((view == pattern(
            room, r.pool.fields["embedding"], 0, ROWS)).all())

    def test_they_outlive_room_and_langd(self):
        e, d, enc, r = self.lending()
        self.lend(enc, r, 1)
        view = r.rooms[1].view("embedding")
        self.loses_langd(e, d, r)
        self.churn(e, enc, r, 1, 10)
        r.rooms.pop(1).release(force=True)
        for i in range(20, 23):
            enc.encode(i, ROWS)
            self.shows(r, view, 1)
            enc.release(i)
        self.assertEqual(self.pool(e, "orphaned"), 16)
        del view
        self.until(e, "orphaned", 0)
        e.all_free()

    def test_they_outlive_the_connection(self):
        e, _, enc, r = self.lending()
        self.lend(enc, r, 1)
        view = r.rooms[1].view("embedding")
        self.world.engines.remove(r)
        r.conn = r.pool = None
        r.rooms.clear()
        gc.collect()
        for i in range(20, 23):
            enc.encode(i, ROWS)
            self.shows(enc, view, 1)
            enc.release(i)
        self.assertEqual(self.pool(e, "lent"), 16)
        del view
        gc.collect()
        self.until(e, "lent", 0)
        e.all_free()

    def test_the_connection_to_the_encoder_ends(self):
        e, d, enc, r = self.lending()
        r.request(1, "enc0", rows=ROWS)
        enc.encode(1, ROWS)
        eventually(lambda: d.stats()["rooms_lent"] == 1, "it is lent")
        cut(r.conn, e.socket)
        for number in r.conn._lenders:  # it hears of the end, and no more
            c.lend(r.conn._it, number, 1)
        r.ready(1)  # langd sent it before it heard that no pool is mapped
        view = r.rooms[1].view("embedding")
        self.shows(r, view, 1)
        enc.ends(1)
        r.request(2, "enc0", rows=ROWS)
        enc.encode(2, ROWS)
        r.ready(2)
        self.assertFalse(r.lent(2))
        enc.done(2)
        r.release(2)
        enc.release(2)
        self.churn(e, enc, r, 1, 10)
        self.loses_langd(e, d, r)
        r.rooms.pop(1).release(force=True)
        self.assertEqual(self.pool(e, "orphaned"), 16)
        self.shows(r, view, 1)
        del view
        self.until(e, "orphaned", 0)
        e.all_free()

    def test_a_connection_rests_once_both_daemons_are_dead(self):
        e, d, enc, r = self.lending()
        self.lend(enc, r, 1)
        view = r.rooms[1].view("embedding")
        d.kill()
        eventually(lambda: not (r.step() or r.is_up()), "down")
        self.world.engines.remove(enc)
        e.kill()
        enc.close()
        eventually(lambda: not (r.step() or mmx.wait_any([r.conn], 0.02)),
                   "there is nothing to do")
        self.shows(r, view, 1)

    def test_an_encoder_without_a_place_hears_of_their_end_later(self):
        e, d, enc, r = self.lending(encoded={"limits": {"connections": 8}})
        self.lend(enc, r, 1)
        view = r.rooms.pop(1).view("embedding")
        cut(r.conn, e.socket)
        r.step()
        self.loses_langd(e, d, r)
        others = []
        with self.assertRaises(mmx.MmxError):
            while len(others) < 99:
                others.append(mmx.connect("encoded", e.socket, timeout=0.5,
                                          name=enc.conn.name))
        gc.collect()
        del view
        gc.collect()
        time.sleep(0.5)
        self.assertEqual(others[0].query("pools")[0]["orphaned"], 16)
        for other in others:
            other.close()
        self.until(e, "orphaned", 0)

    def test_one_connection_does_not_lend(self):
        _, d, enc, r = self.lending()
        with mmx.connect("langd", d.socket, name=r.conn.name, lend=False):
            r.request(1, "enc0", rows=ROWS)
            enc.encode(1, ROWS)
            r.ready(1)
            self.assertFalse(r.lent(1))
            self.assertEqual(r.wrong(1), [])
            enc.ends(1)
            r.release(1)
