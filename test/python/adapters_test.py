"""Tests the adapters without a daemon: they have the calls that engines make,
subclass the engines' classes, and name an engine that is missing. Where no
engine is installed, the modules in engines/ stand in for its own."""

import contextlib
import inspect
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import tracemalloc
import types
import unittest
import unittest.mock
import weakref

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = os.path.join(HERE, "engines")
sys.path.append(ENGINES)  # last, so that an installed engine comes first

from vllm.distributed.ec_transfer.ec_connector import (  # noqa: E402
    base as vllm_base)

import mmx  # noqa: E402
from mmx import errors  # noqa: E402
from mmx.adapters import (_common, _copies, _sglang_language,  # noqa: E402
                          _vllm_common, _vllm_engine, vllm_ec)

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(vllm_ec.__file__))))


def config(model="m", engine_id="e", both=False):
    return types.SimpleNamespace(
        ec_transfer_config=types.SimpleNamespace(
            engine_id=engine_id, is_ec_producer=both, is_ec_consumer=both,
            ec_connector_extra_config=None),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=4, rank=2),
        model_config=types.SimpleNamespace(model=model, revision="r",
                                           dtype="torch.bfloat16"))


INFO = {"pool": 0, "name": "vit", "block_rows": 128, "blocks": 1,
        "memory": "host", "access": 1, "share": "memfd", "bytes": 1024,
        "id": 0}


def host_pool(rows, wide=4, epoch=1):
    fd = os.memfd_create("pool")
    os.truncate(fd, rows * wide * 2)
    return mmx.Pool({
        **INFO, "blocks": rows // 128, "layout": f"embedding:bf16:{wide}",
        "fields": [("embedding", "bf16", wide, 0, wide * 2)],
        "bytes": rows * wide * 2},
        fd, epoch)


class Pools(unittest.TestCase):
    """An engine whose daemon does not have its pool."""

    def setUp(self):
        self.now, self.answer, self.conn = 1e6, None, unittest.mock.Mock(
            connected=True, epoch=1)
        self.conn.ask_pool.side_effect = self.asked
        for at, name, put in ((_common.time, "monotonic", lambda: self.now),
                              (mmx, "connect", lambda *_, **__: self.conn)):
            patch = unittest.mock.patch.object(at, name, put)
            patch.start()
            self.addCleanup(patch.stop)

    def asked(self, *_, **__):
        reply = mmx.Reply("POOL")
        if isinstance(self.answer, mmx.MmxError):
            reply._finish(self.answer)
        elif self.answer:
            reply.done, reply.fd = True, os.memfd_create("pool")
            os.truncate(reply.fd, 1024)
            name = self.answer.split(":")[0]
            reply.values = {**INFO, "layout": self.answer,
                            "fields": [(name, "bf16", 4, 0, 8)]}
        return reply

    def engines(self):
        s = _vllm_common.Settings(config())
        s.field = "embedding"
        yield "vllm", _vllm_common.Link("langd", s, "worker")
        with unittest.mock.patch.dict(os.environ, MMX_FIELD="embedding"):
            yield "sglang", _sglang_language.Lang()

    def test_one_that_cannot_be_had_is_asked_for_once_a_second(self):
        """Engines ask for the pool in each turn, and SGLang's scheduler never
        sleeps."""
        for answer, lines in ((errors.Malformed("no pool `vat`"), 1),
                              (errors.NotReady("it has no layout"), 0),
                              ("other:bf16:4", 1)):
            for name, engine in self.engines():
                with self.subTest(engine=name, answer=answer), \
                        self.assertLogs(engine._log) as said:
                    self.answer, before = answer, self.conn.ask_pool.call_count
                    for _ in range(1000):
                        self.assertIsNone(engine.step())
                    self.now += 1
                    engine.step()
                    self.assertEqual(
                        self.conn.ask_pool.call_count - before, 2)
                    self.assertEqual(engine.is_refused, bool(lines))
                    engine._log.warning("end")
                    self.assertEqual(len(said.output) - 1, lines)
                    self.now += 1
                    # the daemon's pool is mended
                    self.answer = "embedding:bf16:4"
                    self.assertTrue(engine.step())
                    self.assertFalse(engine.is_refused)

    def test_one_of_another_run_is_asked_for_at_once(self):
        for _, engine in self.engines():
            self.answer = errors.Malformed("no pool `vat`")
            with self.assertLogs(engine._log):
                engine.step()
            self.conn.epoch += 1
            self.answer = "embedding:bf16:4"
            self.assertTrue(engine.step())


    def test_a_daemon_that_is_away_is_named_once(self):
        self.conn.configure_mock(role="langd", path="/s", refused=None)
        for name, engine in self.engines():
            for speaks in (False, True):
                self.conn.connected, engine.speaks = False, speaks
                with self.assertLogs(engine._log) as said:
                    for _ in range(100):
                        self.now += 0.1
                        engine.step()
                    engine._log.warning("end")
                self.assertEqual(len(said.output) - 1, speaks, name)
            self.assertIn("mmx-langd does not answer at /s (not connected): ",
                          said.output[0])
            self.assertIn({"vllm": "mmx_socket",
                           "sglang": "MMX_LANGD_SOCKET"}[name],
                          said.output[0])
            self.conn.connected = True

    def test_declines_that_wait_for_langd_have_a_limit(self):
        for _, engine in self.engines():
            self.conn.connected = False
            for room in range(_common.UNWANTED_MAX + 5):
                engine.decline(room, "enc0")
            self.conn.connected = True
            self.conn.decline.reset_mock(return_value=True)
            self.conn.decline.return_value.error = None
            engine.step()
            self.assertEqual([call[0][0] for call in
                              self.conn.decline.call_args_list],
                             list(range(5, _common.UNWANTED_MAX + 5)))

    def test_a_decline_that_langd_refuses_is_said_once_a_second(self):
        """The decline is tried for a minute: langd may never reach this
        encoder."""
        for name, engine in self.engines():
            said = []

            def decline(*room, said=said):
                said.append(room)
                reply = mmx.Reply("DECLINE")
                reply._finish(errors.NotReady("not in control.allow"))
                return reply
            self.conn.decline = decline
            engine.decline(5, "enc0", b"k" * 32)
            for _ in range(1000):
                engine.step()
            self.assertEqual(said, [(5, "enc0", b"k" * 32)], name)
            for _ in range(100):
                self.now += 1
                engine.step()
            self.assertEqual(len(said), _common.UNWANTED_S + 1)
            self.assertFalse(engine._unwanted)

    def test_langd_takes_a_decline_once(self):
        for _, engine in self.engines():
            self.conn.decline = unittest.mock.Mock()
            for room in (1, 2):
                engine.decline(room, "enc0")
                reply = self.conn.decline.return_value
                reply.error = None
                reply.then(reply)
            self.now += 10
            engine.step()
            self.assertEqual(self.conn.decline.call_count, 2)


