"""Tests what engines say beside rows, in Python: the values, and what is
refused. embedding_test.py checks the bytes."""

import os
import struct
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "lib/client/python"),
                os.path.join(ROOT, "scripts")]

import numpy as np  # noqa: E402
import tables  # noqa: E402

import mmx  # noqa: E402
from mmx import aux, errors  # noqa: E402

SAYS = {"modality": "image", "flags": aux.MROPE, "part": (0, 2),
        "grid": [(1, 16, 48)], "merge": 2, "sizes": [(224, 672)],
        "span": [24], "mrope_delta": -168, "seconds": [0.5],
        "chunk": b"\1\2\3"}
LARGE = {"modality": "video", "times": [i / 2 for i in range(5000)],
         "chunk": b"\1\2\3"}


class Pool:
    """Rows of two fields in two runs, in this process."""

    def __init__(self, rows, kind="bf16", elements=100):
        size = mmx.pool.dtype(kind).itemsize * elements
        self.fields = {
            "embedding": mmx.pool.Field("embedding", kind, elements, 0, size),
            "ids": mmx.pool.Field("ids", "i32", 1, 0, 4)}
        self.arrays = {
            name: np.full((rows, f.elements), 7, mmx.pool.dtype(f.dtype))
            for name, f in self.fields.items()}

    def rows(self, field, first, rows):
        return self.arrays[field][first:first + rows]


class Room:
    """A source and a complete room, both with all rows of a pool."""

    room = 0x17

    def __init__(self, pool, data):
        self.pool, self.aux = pool, data
        self.total = len(pool.arrays["ids"])

    def pieces(self, first, end):
        middle = (first + end) // 2
        yield mmx.Run(first, middle - first, first)
        yield mmx.Run(middle, end - middle, middle)

    def gather(self, field, first, end):
        return self.pool.arrays[field][first:end].copy()


def delivered(whole, rows, **of):
    """Returns a room of `rows` rows, and what stands beside them."""
    says = aux.split(whole)
    room = Room(Pool(rows + says.rows(Pool(0, **of)), **of), says.aux)
    says.write(room, rows)
    return room


def rest_of(size):
    """Returns an aux that says that `size` more bytes of aux follow as rows."""
    record = struct.pack("<HHIII", 65535, 0, 4, size, 0)
    return struct.pack("<3sBI", b"MXA", 1, 8 + len(record)) + record


class Table(unittest.TestCase):
    def test_the_table_is_that_of_c(self):
        kinds = {"u32": "I", "i32": "i", "f64": "d", "bytes": ""}
        rows = {int(tag): (name.lower(), kinds[kind], int(per), one == "one")
                for _, (name, tag, kind, per, one, _) in tables.rows(
                    os.path.join(ROOT, "lib/client/aux_data.def"))}
        self.assertEqual(rows, {t: tuple(r) for t, r in aux._ROWS.items()})


