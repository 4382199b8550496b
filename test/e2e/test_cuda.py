"""Pools on a GPU, end to end: daemons and Python client over the driver's
double, or over a real GPU with MMX_TEST_GPU=real."""

import ctypes
import gc
import os
import subprocess
import sys
import types
import unittest

import numpy as np

import fake_vllm
import mmx
import test_vllm_gpu
from engine import LIMIT, pattern
from mmx import cuda, tensor
from mmx.adapters import _sglang_language
from mmx.adapters._copies import Here
from mmx.dtypes import DTYPES
from pair import BUILD, ROOT, Case, eventually

sys.path.append(os.path.join(ROOT, "test/gpu"))
from gpu import Gpu  # noqa: E402

REAL = os.environ.get("MMX_TEST_GPU") == "real"
DOUBLE = os.path.join(os.path.abspath(BUILD), "test/double/libcuda.so.1")
FIELDS = "embedding:bf16:256,fill_ids:i32:1,mask:bool:3"


def libcuda() -> str:
    return "libcuda.so.1" if REAL else DOUBLE


class Cuda(Case):
    def setUp(self):
        super().setUp()
        cuda.Driver.get(libcuda())

    same_host = "off"

    transfer = {}

    def daemon(self, make, memory, *args, double="", name="", **more):
        pool = {"name": "vit", "blocks": 64, "block_rows": 128,
                "layout": FIELDS, "memory": memory}
        d = make(*args, start=False, pools=[{**pool, **more}],
                 transfer={"same_host": self.same_host, **self.transfer},
                 **({"name": name} if name else {}))
        env = {} if REAL else {"LD_LIBRARY_PATH": os.path.dirname(DOUBLE),
                               "CUDA_DOUBLE": double}
        return d.start(env)

    def cuda_pair(self, source, dest, double="", more=None, **pool):
        e = self.daemon(self.world.encoded, source, double=double, **pool)
        return e, self.daemon(self.world.langd, dest, [e], double=double,
                              **(more or {}))

    def write(self, engine, room, rows):
        source = engine.rooms[room]
        for field in engine.pool.fields.values():
            bits = pattern(room, field, 0, rows)
            for run in source.pieces(0, rows):
                to = engine.pool.rows(field.name, run.place, run.rows)
                part = bits[run.first:run.first + run.rows]
                if isinstance(to, cuda.Rows):
                    kind = DTYPES[field.dtype].plain[0]
                    to[:] = np.ascontiguousarray(part).view(kind)
                else:
                    to.view(np.uint8)[:] = part

    def move(self, e, l, room, rows):
        enc, lm = self.engines(e, l)
        lm.request(room, "enc0")
        enc.opens(room, rows, rows, aux="grid")
        self.write(enc, room, rows)
        enc.commit(room, 0, rows, final=True)
        self.assertEqual(lm.ready(room), rows)
        return enc, lm

    def finish(self, enc, lm, room):
        self.over(enc, lm, room)


