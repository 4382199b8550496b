"""The window planner in Python: the cases that broke engines, random prompts
against an oracle that looks at every position by itself, and the C library,
which must give the same answers."""

import ctypes
import os
import random
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "lib/client/python"))

import numpy as np  # noqa: E402

import mmx  # noqa: E402
from mmx import errors  # noqa: E402
from mmx.plan import (LATER, NOW, SKIP, Placeholder, Plan, Rows,  # noqa: E402
                      plan)

LIBRARY = os.path.join(ROOT, os.environ.get("B", "build"), "libmmx.so.0")


def ones(text):
    return [c == "1" for c in text]


def masked(room, offset, text, **more):
    return Placeholder(offset, len(text), ones(text), room, **more)


def text(p):
    return " ".join(f"{s.room}:{s.row}+{s.rows}@{s.at}" for s in p.segments)


def rows_of(room, rows, elements=2):
    """Row r is room * 10000 + r in every element."""
    values = room * 10000 + np.arange(rows, dtype=np.int32)
    return np.repeat(values[:, None], elements, axis=1)


class Cases(unittest.TestCase):
    def refused(self, error, *args, **more):
        with self.assertRaises(error) as caught:
            plan(*args, **more)
        return caught.exception

    def test_seed_004_two_requests_in_windows_of_2048(self):
        rooms = [rows_of(0, 4819), rows_of(1, 4819)]
        steps = [(r, k, plan(k * 2048, 2048, [Placeholder(2, 4819, room=r)]))
                 for r in (0, 1) for k in (0, 1, 2)]
        for r, k, step in steps:  # all of them are alive
            rows = (2046, 2048, 725)[k]
            self.assertEqual((step.rows, step.mask.sum()), (rows, rows))
            out = np.full((2048, 2), -1, np.int32)
            step.run(rooms, "embedding", out)
            at = 0 if k else 2
            first = k * 2048 - 2 + at
            self.assertTrue((out[:at] == -1).all())
            self.assertTrue((out[at:at + rows]
                             == rooms[r][first:first + rows]).all())
            self.assertTrue((out[at + rows:] == -1).all())

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

    def test_window_inside_an_item(self):
        self.assertEqual(text(plan(10, 5, [Placeholder(3, 40)])), "0:7+5@0")

    def test_several_items(self):
        step = plan(4, 20, [Placeholder(2, 6), Placeholder(10, 3, room=1),
                            Placeholder(20, 9, room=2)])
        self.assertEqual(text(step), "0:2+4@0 1:0+3@6 2:0+4@16")
        self.assertEqual([n.keep for n in step.needs], [None, None, 4])
        self.assertEqual(step.needed, [0, 1, 2])

    def test_separators(self):
        step = plan(1, 9, [masked(0, 0, "1101101101")])
        self.assertEqual(text(step), "0:1+1@0 0:2+2@2 0:4+2@5 0:6+1@8")
        step = plan(2, 6, [masked(0, 0, "1101101100", storage="padded")])
        self.assertEqual(text(step), "0:3+2@1 0:6+2@4")
        self.assertEqual(step.needs[0][1:], (3, 8, 8))
        step = plan(0, 20, [Placeholder(3, 4, storage="prompt"),
                            masked(0, 9, "101", storage="prompt")])
        self.assertEqual(text(step), "0:3+4@3 0:9+1@9 0:11+1@11")

    def test_window_only_on_separators_needs_nothing(self):
        step = plan(4, 3, [masked(0, 2, "1100011", absent=True)])
        self.assertEqual((step.rows, step.needs[0].state), (0, LATER))
        step.check([None])
        step.run([None], "embedding", np.zeros((3, 2), np.int32))

    def test_prefix_hit_inside_and_past_an_item(self):
        items = [Placeholder(2, 8), Placeholder(20, 4, room=1)]
        step = plan(6, 8, items, rooms=3)
        self.assertEqual(text(step), "0:4+4@0")
        self.assertEqual([n.state for n in step.needs], [NOW, LATER, SKIP])
        step = plan(10, 8, items)
        self.assertEqual(step.skipped, [0])

    def test_the_same_item_twice(self):
        items = [Placeholder(0, 4), Placeholder(10, 4)]
        step = plan(1, 11, items)
        self.assertEqual(text(step), "0:1+3@0 0:0+2@9")
        self.assertEqual(step.needs[0], (NOW, 0, 4, 2))
        self.assertEqual(plan(5, 2, items).needs[0], (LATER, 0, 0, 0))

    def test_audio_in_video(self):
        items = [masked(0, 0, "1100110011"), masked(1, 2, "1100110")]
        step = plan(1, 8, items)
        self.assertEqual(text(step),
                         "0:1+1@0 1:0+2@1 0:2+2@3 1:2+2@5 0:4+1@7")
        out = np.zeros((8, 1), np.int32)
        step.run([rows_of(0, 6, 1), rows_of(1, 4, 1)], "", out)
        self.assertEqual(out[:, 0].tolist(),
                         [1, 10000, 10001, 2, 3, 10002, 10003, 4])
        clash = [Placeholder(0, 4), masked(1, 2, "011")]
        self.refused(errors.Malformed, 0, 10, clash)
        plan(0, 3, clash)

    def test_a_draft_model_reads_one_ahead(self):
        items = [Placeholder(2, 4), Placeholder(8, 4, room=1)]
        self.assertEqual(text(plan(0, 8, items, shift=1)), "0:0+4@1 1:0+1@7")
        for how in ({"absent": True}, {"indivisible": True}):
            items[1] = Placeholder(8, 4, room=1, **how)
            self.assertEqual(text(plan(0, 8, items, shift=1)), "0:0+4@1")
        self.refused(errors.NotReady, 0, 8, [Placeholder(2, 4, absent=True)],
                     shift=1)

    def test_an_indivisible_span_is_not_cut(self):
        items = [Placeholder(4, 10, indivisible=True),
                 Placeholder(20, 4, room=1)]
        self.assertEqual(plan(0, 8, items).positions, 4)
        self.assertEqual(text(plan(4, 10, items)), "0:0+10@0")
        self.refused(errors.TooLarge, 4, 9, items)
        self.refused(errors.Malformed, 5, 20, items)
        items = [masked(0, 4, "111000", indivisible=True),
                 masked(1, 7, "000111", indivisible=True)]
        self.assertEqual(plan(0, 11, items).positions, 4)

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

    def refused(self, error, second, numbers=None, out=None, first=None):
        out = self.out if out is None else out
        before = out.copy()
        rooms = [rows_of(0, 6) if first is None else first, second]
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
        rows = rows_of(1, 30)
        for error, out in (
                (errors.Malformed, np.zeros((11, 2), np.int32)),
                (errors.Malformed, np.zeros(24, np.int32)),
                (errors.IncompatibleLayout, np.zeros((12, 3), np.int32)),
                (errors.IncompatibleLayout, np.zeros((12, 2), np.float32))):
            self.refused(error, rows, out=out)
        self.refused(errors.IncompatibleLayout, rows_of(1, 30, 3))
        self.out.setflags(write=False)
        self.refused(errors.Malformed, rows)
        with self.assertRaises(TypeError):
            self.step.run([rows, rows], "", [[0, 0]] * 12)

    def test_strided_side_by_side_packed(self):
        rooms = [rows_of(0, 6), rows_of(1, 30)]
        wide = np.full((24, 5), -1, np.int32)
        self.step.run(rooms, "", wide[::2, 1:3])
        self.step.run([r + 5 for r in rooms], "", wide[::2, 3:])
        want = np.concatenate([rooms[0], rooms[1][:6]])
        self.assertTrue((wide[::2, 1:3] == want).all())
        self.assertTrue((wide[::2, 3:] == want + 5).all())
        self.assertTrue((wide[1::2] == -1).all())
        self.assertTrue((wide[:, 0] == -1).all())
        step = plan(0, 12, [Placeholder(1, 3), masked(1, 6, "1011")])
        out = np.zeros((6, 2), np.int32)
        step.run(rooms, "", out, packed=True)
        self.assertEqual(out[:, 0].tolist(), [0, 1, 2, 10000, 10001, 10002])

    def test_float32_from_bf16_and_f16(self):
        bits = np.arange(65536, dtype=np.uint16).reshape(4, -1)
        step = plan(0, 4, [Placeholder(0, 4)])
        out = np.zeros((4, 16384), np.float32)
        for name, rows, want in (
                ("bf16", bits, mmx.from_bf16(bits)),
                ("f16", bits.view(np.float16),
                 bits.view(np.float16).astype(np.float32))):
            step.run([Rows(rows, name)], "", out)
            self.assertTrue(np.array_equal(out, want, equal_nan=True))
        same = np.zeros_like(bits)
        step.run([Rows(bits, "bf16")], "", same)
        self.assertTrue((same == bits).all())
        self.assertRaises(errors.IncompatibleLayout, step.run,
                          [Rows(bits, "bf16")], "", out.view(np.int32))

    def test_torch_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        bits = mmx.bf16(rows_of(0, 6) % 256)
        step = plan(0, 8, [Placeholder(1, 6)])
        for dtype in (torch.bfloat16, torch.float32):
            out = torch.zeros(8, 4, dtype=dtype)
            step.run([Rows(bits, "bf16")], "", out[:, 1:3])
            self.assertEqual(out[1:7, 1].tolist(), [0, 1, 2, 3, 4, 5])
            self.assertEqual(out[1:7, 3].tolist(), [0] * 6)


