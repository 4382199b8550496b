"""The Python package without a daemon: ids, tensors for others, layouts of
models."""

import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "lib/client/python"))

import numpy as np  # noqa: E402

import mmx  # noqa: E402
from mmx import __main__ as program  # noqa: E402
from mmx import _handle, cuda, layout, pool, tensor  # noqa: E402
from mmx.dtypes import DTYPES  # noqa: E402


class Library(unittest.TestCase):
    def test_one_that_is_missing_is_named(self):
        got = subprocess.run(
            [sys.executable, "-c", "import mmx.plan"], capture_output=True,
            text=True, env={**os.environ, "MMX_LIBRARY": "/nowhere/x.so",
                            "PYTHONPATH": f"{ROOT}/lib/client/python"})
        self.assertRegex(got.stderr, "ImportError: mmx needs its C library "
                         "libmmx.so.0, .*; tried: /nowhere/x.so: ")

    def test_it_is_found_in_the_tree(self):
        build = os.path.join(ROOT, "build/libmmx.so.0")
        if not os.path.exists(build):
            self.skipTest("build has no library")
        env = {k: v for k, v in os.environ.items() if k != "MMX_LIBRARY"}
        got = subprocess.run(
            [sys.executable, "-c", "from mmx import _lib; "
             "print(_lib.LIBRARY._name)"], capture_output=True, text=True,
            env={**env, "PYTHONPATH": f"{ROOT}/lib/client/python"})
        self.assertTrue(os.path.samefile(got.stdout.strip(), build), got)


class Tables(unittest.TestCase):
    @unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
    def test_structs_are_those_of_the_headers(self):
        kinds = {name: kind for name, kind in vars(_handle.new).items()
                 if isinstance(kind, type)
                 and issubclass(kind, ctypes.Structure)}
        self.assertGreater(len(kinds), 10)
        members = [(name, word) for name, kind in kinds.items()
                   for word, *_ in kind._fields_]
        program = "".join([
            "#include <stdio.h>\n#include <mmx_binding.h>\nint main(void) {",
            *(f'printf("%zu\\n", offsetof(struct mmx_{name}, {word}));'
              for name, word in members),
            *(f'printf("%zu\\n", sizeof(struct mmx_{name}));'
              for name in kinds), "}"])
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "sizes")
            subprocess.run(["cc", f"-I{ROOT}/lib/client", "-x", "c", "-o",
                            made, "-"], input=program, text=True, check=True)
            said = subprocess.run([made], capture_output=True, text=True,
                                  check=True).stdout.split()
        ours = {**{(name, word): getattr(kinds[name], word).offset
                   for name, word in members},
                **{(name, ""): ctypes.sizeof(kinds[name]) for name in kinds}}
        self.assertEqual(dict(zip(ours, map(int, said))), ours)

    def test_numbers_are_those_of_the_headers(self):
        with open(f"{ROOT}/lib/client/mmx.h") as f:
            text = f.read()
        for name, ours in (
                ("MMX_KEEP", "= 1"), ("MMX_OPEN", "= 2"),
                ("MMX_NO_READERS", "= 4"), ("MMX_ANNOUNCED", "= 8"),
                ("MMX_E_FORKED", "= 65"), ("MMX_E_SYSTEM", "= 66"),
                ("MMX_UP", "= 1 << 16"), ("MMX_DOWN", "= 1 << 17"),
                ("MMX_TICKET", "= 1 << 19"),
                ("MMX_TICKET_LOST", "= 1 << 20")):
            self.assertRegex(text, rf"\b{name} {ours}\b")
            self.assertEqual(getattr(_handle, name[4:].removeprefix("E_")),
                             eval(ours[1:]))


    def test_an_older_library_is_named(self):
        with self.assertRaisesRegex(ImportError, "libmmx.* no mmx_none"):
            mmx._lib.call("mmx_none")


class Reports(unittest.TestCase):
    WHOLE = b"\1\2\1a\2\0\0\0hi\3\1b\7" + bytes(7)

    def test_rows(self):
        self.assertEqual(mmx.wire.rows(2 * self.WHOLE),
                         2 * [{"a": "hi", "b": 7}])

    def test_a_cut_or_unknown_cell_is_refused(self):
        for size in range(2, len(self.WHOLE)):
            if size != 10:  # the cut between its cells is valid
                with self.assertRaises(mmx.errors.Malformed):
                    mmx.wire.rows(self.WHOLE[:size])
        for cell in (b"\4\1a", b"\0", self.WHOLE[1:]):
            with self.assertRaises(mmx.errors.Malformed):
                mmx.wire.rows(cell + bytes(8))


