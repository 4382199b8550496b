"""Dynamo's transfer mode mmx without a daemon: the adapter, and what stands in
for Dynamo, are compared with the committed table of Dynamo's names; how
workers get the mode."""

import inspect
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ENGINES = os.path.join(HERE, "engines")
PACKAGE = os.path.join(ROOT, "lib/client/python")
sys.path.append(ENGINES)  # last, so that a real one comes first
sys.path.insert(0, os.path.join(ROOT, "test/engines"))

import signatures  # noqa: E402

from mmx.adapters import _dynamo  # noqa: E402

MM = "dynamo/common/multimodal/embedding_transfer.py"
WORKERS = """
import asyncio, sys, types
from mmx.adapters import dynamo
dynamo.register(sys.argv[1])
from dynamo.common.constants import EmbeddingTransferMode as modes
from dynamo.common import multimodal
from dynamo.vllm.handlers import BaseWorkerHandler
from dynamo.vllm.multimodal_handlers.encode_worker_handler import (
    EncodeWorkerHandler)

async def workers(mode):
    config = types.SimpleNamespace(embedding_transfer_mode=mode)
    enc, pd = EncodeWorkerHandler(None, mode), BaseWorkerHandler(config, "e")
    assert pd.loader._receiver is pd.embedding_receiver
    assert config.embedding_transfer_mode is mode
    assert BaseWorkerHandler(config).loader is None
    return enc.embedding_sender, pd.embedding_receiver

assert [m.value for m in modes] == ["local", "nixl-write", "nixl-read", "mmx"]
ends = [t[modes("mmx")]() for t in (multimodal.EMBEDDING_SENDER_FACTORIES,
                                    multimodal.EMBEDDING_RECEIVER_FACTORIES)]
ends += asyncio.run(workers(modes(sys.argv[2])))
print(*[type(end).__name__ for end in ends])
"""


def parameters(call):
    return [f"{p.name}" + ("" if p.default is p.empty else f"={p.default}")
            for p in inspect.signature(call).parameters.values()]


class Fit(unittest.TestCase):
    def setUp(self):
        self.table = signatures.committed("dynamo")

    def test_the_tested_releases_have_all_that_is_needed(self):
        self.assertEqual(signatures.lacking("dynamo"), [])
        for files in self.table.values():
            self.assertIn("EmbeddingTransferMode.LOCAL",
                          files["dynamo/common/constants.py"])

    def test_ours_take_what_theirs_take(self):
        for files in self.table.values():
            theirs = {k: v for k, v in files[MM].items()
                      if v.startswith("abstractmethod")}
            self.assertEqual(len(theirs), 3)
            for name, what in theirs.items():
                of, call = name.split(".")
                ours = getattr(_dynamo, of.replace("Abstract", "Mmx"))
                self.assertEqual(
                    parameters(getattr(ours, call)),
                    what[what.index("(") + 1:-1].split(", "), name)

    def test_what_stands_in_has_what_the_real_one_has(self):
        for path, names in list(self.table.values())[-1].items():
            there = os.path.join(ENGINES, path)
            if not os.path.exists(there):
                continue
            with open(there, encoding="utf-8") as f:
                ours = signatures.names(f.read(), list(names))
            for name, what in names.items():
                if what.endswith(")"):
                    with self.subTest(name):
                        self.assertEqual(ours[name], what)


class Mode(unittest.TestCase):
    def run_(self, code, *words, engines=ENGINES):
        return subprocess.run(
            [sys.executable, "-B", "-c", code, *words], text=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{engines}"})

    def made(self, *words):
        got = self.run_(WORKERS, *words)
        self.assertEqual(got.stderr, "")
        return got.stdout.split()

    def test_workers_that_chose_it(self):
        self.assertEqual(self.made("vllm", "mmx"),
                         ["MmxEmbeddingSender", "MmxEmbeddingReceiver"] * 2)

    def test_workers_that_chose_another(self):
        self.assertEqual(self.made("vllm", "local"), [
            "MmxEmbeddingSender", "MmxEmbeddingReceiver",
            "LocalEmbeddingSender", "LocalEmbeddingReceiver"])

    def test_vllm_is_left_alone_for_the_other_backend(self):
        got = self.run_(WORKERS, "sglang", "mmx")
        self.assertRegex(got.stderr, "ValueError: Invalid embedding transfer")

    def test_the_command(self):
        for mode, name in (("mmx", "MmxEmbeddingSender"),
                           ("local", "LocalEmbeddingSender")):
            got = subprocess.run(
                [sys.executable, "-B", "-m", "mmx.adapters.dynamo", "vllm",
                 "--model", "m", "--embedding-transfer-mode", mode],
                text=True, capture_output=True,
                env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{ENGINES}"})
            self.assertEqual((got.stdout, got.stderr), (name + "\n", ""))

    def test_a_command_that_is_none(self):
        for words in ((), ("trtllm",)):
            got = self.run_("from mmx.adapters import dynamo; dynamo.main()",
                            *words)
            self.assertEqual(got.returncode, 1)
            self.assertRegex(got.stderr, "^usage: python -m mmx.adapters.")

    def test_too_late(self):
        got = self.run_("import dynamo.common.multimodal\n"
                        "from mmx.adapters import dynamo as d\n"
                        "d.register('vllm')")
        self.assertRegex(got.stderr.splitlines()[-1],
                         "RuntimeError: Dynamo's workers are imported already")

    def test_a_missing_engine_is_named(self):
        got = self.run_("from mmx.adapters import dynamo as d\n"
                        "d.register('vllm')", engines="")
        self.assertRegex(got.stderr.splitlines()[-1], "^ImportError: mmx.*"
                         "dynamo needs ai-dynamo installed: No module")


if __name__ == "__main__":
    unittest.main()
