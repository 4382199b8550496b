"""Nothing of ours allocates in the path of a room: once a pair is warm, more
rooms cost no call of malloc from the daemons' own code. (What libzmq and UCX
allocate is theirs; they are separate objects and not counted.)"""

import mmap
import os
import struct
import unittest

from pair import BUILD, Case, sanitized

WATCH = os.path.join(BUILD, "test", "preload", "malloc_watch.so")


class Malloc(Case):
    def start(self, daemon):
        """Starts the daemon with its allocations counted; reads the count."""
        path = daemon.config + ".mallocs"
        with open(path, "wb") as f:
            f.write(bytes(mmap.PAGESIZE))
        daemon.start(env={"LD_PRELOAD": WATCH, "MMX_MALLOC_COUNT": path})
        with open(path, "rb") as f:
            page = mmap.mmap(f.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
        self.addCleanup(page.close)
        return lambda: struct.unpack_from("<Q", page)[0]

    # F47
    def test_no_room_allocates(self):
        e = self.world.encoded(start=False)
        if sanitized(e.binary):
            raise unittest.SkipTest("the sanitizer has its own allocator")
        d = self.world.langd([e], start=False)
        counts = [self.start(e), self.start(d)]
        enc, lm = self.engines(e, d)
        for room in range(1, 21):
            self.deliver(enc, lm, room, 10 * room)
        before = [count() for count in counts]
        self.assertTrue(all(n > 0 for n in before), before)
        for room in range(100, 400):
            self.deliver(enc, lm, room, 1 + room * 7 % 3000)
        self.assertEqual([count() for count in counts], before)
