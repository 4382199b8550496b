"""Pools that take long to be made: the daemon lives meanwhile, and can be
ended."""

import contextlib
import os
import threading
import time

from manager import Manager
from pair import Case, eventually

import mmx
from mmx import wire

GIB = 1 << 30
LAYOUT = "embedding:u8:65536"
BLOCK_ROWS = 128  # 8 MiB


def free_bytes():
    with open("/proc/meminfo") as f:
        return next(int(w.split()[1]) * 1024 for w in f
                    if w.startswith("MemAvailable:"))


class Populate(Case):
    def setUp(self):
        super().setUp()
        if free_bytes() < 6 * GIB:
            self.skipTest("less than 6 GiB of memory are free")
        self.manager = Manager(self)

    def big(self, gib, layout, **more):
        return self.world.encoded(
            start=False, pools=[
                {"name": "vit", "blocks": gib * 128,
                 "block_rows": BLOCK_ROWS, "layout": layout},
                {"name": "small", "blocks": 16, "block_rows": 8,
                 "layout": "embedding:u8:64"}], **more)

    def test_others_are_served_while_a_pool_is_made(self):
        e = self.big(2, "engine").start(self.manager.env())
        other = self.world.engine(e, pool="small")
        conn = mmx.connect("encoded", e.socket, name="asker")
        begun = time.monotonic()
        reply = conn.send(wire.POOL, name="vit", layout=LAYOUT)
        wait = threading.Thread(target=conn.wait, args=(reply, 20))
        wait.start()
        rounds, longest = 0, 0.0
        while wait.is_alive():
            at = time.monotonic()
            other.conn.query("status")
            longest = max(longest, time.monotonic() - at)
            rounds += 1
        took = time.monotonic() - begun
        wait.join()
        self.assertGreaterEqual(conn.wait(reply, 5)["bytes"], 2 * GIB)
        os.close(reply.fd)
        conn.close()
        self.assertGreater(rounds, 10, f"the pool took {took} s")
        self.assertLess(longest, took / 2)
        beats = [begun, *self.manager.times("WATCHDOG=1")]
        gaps = [b - a for a, b in zip(beats, beats[1:])]
        self.assertLess(max(gaps, default=0), max(0.4, took / 2))

    def test_a_daemon_ends_while_a_pool_is_made(self):
        e = self.big(4, "engine").start(self.manager.env())
        conn = mmx.connect("encoded", e.socket, name="asker")
        conn.send(wire.POOL, name="vit", layout=LAYOUT)
        self.end_soon(e)
        self.assertEqual(e.process.wait(10), 0)
        self.assertLess(time.monotonic() - self.ended, 5)
        conn.close()

    def test_a_start_can_be_ended(self):
        e = self.big(4, LAYOUT)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(AssertionError))
            threading.Thread(target=self.end_soon, args=(e,)).start()
            e.start(self.manager.env())
        self.assertEqual(e.process.wait(10), 0)
        self.assertLess(time.monotonic() - self.ended, 5)
        self.assertEqual(self.manager.times("READY=1"), [])

    def end_soon(self, daemon):
        """SIGTERM as soon as it has a good part of its memory."""
        eventually(lambda: daemon.process and self.shmem(daemon) > GIB // 2,
                   "it has begun")
        self.ended = time.monotonic()
        daemon.process.terminate()

    def shmem(self, daemon):
        with contextlib.suppress(FileNotFoundError, StopIteration):
            with open(f"/proc/{daemon.pid}/status") as f:
                return next(int(w.split()[1]) * 1024 for w in f
                            if w.startswith("RssShmem:"))
        return 0

    def test_the_manager_is_asked_for_patience(self):
        e = self.big(4, LAYOUT)
        begun = time.monotonic()
        e.start(self.manager.env())
        ready = eventually(lambda: self.manager.times("READY=1"), "ready")[0]
        asked = self.manager.times("EXTEND_TIMEOUT_USEC")
        self.assertGreaterEqual(len(asked) + 1, int(ready - begun))