class Ids(unittest.TestCase):
    def test_text_and_bytes(self):
        self.assertEqual(mmx.room_id("grün"), mmx.room_id("grün".encode()))
        self.assertLess(mmx.room_id("x" * 1000), 2**64)

    def test_secrets_are_random(self):
        self.assertEqual(len(mmx.secret()), len(mmx.NO_SECRET))
        self.assertNotEqual(mmx.secret(), mmx.secret())


class References(unittest.TestCase):
    def test_vectors_of_the_header(self):
        with open(os.path.join(ROOT, "lib/client/mmx.h")) as f:
            text, = (line[2:].strip() for line in f
                     if line.startswith(" *   fedc"))
        got = mmx.Reference(0xfedcba9876543210, bytes(range(16)))
        self.assertEqual(str(got), text)
        self.assertEqual(mmx.Reference.read(text), got)
        self.assertEqual(bytes(got), bytes.fromhex("1032547698badcfe")
                         + bytes(range(16)))
        self.assertEqual(mmx.Reference.read(bytes(got)), got)
        self.assertEqual(str(mmx.Reference(7)), "0000000000000007")
        self.assertEqual(mmx.Reference.read("0000000000000007"), (7, bytes(16)))

    def test_what_is_none_is_refused(self):
        good = str(mmx.Reference.draw())
        for wrong in ("", "7", "0" * 16, good[:-1], good + "0", good.upper(),
                      good.replace("-", ":"), good + "\n", "\u0661" * 16,
                      f" {good}", good[:16] + "-", b"", bytes(24), b"1" * 16,
                      good.encode(), 7, None):
            with self.assertRaisesRegex(ValueError, "a reference "):
                mmx.Reference.read(wrong)

    def test_they_are_random_and_show_no_secret(self):
        a, b = mmx.Reference.draw(), mmx.Reference.draw()
        self.assertTrue(a.room and a.room != b.room and a.secret != b.secret)
        self.assertNotIn(a.secret.hex(), repr((a, {"room": b})))
        self.assertNotIn(repr(a.secret), f"{a!r}")


class Edges(unittest.TestCase):
    def test_deadlines(self):
        for seconds, ms in ((0, 0), (1e-9, 1), (0.0004, 1), (1.5, 1500),
                            (4294967.2, 4294967200)):
            self.assertEqual(mmx.due.ms(seconds), ms)
        for wrong in (-1, -1e-9, float("nan"), float("inf"), 4294967.296):
            with self.assertRaisesRegex(ValueError, "a deadline is 0 to"):
                mmx.due.ms(wrong)

    def test_what_does_not_fit_is_named(self):
        for field, wrong in (("room", 2**64), ("room", 0), ("group", 2**64), ("rows", -1),
                             ("readers", 2**16), ("max_rows", 2**32)):
            with self.assertRaisesRegex(
                    ValueError, f"request.{field}: {wrong} is no u"):
                mmx.wire.check("request", **{field: wrong})
        for wrong in (None, 1.5, "1"):
            with self.assertRaisesRegex(ValueError, "request.rows: .* is no"):
                mmx.wire.check("request", rows=wrong)
        with self.assertRaisesRegex(ValueError, "no byte of 0"):
            mmx.wire.check("request", encoder="a\0b")

    def test_bf16_has_the_bits_of_the_c_library(self):
        some = np.array([0x7f812345, 0xffc00001, 0x3f808000, 0x3f818000,
                         0x7f7fffff], np.uint32)
        self.assertEqual(mmx.bf16(some.view(np.float32)).tolist(),
                         [0x7fc1, 0xffc0, 0x3f80, 0x3f82, 0x7f80])

    def test_waits(self):
        with mmx.connect("langd", "/nowhere.sock", timeout=0) as conn:
            with self.assertRaisesRegex(ValueError, "a timeout is no number"):
                conn.wait(lambda: False, float("nan"))
            for forever in (float("inf"), 1e12):
                conn.wait(iter((False, True)).__next__, forever, every=0.01)