class Adapters(Cuda):
    """Rows go through host memory, or to the GPU of the model."""

    def vllm(self, memory, engine=fake_vllm.Engine):
        both = self.cuda_pair(memory, memory,
                              more={"layout": fake_vllm.FIELDS},
                              layout=fake_vllm.FIELDS)
        made = [engine(both[0], "producer"),
                engine(both[1], "consumer", ranks=2)]
        self.world.engines += made
        return *both, *made

    def handed_over(self, producer, name, rows):
        there = fake_vllm.Request("r", (name, rows))
        there.ec_transfer_params = producer.serve(
            fake_vllm.Request("r", (name, rows)))
        return there

    def test_vllm(self):
        e, d, producer, consumer = self.vllm("cuda:0")
        # The last item has 100 KiB of data beside its rows.
        for name, rows in (("cat", 300), ("dog", 5), ("video-12800", 300)):
            r = self.handed_over(producer, name, rows)
            consumer.take(r)
            for cache in consumer.caches:
                np.testing.assert_array_equal(
                    cache[name], fake_vllm.tensor(name, rows))
            consumer.finish(r)
        self.assertEqual(consumer.encoded, [])
        d.all_free()
        e.kill()  # rows with a key stay until their space is needed

    def test_metadata_larger_than_an_aux(self):
        enc, lm = self.engines(*self.cuda_pair("cuda:0", "cuda:0"))
        whole = mmx.aux.pack(merge=2, times=range(12800))
        says = mmx.aux.split(whole)
        rows = 300 + says.rows(enc.pool)
        lm.request(7, "enc0")
        source = enc.rooms[7] = enc.conn.announce(7, enc.pool, rows, rows,
                                                  aux=says.aux)
        enc.granted(7)
        self.write(enc, 7, rows)  # as an earlier room would have left them
        says.write(source, 300)
        enc.commit(7, 0, rows, final=True)
        self.assertEqual(lm.ready(7), rows)
        room = lm.rooms[7]
        self.assertEqual(rows - mmx.aux.rest_rows(room), 300)
        self.assertEqual(mmx.aux.whole(room), whole)
        for name in ("fill_ids", "mask"):
            self.assertFalse(np.any(room.gather(name, 300, rows)))
        self.assertTrue(np.any(room.gather("fill_ids", 0, 300)))
        self.finish(enc, lm, 7)

    @unittest.skipIf(REAL, "torch's streams are a double's")
    def test_vllm_on_the_gpu_of_the_pools(self):
        e, d, producer, consumer = self.vllm("cuda:0", test_vllm_gpu.OnGpu)
        r = self.handed_over(producer, "cat", 300)
        producer.settled()
        consumer.take(r)
        consumer.settled()
        for stream, read in zip(consumer.kernels, consumer.read):
            stream.synchronize()
            np.testing.assert_array_equal(read["cat"],
                                          fake_vllm.tensor("cat", 300))
        consumer.finish(r)
        d.all_free()
        e.kill()

    def test_sglang(self):
        e, d = self.cuda_pair("cuda:0", "cuda:0")
        enc, lm = self.move(e, d, 7, 300)
        with mmx.connect("langd", d.socket) as conn:
            enc.announce(8, 300, 300)
            room = conn.request(8, conn.pool("vit"), "enc0")
            enc.granted(8)
            self.write(enc, 8, 300)
            enc.commit(8, 0, 300, final=True)
            room.wait_ready(LIMIT)
            lang = _sglang_language.Lang.__new__(_sglang_language.Lang)
            lang.copies, lang._freed, lang.rank, over = Here(), [], 0, []
            lang.begun = []
            rows, = lang.load(types.SimpleNamespace(
                over=lambda: over.append(1), rooms={0: room}), [[room]])
            self.assertTrue(over)
            lang.let_go([])
            field = room.pool.fields["embedding"]
            np.testing.assert_array_equal(
                np.asarray(rows).view("u1").reshape(300, -1),
                pattern(8, field, 0, 300))
        self.finish(enc, lm, 7)
        enc.release(8)


class Rooms(Cuda):
    def check(self, source, dest, double=""):
        e, l = self.cuda_pair(source, dest, double)
        enc, lm = self.move(e, l, 7, 2001)
        self.good(lm, 7)
        self.finish(enc, lm, 7)
        return e, l

    def test_gpu_to_gpu(self):
        e, l = self.check("cuda:0", "cuda:0")
        for d in (e, l):
            row = d.show("pools")[0]
            self.assertIn("cuda-vmm, cuda:0", row["mapped"])
            self.assertEqual(row["memory"], "cuda:0")

    def test_host_to_gpu(self):
        self.check("host", "cuda:0")

    def test_gpu_to_host(self):
        self.check("cuda:0", "host")

    @unittest.skipIf(REAL, "with the driver's double only")
    def test_slow_copies(self):
        self.check("cuda:0", "cuda:1", double="delay_us=2000")


