#!/usr/bin/python3
"""The kernels of lib/gpu against the planner on the CPU: random plans,
every dtype that is converted, odd widths and strides; then how fast they are,
against a copy on the same GPU. One JSON object a line; needs a GPU."""

import argparse
import ctypes
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../lib/client/python")]

import numpy as np  # noqa: E402

from mmx import cuda  # noqa: E402
from mmx.kernels import Mover, Tensor  # noqa: E402
from mmx.plan import Placeholder, Rows as OnCpu, plan  # noqa: E402
from mmx.pool import dtype as numpy_dtype  # noqa: E402


class Gpu:
    """Plain memory of a GPU, as a pool's map looks to cuda.Rows."""

    def __init__(self, gpu=0):
        self.gpu, self.driver, self.writable = gpu, cuda.Driver.get(), True
        with self.driver.context(gpu):
            stream = ctypes.c_void_p()
            self.driver.stream(ctypes.byref(stream), 1)
        self.stream, self.base = stream.value, cuda._Shown(self)

    def take(self, size):
        at = ctypes.c_uint64()
        with self.driver.context(self.gpu):
            if self.driver.lib.cuMemAlloc_v2(ctypes.byref(at),
                                             ctypes.c_size_t(size)):
                raise cuda.CudaError("out of memory")
        return at.value

    def give(self, at):
        with self.driver.context(self.gpu):
            self.driver.lib.cuMemFree_v2(ctypes.c_uint64(at))

    def copy(self, to, source, size):
        with self.driver.context(self.gpu):
            self.driver.copy(to, source, size, self.stream)

    def sync(self):
        with self.driver.context(self.gpu):
            self.driver.sync(self.stream)

    def write(self, at, array):
        self.copy(at, array.ctypes.data, array.nbytes)
        self.sync()

    def read(self, at, array):
        self.copy(array.ctypes.data, at, array.nbytes)
        self.sync()


class Scattered:
    """A room's rows in several runs of a pool on the GPU, for Mover."""

    def __init__(self, gpu, bits, dtype, rng):
        self.total = self.readable = len(bits)
        self.released, self._runs = 0, []
        self.array, self.row = bits, bits.shape[1] * bits.itemsize
        self.kind = dtype
        self.gpu, self.places = gpu, []
        self.at = gpu.take(max(1, 2 * bits.nbytes + 4096))
        cuts = sorted({0, *map(int, rng.integers(0, len(bits) + 1, 3))})
        place = 0
        for first, end in zip(cuts, cuts[1:] + [len(bits)]):
            if first == end:
                continue
            self.places.append((first, end, place))
            gpu.write(self.at + place * self.row,
                      np.ascontiguousarray(bits[first:end]))
            place += end - first + int(rng.integers(0, 3))
        field = type("F", (), {"dtype": dtype, "elements": bits.shape[1]})
        self.pool = type("P", (), {"fields": {"embedding": field},
                                   "rows": staticmethod(self.rows)})

    def pieces(self, first, end):
        run = type("Run", (), {})
        for a, b, place in self.places:
            lo, hi = max(first, a), min(end, b)
            if lo < hi:
                one = run()
                one.first, one.rows = lo, hi - lo
                one.place = place + lo - a
                yield one

    def rows(self, _field, place, rows):
        return cuda.Rows(self.gpu.base, self.at + place * self.row, rows,
                         self.array.shape[1], self.kind)


def one_plan(gpu, mover, rng, source, dest, elements):
    """Returns the number of rows; raises when a byte differs."""
    rooms = int(rng.integers(1, 5))
    totals = [int(rng.integers(1, 400)) for _ in range(rooms)]
    bits = [rng.integers(0, 255, (t, elements * numpy_dtype(source).itemsize),
                         np.uint8).view(numpy_dtype(source)) for t in totals]
    items, at = [], 0
    for r, total in enumerate(totals):
        at += int(rng.integers(0, 20))
        embed = None
        length = total
        if rng.integers(2):
            length = total + int(rng.integers(0, 50))
            embed = np.zeros(length, bool)
            embed[rng.permutation(length)[:total]] = True
        items.append(Placeholder(at, length, embed=embed, room=r))
        at += length
    computed = int(rng.integers(0, at))
    step = plan(computed, int(rng.integers(1, at + 20)), items, rooms=rooms)
    kind = numpy_dtype(dest)
    want = rng.integers(0, 255, (step.positions + 2, elements *
                                 kind.itemsize), np.uint8).view(kind)
    start = want.copy()
    step.run([OnCpu(b, source) for b in bits], "embedding", want)
    on_gpu = [Scattered(gpu, b, source, rng) for b in bits]
    out = gpu.take(want.nbytes)
    gpu.write(out, start)
    mover.run(step, on_gpu, "embedding",
              Tensor(out, len(want), elements, elements * kind.itemsize,
                     dest), gpu.stream)
    gpu.sync()
    got = np.empty_like(want)
    gpu.read(out, got)
    for room in on_gpu:
        gpu.give(room.at)
    gpu.give(out)
    same = got.view(np.uint8) == want.view(np.uint8)
    if dest == "f32" and source != "f32":  # NaNs may differ in their bits
        same = (got.view("<f4") == want.view("<f4")) | (
            np.isnan(got.view("<f4")) & np.isnan(want.view("<f4")))
    if not same.all():
        raise AssertionError(f"{source} to {dest}, {elements} elements: "
                             f"{int((~same).sum())} differ")
    return step.rows


