"""Windows of a prompt, planned in Python and run on rooms of real daemons."""

from pair import Case

import numpy as np
from mmx import errors
from mmx.plan import NOW, SKIP, Placeholder, plan


class Windows(Case):
    FIELDS = "embedding:bf16:16,deepstack:f16:16"

    def setUp(self):
        super().setUp()
        self.enc, self.lm = self.engines(*self.pair(fields=self.FIELDS))

    def fill(self, room, rows, until=None):
        """Writes row r with r % 128 in every element, and half of that in the
        other field."""
        self.enc.opens(room, rows, rows)
        source = self.enc.rooms[room]
        values = np.repeat(np.arange(rows) % 128, 16).reshape(rows, 16)
        f32 = values.astype(np.float32)
        source["embedding"][0:rows] = (f32.view(np.uint32) >> 16).astype("u2")
        source["deepstack"][0:rows] = (f32 / 2).astype(np.float16)
        self.enc.commit(room, 0, until or rows, final=until is None)
        return values

    def test_a_stream_in_windows(self):
        self.lm.request(1, "enc0", mode="stream")
        values = self.fill(1, 1000)
        room = self.lm.rooms[1]
        self.lm.conn.wait(room.opened, 10)
        items, at, used = [Placeholder(7, 1000, storage=room.storage or 1)], 0, 0
        out = np.zeros((150, 32), np.float32)
        while at < 1007:
            step = plan(at, min(150, 1007 - at), items)
            need = step.needs[0]
            self.assertEqual(need.state, NOW)
            room.wait_rows(need.end, 10)
            # The two fields stand side by side in a row.
            step.run([room], "embedding", out[:, :16])
            step.run([room], "deepstack", out[:, 16:])
            first = 7 if at == 0 else 0
            want = values[used:used + step.rows]
            got = out[first:first + step.rows]
            self.assertTrue((got[:, :16] == want).all())
            self.assertTrue((got[:, 16:] == want / 2).all())
            used += step.rows
            at += step.positions
            if need.keep is not None:
                room.release(need.keep)
                # After a preemption the rows of an earlier window are gone.
                self.assertRaises(errors.Gone, step.check, [room])
        self.assertEqual(used, 1000)
        self.enc.done(1)
        for e in (self.enc, self.lm):
            e.release(1)

    def test_rows_that_have_not_landed(self):
        self.lm.request(1, "enc0", mode="stream")
        self.fill(1, 256, until=128)  # rows travel in whole units
        room = self.lm.rooms[1]
        step = plan(0, 300, [Placeholder(0, 128), Placeholder(
            128, 172, [False] * 44 + [True] * 128, row_base=128)])
        room.wait_rows(128, 10)
        out = np.full((300, 16), 7, np.float32)
        with self.assertRaises(errors.NotReady) as caught:
            step.run([room], "embedding", out)
        self.assertEqual((caught.exception.a, caught.exception.b), (128, 128))
        self.assertTrue((out == 7).all())
        plan(0, 172, [Placeholder(0, 128)]).run([room], "embedding", out)
        self.enc.commit(1, 128, 256, final=True)
        self.lm.ready(1)
        step.run([room], "embedding", out)
        self.assertTrue((out[128:172] == 7).all())
        self.assertTrue((out[172:, 0] == np.arange(128, 256) % 128).all())
        self.enc.done(1)
        for e in (self.enc, self.lm):
            e.release(1)

    def test_a_prefix_hit_declines(self):
        step = plan(300, 64, [Placeholder(0, 200), Placeholder(290, 30,
                                                               room=1)])
        self.assertEqual([n.state for n in step.needs], [SKIP, NOW])
        self.lm.request(2, "enc0")
        self.fill(2, 30)
        self.lm.ready(2)
        out = np.zeros((64, 16), np.float32)
        step.run([None, self.lm.rooms[2]], "embedding", out)
        self.assertEqual(out[:21, 0].tolist(), list(range(10, 30)) + [0])
        self.enc.done(2)
        for e in (self.enc, self.lm):
            e.release(2)