class Straight(Cuda):
    """With a UCX that may know GPUs. If it does, rows that lie in one place go
    straight between carrier and GPU; otherwise all are staged."""

    transfer = {"carrier": "ucx", "tls": "tcp,cuda_copy"}

    def check(self, source, dest):
        e, l = self.cuda_pair(source, dest)
        for room in (7, 8):
            enc, lm = self.move(e, l, room, 5001)
            self.good(lm, room)
            self.finish(enc, lm, room)
        for d, memory, moved in ((e, source, "segments_sent"),
                                 (l, dest, "segments_landed")):
            if memory == "host":
                continue
            stats = d.stats()
            with open(d.log) as f:
                straight = "the carrier itself reads" in f.read()
            if straight and source != "host":
                self.assertLess(stats["segments_staged"], stats[moved] / 2)
            elif not straight:
                self.assertEqual(stats["segments_staged"], stats[moved])

    def daemon(self, make, memory, *args, **more):
        return super().daemon(make, memory, *args, **more,
                              layout="embedding:bf16:1024")

    def test_gpu_to_gpu(self):
        self.check("cuda:0", "cuda:0")

    def test_gpu_to_host(self):
        self.check("cuda:0", "host")

    def test_host_to_gpu(self):
        self.check("host", "cuda:0")


class Demo(Cuda):
    def test_on_a_gpu(self):
        path = [] if REAL else [os.path.dirname(DOUBLE)]
        path += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
        got = subprocess.run(
            [sys.executable, "-m", "mmx", "demo", "--programs", BUILD,
             "--memory", "cuda:0"], capture_output=True, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(path),
                 "PYTHONPATH": os.path.join(ROOT, "lib/client/python")})
        self.assertIn("demo: ok", got.stdout.splitlines()[-1], got.stdout)


class SameHost(Cuda):
    """Rows that langd copies out of the encoder's pool."""

    same_host = "copy"

    def mapped(self, langd):
        eventually(lambda: langd.show("peers")[0]["path"] == "copy",
                   "the encoder's pool is mapped")

    def check(self, source, dest, path, double=""):
        e, l = self.cuda_pair(source, dest, double)
        # langd maps the encoder's pool then
        self.finish(*self.move(e, l, 6, 10), 6)
        if path == "copy":
            self.mapped(l)
        enc, lm = self.move(e, l, 7, 2001)
        self.good(lm, 7)
        self.finish(enc, lm, 7)
        copied = l.stats()["segments_copied"]
        self.assertEqual(copied > 0, path == "copy")
        self.assertEqual(l.stats()["segments_dropped"], 0)

    def test_on_one_gpu(self):
        self.check("cuda:0", "cuda:0", "copy")

    def test_from_host_to_gpu(self):
        self.check("host", "cuda:0", "copy")

    def test_to_host_memory_they_are_staged(self):
        self.check("cuda:0", "host", "sent")

    @unittest.skipIf(REAL, "not every host has two GPUs")
    def test_between_two_gpus(self):
        self.check("cuda:0", "cuda:1", "copy")

    @unittest.skipIf(REAL, "with the driver's double only")
    def test_between_gpus_that_are_no_peers_they_are_staged(self):
        self.check("cuda:0", "cuda:1", "sent", double="no_peers=1")

    @unittest.skipIf(REAL, "with the driver's double only")
    def test_slow_copies(self):
        self.check("cuda:0", "cuda:0", "copy", double="delay_us=3000")

    def test_an_encoder_that_is_killed(self):
        e, l = self.cuda_pair("cuda:0", "cuda:0")
        self.finish(*self.move(e, l, 6, 10), 6)
        self.mapped(l)
        enc, lm = self.move(e, l, 7, 2001)
        e.kill()
        self.good(lm, 7)  # rows that have landed stay
        lm.release(7)


