"""The Python client's tables against the .def files: pure, no daemon."""

import os
import re
import unittest

from pair import ROOT, yaml

import mmx
from mmx import errors, wire
from mmx.dtypes import DTYPES


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


class Tables(unittest.TestCase):
    def test_messages(self):
        want, now = {}, None
        row = re.compile(r'^(MESSAGE|FIELD|FLAGS|TEXT|BLOB|LATER|LATER_TEXT|'
                         r'LATER_BLOB)\((\w+), (\w+)(?:, (\d+))?', re.M)
        for kind, name, second, number in row.findall(
                read("lib/core/local.def")):
            if kind == "MESSAGE":
                now = want[int(number)] = (second, [], {})
            elif kind in ("FIELD", "FLAGS", "LATER"):
                now[1].append((name, second, 0))
            else:
                now[1].append((name, kind[-4:].lower(), int(second)))
            if kind.startswith("LATER"):
                now[2][name] = {"LATER_TEXT": "", "LATER_BLOB": b""}.get(
                    kind, bytes(32) if second == "key" else int(number or 0))
        have = {m.number: (m.name, m.fields, m.none)
                for m in wire.MESSAGES.values()}
        self.assertEqual(have, want)

    def test_abilities(self):
        rows = re.findall(r'^LOCAL_ABILITY\((\w+), (\d+),',
                          read("lib/core/ability.def"), re.M)
        self.assertEqual(wire.ABILITIES, {n: int(bit) for n, bit in rows})

    def test_reasons(self):
        rows = re.findall(r'^ERR\(\w+, (\d+), "([^"]+)", (\w+), "([^"]+)"\)',
                          read("lib/base/err.def"), re.M)
        want = {int(n): (name, advice.lower().replace("_", "-"), text)
                for n, name, advice, text in rows if int(n)}
        have = {n: (c.reason, c.advice, c.sentence)
                for n, c in errors.BY_NUMBER.items()}
        self.assertEqual(have, want)

    def test_states(self):
        rows = re.findall(r"^STATE\((\w+), (\d+)", read("lib/core/room.def"),
                          re.M)
        self.assertEqual({s.name: int(s) for s in mmx.State},
                         {name: int(n) for name, n in rows})

    def test_round_trip(self):
        for m in wire.MESSAGES.values():
            fixed = {"u8": 200, "u16": 60000, "u32": 4000000000,
                     "u64": 2**63 + 1, "key": bytes(range(32)),
                     "text": "gr\u00fc\u00df", "blob": b"\0\1\2"}
            values = {name: fixed[kind] for name, kind, _ in m.fields}
            # Bytes at the end that nobody knows are ignored.
            packet = bytearray(m.encode(7, **values) + b"new")
            length = int.from_bytes(packet[4:8], "little")
            packet[4:8] = (length + 3).to_bytes(4, "little")
            (got,) = wire.frames(bytes(packet))
            self.assertEqual((got.message, got.seq, got.values),
                             (m, 7, values))

    def test_an_older_daemon_sends_less(self):
        m = wire.Message("grown", 1, """
            a:u32 b:text:9 c:u8=3 d:text:9= e:blob:9= f:key=0 g:u16=0""")
        sent = {"a": 1, "b": "x", "c": 4, "d": "y", "e": b"z",
                "f": bytes(range(32)), "g": 7}
        none = {"c": 3, "d": "", "e": b"", "f": bytes(32), "g": 0}
        body = m.encode(1, **sent)[12:]
        border = {7: "cdefg", 8: "defg", 11: "efg", 16: "fg", 48: "g", 50: ""}
        for n in range(len(body) + 1):
            if n in border:
                self.assertEqual(m.decode(memoryview(body[:n])), {
                    **sent, **{k: none[k] for k in border[n]}})
                continue
            with self.assertRaises(wire.BadFrame):
                m.decode(memoryview(body[:n]))

    def test_frames_of_old_programs(self):
        rows = re.findall(r'^FRAME\(local, (\w+), "(\w+)"\)',
                          read("test/frames.def"), re.M)
        self.assertEqual(len(rows), 22)
        for name, digits in rows:
            (got,) = wire.frames(bytes.fromhex(digits))
            self.assertEqual(got.message.name, name.lower())
            old = [f for f in got.message.fields
                   if f[0] not in got.message.none]
            for at, (field, kind, _) in enumerate(old, 1):
                want = {"text": f"s{at}", "blob": f"s{at}".encode(),
                        "key": bytes([at]) * 32}.get(kind)
                if want is None:
                    want = int.from_bytes(
                        bytes([at]) * (int(kind[1:]) // 8), "little")
                want = {"flags": 1, "magic": wire.MAGIC}.get(field, want)
                self.assertEqual(got.values[field], want, (name, field))
            for field, none in got.message.none.items():
                self.assertEqual(got.values[field], none)

    def test_cut_off_frames(self):
        whole = wire.EVENT.encode(1, runs=b"12345678", text="x")
        for n in range(1, len(whole)):
            with self.assertRaises(wire.BadFrame):
                list(wire.frames(whole[:n]))

    def test_dtypes(self):
        rows = re.findall(r'^DTYPE\((\w+), (\d+),',
                          read("lib/core/dtype.def"), re.M)
        self.assertEqual({name: int(size) for name, size in rows},
                         {name: d.bytes for name, d in DTYPES.items()})


class Values(unittest.TestCase):
    def test_bf16(self):
        import numpy as np
        exact = np.arange(256, dtype=np.float32)
        self.assertTrue((mmx.from_bf16(mmx.bf16(exact)) == exact).all())
        odd = np.array([1.00390625, 1.01171875, np.inf, -np.inf, np.nan])
        got = mmx.from_bf16(mmx.bf16(odd))
        self.assertEqual(got[:4].tolist(), [1.0, 1.015625, np.inf, -np.inf])
        self.assertTrue(np.isnan(got[4]))

    def test_yaml(self):
        self.assertEqual(yaml({"a": {"b": 1}, "c": [{"d": "x", "e": True}]}),
                         'a:\n  b: 1\nc:\n  - d: "x"\n    e: true\n')
