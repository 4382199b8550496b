"""The Python client's tables, and the guide's, against the .def files and
wire.h, without a daemon. Rows that only one side has are named."""

import glob
import os
import re
import sys
import unittest

from pair import ROOT
import wire as ours

import mmx
from mmx import errors, wire
from mmx.dtypes import DTYPES

sys.path.append(os.path.join(ROOT, "scripts"))

import tables  # noqa: E402


def path(name):
    (found,) = glob.glob(os.path.join(ROOT, "lib/*", name))
    return found


def rows(name, kind):
    return [args for macro, args in tables.rows(path(name)) if macro == kind]


def read(name):
    with open(name, encoding="utf-8") as f:
        return f.read()


def enums(name):
    """Returns {name: value} of a header's enums whose values are plain
    numbers."""
    out = {}
    for body in re.findall(r"^enum \{(.*?)\}", read(path(name)),
                           re.M | re.S):
        value = -1
        for word in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(","):
            word, _, given = word.strip().partition(" = ")
            value = int(given, 0) if given else value + 1
            out[word] = value
    return out


class Tables(unittest.TestCase):
    maxDiff = None

    def same(self, table, want, have):
        """Names the rows of a table that Python lacks, has with other values,
        or has alone."""
        self.assertEqual(
            [f"{table} {row}: Python has {have.get(row)}, not {want.get(row)}"
             for row in {**want, **have} if want.get(row) != have.get(row)],
            [])

    def test_limits(self):
        """Of what the Python package passes to the C library."""
        want, have = {}, {}
        for m in tables.messages(path("local.def")):
            name = m["name"].lower()
            if name not in ("hello", "pool", "announce", "commit", "request",
                            "attach", "decline", "query", "space", "ticket"):
                continue
            for f in m["fields"]:
                if f.name in wire.BITS:
                    want[name, f.name] = f.kind
                    have[name, f.name] = f"u{wire.BITS[f.name]}"
                elif f.name in wire.BYTES:
                    want[name, f.name] = f.limit
                    have[name, f.name] = wire.BYTES[f.name]
        self.same("local.def", want, have)
        self.assertEqual({field for _, field in want},
                         {*wire.BITS, *wire.BYTES})

    # RULES 7.10
    def test_reasons(self):
        want = {int(n): (reason, advice.lower().replace("_", "-"), text)
                for _, n, reason, advice, text in rows("err.def", "ERR")
                if int(n)}
        self.same("err.def", want, {
            n: (c.reason, c.advice, c.sentence)
            for n, c in errors.BY_NUMBER.items()})

    # RULES 7.10
    def test_the_guides_advice(self):
        table = re.findall(r"^\| (retry|encode locally|give up|nothing) \| "
                           r"([^|]+) \|",
                           read(f"{ROOT}/lib/client/README.md"), re.M)
        have = {reason: advice.replace(" ", "-")
                for advice, reasons in table for reason in reasons.split(", ")}
        self.same("advice", {c.reason: c.advice
                             for c in errors.BY_NUMBER.values()}, have)

    # RULES 4.7
    def test_states(self):
        self.same("room.def",
                  {name: int(n) for name, n, *_ in rows("room.def", "STATE")},
                  {s.name: int(s) for s in mmx.State})

    def test_dtypes(self):
        self.same("dtype.def",
                  {name: int(size)
                   for name, size, _ in rows("dtype.def", "DTYPE")},
                  {name: d.bytes for name, d in DTYPES.items()})

    def test_constants(self):
        want, have = {}, {}
        for name, value in enums("wire.h").items():
            kind, _, word = name.partition("_")
            if kind in ("RIGHT", "EVENT"):
                want[name], have[name] = value, getattr(wire, word, None)
            elif kind in ("ROLE", "MODE", "STORAGE"):
                group = wire.STORAGE if kind == "STORAGE" \
                    else getattr(wire, f"{kind}S")
                want[name], have[name] = value, group.get(word.lower())
        defines = tables.defines(path("wire.h"))
        for name, value in (("KEY_BYTES", len(wire.NO_KEY)),
                            ("SECRET_BYTES", len(wire.NO_SECRET)),
                            ("TAG_MAX", wire.TAG_MAX)):
            want[name], have[name] = int(defines[name], 0), value
        self.same("wire.h", want, have)

    def test_round_trip(self):
        for m in ours.MESSAGES.values():
            fixed = {"u8": 200, "u16": 60000, "u32": 4000000000,
                     "u64": 2**63 + 1, "key": bytes(range(32)),
                     "secret": bytes(range(16)),
                     "text": "gr\u00fc\u00df", "blob": b"\0\1\2"}
            values = {f.name: fixed[f.kind] for f in m.fields}
            # Unknown bytes at the end are ignored.
            packet = bytearray(m.encode(7, **values) + b"new")
            length = int.from_bytes(packet[4:8], "little")
            packet[4:8] = (length + 3).to_bytes(4, "little")
            (got,) = ours.frames(bytes(packet))
            self.assertEqual((got.message, got.seq, got.values),
                             (m, 7, values))

    # RULES 2.3
    def test_frames_of_version_1(self):
        frames = re.findall(r'^FRAME\(local, (\w+), "(\w+)"\)',
                            read(f"{ROOT}/test/frames.def"), re.M)
        self.assertEqual(len(frames), len(ours.MESSAGES))
        for name, digits in frames:
            (got,) = ours.frames(bytes.fromhex(digits))
            self.is_counted_through(got, name.lower())
            self.assertEqual(got.message.encode(7, **got.values).hex(),
                             digits)

    def is_counted_through(self, got, name):
        self.assertEqual(got.message.name, name)
        for at, (field, kind, *_) in enumerate(got.message.fields, 1):
            want = {"text": f"s{at}", "blob": f"s{at}".encode(),
                    "key": bytes([at]) * 32,
                    "secret": bytes([at]) * 16}.get(kind)
            if want is None:
                want = int.from_bytes(
                    bytes([at]) * (int(kind[1:]) // 8), "little")
            want = {"flags": 1, "magic": ours.MAGIC}.get(field, want)
            self.assertEqual(got.values[field], want, (name, field))

    def test_cut_off_frames(self):
        whole = ours.EVENT.encode(1, runs=b"12345678", text="x")
        for n in range(1, len(whole)):
            with self.assertRaises(ours.BadFrame):
                list(ours.frames(whole[:n]))


class Values(unittest.TestCase):
    def test_bf16(self):
        import numpy as np
        exact = np.arange(256, dtype=np.float32)
        self.assertTrue((mmx.from_bf16(mmx.bf16(exact)) == exact).all())
        odd = np.array([1.00390625, 1.01171875, np.inf, -np.inf, np.nan])
        got = mmx.from_bf16(mmx.bf16(odd))
        self.assertEqual(got[:4].tolist(), [1.0, 1.015625, np.inf, -np.inf])
        self.assertTrue(np.isnan(got[4]))