class Pools(unittest.TestCase):
    def test_one_of_an_earlier_run_is_none(self):
        """The coroutine that awaited it runs only after the daemon has
        restarted."""
        with mmx.connect("langd", "/nowhere.sock", timeout=0) as conn:
            reply = mmx.Reply("pool")
            kept, reply.fd = os.pipe()
            reply.done, reply.epoch, conn.epoch = True, 1, 2
            with self.assertRaises(mmx.errors.DaemonLost):
                conn._map("vit", reply)
            del reply
            os.set_blocking(kept, False)
            self.assertEqual(os.read(kept, 1), b"")  # fd is closed
            os.close(kept)


    def test_one_without_a_descriptor_is_refused(self):
        with self.assertRaisesRegex(OSError, "vit came without a descriptor"):
            mmx.Pool({"pool": 0, "name": "vit", "block_rows": 4, "blocks": 1,
                      "memory": "host", "layout": "a:u8:4", "access": 1,
                      "fields": [("a", "u8", 4, 0, 4)], "share": "", "id": 0,
                      "bytes": 16}, -1, 1)


class Streams(unittest.TestCase):
    def test_an_event_costs_what_it_shows_not_what_was_before(self):
        """The stream has many rows; the reader releases rows while it reads."""
        conn = types.SimpleNamespace(cells=[1], _links=1, epoch=1, _lent={})
        where = types.SimpleNamespace(number=3, block_rows=4, blocks=20)
        room = mmx.Room(conn, mmx.Reference(7), where, "enc0")
        made, run = 0, mmx.Run

        def counted(*values):
            nonlocal made
            made += 1
            return run(*values)
        with mock.patch.object(mmx.rooms, "Run", counted):
            for turn in range(1000):
                room._shows(3, 8 * turn, [(5, 1), (turn % 9 + 9, 2)])
                self.assertEqual([tuple(r) for r in room._runs],
                                 [(8 * turn, 4, 20),
                                  (8 * turn + 4, 8, 4 * (turn % 9 + 9))])
        self.assertEqual(made, 2000)
        with self.assertRaises(IndexError):
            list(room.pieces(7 * 1000, 8 * 1000))


class Fences(unittest.TestCase):
    def test_a_call_that_raises_costs_no_other(self):
        """The rooms of the other calls would else never be committed or
        released."""
        made = []

        def raises():
            raise ValueError("no rows")
        with mock.patch.object(cuda.Driver, "_the", mock.MagicMock()):
            fences = cuda.Fences()
            for call in (lambda: made.append(1), raises,
                         lambda: made.append(2)):
                fences.after(7, 0, call)
            self.assertRaises(ValueError, fences.step)
            fences.step()
        self.assertEqual((made, len(fences)), ([1, 2], 0))


class Unreached(unittest.TestCase):
    def test_another_role_is_refused_at_once(self):
        for wrong in ("/run/mmx/langd.sock", "any", "", None):
            with self.assertRaisesRegex(ValueError, "a role is .*, not "):
                mmx.connect(wrong)

    def test_names_that_no_daemon_takes_are_refused_at_once(self):
        """They are refused before there is a daemon, not later within an
        engine's turn."""
        for names in ({"name": "n" * 64}, {"session": "s" * 64}):
            with self.assertRaisesRegex(ValueError, "64 bytes, at most 63"):
                mmx.connect("langd", "/nowhere.sock", timeout=0, **names)

    def test_where_no_descriptor_is_free(self):
        """The connection is tried again: an exception would end the engine's
        loop."""
        with free_numbers(4):  # of an epoll and its three
            with mmx.connect("langd", "/nowhere.sock", timeout=0) as conn:
                conn.step()
                self.assertEqual(conn.unreached, "Too many open files")
        with free_numbers(4), \
                self.assertRaisesRegex(mmx.errors.DaemonLost, "Too many"):
            mmx.connect("langd", "/nowhere.sock", timeout=0.05)