class Prompt:
    """A random prompt; source[i] is (room, row) of position i, or None."""

    ROOMS = 4

    def __init__(self, seed):
        self.rng = r = random.Random(seed)
        self.length = r.randint(1, r.choice((48, 48, 48, 300)))
        self.items, self.source, self.who = [], {}, {}
        at = 0
        while len(self.items) < 6 and at < self.length:
            offset = min(at + r.randrange(5), self.length - 1)
            over = self.items and r.random() < 0.2
            if over:
                offset = r.randrange(offset + 1)
            self._draw(offset, r.randint(0, self.length - offset), over)
            at = max(at, self.items[-1].end)
        self.computed = r.choice((0, 0, r.randrange(self.length)))
        self.shift = int(r.random() < 0.2)
        for i, p in enumerate(self.items):
            if r.random() < 0.1 and not p.offset < self.computed < p.end:
                self.items[i] = Placeholder(
                    p.offset, p.length, p.embed, p.room, p.row_base,
                    storage=p.storage, indivisible=True)

    def _draw(self, offset, length, over):
        r, mask = self.rng, None
        room, base = r.randrange(self.ROOMS), r.choice((0, 0, 50))
        storage = r.choice(("compact", "compact", "padded", "prompt"))
        if over or r.random() < 0.5:
            chance = r.choice((0.1, 0.5, 0.9, 1))
            mask = [r.random() < chance and offset + i not in self.source
                    for i in range(length)]
        else:
            length = next((i for i in range(length)
                           if offset + i in self.source), length)
        row = base
        for i in range(length):
            if mask is None or mask[i]:
                self.source[offset + i] = room, {
                    "compact": row, "padded": base + i,
                    "prompt": base + offset + i}[storage]
                self.who[offset + i] = len(self.items)
                row += 1
        self.items.append(Placeholder(offset, length, mask, room, base,
                                      storage=storage))

    def whole_end(self, c, n):
        """Where a window that may not cut ends; None: nowhere."""
        for end in range(c + n, c, -1) if n else (c,):
            if not any(p.indivisible and p.offset < end < p.end and p.end > c
                       for p in self.items):
                return end
        return None

    def wanted(self, at, real_end):
        p = self.items[self.who[at]] if at in self.who else None
        if not p or (p.offset >= real_end and p.indivisible
                     and p.end > real_end + self.shift):
            return None
        return self.source[at]

    def windows(self):
        """(computed, length, end or None) until the prompt is over."""
        r, c = self.rng, self.computed
        budget = r.randint(1, self.length)
        while c < self.length:
            n = min(r.choice((budget, budget, r.randint(0, budget))),
                    self.length - c)
            end = self.whole_end(c, n)
            yield c, n, end
            if end is None or end == c:
                budget *= 2
            c = c if end is None else end


