#!/usr/bin/python3
"""Rooms between GPU pools against what the hardware can do, side by side in
one run, and what a host pool under a GPU engine costs. One JSON object a line.
Needs the daemons of --build and a GPU; over the driver's double the numbers
mean nothing, but the way to them is the same."""

import argparse
import ctypes
import json
import os
import socket
import statistics
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


ROW = 32768
LARGE_SECONDS, LARGE_BYTES = 5e-3, 8 << 30


def say(**row):
    print(json.dumps(row), flush=True)


class Copies:
    """Plain copies of one size: device to device, to and from pinned host
    memory, and pageable."""

    def __init__(self, cuda, size, host=True):
        self.d, self.size = cuda.Driver.get(), size
        with self.d.context(0):
            stream, pinned = ctypes.c_void_p(), ctypes.c_void_p()
            self.d.stream(ctypes.byref(stream), 1)
            self.stream = stream.value
            self.a, self.b = self._take(), self._take()
            if host and self.d.lib.cuMemHostAlloc(
                    ctypes.byref(pinned), ctypes.c_size_t(size), 1):
                raise cuda.CudaError("no pinned memory")
        self.pinned = pinned.value
        self.pageable = ctypes.create_string_buffer(size if host else 1)

    def _take(self):
        at = ctypes.c_uint64()
        if self.d.lib.cuMemAlloc_v2(ctypes.byref(at),
                                    ctypes.c_size_t(self.size)):
            raise MemoryError("GPU")
        return at.value

    def free(self):
        with self.d.context(0):
            self.d.lib.cuMemFree_v2(ctypes.c_uint64(self.a))
            self.d.lib.cuMemFree_v2(ctypes.c_uint64(self.b))
            if self.pinned:
                self.d.lib.cuMemFreeHost(ctypes.c_void_p(self.pinned))

    def seconds(self, to, source, size=None):
        with self.d.context(0):
            self.d.sync(self.stream)
            t = time.perf_counter()
            self.d.copy(to, source, size or self.size, self.stream)
            self.d.sync(self.stream)
            return time.perf_counter() - t

    def device(self):
        return self.seconds(self.b, self.a)

    def to_host(self):
        return self.seconds(self.pinned, self.a)

    def from_host(self):
        return self.seconds(self.a, self.pinned)

    def from_pageable(self):
        return self.seconds(self.a, ctypes.addressof(self.pageable))


