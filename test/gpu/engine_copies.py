#!/usr/bin/python3
"""The copies of the vLLM adapter on a GPU: bytes, what they cost the host,
whether they overlap with kernels, how fast they are beside one copy of pinned
memory, beside the call by which vLLM's connector for CPU memory copies (where
vLLM is installed), and beside the pageable copy that they replaced. One JSON
object a line. Over the driver's double only bytes and order mean anything."""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import time
from statistics import median
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# vLLM's own package comes first, where there is one.
sys.path[:0] = [os.path.join(ROOT, "lib/client/python"),
                os.path.join(ROOT, "test/e2e")]
sys.path += [os.path.join(ROOT, "test/double"),
             os.path.join(ROOT, "test/python/engines")]

import numpy as np  # noqa: E402

from mmx import Run, cuda  # noqa: E402

WIDTH = 8192  # of bf16


def say(**row):
    print(json.dumps(row), flush=True)


class Bench:
    def __init__(self, pool, double):
        if double:
            import torch_streams as torch
            there = torch.modules(cuda.Driver.get())
            self.now = lambda: torch.on(self.kernels)
        else:
            import torch
            there, self.now = {}, lambda: torch.cuda.stream(self.kernels)
        from mmx.adapters import _copies
        self.torch, self.double, self.pool = torch, double, pool
        with mock.patch.dict(sys.modules, there):
            self.copies = _copies.Streams("cuda", None)
        self.kernels = torch.Stream() if double else torch.cuda.Stream()
        self.copies.prepare(pool)
        field, half = pool.fields["embedding"], pool.blocks // 2
        rng = np.random.default_rng(3)
        # Runs of up to 16 blocks in any order. Saves use the other half.
        self.load_from, self.save_to = (
            _copies.Rows(pool, field, half * pool.block_rows, tuple(
                Run(at * pool.block_rows, min(16, half - at) * pool.block_rows,
                    (base + to) * pool.block_rows) for at, to in zip(
                        range(0, half, 16),
                        self.order(rng, half)))) for base in (0, half))
        self.size = self.load_from.rows * field.row_bytes
        for item, fill in ((self.load_from, True), (self.save_to, False)):
            for _, part in item.pieces:
                part.view("u2")[:] = rng.integers(
                    0, 2**16, part.shape, "u2") if fill else 0

    def order(self, rng, half):
        """Returns places for runs of 16 blocks that do not overlap; the last
        run is short."""
        whole = [16 * i for i in rng.permutation(half // 16)]
        return [*whole, half // 16 * 16]

    @property
    def rows(self):
        return np.concatenate([p.view("u2") for _, p in
                               self.load_from.pieces])

    def load(self):
        over = []
        with self.now():
            rows, = self.copies.load([self.load_from], lambda: over.append(1))
        return rows, over

    def settle(self, over):
        end = time.monotonic() + 60
        while not over and time.monotonic() < end:
            self.copies.step()
        assert over, "no event has completed"

    def bytes(self):
        rows, over = self.load()
        with self.now():
            got = self.torch.read(rows) if self.double else rows.view(
                self.torch.int16).to("cpu", non_blocking=True)
            self.copies.save(rows, self.save_to, lambda: over.append(2))
            self.copies.flush()
        self.settle(over)
        self.kernels.synchronize()
        while 2 not in over:
            self.copies.step()
        want = self.rows
        good = np.array_equal(np.asarray(got).view("u2"), want)
        back = np.concatenate([p.view("u2") for _, p in
                               self.save_to.pieces])
        say(what="vLLM's rows, loaded", value=self.size, unit="bytes",
            passed=bool(good))
        say(what="vLLM's rows, saved", value=self.size, unit="bytes",
            passed=bool(np.array_equal(back, want)))

    # --- on a GPU only ----------------------------------------------------
    def seconds(self, work):
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        host = time.perf_counter() - began
        self.torch.cuda.synchronize()
        return time.perf_counter() - began, host

    def pageable(self):
        """Copies through an array in host memory, and waits, as earlier
        versions did."""
        self.torch.from_numpy(self.rows.view("i2")).to("cuda")

    def pinned(self):
        """Measures one copy of pinned memory."""
        self.into.copy_(self.from_, non_blocking=True)

    def theirs(self):
        self.batch(*self.words, is_src_access_order_any=True)

    def measure(self, rounds):
        torch = self.torch
        self.from_ = torch.empty(self.size, dtype=torch.uint8,
                                 pin_memory=True)
        self.into = torch.empty(self.size, dtype=torch.uint8, device="cuda")
        ways = {"mmx": self.load, "pinned": self.pinned,
                "pageable": self.pageable}
        with contextlib.suppress(ImportError, AttributeError):
            from vllm._custom_ops import swap_blocks_batch
            self.batch, ways["ECCPU"] = swap_blocks_batch, self.theirs
            self.words = [torch.tensor(x) for x in zip(*(
                (part.ctypes.data, self.into.data_ptr() + first * 2 * WIDTH,
                 part.nbytes) for first, part in self.load_from.pieces))]
        took = {way: [] for way in ways}
        for n in range(rounds + 1):
            for way, work in ways.items():
                one = self.seconds(work)
                if n:
                    took[way].append(one)
        speed = {way: self.size / median(t[0] for t in x) / 1e9
                 for way, x in took.items()}
        whole, host = (median(t[i] for t in took["mmx"]) for i in (0, 1))
        say(what="vLLM's rows to the GPU", value=speed["mmx"], unit="GB/s",
            ratio=speed["mmx"] / speed["pinned"], target=0.8,
            against="one pinned copy", yard=speed["pinned"],
            note=f"{speed['mmx'] / speed['pageable']:.1f} times the pageable "
            "copy")
        if "ECCPU" in speed:
            say(what="vLLM's rows beside ECCPU's call", value=speed["mmx"],
                unit="GB/s", ratio=speed["mmx"] / speed["ECCPU"], target=0.9,
                against="swap_blocks_batch", yard=speed["ECCPU"])
        else:
            say(what="vLLM's rows beside ECCPU's call", value="no vLLM here")
        say(what="the pass's own time in a load", value=host * 1e3, unit="ms",
            passed=host < whole / 2, note=f"of {whole * 1e3:.2f} ms")
        self.overlap(whole, rounds)

    def overlap(self, alone, rounds):
        """Measures kernels as long as a load, and both at once."""
        torch = self.torch
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

        def kernels(n):
            with self.now():
                for _ in range(n):
                    a @ a
        self.seconds(lambda: kernels(10))
        n = max(1, int(alone / (self.seconds(lambda: kernels(100))[0] / 100)))
        # Kernels first: the load does not wait for them.
        work = median(self.seconds(lambda: kernels(n))[0]
                      for _ in range(rounds))
        both = median(self.seconds(lambda: (kernels(n), self.load()))[0]
                      for _ in range(rounds))
        say(what="a load beside kernels", value=both * 1e3, unit="ms",
            passed=both < 0.8 * (alone + work),
            note=f"alone {alone * 1e3:.2f} and {work * 1e3:.2f} ms")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True)
    p.add_argument("--mib", type=int, default=128)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--libcuda", default="libcuda.so.1")
    args = p.parse_args()
    os.environ["MMX_BUILD"] = os.path.abspath(args.build)
    from pair import World

    double = os.path.isabs(args.libcuda)
    cuda.Driver.get(args.libcuda)
    if not double:
        if not importlib.util.find_spec("torch"):
            say(what="vLLM's copies", value="no torch here")
            return
    world = World()
    try:
        blocks = 2 * max(2, args.mib * 2**20 // (128 * 2 * WIDTH))
        encoded = world.encoded(fields=f"embedding:bf16:{WIDTH}",
                                blocks=blocks)
        bench = Bench(world.engine(encoded).pool, double)
        bench.bytes()
        if not double:
            bench.measure(args.rounds)
        bench.copies.close()
    finally:
        world.close()


if __name__ == "__main__":
    main()
