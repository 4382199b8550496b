"""More rooms than blocks, several daemons: every room ends, no room waits for
ever, and no row lands in another room."""

import os
import random
import time

from pair import Case

import mmx

LIMIT = 160 if os.environ.get("SAN") else 40


class Load:
    """The engines of both sides as one loop over events, so that hundreds of
    rooms can be open at once: sources are written when granted, rooms are
    checked and released when ready."""

    def __init__(self, case, enc, lm, rows):
        self.case, self.enc, self.lm, self.rows = case, enc, lm, rows
        self.written, self.read, self.sent = set(), set(), set()

    def announce(self, room, known):
        self.enc.announce(room, self.rows[room],
                          self.rows[room] if known else None)

    def turn(self):
        for room, source in list(self.enc.rooms.items()):
            if room not in self.written and source.may_write >= 0:
                self.written.add(room)
                self.enc.write(room, 0, self.rows[room])
                source.commit(0, self.rows[room], final=True)
            elif source.ended:
                self.case.assertEqual(source.state, mmx.State.SUCCESS,
                                      (room, source.reason))
                source.release()
                self.sent.add(room)
                del self.enc.rooms[room]
        for room, got in list(self.lm.rooms.items()):
            self.case.assertNotEqual(got.state, mmx.State.FAILED,
                                     (room, got.reason))
            if got.complete:
                self.case.assertEqual(got.total, self.rows[room])
                self.case.good(self.lm, room)
                got.release()
                self.read.add(room)
                del self.lm.rooms[room]

    def run(self):
        end = time.monotonic() + LIMIT
        conns = [self.enc.conn, self.lm.conn]
        while min(len(self.read), len(self.sent)) < len(self.rows):
            self.case.assertLess(
                time.monotonic(), end,
                f"of {len(self.rows)} rooms {len(self.written)} are written, "
                f"{len(self.read)} read, {len(self.sent)} sent")
            mmx.wait_any(conns, 0.5)
            for conn in conns:
                conn.step()
            self.turn()


class Pressure(Case):
    limit_s = 5 * LIMIT

    # F16, F17
    def test_64_rooms_of_16336_rows_through_64_blocks(self):
        e, d = self.pair(blocks=64, block_rows=8192, langd={
            "default_blocks": 1, "timeouts": {"progress": "5s"}})
        enc, lm = self.engines(e, d)
        for seed in range(4):
            rows = {seed * 64 + r: 16336 for r in range(1, 65)}
            load = Load(self, enc, lm, rows)
            order = list(rows)
            random.Random(seed).shuffle(order)
            for room in order:
                lm.request(room, "enc0")
            for room in rows:
                load.announce(room, known=room % 2 == 0)
            load.run()


class Fleet(Case):
    def test_two_langd_on_one_room(self):
        e = self.world.encoded()
        ds = [self.world.langd([e], name=f"lang{i}") for i in (0, 1)]
        enc = self.world.engine(e)
        lms = [self.world.engine(d) for d in ds]
        for lm in lms:
            lm.request(1, "enc0", destinations=2)
        enc.encode(1, 2000, aux="two")
        for lm in lms:
            self.assertEqual(lm.ready(1), 2000)
            self.assertEqual(lm.aux(1), "two")
            self.good(lm, 1)
            lm.release(1)
        self.assertEqual(enc.done(1), [2, 0])
        self.assertEqual(enc.rooms[1].wanted, 2)
        enc.release(1)

    def test_four_shards(self):
        e, d, enc, lm = self.at_work(
            fields="embedding:bf16:4096", transfer={"shards": 4}, blocks=20)
        for room, rows in ((1, 2000), (2, 700), (3, 1)):
            self.deliver(enc, lm, room, rows)