class Values(unittest.TestCase):
    def test_of_numpy(self):
        data = aux.pack(grid=np.array([[1, 2, 3], [4, 5, 6]]),
                        rows=np.array([6, 30]), merge=np.int64(1),
                        times=np.linspace(0, 1, 5, dtype="f4"),
                        chunk=np.arange(3, dtype="u1"))
        self.assertEqual(aux.unpack(data), {
            "grid": [(1, 2, 3), (4, 5, 6)], "rows": [6, 30], "merge": 1,
            "times": [0, .25, .5, .75, 1], "chunk": b"\0\1\2"})

    def test_nothing_says_nothing(self):
        self.assertEqual(aux.unpack(aux.pack(grid=[], chunk=None)), {})

    def test_extra(self):
        says = {"fps": 2.0, "names": ["ä", "b"]}
        self.assertEqual(aux.unpack(aux.pack(extra=says)), {"extra": says})
        for bad in ([1], {"a": object()}, {"a": float("nan")}):
            with self.assertRaises(ValueError):
                aux.pack(extra=bad)

    def test_bad_values_are_named(self):
        for name, bad in (("grid", [(1, 2)]), ("grid", 7), ("merge", -1),
                          ("merge", 1.5), ("part", (1, 2, 3)),
                          ("modality", "smell"), ("chunk", "text"),
                          ("mrope_delta", 1 << 31), ("times", ["a"])):
            with self.assertRaisesRegex(ValueError, name):
                aux.pack(**{name: bad})
        with self.assertRaisesRegex(ValueError, "smell; known are modality"):
            aux.pack(smell=1)

    def test_the_limit_is_named(self):
        most = aux.pack(chunk=bytes(aux.WHOLE - 16))
        self.assertEqual(len(most), aux.WHOLE)
        with self.assertRaisesRegex(errors.TooLarge, "at most 16777216"):
            aux.pack(chunk=bytes(aux.WHOLE - 15))

    def test_more_than_an_aux_goes_on_in_rows(self):
        for size in (0, 1, aux.MAX - 32, aux.MAX - 31, 100 << 10, 1 << 20,
                     aux.WHOLE - 32):
            for of in ({}, {"kind": "f32", "elements": 3},
                       {"kind": "f8e4m3", "elements": 1 << 16}):
                whole = aux.pack(merge=2, chunk=os.urandom(size))
                room = delivered(whole, 5, **of)
                self.assertEqual(room.total - aux.rest_rows(room), 5)
                self.assertEqual(aux.whole(room), whole)
                self.assertEqual(aux.unpack(room.aux)["merge"], 2)
                self.assertEqual(room.total > 5, len(whole) > aux.MAX)
                ids = room.pool.arrays["ids"]
                self.assertTrue((ids[:5] == 7).all() and not ids[5:].any())
                self.assertTrue((room.pool.arrays["embedding"][:5] == 7).all())

    def test_what_has_no_aux_has_no_rest(self):
        self.assertEqual(aux.rest_rows(Room(Pool(3), b"")), 0)
        self.assertEqual(aux.whole(Room(Pool(3), b"")), b"")


class Refused(unittest.TestCase):
    def test_a_rest_of_a_hostile_size(self):
        for size, words in ((701, "rest of 701 bytes; 3 rows of 200 bytes"),
                            (1 << 31, "at most 16777216"),
                            (0xffffffff, "rest of 4294967295 bytes")):
            room = Room(Pool(3), rest_of(size))
            for call in (aux.rest_rows, aux.whole):
                with self.assertRaisesRegex(errors.TooLarge, words) as e:
                    call(room)
                self.assertIn("room 0x17: its aux has a rest", str(e.exception))
        for bad in (rest_of(0), b"grid", b"MXA"):
            with self.assertRaisesRegex(errors.Malformed, "room 0x17"):
                aux.rest_rows(Room(Pool(3), bad))

    def test_a_rest_that_is_none(self):
        for rest in (b"\7" * 600, aux.pack(merge=1), aux.pack(chunk=b"1")[8:]):
            room = Room(Pool(5), rest_of(600))
            aux.Split(b"", rest).write(room, 2)
            with self.assertRaisesRegex(errors.Malformed, r"rows 2\.\.5 are"):
                aux.whole(room)
        room = delivered(aux.pack(**LARGE), 2)
        room.pool.arrays["embedding"][-1, -1] = 1  # behind the end of the rest
        with self.assertRaises(errors.Malformed):
            aux.whole(room)


    def test_what_is_cut(self):
        data = aux.pack(**SAYS)
        for broken in (b"", data[:-1], data + bytes(8)):
            with self.assertRaises(errors.Malformed):
                aux.unpack(broken)

    def test_another_version(self):
        data = bytearray(aux.pack(**SAYS))
        data[3] = 2
        with self.assertRaises(errors.Version):
            aux.unpack(data)

    def test_what_is_no_json(self):
        for bad in (b"[]", b"\xff", b"[" * 30000, b"{", b"1"):
            data = aux.pack(chunk=bad).replace(b"\x0c\0\0\0", b"\x0d\0\0\0")
            with self.assertRaises(errors.Malformed):
                aux.unpack(data)


if __name__ == "__main__":
    unittest.main()