@contextlib.contextmanager
def free_numbers(count):
    """Leaves this process `count` numbers for descriptors."""
    used = {int(n) for n in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{n}")}
    free = [n for n in range(len(used) + count + 1) if n not in used]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count - 1] + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def taken(capsule, name):
    """Takes a capsule's struct as a consumer does; returns it."""
    api = ctypes.pythonapi
    get = api.PyCapsule_GetPointer
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], \
        ctypes.c_void_p
    rename = api.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, name)
    taken.used = b"used_" + name  # stays alive: the capsule points to it
    rename(capsule, taken.used)
    # Other code declares the same function with other types.
    get.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    kind = tensor._Versioned if name.endswith(b"versioned") else tensor._Old
    return address, kind.from_address(address)


class Tensors(unittest.TestCase):
    def rows(self, kind="bf16", writable=False):
        rows = np.arange(12).astype(pool.dtype(kind)).reshape(4, 3)
        rows.setflags(write=writable)
        return rows

    def test_read_only_rows_in_the_versioned_form(self):
        rows = self.rows()
        made = tensor.Tensor(rows, "bf16")
        capsule = made.__dlpack__(max_version=(1, 1))
        address, got = taken(capsule, b"dltensor_versioned")
        self.assertEqual((got.major, got.flags & 1), (1, 1))
        t = got.tensor
        self.assertEqual((t.code, t.bits, t.lanes), (4, 16, 1))
        self.assertEqual((t.data, t.ndim, t.device),
                         (rows.ctypes.data, 2, 1))
        self.assertEqual((t.shape[0], t.shape[1], t.strides[0], t.strides[1]),
                         (4, 3, 3, 1))
        self.assertIn(address, tensor._live)
        del capsule, made
        gc.collect()
        self.assertIn(address, tensor._live)  # the consumer holds it
        got.deleter(address)
        self.assertNotIn(address, tensor._live)

    def test_a_capsule_that_is_not_taken_frees_itself(self):
        before = len(tensor._live)
        for form in ((1, 0), None):
            capsule = tensor.Tensor(self.rows("f32", True), "f32").__dlpack__(
                max_version=form)
            self.assertEqual(len(tensor._live), before + 1)
            del capsule
            gc.collect()
            self.assertEqual(len(tensor._live), before)

    def test_numpy_takes_writable_rows(self):
        for kind in ("f32", "f16", "u8", "i64"):
            rows = self.rows(kind, writable=True)
            got = np.from_dlpack(tensor.Tensor(rows, kind))
            self.assertEqual(got.dtype, rows.dtype)
            self.assertTrue(np.shares_memory(got, rows))
            before = len(tensor._live)
            del got
            gc.collect()
            self.assertEqual(len(tensor._live), before - 1)

    def test_an_old_consumer_does_not_get_read_only_rows(self):
        with self.assertRaises(BufferError):
            tensor.Tensor(self.rows("f32"), "f32").__dlpack__()

    def test_every_dtype_has_a_kind(self):
        self.assertEqual([n for n, d in DTYPES.items() if d.tagged],
                         ["bf16", "f8e4m3", "f8e5m2"])
        for name, kind in DTYPES.items():
            with self.subTest(name):
                numpys = pool.dtype(name)
                self.assertEqual(numpys.itemsize, kind.bytes)
                self.assertEqual(numpys.metadata,
                                 {"mmx": name} if kind.tagged else None)
                self.assertIn(kind.code, (0, 1, 2, 4, 6, 10, 12))
                self.assertEqual(np.dtype(kind.plain[0]).itemsize, kind.bytes)

    def test_torch_gets_the_bytes_and_its_own_name_of_the_dtype(self):
        # Stands in for torch, with the names that are called.
        torch = types.ModuleType("torch")
        torch.bfloat16, made = "torch.bfloat16", []

        class Flat:
            def view(self, *shape):
                return shape

        def frombuffer(buffer, dtype):
            made.append((memoryview(buffer).nbytes, dtype))
            return Flat()
        torch.frombuffer = frombuffer
        with mock.patch.dict(sys.modules, torch=torch):
            got = tensor.Tensor(self.rows(), "bf16").torch()
        self.assertEqual((got, made), ((4, 3), [(24, "torch.bfloat16")]))

    def test_native_types(self):
        rows = self.rows("f32")
        self.assertIs(mmx.native(rows), rows)
        try:
            import ml_dtypes
        except ImportError:
            ml_dtypes = types.ModuleType("ml_dtypes")
            ml_dtypes.bfloat16 = np.dtype("i2")
        with mock.patch.dict(sys.modules, ml_dtypes=ml_dtypes):
            got = mmx.native(self.rows())
        self.assertEqual(got.dtype, ml_dtypes.bfloat16)


