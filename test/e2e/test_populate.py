"""Pools that take long to allocate: the daemon lives meanwhile, and can be
ended."""

import contextlib
import os
import threading
import time

from engine import LIMIT
from manager import Manager
from pair import Case, eventually
from rawengine import greeted, pool
import wire

GIB = 1 << 30
LAYOUT = "embedding:u8:65536"
BLOCK_ROWS = 128  # 8 MiB
# A busy machine may spoil some of this many tries.
TRIES = 5


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
        e = self.big(2, "engine")
        seen = []
        while not any(rounds > 10 and longest < took / 2 and
                      gap < max(0.4, took / 2)
                      for rounds, longest, gap, took in seen):
            self.assertLess(len(seen), TRIES, seen)
            e.start(self.manager.env())
            seen.append(self.meanwhile(e))
            self.world.end_engines()
            self.assertEqual(e.stop(), 0)

    def meanwhile(self, e):
        """While a pool is made, counts how often another engine is served.
        Returns that, the longest wait of the engine and of the service
        manager, and the time that the pool took."""
        other = self.world.engine(e, pool="small")
        asker, got = greeted(e), []
        begun = time.monotonic()
        wait = threading.Thread(target=lambda: got.append(
            pool(asker, name="vit", layout=LAYOUT)))
        wait.start()
        rounds, longest = 0, 0.0
        while wait.is_alive():
            at = time.monotonic()
            other.conn.query("status")
            longest = max(longest, time.monotonic() - at)
            rounds += 1
        took = time.monotonic() - begun
        wait.join()
        (info, fd), = got
        self.assertGreaterEqual(info["bytes"], 2 * GIB)
        os.close(fd)
        asker.close()
        return rounds, longest, self.manager.longest(begun), took

    def test_a_daemon_ends_while_a_pool_is_made(self):
        e = self.big(4, "engine").start(self.manager.env())
        asker = greeted(e)
        asker.send(wire.POOL.encode(2, name="vit", layout=LAYOUT))
        self.end_soon(e)
        self.assertEqual(e.process.wait(LIMIT), 0)
        asker.close()

    def test_a_start_can_be_ended(self):
        e = self.big(4, LAYOUT)
        ready = []
        while len(ready) == len(self.manager.times("READY=1")):
            # If the daemon was ready at once, SIGTERM came too late: again.
            self.assertLess(len(ready), TRIES)
            ready.append(True)
            e.process = None
            thread = threading.Thread(target=self.end_soon, args=(e,))
            thread.start()
            with contextlib.suppress(AssertionError):
                e.start(self.manager.env())
            thread.join()
            self.assertEqual(e.process.wait(LIMIT), 0)

    def end_soon(self, daemon):
        """Sends SIGTERM as soon as the daemon has a good part of its
        memory."""
        eventually(lambda: daemon.process and self.shmem(daemon) > GIB // 2,
                   "it has begun")
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
        said = [(at, int(text.split("EXTEND_TIMEOUT_USEC=")[1].split()[0]))
                for at, text in self.manager.heard
                if "EXTEND_TIMEOUT_USEC" in text]
        took = ready - begun
        self.assertTrue(said or took < 3, f"ready after {took} s")
        # Each message comes before the time ends for which the last one asked.
        for (at, usec), (after, _) in zip(said, [*said[1:], (ready, 0)]):
            self.assertLess(after - at, usec / 1e6)
