"""The adapters without a daemon: their calls are the engines', they subclass
the engine's classes, and name the engine that is missing. Where no engine is
installed, the modules in engines/ stand in for its own."""

import inspect
import os
import pickle
import subprocess
import sys
import types
import unittest
import unittest.mock

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = os.path.join(HERE, "engines")
sys.path.append(ENGINES)  # last: an engine that is installed comes first

from vllm.distributed.ec_transfer.ec_connector import (  # noqa: E402
    base as vllm_base)

import mmx  # noqa: E402
from mmx.adapters import (_vllm_common, _vllm_consumer,  # noqa: E402
                          _vllm_engine, vllm_ec)

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(vllm_ec.__file__))))


def config(model="m", engine_id="e", both=False):
    return types.SimpleNamespace(
        ec_transfer_config=types.SimpleNamespace(
            engine_id=engine_id, is_ec_producer=both, is_ec_consumer=both,
            ec_connector_extra_config=None),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=4, rank=2),
        model_config=types.SimpleNamespace(model=model, revision="r",
                                           dtype="bf16"))


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
                for more in have[len(want):]:  # of newer versions
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
        """It would announce every picture, and nothing fetches them."""
        for role in vllm_base.ECConnectorRole:
            with self.assertRaisesRegex(ValueError, "ec_both.*ec_producer"):
                vllm_ec.MmxECConnector(config(both=True), role)

    def test_settings(self):
        s = _vllm_common.Settings(config())
        self.assertEqual((s.rank, s.session), (2, "e"))
        self.assertEqual(len(s.key("x")), 32)
        self.assertNotEqual(s.key("x"), s.key("y"))
        self.assertEqual(s.epoch, None)
        scoped = config()
        scoped.ec_transfer_config.ec_connector_extra_config = {
            "mmx_scope": "a", "mmx_epoch": 7}
        scoped = _vllm_common.Settings(scoped)
        self.assertEqual(len(scoped.epoch), 16)
        # What a client names may spell out all that comes before it.
        keys = [s.key("x"), s.key("y"), s.key("x", b"1" * 16),
                s.key("1x", b"1" * 15 + b"2"), scoped.key("x"),
                s.key("a|x"), _vllm_common.Settings(config(model="n"))
                .key("x"), s.key("1" * 16 + "x")]
        self.assertEqual(len(set(keys)), len(keys))

    def test_metadata_travels(self):
        meta = _vllm_common.MmxECMetadata(
            loads=[_vllm_common.Load(5, "x", 300, 9, (mmx.Run(0, 128, 3),))],
            saves=[_vllm_common.Save("y", 8)])
        self.assertEqual(pickle.loads(pickle.dumps(meta)), meta)

    def test_rows_go_where_the_model_is(self):
        """vLLM puts them into the prompt by index, on one device."""
        platform = types.SimpleNamespace(device_type="cuda",
                                         current_device=lambda: 3)
        moved = types.SimpleNamespace(to=lambda device: ("moved", device))
        there = {"vllm.platforms": types.SimpleNamespace(
                     current_platform=platform),
                 "torch": types.SimpleNamespace(
                     device=lambda kind, number: f"{kind}:{number}")}
        with unittest.mock.patch.dict(sys.modules, there):
            self.assertEqual(_vllm_engine.on_device(moved),
                             ("moved", "cuda:3"))
            moved.view = lambda kind: moved
            there["torch"].from_numpy = lambda rows: moved
            there["torch"].bfloat16 = "bf16"
            worker = _vllm_consumer.ConsumerWorker.__new__(
                _vllm_consumer.ConsumerWorker)
            for kind in ("bf16", "f16", "f32"):
                rows = np.zeros((3, 4), mmx.pool.dtype(kind))
                self.assertEqual(worker.tensor(rows), ("moved", "cuda:3"))
            platform.device_type = "cpu"
            self.assertIs(_vllm_engine.on_device(moved), moved)

    def test_what_is_counted_goes_to_prometheus(self):
        made = {}

        class Counter:
            def __init__(self, name, documentation, labelnames):
                made[name], self.total = self, 0

            def labels(self, *_values):
                return self

            def inc(self, amount):
                self.total += amount

        prom = vllm_ec.MmxECConnector.build_prom_metrics(
            config(), {"counter": Counter}, ["engine"], {0: ["0"]})
        prom.observe({"rows_fetched": 5, "of a newer version": 1}, 0)
        self.assertEqual(made["vllm:mmx_rows_fetched"].total, 5)
        self.assertEqual(len(made), len(_vllm_engine.COUNTS))

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