class Vllm(unittest.TestCase):
    def test_calls_are_the_engines(self):
        for name, theirs in inspect.getmembers(
                vllm_base.ECConnectorBase, inspect.isfunction):
            ours = getattr(vllm_ec.MmxECConnector, name)
            want = list(inspect.signature(theirs).parameters.values())
            have = list(inspect.signature(ours).parameters.values())
            with self.subTest(call=name):
                self.assertEqual([(p.name, p.kind) for p in want],
                                 [(p.name, p.kind) for p in have[:len(want)]])
                for more in have[len(want):]:  # of newer engines
                    self.assertIsNot(more.default, inspect.Parameter.empty)

    def test_a_role_that_does_nothing(self):
        for role in vllm_base.ECConnectorRole:
            c = vllm_ec.MmxECConnector(config(), role)
            self.assertTrue(c.ensure_cache_available(None, 0))
            self.assertFalse(c.has_cache_item("x"))
            self.assertFalse(c.has_pending_push_work())
            self.assertEqual(
                c.request_finished(types.SimpleNamespace(request_id="r")),
                (False, None))
            c.bind_connector_metadata(c.build_connector_meta(
                types.SimpleNamespace(num_scheduled_tokens={})))
            c.start_load_caches({})
            c.save_caches({}, "x")
            self.assertEqual(c.get_finished(set()), (None, None))
            c.shutdown()

    def test_an_engine_of_both_roles_is_refused(self):
        """Such an engine would announce every picture, although nothing fetches
        them."""
        for role in vllm_base.ECConnectorRole:
            with self.assertRaisesRegex(ValueError, "ec_both.*ec_producer"):
                vllm_ec.MmxECConnector(config(both=True), role)

    def test_settings(self):
        s = _vllm_common.Settings(config())
        self.assertEqual((s.rank, s.session), (2, "e"))
        self.assertEqual(len(s.key("x")), 32)
        # The names of one server's engines differ only in the last letters.
        long = [_vllm_common.session_of(200 * "e" + end) for end in "ab"]
        self.assertNotEqual(*long)
        for session in long:
            mmx.wire.check("hello", session=session)
            self.assertEqual(_vllm_common.session_of(session), session)
        self.assertNotEqual(s.key("x"), s.key("y"))
        self.assertEqual(s.epoch, None)
        scoped = config()
        scoped.ec_transfer_config.ec_connector_extra_config = {
            "mmx_scope": "a", "mmx_epoch": 7}
        scoped = _vllm_common.Settings(scoped)
        self.assertEqual(len(scoped.epoch), 16)
        # No name of a client may look like the parts of a key before it.
        keys = [s.key("x"), s.key("y"), s.key("x", b"1" * 16),
                s.key("1x", b"1" * 15 + b"2"), scoped.key("x"),
                s.key("a|x"), _vllm_common.Settings(config(model="n"))
                .key("x"), s.key("1" * 16 + "x")]
        self.assertEqual(len(set(keys)), len(keys))

    def test_metadata_travels(self):
        meta = _vllm_common.MmxECMetadata(
            loads=[_vllm_common.Load(5, "x", 300, (9, 0),
                                     (mmx.Run(0, 128, 3),))],
            saves=[_vllm_common.Save("y", 8)])
        self.assertEqual(pickle.loads(pickle.dumps(meta)), meta)

    def test_a_large_map_ends_on_a_thread_of_its_own(self):
        """The step that drops the last array does not wait until the pages are
        freed."""
        ended = queue.Queue()
        pool = host_pool(1 << 20)
        pool.populate()
        pool._map.held = held = threading.Event()
        weakref.finalize(held, lambda: ended.put(threading.get_ident()))
        rows = pool.rows("embedding", 0, 128)
        address, size = pool.span()

        def is_mapped():
            with open("/proc/self/maps", encoding="ascii") as f:
                return f"{address:x}-{address + size:x}" in f.read()
        self.assertTrue(is_mapped())
        del held, pool, rows
        self.assertNotEqual(ended.get(timeout=20), threading.get_ident())
        end = time.monotonic() + 20
        while is_mapped():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_rows_are_copied_once_from_the_pool(self):
        """This holds for several runs, too: there is no array in between."""
        rows, wide, size = 4096, 512, 4096 * 512 * 2
        pool = host_pool(rows, wide)
        bits = pool.rows("embedding", 0, rows)
        bits[:] = np.arange(rows * wide).reshape(rows, wide)
        item = _copies.Rows(pool, pool.fields["embedding"], rows, (
            mmx.Run(0, 1024, 3072), mmx.Run(1024, 3072, 0)))
        tracemalloc.start()
        try:
            with unittest.mock.patch.dict(sys.modules, {"torch": None}):
                got, = _copies.Here().load([item], lambda: None)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(got, np.roll(bits, 1024, 0))
        self.assertLess(most, size * 1.1)

    def test_rows_are_of_the_run_that_they_were_made_in(self):
        """After a restart the pool's name belongs to the next run."""
        pool, other = host_pool(128), host_pool(128, epoch=2)
        before = pool.rows("embedding", 0, 128)
        item = _copies.Rows(pool, pool.fields["embedding"], 128,
                            (mmx.Run(0, 128, 0),))
        pool._become(other)
        _copies.Here().save(np.full((128, 4), 7, "u2"), item, lambda: None)
        self.assertTrue((before == 7).all())
        self.assertFalse(pool.rows("embedding", 0, 128).any())
        other.rows("embedding", 0, 128)[:] = 9
        with unittest.mock.patch.dict(sys.modules, {"torch": None}):
            got, = _copies.Here().load([item], lambda: None)
        self.assertTrue((got == 7).all())

    def test_what_numpy_lacks_is_copied_as_its_bits(self):
        class Rows:  # like torch's
            def __init__(self, dtype):
                self.dtype = f"torch.{dtype}"

            def detach(self):
                return self
            cpu = contiguous = detach

            def view(self, bits):
                return Rows(bits)

            def numpy(self):  # as where numpy lacks the dtype
                return np.zeros((1, 1), self.dtype.split(".")[-1])
        torch = types.SimpleNamespace(int8="int8", int16="int16")
        with unittest.mock.patch.dict(sys.modules, {"torch": torch}):
            self.assertEqual([_common.from_tensor(Rows(d)).dtype.str for d in (
                "bfloat16", "float8_e4m3fn", "float32")],
                ["<u2", "|u1", "<f4"])

    def test_a_device_whose_driver_is_unknown_is_waited_for(self):
        """The wait is one that vLLM's check allows."""
        class Rows:  # like torch's, on this device
            dtype, allowed = "torch.bfloat16", False

            def to(self, device):
                assert Rows.allowed
                return "moved", device

            def detach(self):
                raise AssertionError if not Rows.allowed else StopIteration

        @contextlib.contextmanager
        def allowed():
            Rows.allowed = True
            yield
            Rows.allowed = False
        platform = types.SimpleNamespace(device_type="xpu",
                                         current_device=lambda: 3)
        there = {"vllm.platforms": types.SimpleNamespace(
                     current_platform=platform),
                 "torch": types.SimpleNamespace(
                     device=lambda kind, number: f"{kind}:{number}",
                     get_device_module=lambda kind: platform)}
        with unittest.mock.patch.dict(sys.modules, there), \
                unittest.mock.patch.object(
                    _vllm_engine, "gpu_sync_allowed", allowed), \
                unittest.mock.patch.object(
                    _copies, "Tensor",
                    lambda out, kind: types.SimpleNamespace(torch=Rows)), \
                unittest.mock.patch.object(
                    mmx.cuda.Driver, "get",
                    side_effect=mmx.cuda.CudaError("no NVIDIA driver")):
            copies = _vllm_engine.copier()
            field = mmx.pool.Field("embedding", "bf16", 4, 0, 8)
            item = _copies.Rows(None, field, 3, ())
            over = []
            self.assertEqual(copies.load([item], lambda: over.append(1)),
                             [("moved", "xpu:3")])
            with self.assertRaises(StopIteration):
                copies.save(Rows(), item, None)
            self.assertEqual((over, copies.later), ([1], False))
            platform.device_type = "cpu"
            self.assertIsNone(_vllm_engine.copier().device)

    def test_what_is_counted_goes_to_prometheus(self):
        made = {}

        class Metric:
            def __init__(self, name, documentation, labelnames, **more):
                made[name], self.more, self.said = self, more, []

            def labels(self, *_values):
                return self

            def inc(self, amount):
                self.said.append(amount)

            set = observe = inc

        prom = vllm_ec.MmxECConnector.build_prom_metrics(
            config(), {"counter": Metric, "gauge": Metric,
                       "histogram": Metric}, ["engine"], {0: ["0"]})
        prom.observe({"rows_fetched": 5, "of a newer version": 1,
                      "fetch_seconds": [0.25, 4.0], "in_use": 1}, 0)
        for name, said in (("rows_fetched", [5]), ("in_use", [1]),
                           ("fetch_seconds", [0.25, 4.0]),
                           ("fetch_bytes", [])):
            self.assertEqual(made[f"vllm:mmx_{name}"].said, said)
        self.assertEqual(len(made), len(_vllm_engine.COUNTS) + 3)
        bounds = made["vllm:mmx_fetch_seconds"].more["buckets"]
        self.assertEqual(bounds, sorted(bounds))

    def test_counts_of_several_intervals(self):
        a, b = _vllm_engine.Counts(), _vllm_engine.Counts()
        for one, seconds in ((a, 0.5), (b, 0.25), (b, 0.75)):
            one.add("rows_fetched", 10)
            one.observe(fetch_seconds=seconds)
        a, b = a.take(True), b.take(False)
        self.assertEqual(a.data, {"rows_fetched": 10, "in_use": 1,
                                  "fetch_seconds": [0.5]})
        self.assertEqual(a.aggregate(b).reduce(), {
            "rows_fetched": 30, "fetch_seconds": 0.5, "in_use": 0})

    def test_metadata_that_an_aux_cannot_have(self):
        """Other metadata is dropped."""
        feature = types.SimpleNamespace(
            identifier="cat", modality="image", data={},
            mm_position=types.SimpleNamespace(length=192, is_embed=None,
                                              get_num_embeds=lambda: 192))
        known = {"cat": {"metadata": {"image_grid_thw": [1, 16, 48],
                                      "odd": float("nan")}}}
        collects = unittest.mock.patch.object(
            _vllm_engine, "collect_ec_item_metadata", lambda *_: known)
        with collects, self.assertLogs("vllm.mmx") as said:
            got = mmx.aux.unpack(_vllm_engine.Described(config()).aux(feature))
        self.assertEqual(got, {"modality": "image", "rows": [192],
                               "grid": [(1, 16, 48)], "merge": 2})
        self.assertIn("cat goes without odd", said.output[0])

    def test_a_change_of_use_is_said_once(self):
        c = _vllm_engine.Counts()
        said = [c.take(use) for use in (False, False, True, True, False)]
        self.assertEqual([s and s.data for s in said], [
            {"in_use": 0}, None, {"in_use": 1}, None, {"in_use": 0}])

    def test_the_log_is_one_that_vllm_prints(self):
        self.assertTrue(_vllm_engine.log.name.startswith("vllm."))

    def test_the_engines_classes_are_taken(self):
        self.assertTrue(issubclass(vllm_ec.MmxECConnector,
                                   vllm_base.ECConnectorBase))

    def test_a_missing_engine_is_named(self):
        code = "import sys; sys.modules['vllm'] = None\n" \
               "import mmx.adapters.vllm_ec"
        got = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{ENGINES}"})
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr.splitlines()[-1],
                         "^ImportError: mmx.*vllm_ec needs .*vLLM.*: .*vllm")


if __name__ == "__main__":
    unittest.main()