def check(gpu, mover, plans, say):
    rng = np.random.default_rng(1)
    kinds = [("bf16", "bf16"), ("f32", "f32"), ("i32", "i32"), ("u8", "u8"),
             ("bf16", "f32"), ("f16", "f32")]
    rows = 0
    for i in range(plans):
        source, dest = kinds[i % len(kinds)]
        elements = int(rng.choice([1, 3, 8, 64, 100, 1024]))
        rows += one_plan(gpu, mover, rng, source, dest, elements)
    say(what="gather kernel equals the CPU planner", value=plans,
        unit=f"plans, {rows} rows", passed=True)


def timed(gpu, work, rounds):
    best = 1e9
    for _ in range(rounds):
        gpu.sync()
        t = time.perf_counter()
        work()
        gpu.sync()
        best = min(best, time.perf_counter() - t)
    return best


def speed(gpu, mover, mib, rounds, say):
    elements, rows = 8192, mib * (1 << 20) // 16384
    size = rows * elements * 2
    a, b = gpu.take(size), gpu.take(size)
    room = type("R", (), {})()
    room.total = room.readable = rows
    room.released, room._runs = 0, []
    run = type("Run", (), {})
    field = type("F", (), {"dtype": "bf16", "elements": elements})

    def pieces(first, end, blocks=128):
        while first < end:  # blocks in reverse: no two are neighbours
            one = run()
            one.first, one.rows = first, min(blocks, end - first)
            one.place = rows - first - one.rows
            yield one
            first += one.rows
    room.pieces = pieces
    room.pool = type("P", (), {"fields": {"embedding": field}, "rows":
                               staticmethod(lambda _f, place, n: cuda.Rows(
                                   gpu.base, a + place * elements * 2, n,
                                   elements, "bf16"))})
    step = plan(0, rows, [Placeholder(0, rows)])
    out = Tensor(b, rows, elements, elements * 2, "bf16")
    how, row_bytes, made = mover._pieces(step, [room], "embedding", out,
                                         False)

    def kernel():
        for i in range(0, len(made), 64):
            mover._launch(how, row_bytes, made[i:i + 64], gpu.stream)
    many = 20  # launches cost the CPU: many copies under one clock

    def kernels():
        for _ in range(many):
            kernel()

    def copies():
        for _ in range(many):
            gpu.copy(b, a, size)
    kernels()
    mine, yard = timed(gpu, kernels, rounds), timed(gpu, copies, rounds)
    say(what=f"gather kernel, {mib} MiB in 128-row blocks",
        value=many * size / mine / 1e9, unit="GB/s", against="device copy",
        yard=many * size / yard / 1e9, ratio=yard / mine, target=0.80)
    gpu.give(a)
    gpu.give(b)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--kernels", required=True, help="rows.fatbin")
    p.add_argument("--plans", type=int, default=300)
    p.add_argument("--mib", type=int, default=512)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--libcuda", default="libcuda.so.1")
    args = p.parse_args()

    def say(**row):
        print(json.dumps(row), flush=True)
    double = args.libcuda != "libcuda.so.1"
    cuda.Driver.get(args.libcuda)
    gpu = Gpu()
    mover = Mover(0, os.devnull if double else args.kernels)
    if double:  # what is launched is right; the kernel is not run
        rng = np.random.default_rng(1)
        for elements in (1, 8, 100):
            one_plan(gpu, mover, rng, "bf16", "bf16", elements)
    else:
        check(gpu, mover, args.plans, say)
    speed(gpu, mover, args.mib, args.rounds, say)


if __name__ == "__main__":
    main()