class Faults(Cuda):
    @unittest.skipIf(REAL, "with the driver's double only")
    # RULES 6.6; F49
    def test_a_lost_gpu_ends_its_rooms_and_says_so(self):
        e = self.daemon(self.world.encoded, "cuda:0", double="fail_copy=2")
        l = self.daemon(self.world.langd, "host", [e])
        enc, lm = self.engines(e, l)
        lm.request(7, "enc0")
        enc.opens(7, 2000, 2000)
        self.write(enc, 7, 2000)
        enc.commit(7, 0, 2000, final=True)
        self.assertEqual(enc.failed(7), "internal")
        self.assertEqual(lm.failed(7), "internal")
        row = e.show("pools")[0]
        self.assertEqual(row["state"], "lost")
        self.assertIn("cuda:0 is lost", row["lost"])
        enc.announce(8, 10, 10)
        self.assertEqual(enc.failed(8), "internal")
        for engine, rooms in ((enc, (7,)), (lm, (7,))):
            for room in rooms:
                engine.release(room)
        self.assertTrue(e.alive())

    def test_blocks_that_a_gpu_still_copies_into_are_nobody_elses(self):
        # An engine that has pinned a host pool loses its connection, and is
        # killed while its GPU still copies. The blocks that it may write are
        # not reused until the process is gone.
        e, l = self.pair(encoded={"blocks": 9})
        dying, enc = self.world.process(e), self.world.engine(e)
        lm = self.world.engine(l)
        dying.opens(1, 500, 500)
        dying.keep_copying(1, 500, libcuda())
        dying.drop()
        eventually(lambda: [r for r in e.show("rooms") if r["room"] == 1
                            and r.get("ended")], "its room ends")
        self.assertEqual(e.free(), (5, 9))
        lm.request(2, "enc0")
        enc.announce(2, 600, 600)  # takes all free blocks
        enc.granted(2)
        enc.write(2, 0, 600)
        enc.announce(3, 1100, 1100)  # needs more blocks, so it waits
        dying.kill()
        enc.commit(2, 0, 600, final=True)
        self.comes(enc, lm, 2, 600)
        lm.request(3, "enc0")
        enc.granted(3)  # once it has its blocks
        enc.write(3, 0, 1100)
        enc.commit(3, 0, 1100, final=True)
        self.assertEqual(lm.ready(3), 1100)
        self.good(lm, 3)
        self.finish(enc, lm, 3)
        e.all_free()

    @unittest.skipIf(REAL, "with the driver's double only")
    # F49
    def test_a_gpu_that_goes_while_nothing_moves_is_noticed(self):
        e = self.daemon(self.world.encoded, "cuda:0",
                        double="fail_cuEventRecord=2")
        eventually(lambda: e.show("pools")[0]["state"] == "lost",
                   "the pool is out of service")
        self.assertIn("cuda:0 is lost", e.show("pools")[0]["lost"])
        self.assertTrue(e.alive())

    @unittest.skipIf(REAL, "with the driver's double only")
    def test_too_little_memory_is_said_with_numbers(self):
        e = self.world.encoded(start=False, pools=[{
            "name": "vit", "blocks": 64, "layout": FIELDS,
            "memory": "cuda:0"}])
        with self.assertRaises(AssertionError) as caught:
            e.start({"LD_LIBRARY_PATH": os.path.dirname(DOUBLE),
                     "CUDA_DOUBLE": "memory=1000000"})
        self.assertIn("asked for", str(caught.exception))
        self.assertIn("0 of its 0 MiB are free", str(caught.exception))
        self.world.daemons.remove(e)

    @unittest.skipIf(REAL, "with the driver's double only")
    def test_what_a_pool_needs(self):
        for text, env in (
                ("no NVIDIA driver on this host",
                 {"LD_LIBRARY_PATH": "/nowhere"}),
                ("it has no CUDA VMM by descriptors",
                 {"LD_LIBRARY_PATH": os.path.dirname(DOUBLE),
                  "CUDA_DOUBLE": "vmm=0"})):
            e = self.world.encoded(start=False, pools=[{
                "name": "vit", "blocks": 64, "layout": FIELDS,
                "memory": "cuda:0"}])
            with self.assertRaises(AssertionError) as caught:
                e.start(env)
            self.assertIn(f"GPU 0 cannot be used: {text}",
                          str(caught.exception))
            self.world.daemons.remove(e)


