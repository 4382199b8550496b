"""Large items through the connectors' own code, without engines around it:
from the encoder's output until each page of the rows in the consumer's cache
has been read once. Beside the load: one copy of as many bytes into new memory,
which is what a load of mmx is to be."""

import os
import shutil
import statistics
import sys
import time
import types

from mmx.adapters._vllm_common import MmxECMetadata
from pair import eventually
from serve import ROOT

WIDTH = 2048  # of bf16
SIZES = 8.5, 100  # MB


def touch(rows):
    import torch

    return int(rows.flatten().view(torch.uint8)[::4096].sum())


class Clock:
    """Measures milliseconds of a with-block."""

    def __enter__(self):
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.ms = (time.perf_counter() - self.began) * 1e3


def engine_of():
    sys.path.append(os.path.join(ROOT, "test/e2e"))
    import fake_vllm

    class Engine(fake_vllm.Engine):
        rows = None  # the encoder's output

        def run(self, rank, cache, meta, encode):
            rank.bind_connector_metadata(meta)
            rank.start_save_caches(encoder_cache=cache)
            with Clock() as self.took:
                rank.start_load_caches(cache)
                for f in encode:
                    cache[f.identifier] = self.rows
                    rank.save_caches(cache, f.identifier)
                for rows in cache.values():
                    touch(rows)
            return self.end(rank)
    return Engine, fake_vllm.Request


class Plain:
    """Describes requests that are not of vLLM's own class."""

    def __call__(self, request):
        return {}

    def aux(self, feature):
        return b""

    def encodable(self, feature):
        return "pixel_values" in feature.data


class Mmx:
    def __init__(self, e, d, producer=None):
        """producer: that of another object, of the same encoded."""
        Engine, self.Request = engine_of()
        self.producer, self.consumer = producer or Engine(
            e, "producer", width=WIDTH, mmx_pause_s=60), Engine(
                d, "consumer", width=WIDTH, mmx_pause_s=60)
        for side in (self.producer.scheduler._producer,
                     self.consumer.scheduler._consumer):
            side.described = Plain()
        for rank in self.consumer.ranks:
            rank._loader.link.wait_pool()
        eventually(self.consumer.scheduler._consumer.link.step, "a pool")

    def move(self, name, rows):
        """Returns ms to save, ms until the consumer's host has the rows, ms to
        load."""
        here, there = (self.Request(name, (name, len(rows)))
                       for _ in range(2))
        self.producer.rows = rows
        self.producer.admit(here)
        self.producer.step(here)
        there.ec_transfer_params = self.producer.finish(here)
        with Clock() as lands:
            while not self.consumer.ready(there):
                pass
        self.consumer.step(there)
        took = self.producer.took.ms, lands.ms, self.consumer.took.ms
        got = self.consumer.caches[0].pop(name)
        self.producer.caches[0].clear()
        self.consumer.step(self.Request("none"))
        self.consumer.scheduler._consumer.meta(
            MmxECMetadata(), [name])
        self.consumer.finish(there)
        return got, took

    def close(self):
        self.producer.close()
        self.consumer.close()


class Example:
    """vLLM's example connector: a file for each picture."""

    def __init__(self, path):
        from vllm.distributed.ec_transfer.ec_connector import \
            example_connector as theirs
        from vllm.distributed.ec_transfer.ec_connector.base import \
            ECConnectorRole
        self.theirs = theirs
        self.made = [theirs.ECExampleConnector(types.SimpleNamespace(
            model_config=None, ec_transfer_config=types.SimpleNamespace(
                is_ec_producer=role == "producer",
                is_ec_consumer=role == "consumer",
                get_from_extra_config=lambda *_: path)),
            ECConnectorRole.WORKER) for role in ("producer", "consumer")]

    def move(self, name, rows):
        producer, consumer = self.made
        with Clock() as saves:
            producer.save_caches({name: rows}, name)
        meta = self.theirs.ECExampleConnectorMetadata()
        meta.add_mm_data(self.theirs.MMMeta.make_meta(name, len(rows)))
        consumer.bind_connector_metadata(meta)
        cache = {}
        with Clock() as loads:
            consumer.start_load_caches(cache)
            touch(cache[name])
        return cache[name], (saves.ms, 0, loads.ms)


async def run(t, rounds=15):
    import numpy as np
    import torch

    torch.set_num_threads(1)
    e, d = t.pair(f"embedding:bf16:{WIDTH}", blocks=400, n="large")
    shared = os.path.join(t.folder, "example-large")
    shutil.rmtree(shared, ignore_errors=True)
    ways = {"mmx": Mmx(e, d), "vLLM's example": Example(shared)}
    for size in SIZES:
        count = int(size * 1e6) // (2 * WIDTH)
        found = {way: [] for way in ways}
        copies = []
        for n in range(rounds + 1):
            rows = torch.randint(-2**15, 2**15, (count, WIDTH),
                                 dtype=torch.int16).view(torch.bfloat16)
            bits = rows.view(torch.int16)
            with Clock() as one:
                out = np.empty((count, WIDTH), "i2")
                out[:] = bits.numpy()
                touch(torch.from_numpy(out))
            copies.append(one.ms)
            for way in list(ways)[::-1] if n % 2 else list(ways):
                name = f"{size:g}-{n}"
                got, took = ways[way].move(name, rows)
                if not torch.equal(got.view(torch.int16), bits):
                    t.line(False, f"{size:g} MB, {way}: other rows")
                found[way].append(took)
            shutil.rmtree(shared, ignore_errors=True)
        for way, took in found.items():
            save, lands, load = map(statistics.median, zip(*took[1:]))
            total = statistics.median(map(sum, took[1:]))
            t.line(True, f"{size:g} MB, {way}", f"{total:.1f} ms: saved in "
                   f"{save:.1f}, at the host in {lands:.1f}, loaded in "
                   f"{load:.1f}")
        copy = statistics.median(copies[1:])
        load = statistics.median(x[2] for x in found["mmx"][1:])
        t.line(True, f"{size:g} MB: one copy into new memory",
               f"{copy:.1f} ms; mmx's load is {load / copy:.2f} of them; "
               f"load {os.getloadavg()[0]:.1f}")
    ways["mmx"].close()
