"""What engines say beside rows, in Python: the vector of the guide, values and
what is refused. client_aux_test.c holds the bytes."""

import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "lib/client/python"),
                os.path.join(ROOT, "scripts")]

import numpy as np  # noqa: E402
import tables  # noqa: E402

from mmx import aux, errors  # noqa: E402

SAYS = {"modality": "image", "flags": aux.MROPE, "part": (0, 2),
        "grid": [(1, 16, 48)], "merge": 2, "sizes": [(224, 672)],
        "span": [24], "mrope_delta": -168, "seconds": [0.5],
        "chunk": b"\1\2\3"}


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


class Vector(unittest.TestCase):
    def test_the_guide_has_its_bytes(self):
        part = text("lib/client/README.md").split("are these bytes:")[1]
        shown = "".join(re.findall(r"^    ([0-9a-f]+)$",
                                   part.split("\n## ")[0], re.M))
        self.assertEqual(aux.pack(**SAYS).hex(), shown)

    def test_the_test_in_c_has_its_bytes(self):
        part = text("test/unit/client_aux_test.c").split("vector =")[1]
        shown = "".join(re.findall(r'"([0-9a-f]+)"', part.split(";")[0]))
        self.assertEqual(aux.pack(**SAYS).hex(), shown)

    def test_it_comes_back(self):
        self.assertEqual(aux.unpack(aux.pack(**SAYS)), SAYS)

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
        self.assertEqual(len(aux.pack(chunk=bytes(aux.MAX - 16))), aux.MAX)
        with self.assertRaisesRegex(errors.TooLarge, "at most 32768"):
            aux.pack(chunk=bytes(aux.MAX - 15))


class Refused(unittest.TestCase):
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