class Arrays(Cuda):
    def ready(self, dest="cuda:0", **more):
        e, l = self.cuda_pair("cuda:0", dest, more=more)
        enc, lm = self.move(e, l, 7, 300)
        return enc, lm, lm.rooms[7]

    def test_rows_and_slices(self):
        enc, lm, room = self.ready()
        rows = room.view("embedding")
        self.assertEqual((rows.shape, rows.row_bytes), ((300, 256), 512))
        self.assertEqual(len(rows[10:20]), 10)
        self.assertEqual(rows[10:20].address, rows.address + 10 * 512)
        want = pattern(7, lm.pool.fields["embedding"], 10, 20)
        got = np.asarray(rows[10:20])
        self.assertEqual(got.dtype.metadata["mmx"], "bf16")
        np.testing.assert_array_equal(got.view(np.uint8), want)
        with self.assertRaises(IndexError):
            rows[::2]
        self.assertFalse(rows.writable)
        with self.assertRaises(ValueError):
            rows[0:1] = 0
        with self.assertRaises(mmx.ViewInUse):
            room.release()
        del rows, got
        gc.collect()
        self.finish(enc, lm, 7)

    def test_cuda_array_interface(self):
        enc, lm, room = self.ready()
        face = room.view("fill_ids").__cuda_array_interface__
        self.assertEqual(face["shape"], (300, 1))
        self.assertEqual(face["typestr"], "<i4")
        self.assertTrue(face["data"][1])  # read-only
        self.assertEqual(face["version"], 3)
        gc.collect()
        self.finish(enc, lm, 7)

    def test_dlpack(self):
        enc, lm, room = self.ready()
        rows = room.view("embedding")
        self.assertEqual(rows.__dlpack_device__(), (2, 0))
        before = len(tensor._live)
        capsule = rows.__dlpack__(stream=None, max_version=(1, 0))
        api = ctypes.PyDLL(None)
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object,
                                             ctypes.c_char_p]
        at = api.PyCapsule_GetPointer(capsule, b"dltensor")
        t = tensor._Old.from_address(at).tensor
        self.assertEqual(t.data, rows.address)
        self.assertEqual((t.device, t.ndim, t.code, t.bits, t.lanes),
                         (2, 2, 4, 16, 1))
        self.assertEqual([t.shape[i] for i in range(2)], [300, 256])
        self.assertEqual([t.strides[i] for i in range(2)], [256, 1])
        self.assertEqual(len(tensor._live), before + 1)
        del capsule, t  # no consumer took the capsule
        gc.collect()
        self.assertEqual(len(tensor._live), before)
        # As a consumer does: take, rename, delete later.
        capsule = rows.__dlpack__()
        at = api.PyCapsule_GetPointer(capsule, b"dltensor")
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        name = b"used_dltensor"
        api.PyCapsule_SetName(capsule, name)
        del capsule
        gc.collect()
        self.assertEqual(len(tensor._live), before + 1)
        with self.assertRaises(mmx.ViewInUse):
            del rows
            room.release()
        managed = tensor._Old.from_address(at)
        managed.deleter(ctypes.pointer(managed))
        del managed
        gc.collect()
        self.assertEqual(len(tensor._live), before)
        self.finish(enc, lm, 7)

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch here")
        if not REAL:
            self.skipTest("torch has a real GPU only")
        enc, lm, room = self.ready()
        for name, field in lm.pool.fields.items():
            rows = room.view(name)
            tensor = rows.torch()
            self.assertEqual(tensor.data_ptr(), rows.address)
            want = pattern(7, field, 0, 300)
            got = tensor.view(torch.uint8).cpu().numpy()
            np.testing.assert_array_equal(got.reshape(want.shape), want)
        del rows, tensor, got
        gc.collect()
        self.finish(enc, lm, 7)

    def test_a_map_goes_with_its_last_rows(self):
        if REAL:
            self.skipTest("with the driver's double only")
        lib = ctypes.CDLL(DOUBLE)
        lib.double_get.restype = ctypes.c_long
        gc.collect()  # maps of other tests
        before = lib.double_get(b"mapped")
        e = self.daemon(self.world.encoded, "cuda:0")
        with mmx.connect("encoded", e.socket) as conn:
            pool = conn.pool()
        self.assertEqual(lib.double_get(b"mapped"), before + 1)
        rows = pool.rows("mask", 0, 4)[1:2]
        del pool, conn
        gc.collect()
        self.assertEqual(lib.double_get(b"mapped"), before + 1)
        np.asarray(rows)
        del rows
        gc.collect()
        self.assertEqual(lib.double_get(b"mapped"), before)

    def test_read_only_maps_that_the_driver_has_not(self):
        if REAL:
            self.skipTest("with the driver's double only")
        lib = ctypes.CDLL(DOUBLE)
        lib.double_set(b"no_read_only", ctypes.c_long(1))
        self.addCleanup(lib.double_set, b"no_read_only", ctypes.c_long(0))
        enc, lm, _ = self.ready()
        self.good(lm, 7)
        self.finish(enc, lm, 7)