class Random(unittest.TestCase):
    PROMPTS = 4000

    def good(self, prompt, step: Plan, c, end):
        first = c + prompt.shift
        got = [None] * step.positions
        for s in step.segments:
            for i in range(s.rows):
                self.assertIsNone(got[s.at + i])
                got[s.at + i] = s.room, s.row + i
        want = [prompt.wanted(first + i, end) for i in range(end - c)]
        self.assertEqual(got, want)
        self.assertEqual(step.mask.tolist(), [w is not None for w in want])
        for room, need in enumerate(step.needs):
            rows = [w[1] for w in want if w and w[0] == room]
            later = [s[1] for at, s in prompt.source.items()
                     if s[0] == room and at >= end]
            self.assertEqual((need.first, need.end), (
                min(rows, default=0), max(rows, default=-1) + 1))
            state = NOW if rows else LATER if any(
                p.room == room and p.end > c for p in prompt.items) else SKIP
            self.assertEqual(need.state, state)
            if later:
                self.assertLessEqual(need.keep, min(later))
        return [first + i for i, w in enumerate(want) if w]

    def test_random_prompts_against_the_oracle(self):
        for seed in range(self.PROMPTS):
            prompt, used = Prompt(seed), []
            with self.subTest(seed=seed):
                for c, n, end in prompt.windows():
                    args = (c, n, prompt.items)
                    more = {"shift": prompt.shift, "rooms": Prompt.ROOMS}
                    if end is None:
                        self.assertRaises(errors.TooLarge, plan, *args, **more)
                    else:
                        used += self.good(prompt, plan(*args, **more), c, end)
                self.assertEqual(len(used), len(set(used)))
                if not prompt.shift:  # conservation over all windows
                    self.assertEqual(sorted(used), sorted(
                        at for at in prompt.source if at >= prompt.computed))


