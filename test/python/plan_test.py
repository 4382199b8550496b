"""Windows of a prompt by the Python package: what it passes to the library's
planner and reads from it, and the copies of rows, which Python does itself.
window_random_test.c checks the planner against an oracle."""

import os
import sys
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "lib/client/python"))

import numpy as np  # noqa: E402

import mmx  # noqa: E402
from mmx import errors, rooms  # noqa: E402
from mmx.plan import NOW, SKIP, Placeholder, plan  # noqa: E402


def ones(text):
    return [c == "1" for c in text]


def masked(room, offset, text, **more):
    return Placeholder(offset, len(text), ones(text), room, **more)


def text(p):
    return " ".join(f"{s.room}:{s.row}+{s.rows}@{s.at}" for s in p.segments)


def rows_of(room, rows, elements=2):
    """Returns rows: row r is room * 10000 + r in every element."""
    values = room * 10000 + np.arange(rows, dtype=np.int32)
    return np.repeat(values[:, None], elements, axis=1)


class Rows:
    """A room that has these rows in two runs."""

    def __init__(self, array, dtype="i32", released=0, readable=None,
                 total=None):
        rows, elements = array.shape
        self.released = released
        self.readable = rows if readable is None else readable
        self.total = rows if total is None else total
        self._runs = [mmx.Run(0, 2, 0), mmx.Run(2, rows - 2, 2)]
        field = mmx.Field("embedding", dtype, elements, 0, array[0].nbytes)
        self.pool = types.SimpleNamespace(
            fields={"embedding": field},
            rows=lambda _, place, rows: array[place:place + rows])

    pieces = rooms.Shown.pieces


class Cases(unittest.TestCase):
    def refused(self, error, *args, **more):
        with self.assertRaises(error) as caught:
            plan(*args, **more)
        return caught.exception

    def test_a_plan_cannot_be_changed(self):
        mask = np.array(ones("1101"))
        step = plan(0, 8, [Placeholder(1, 4, mask)])
        mask[:] = False
        self.assertEqual(step.mask.tolist(), ones("01101000"))
        with self.assertRaises(ValueError):
            step.mask[0] = True
        with self.assertRaises(AttributeError):
            step.rows = 0
        after = plan(3, 8, [Placeholder(1, 4, ones("1101"))])
        self.assertFalse(np.shares_memory(step.mask, after.mask))

    def test_items_are_passed_and_segments_read(self):
        two = [Placeholder(2, 4), Placeholder(8, 4, room=1)]
        for first, length, items, more, said in (
                (4, 20, [Placeholder(2, 6), Placeholder(10, 3, room=1),
                         Placeholder(20, 9, room=2)], {},
                 "0:2+4@0 1:0+3@6 2:0+4@16"),
                (1, 9, [masked(0, 0, "1101101101")], {},
                 "0:1+1@0 0:2+2@2 0:4+2@5 0:6+1@8"),
                (2, 6, [masked(0, 0, "1101101100", storage="padded")], {},
                 "0:3+2@1 0:6+2@4"),
                (0, 20, [Placeholder(3, 4, storage="prompt"),
                         masked(0, 9, "101", storage="prompt")], {},
                 "0:3+4@3 0:9+1@9 0:11+1@11"),
                (0, 8, two, {"shift": 1}, "0:0+4@1 1:0+1@7"),
                *((0, 8, [two[0], Placeholder(8, 4, room=1, **how)],
                   {"shift": 1}, "0:0+4@1")
                  for how in ({"absent": True}, {"indivisible": True}))):
            self.assertEqual(text(plan(first, length, items, **more)), said)
        step = plan(4, 20, [Placeholder(2, 6), Placeholder(20, 9, room=2)])
        self.assertEqual([n.keep for n in step.needs], [None, None, 4])
        self.assertEqual([n.state for n in step.needs], [NOW, SKIP, NOW])
        self.assertEqual(plan(2, 6, [masked(
            0, 0, "1101101100", storage="padded")]).needs[0][1:], (3, 8, 8))
        self.refused(errors.NotReady, 0, 8, [Placeholder(2, 4, absent=True)],
                     shift=1)

    def test_planning_refuses(self):
        for bad in (Placeholder(2, 4, room=1), Placeholder(2**32 - 4, 4),
                    Placeholder(2, 4, row_base=2**32 - 4), Placeholder(-1, 4),
                    Placeholder(2, 4, storage="odd"),
                    Placeholder(2, 4, [True])):
            self.refused(errors.Malformed, 0, 8, [bad], rooms=1)
        self.refused(errors.IncompatibleLayout, 0, 8,
                     [Placeholder(2, 4, elements=3)], elements=4)
        self.refused(errors.Malformed, 2**32 - 8, 8, [])


