"""Dynamo's workers with mmx as an embedding transfer mode, of both backends:

    python -m mmx.adapters.dynamo vllm --embedding-transfer-mode mmx ...

in the place of `python -m dynamo.vllm ...`, and likewise sglang. Everything
else is Dynamo's: which encode worker has a picture, and how it is found. The
reference that it answers names its daemon, so that no encoder is listed.

Dynamo has tables of its modes for SGLang's workers; vLLM's choose by an
if-chain, which is told another mode and loses what it made for that.
"""

from __future__ import annotations

import enum
import functools
import importlib
import os
import runpy
import sys
from typing import Any

MODE = "mmx"
BACKENDS = ("vllm", "sglang")
CONSTANTS = "dynamo.common.constants"
TABLES = "dynamo.common.multimodal"
ENCODE = "dynamo.vllm.multimodal_handlers.encode_worker_handler"
PREFILL = "dynamo.vllm.handlers"


def register(backend: str) -> None:
    """Adds the mode, before a worker and its command line are imported."""
    if TABLES in sys.modules:
        raise RuntimeError("Dynamo's workers are imported already, without "
                           "the transfer mode mmx")
    try:
        constants: Any = importlib.import_module(CONSTANTS)
    except ImportError as e:
        raise ImportError("mmx.adapters.dynamo needs ai-dynamo installed: "
                          f"{e}") from e
    modes = {m.name: m.value for m in constants.EmbeddingTransferMode}
    constants.EmbeddingTransferMode = made = enum.Enum(  # type: ignore
        "EmbeddingTransferMode", {**modes, "MMX": MODE}, module=CONSTANTS)
    tables: Any = importlib.import_module(TABLES)
    from . import _common, _dynamo

    _common.deadline()  # well-formed?
    tables.EMBEDDING_SENDER_FACTORIES[made.MMX] = _dynamo.MmxEmbeddingSender
    tables.EMBEDDING_RECEIVER_FACTORIES[made.MMX] = \
        _dynamo.MmxEmbeddingReceiver
    if backend == "vllm":
        hook(importlib.import_module(ENCODE).EncodeWorkerHandler,
             importlib.import_module(PREFILL).BaseWorkerHandler, made, _dynamo)


def hook(encode: Any, prefill: Any, modes: Any, ours: Any) -> None:
    """Adds our sender and receiver to the if-chains of vLLM's workers."""
    made, loads = encode.__init__, prefill.init_embedding_loader

    @functools.wraps(made)
    def init(self: Any, engine_args: Any, embedding_transfer_mode: Any,
             *more: Any, **named: Any) -> None:
        ours_it_is = embedding_transfer_mode is modes.MMX
        made(self, engine_args, modes.LOCAL if ours_it_is else
             embedding_transfer_mode, *more, **named)
        if ours_it_is:
            self.embedding_sender = ours.MmxEmbeddingSender()

    @functools.wraps(loads)
    def init_embedding_loader(self: Any, config: Any, *more: Any,
                              **named: Any) -> Any:
        if config.embedding_transfer_mode is not modes.MMX:
            return loads(self, config, *more, **named)
        config.embedding_transfer_mode = modes.LOCAL
        try:
            loader = loads(self, config, *more, **named)
        finally:
            config.embedding_transfer_mode = modes.MMX
        if loader is not None and loader._receiver:  # under this name
            self.embedding_receiver = loader._receiver = \
                ours.MmxEmbeddingReceiver()
        return loader

    encode.__init__ = init
    prefill.init_embedding_loader = init_embedding_loader


def main() -> None:
    backend = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if backend not in BACKENDS:
        sys.exit("usage: python -m mmx.adapters.dynamo vllm|sglang "
                 "WORDS OF DYNAMO'S WORKER")
    os.environ.setdefault("PYTHONHASHSEED", "0")  # Dynamo sets this, too
    register(backend)
    runpy.run_module(f"dynamo.{backend}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