def wire(size):
    """Returns the seconds for this many bytes by TCP on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        out = socket.create_connection(server.getsockname())
        into, _ = server.accept()
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    piece = bytes(1 << 20)

    def send():
        left = size
        while left > 0:
            left -= out.send(piece[:min(left, len(piece))])
    buffer = bytearray(1 << 20)
    sender = threading.Thread(target=send)
    t = time.perf_counter()
    sender.start()
    left = size
    while left > 0:
        left -= into.recv_into(buffer)
    took = time.perf_counter() - t
    sender.join()
    out.close()
    into.close()
    return took


class Pair:
    """Two daemons with one pool each, and an engine at both."""

    def __init__(self, world, env, source, dest, rows, staged):
        blocks = max(rows // 128 + 2, 16)
        pool = {"name": "vit", "blocks": blocks, "block_rows": 128,
                "layout": f"embedding:bf16:{ROW // 2}"}
        more = {"transfer": {"same_host": "off"}} if staged else {}
        self.rows, self.room = rows, 1
        self.e = world.encoded(start=False,
                               pools=[{**pool, "memory": source}], **more)
        self.e.start(env)
        self.l = world.langd([self.e], start=False,
                             pools=[{**pool, "memory": dest}], **more)
        self.l.start(env)
        self.enc, self.lm = world.engine(self.e), world.engine(self.l)

    def seconds(self):
        """Returns the seconds from commit to READY, with an exact grant."""
        enc, lm, room, rows = self.enc, self.lm, self.room, self.rows
        self.room += 1
        lm.request(room, "enc0", rows=rows)
        enc.announce(room, rows, rows)
        enc.granted(room)
        t = time.perf_counter()
        enc.commit(room, 0, rows, final=True)
        lm.ready(room, 60)
        took = time.perf_counter() - t
        enc.done(room)
        lm.release(room)
        enc.release(room)
        return took


def interleaved(rounds, **work):
    """Runs each once per round; returns {name: [seconds]} without the first
    round."""
    took = {name: [] for name in work}
    for i in range(rounds + 1):
        for name, call in work.items():
            s = call()
            if i:
                took[name].append(s)
    return took


def gbs(size, seconds):
    return size / seconds / 1e9


def room(world, args, env, copies, what, staged, target=None):
    """Prints one row: a room of this size, compared with its bounds."""
    rows = copies.size // ROW
    pair = Pair(world, env, "cuda:0", "cuda:0", rows, staged)
    yards = {"down": copies.to_host, "up": copies.from_host,
             "wire": lambda: wire(copies.size)} if staged else \
        {"device": copies.device}
    took = interleaved(args.rounds, room=pair.seconds, **yards)
    best = {k: min(v) for k, v in took.items()}
    yard = max(best[k] for k in yards)
    against = "min of pinned D2H, H2D and TCP" if staged else "device copy"
    row = {"what": f"{what}, {copies.size >> 20} MiB", "unit": "GB/s",
           "value": gbs(copies.size, best["room"]),
           "median": gbs(copies.size, statistics.median(took["room"]))}
    by = "copied by langd" \
        if pair.l.stats().get("segments_copied", 0) else "by the network"
    if target:
        row.update(against=against, yard=gbs(copies.size, yard),
                   ratio=yard / best["room"], target=target, note=by)
    else:
        row["note"] = f"{yard / best['room']:.2f} of {against}; {by}"
    say(**row)
    world.end_engines()
    for d in list(world.daemons):
        d.stop()
    world.daemons.clear()


def large(copies):
    """Returns a size whose plain copy on the GPU takes some milliseconds, if
    the GPU has four times that memory. A room begins and ends in a fraction of
    a millisecond, which a faster GPU does not change."""
    have, there = ctypes.c_size_t(), ctypes.c_size_t()
    with copies.d.context(0):
        copies.d.lib.cuMemGetInfo_v2(ctypes.byref(have), ctypes.byref(there))
    want = copies.size * LARGE_SECONDS / min(copies.device() for _ in range(3))
    fits = min(want, have.value / 5, LARGE_BYTES)
    return max(copies.size, int(fits) >> 20 << 20)


def rooms(cuda, world, args, env):
    size = args.mib << 20
    copies = Copies(cuda, size)
    room(world, args, env, copies, "same GPU room", False)
    room(world, args, env, copies, "staged room, GPU - host - GPU", True, 0.85)
    most = Copies(cuda, large(copies), host=False)
    room(world, args, env, most, "same GPU room", False, 0.90)
    most.free()
    best = {name: min(getattr(copies, call)() for _ in range(args.rounds))
            for name, call in (("device copy", "device"),
                               ("pinned D2H", "to_host"),
                               ("pinned H2D", "from_host"),
                               ("pageable H2D", "from_pageable"))}
    for name, seconds in best.items():
        say(what=name, value=gbs(size, seconds), unit="GB/s")
    say(what="TCP on loopback", unit="GB/s",
        value=gbs(size, min(wire(size) for _ in range(args.rounds))))
    copies.free()


def pinning(cuda, world, env):
    """Reports whether the map of a host pool can be pinned, read-only or
    otherwise."""
    for access in ("read", "write"):
        e = world.encoded(start=False)
        e.start(env)
        l = world.langd([e], start=False, pools=[{
            "name": "vit", "blocks": 64, "layout": "embedding:bf16:8192",
            "engine_access": access}])
        l.start(env)
        pool = world.engine(l).pool
        try:
            cuda.pin(pool)()
            answer = "yes"
        except cuda.CudaError as error:
            answer = str(error)
        say(what=f"pinning a host pool, engine_access: {access}", value=answer,
            passed=answer == "yes" or access == "read")
        world.end_engines()
        for d in list(world.daemons):
            d.stop()
        world.daemons.clear()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True)
    p.add_argument("--mib", type=int, default=512)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--libcuda", default="libcuda.so.1")
    args = p.parse_args()
    os.environ["MMX_BUILD"] = os.path.abspath(args.build)
    sys.path.insert(0, os.path.join(HERE, "../e2e"))
    import pair as e2e  # it reads MMX_BUILD
    from mmx import cuda

    double = args.libcuda != "libcuda.so.1"
    cuda.Driver.get(args.libcuda)
    env = {"LD_LIBRARY_PATH": os.path.dirname(os.path.abspath(args.libcuda)),
           "CUDA_DOUBLE": f"memory={8 << 30}"} if double else {}
    world = e2e.World()
    try:
        rooms(cuda, world, args, env)
        pinning(cuda, world, env)
    finally:
        wrong = world.close()
        if wrong:
            print(world.logs, file=sys.stderr)
            raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