class Runs(unittest.TestCase):
    def setUp(self):
        self.items = [Placeholder(0, 6), Placeholder(6, 30, room=1)]
        self.step = plan(0, 12, self.items)
        self.out = np.full((12, 2), -1, np.int32)

    def refused(self, error, second, numbers=None, out=None):
        out = self.out if out is None else out
        before = out.copy()
        rooms = [Rows(rows_of(0, 6)), second]
        with self.assertRaises(error) as caught:
            self.step.run(rooms, "embedding", out)
        self.assertTrue((out == before).all())
        if numbers:
            self.assertEqual((caught.exception.a, caught.exception.b),
                             numbers)
            self.assertIn("room 1", str(caught.exception))

    def test_gone_not_landed_beyond(self):
        rows = rows_of(1, 30)
        self.refused(errors.Gone, Rows(rows, released=2), (0, 2))
        self.refused(errors.Gone, Rows(rows, released=20), (0, 6))
        self.refused(errors.NotReady, Rows(rows, readable=4), (4, 2))
        self.refused(errors.Malformed, Rows(rows, total=5), (5, 1))
        self.refused(errors.Stale, None)

    def test_tensors_that_do_not_fit(self):
        rows = Rows(rows_of(1, 30))
        for error, out in (
                (errors.Malformed, np.zeros((11, 2), np.int32)),
                (errors.Malformed, np.zeros(24, np.int32)),
                (errors.IncompatibleLayout, np.zeros((12, 3), np.int32)),
                (errors.IncompatibleLayout, np.zeros((12, 2), np.float32))):
            self.refused(error, rows, out=out)
        self.refused(errors.IncompatibleLayout, Rows(rows_of(1, 30, 3)))
        self.out.setflags(write=False)
        self.refused(errors.Malformed, rows)
        with self.assertRaises(TypeError):
            self.step.run([rows, rows], "embedding", [[0, 0]] * 12)

    def test_strided_side_by_side_packed(self):
        rooms = [rows_of(0, 6), rows_of(1, 30)]
        wide = np.full((24, 5), -1, np.int32)
        shown = [Rows(r) for r in rooms]
        self.step.run(shown, "embedding", wide[::2, 1:3])
        self.step.run([Rows(r + 5) for r in rooms], "embedding", wide[::2, 3:])
        want = np.concatenate([rooms[0], rooms[1][:6]])
        self.assertTrue((wide[::2, 1:3] == want).all())
        self.assertTrue((wide[::2, 3:] == want + 5).all())
        self.assertTrue((wide[1::2] == -1).all())
        self.assertTrue((wide[:, 0] == -1).all())
        step = plan(0, 12, [Placeholder(1, 3), masked(1, 6, "1011")])
        out = np.zeros((6, 2), np.int32)
        step.run(shown, "embedding", out, packed=True)
        self.assertEqual(out[:, 0].tolist(), [0, 1, 2, 10000, 10001, 10002])

    def test_float32_from_bf16_and_f16(self):
        bits = np.arange(65536, dtype=np.uint16).reshape(4, -1)
        step = plan(0, 4, [Placeholder(0, 4)])
        out = np.zeros((4, 16384), np.float32)
        for name, rows, want in (
                ("bf16", bits, mmx.from_bf16(bits)),
                ("f16", bits.view(np.float16),
                 bits.view(np.float16).astype(np.float32))):
            step.run([Rows(rows, name)], "embedding", out)
            self.assertTrue(np.array_equal(out, want, equal_nan=True))
        same = np.zeros_like(bits)
        step.run([Rows(bits, "bf16")], "embedding", same)
        self.assertTrue((same == bits).all())
        self.assertRaises(errors.IncompatibleLayout, step.run,
                          [Rows(bits, "bf16")], "embedding", out.view(np.int32))

    def test_torch_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        bits = mmx.bf16(rows_of(0, 6) % 256)
        step = plan(0, 8, [Placeholder(1, 6)])
        for dtype in (torch.bfloat16, torch.float32):
            out = torch.zeros(8, 4, dtype=dtype)
            step.run([Rows(bits, "bf16")], "embedding", out[:, 1:3])
            self.assertEqual(out[1:7, 1].tolist(), [0, 1, 2, 3, 4, 5])
            self.assertEqual(out[1:7, 3].tolist(), [0] * 6)


if __name__ == "__main__":
    unittest.main()