CONFIGS = {
    "qwen2_vl": ({"model_type": "qwen2_vl", "hidden_size": 3584,
                  "torch_dtype": "bfloat16",
                  "vision_config": {"hidden_size": 3584, "embed_dim": 1280}},
                 "embedding:bf16:3584"),
    "qwen2_5_vl": ({"model_type": "qwen2_5_vl", "hidden_size": 2048,
                    "torch_dtype": "bfloat16",
                    "vision_config": {"out_hidden_size": 2048}},
                   "embedding:bf16:2048"),
    "qwen3_vl": ({"model_type": "qwen3_vl", "vision_config": {
                      "out_hidden_size": 4096,
                      "deepstack_visual_indexes": [8, 16, 24]},
                  "text_config": {"hidden_size": 4096, "dtype": "bfloat16"}},
                 "embedding:bf16:16384"),
    "llava": ({"model_type": "llava", "torch_dtype": "float16",
               "text_config": {"hidden_size": 5120}, "vision_config": {}},
              "embedding:f16:5120"),
}


class Layouts(unittest.TestCase):
    def test_known_models(self):
        for name, (config, want) in CONFIGS.items():
            with self.subTest(name):
                self.assertEqual(layout.layout(config).fields, want)

    def test_deepstack_as_a_field(self):
        made = layout.layout(CONFIGS["qwen3_vl"][0], deepstack="fields")
        self.assertEqual(made.fields,
                         "embedding:bf16:4096,deepstack:bf16:12288")
        self.assertEqual(made.row_bytes, 32768)

    def test_what_is_missing_is_said(self):
        bare = {"model_type": "llava", "torch_dtype": "float16",
                "text_config": {}}
        with self.assertRaisesRegex(layout.UnknownModel, "--hidden-size"):
            layout.layout(bare)
        self.assertEqual(layout.layout(bare, hidden_size=4096).row_bytes, 8192)
        with self.assertRaisesRegex(layout.UnknownModel, "bert.*qwen2_vl"):
            layout.layout({"model_type": "bert"})
        with self.assertRaisesRegex(layout.UnknownModel, "--dtype"):
            layout.layout({"model_type": "llava", "hidden_size": 64})
        wrong = dict(CONFIGS["qwen2_5_vl"][0],
                     vision_config={"out_hidden_size": 1})
        with self.assertRaisesRegex(layout.UnknownModel, "takes 2048"):
            layout.layout(wrong)

    def run_it(self, config, *words):
        out, err = io.StringIO(), io.StringIO()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(config)
            f.flush()
            with redirect_stdout(out), redirect_stderr(err):
                code = program.main(["layout", f.name, *words])
        return code, out.getvalue(), err.getvalue()

    def test_as_yaml(self):
        code, out, _ = self.run_it(json.dumps(CONFIGS["llava"][0]),
                                   "--bytes", "1MiB", "--pool", "p")
        self.assertEqual(code, 0)
        self.assertIn("  - name: p\n", out)
        self.assertIn("blocks: 1\n", out)  # 1.25 MiB a block
        self.assertIn('layout: "embedding:f16:5120"\n', out)

    def test_daemons_take_it(self):
        build = os.path.join(ROOT, os.environ.get("B", "build"))
        if not os.path.exists(f"{build}/mmx-encoded"):
            self.skipTest("the daemons are not built")
        _, out, _ = self.run_it(json.dumps(CONFIGS["qwen3_vl"][0]))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            f.write(out)
            f.flush()
            for role in ("encoded", "langd"):
                subprocess.run([f"{build}/mmx-{role}", "--config", f.name,
                                "--set", "insecure=true", "--check-config"],
                               check=True)

    def test_bad_files(self):
        for config in ("{", "[]", '{"model_type": "bert"}'):
            code, out, err = self.run_it(config)
            self.assertEqual((code, out), (1, ""))
            self.assertTrue(err)


if __name__ == "__main__":
    unittest.main()