class Order(Cuda):
    def test_commit_after_the_kernels(self):
        e, l = self.cuda_pair("cuda:0", "cuda:0")
        enc, lm = self.engines(e, l)
        lm.request(7, "enc0")
        enc.opens(7, 100, 100)
        driver, gpu = cuda.Driver.get(), enc.rooms[7].pool._map.gpu
        with driver.context(gpu):
            stream = ctypes.c_void_p()
            driver.stream(ctypes.byref(stream), 1)
        fences, made = cuda.Fences(), []
        if not REAL:
            lib = ctypes.CDLL(DOUBLE)
            lib.double_set(b"hold", ctypes.c_long(1))
            self.addCleanup(lib.double_set, b"hold", ctypes.c_long(0))
        fences.after(stream.value, gpu, lambda: made.append(
            enc.rooms[7].commit(0, 100, final=True)))
        if not REAL:
            self.assertEqual(fences.step(), 0)
            lib.double_set(b"hold", ctypes.c_long(0))
        enc.conn.wait(lambda: fences.step() or made, LIMIT)
        self.assertEqual(len(fences), 0)
        self.assertEqual(lm.ready(7), 100)
        self.finish(enc, lm, 7)


class HostPools(Cuda):
    def test_copies_of_a_pinned_pool(self):
        """Both ways, in one call of the driver where it has that."""
        e, _ = self.cuda_pair("host", "host")
        pool = self.world.engine(e).pool
        unpin = cuda.pin(pool)
        gpu = Gpu()
        row, at = pool.fields["embedding"].row_bytes, gpu.take(1 << 20)
        host = pool.rows("embedding", 0, 900).view("u1").reshape(900, row)
        host[:600] = np.random.default_rng(1).integers(
            0, 256, (600, row), "u1")
        there = ((at, 130, 5), (at + 5 * row, 0, 128), (at + 133 * row, 599, 1))
        back = [(host[700:].ctypes.data, at, 134 * row)]
        want = np.concatenate([host[a:a + n] for _, a, n in there])
        for no_batch in (0, 1) if not REAL else (0,):
            host[700:] = 0
            if not REAL:
                self.set("no_batch", no_batch)
            batches = self.batches()
            cuda.copies(0, [(to, host[a:].ctypes.data, n * row)
                            for to, a, n in there], gpu.stream)
            cuda.copies(0, back, gpu.stream)
            gpu.sync()
            np.testing.assert_array_equal(host[700:834], want)
            if not REAL:
                self.assertEqual(self.batches() - batches, 1 - no_batch)
        gpu.give(at)
        unpin()

    def batches(self):
        return 0 if REAL else ctypes.CDLL(DOUBLE).double_get(b"batches")

    def set(self, name, value):
        lib = ctypes.CDLL(DOUBLE)
        lib.double_set(name.encode(), ctypes.c_long(value))
        self.addCleanup(lib.double_set, name.encode(), ctypes.c_long(0))

    def test_pinning(self):
        e, l = self.cuda_pair("host", "host")
        enc, lm = self.engines(e, l)
        cuda.pin(enc.pool)()
        try:
            cuda.pin(lm.pool)()
        except cuda.CudaError as e:
            self.assertIn("engine_access: write", str(e))


if __name__ == "__main__":
    unittest.main()
