"""Dynamo's table; started by ../run inside the engine's environment.

    table.py FOLDER [PART ...]

Parts: transfer (the checks and the benchmark of Dynamo's own tests, over each
mode), fleet (frontend, encode workers and a prefill worker, and what may happen
to them), patched (vLLM's workers with patches of Dynamo's), sglang (workers of
SGLang), time (encoder done to rows usable)."""

import asyncio
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import by_sglang  # noqa: E402
import cases  # noqa: E402
import patched  # noqa: E402
import servers  # noqa: E402
import timed  # noqa: E402

# Of the tensors of Dynamo's tests.
POOL = {"fields": "embedding:f32:8192", "blocks": 640, "block_rows": 16}
ROUNDS = 7


async def transfer(t):
    """Everything of Dynamo's here is its wheel's, also the checks."""
    from mmx.adapters import dynamo
    dynamo.register("sglang")  # of which its tables are
    from dynamo.common import multimodal
    from dynamo.common.constants import EmbeddingTransferMode
    from dynamo.common.tests.multimodal import test_embedding_transfer as own
    import torch

    encoded = t.world.encoded(**POOL)
    langd = t.world.langd([], **POOL, control={"allow": ["key"]})
    os.environ.update(MMX_ENCODED_SOCKET=encoded.socket,
                      MMX_LANGD_SOCKET=langd.socket)
    tensors = [torch.randn(256, own.EMBEDDING_SIZE) for _ in range(30)]
    ends, took = {}, {}
    for name in ("mmx", "local", "nixl-write"):
        mode = EmbeddingTransferMode(name)
        ends[name] = (multimodal.EMBEDDING_SENDER_FACTORIES[mode](),
                      multimodal.EMBEDDING_RECEIVER_FACTORIES[mode]())
        await own.correctness(*ends[name])
        t.line(True, f"Dynamo's correctness(), {name}")
        await own.benchmark(*ends[name], tensors)
        took[name] = []
    for n in range(ROUNDS):
        for name in sorted(ends, reverse=n % 2):
            began = time.perf_counter()
            await own.benchmark(*ends[name], tensors)
            took[name].append(time.perf_counter() - began)
    for name, seconds in took.items():
        t.line(True, f"30 tensors of 8 MiB at once, {name}",
               f"{statistics.median(seconds):.3f} s, least "
               f"{min(seconds):.3f}, of {ROUNDS} rounds in turn; load "
               f"{os.getloadavg()[0]:.1f}")
    for end in ends["mmx"]:
        end._daemon.conn.close()


KNOWN = {"transfer": transfer, "fleet": cases.run, "patched": patched.run,
         "sglang": by_sglang.run, "time": timed.run}

if __name__ == "__main__":
    status = asyncio.run(servers.Table(sys.argv[1], POOL["fields"]).play(
        "dynamo", KNOWN, sys.argv[2:]))
    sys.stdout.flush()
    os._exit(status)  # NIXL ends an interpreter that exits by SIGSEGV
