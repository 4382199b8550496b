"""The vectors of EMBEDDING.md: the checker, without mmx, finds them right, and
any change of them wrong. The library, through the Python package, and the
adapters compute the same. embedding_test.c has layouts and the names of
llama.cpp."""

import copy
import json
import os
import subprocess
import sys
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "engines"))

import embedding_check as check  # noqa: E402
from aux_test import Pool, Room, delivered  # noqa: E402

import mmx  # noqa: E402
from mmx import aux, dtypes, errors  # noqa: E402
from mmx.adapters import _sglang_common, _vllm_common  # noqa: E402
from mmx.adapters._vllm_producer import ProducerScheduler  # noqa: E402
from mmx.plan import Placeholder, plan  # noqa: E402

with open(check.VECTORS, encoding="utf-8") as f:
    VECTORS = json.load(f)


def of(kind):
    """Returns the vectors of a kind; at least one exists."""
    out = [v for v in VECTORS if v["kind"] == kind]
    assert out, kind
    return out


def settings(vector=None, **extra):
    """Returns an engine's settings of the vLLM connector."""
    names = ("model", "revision", "dtype")
    return _vllm_common.Settings(types.SimpleNamespace(
        ec_transfer_config=types.SimpleNamespace(
            engine_id="e", ec_connector_extra_config=extra),
        model_config=types.SimpleNamespace(
            **{n: vector[n] for n in names} if vector else {})))


class Checker(unittest.TestCase):
    def test_it_needs_no_mmx_and_finds_all_right(self):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", check.__file__],
            capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (
            0, f"{len(VECTORS)} passed, 0 failed\n"), done.stderr)

    def test_it_notices_any_other_answer(self):
        """Changes what each vector says is computed, or refused."""
        for vector in VECTORS:
            got = getattr(check, "check_" + vector["kind"].replace("-", "_"))(
                vector)
            self.assertTrue(got, vector)
            for name, value in got.items():
                other = copy.deepcopy(vector)
                other[name] = {} if isinstance(value, dict) and value else \
                    [value] if not isinstance(value, str) else value[:-1]
                self.assertTrue(check.wrong(other), other)
        self.assertTrue(check.wrong({"kind": "other"}))

    def test_it_has_our_tables(self):
        self.assertEqual(check.TAGS, {
            tag: (row.name, row.kind or "s", row.per, row.one)
            for tag, row in aux._ROWS.items()})
        self.assertEqual(check.DTYPES, {
            name: kind.bytes for name, kind in dtypes.DTYPES.items()})
        self.assertEqual((check.MAX, check.WHOLE), (aux.MAX, aux.WHOLE))


class Library(unittest.TestCase):
    def test_the_owner_of_an_item(self):
        for v in of("place"):
            key = bytes.fromhex(v["key"])
            # in whatever order they are named
            for at in range(len(v["encoders"])):
                said = [x[at:] + x[:at] for x in (v["encoders"], v["load"])]
                self.assertEqual(mmx.place(key, *said, v["bound"]), v["order"])
        for wrong in ((), ()), (("a",), ()), (("a",), (0,), 99), \
                (("a",), (0,), 10001), (("a",), (0,), 2**32 + 125), \
                (("a",), (-1,)), (("a",), (2**32,)):
            with self.assertRaises(ValueError):
                mmx.place(b"key", *wrong)

    def test_ids_of_names(self):
        for v in of("room-id"):
            self.assertEqual(f"{mmx.room_id(v['name']):016x}", v["id"])

    def test_references(self):
        for v in of("reference"):
            said = mmx.Reference(int(v["id"], 16), bytes.fromhex(v["secret"]))
            self.assertEqual(str(said), v["text"])
            self.assertEqual(bytes(said).hex(), v["bytes"])
            for form in (v["text"], bytes.fromhex(v["bytes"])):
                self.assertEqual(mmx.Reference.read(form), said)
        for v in of("reference-refused"):
            with self.assertRaises(ValueError, msg=v):
                mmx.Reference.read(bytes.fromhex(v["bytes"])
                                   if "bytes" in v else v["text"])

    def test_rows_of_positions(self):
        for v in of("storage"):
            mask = [c == "1" for c in v["embed"]] or None
            step = plan(v["offset"], v["length"], [Placeholder(
                v["offset"], v["length"], mask, storage=v["storage"],
                row_base=v["row_base"])])
            rows = [None] * v["length"]
            for s in step.segments:
                rows[s.at:s.at + s.rows] = range(s.row, s.row + s.rows)
            self.assertEqual(rows, v["rows"], v)

    def test_aux(self):
        for v in of("aux"):
            says = check.said_of(v["says"])
            whole = aux.pack(**says)
            self.assertEqual(aux.unpack(whole), says)
            got = aux.split(whole)
            self.assertIn(v["aux"], (got.aux.hex(), check.sha256(got.aux)))
            self.assertEqual((len(got.rest), check.sha256(got.rest)),
                             (v["rest_bytes"], v["rest_sha256"]))
            room = delivered(whole, 3, kind="u8", elements=v["row_bytes"])
            self.assertEqual(aux.rest_rows(room), v["rest_rows"])
            self.assertEqual(aux.whole(room), whole)

    def test_what_an_aux_is_refused_for(self):
        for v in of("aux-skipped"):
            self.assertEqual(aux.unpack(bytes.fromhex(v["aux"])), v["says"])
        for v in of("aux-refused"):
            with self.assertRaises(errors.MmxError, msg=v) as e:
                aux.unpack(bytes.fromhex(v["aux"]))
            self.assertEqual(e.exception.reason, v["why"], v)
        for v in of("rest-refused"):
            rows = bytes.fromhex(v["rows"])
            count = len(rows) // v["row_bytes"]
            pool = Pool(count, "u8", v["row_bytes"])
            pool.arrays["embedding"].reshape(-1)[:] = list(rows)
            with self.assertRaises(errors.MmxError, msg=v) as e:
                aux.whole(Room(pool, bytes.fromhex(v["aux"])))
            self.assertEqual(e.exception.reason, v["why"], v)


class Adapters(unittest.TestCase):
    def test_keys_of_vllm(self):
        for v in of("vllm-key"):
            s = settings(v, mmx_scope=v["scope"])
            self.assertEqual(s.key(
                v["identifier"], bytes.fromhex(v["epoch"])).hex(), v["key"])

    def test_epochs_of_vllm(self):
        for v in of("vllm-epoch"):
            epoch = settings(mmx_epoch=v["said"]).epoch
            self.assertEqual(epoch.hex(), v["epoch"])
            engine = types.SimpleNamespace(epoch=epoch)
            ProducerScheduler.reset(engine)
            self.assertEqual(engine.epoch.hex(), v["next"])

    def test_rooms_of_sglang(self):
        for v in of("sglang-room"):
            got = _sglang_common.reference_of(v["request"])
            self.assertEqual((f"{got.room:016x}", got.secret.hex()),
                             (v["id"], v["secret"]))


if __name__ == "__main__":
    unittest.main()