# --- the C library ---------------------------------------------------------
class CPlaceholder(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint32), ("length", ctypes.c_uint32),
                ("embed", ctypes.c_void_p), ("room", ctypes.c_uint32),
                ("row_base", ctypes.c_uint32), ("elements", ctypes.c_uint32),
                ("storage", ctypes.c_uint8), ("flags", ctypes.c_uint8)]


class CWindow(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (n, ctypes.c_uint32) for n in ("computed", "length", "shift", "rooms",
                                       "elements")]


class CQuad(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in "abcd"]

    def values(self):
        return self.a, self.b, self.c, self.d


class CPlan(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t)] + [
        (n, ctypes.c_uint32) for n in ("computed", "shift", "positions",
                                       "rows", "count", "rooms")] + [
        ("segments", ctypes.POINTER(CQuad)),
        ("mask", ctypes.POINTER(ctypes.c_uint64)),
        ("needs", ctypes.POINTER(CQuad))]


@unittest.skipUnless(os.path.exists(LIBRARY) and not os.environ.get("SAN"),
                     "no plain build of libmmx")
class Library(unittest.TestCase):
    def setUp(self):
        self.lib = ctypes.CDLL(LIBRARY)
        self.lib.mmx_plan_bytes.restype = ctypes.c_int64

    def ask(self, c, n, shift, items):
        """(error, None) or (0, the plan as Python's)."""
        places = (CPlaceholder * max(len(items), 1))()
        masks = []
        for to, p in zip(places, items):
            mask = None
            if p.embed is not None:
                mask = np.zeros(p.length // 64 + 1, np.uint64)
                masks.append(mask)
                self.lib.mmx_pack_mask(
                    ctypes.c_void_p(p.embed.ctypes.data),
                    ctypes.c_uint32(p.length),
                    ctypes.c_void_p(mask.ctypes.data))
            to.offset, to.length, to.room = p.offset, p.length, p.room
            to.embed = None if mask is None else mask.ctypes.data
            to.row_base, to.storage = p.row_base, p.storage
            to.flags = p.indivisible + 2 * p.absent
        w = CWindow(ctypes.sizeof(CWindow), c, n, shift, Prompt.ROOMS, 0)
        size = self.lib.mmx_plan_bytes(ctypes.byref(w), places, len(items),
                                       None)
        memory = (ctypes.c_uint64 * (max(size, 0) // 8 + 1))()
        out = ctypes.POINTER(CPlan)()
        error = self.lib.mmx_plan(ctypes.byref(w), places, len(items), memory,
                                  ctypes.c_size_t(max(size, 0)),
                                  ctypes.byref(out), None)
        if error:
            return error, None
        got = out.contents
        return 0, (got.positions, got.rows,
                   [got.segments[i].values() for i in range(got.count)],
                   [got.needs[i].values() for i in range(got.rooms)],
                   [bool(got.mask[i // 64] >> i % 64 & 1)
                    for i in range(got.positions)])

    def test_it_gives_the_same_plans(self):
        for seed in range(1000):
            prompt = Prompt(seed)
            for c, n, end in prompt.windows():
                error, got = self.ask(c, n, prompt.shift, prompt.items)
                if end is None:
                    self.assertEqual(error, -errors.TooLarge.number)
                    continue
                p = plan(c, n, prompt.items, shift=prompt.shift,
                         rooms=Prompt.ROOMS)
                self.assertEqual(error, 0)
                self.assertEqual(got, (
                    p.positions, p.rows, [tuple(s) for s in p.segments],
                    [(n.state, n.first, n.end,
                      2**32 - 1 if n.keep is None else n.keep)
                     for n in p.needs], p.mask.tolist()))


if __name__ == "__main__":
    unittest.main()
