"""Pools of huge pages, and an engine that takes pages out of one: a room fails
or its rows are zeros, the daemons go on."""

import ctypes
import mmap
import os
import unittest

from pair import Case
from rawengine import greeted, pool
from test_lend import ROWS, WIDE, Lend

COUNT = "/proc/sys/vm/nr_hugepages"
HUGE = 2 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
PUNCH_HOLE_KEEP_SIZE = 3
MAP_HUGETLB = 0x40000


def meminfo(key):
    with open("/proc/meminfo") as f:
        return next((int(w.split()[1]) for w in f if w.startswith(key + ":")),
                    0)


class Pages(Case):
    PAGES = 8

    def setUp(self):
        super().setUp()
        with open(COUNT) as f:
            before = f.read()
        if meminfo("Hugepagesize") * 1024 != HUGE:
            raise unittest.SkipTest("huge pages are not of 2 MiB here")
        try:
            self.pages(int(before) + self.PAGES)
        except OSError as e:
            raise unittest.SkipTest(f"{COUNT}: {e.strerror}") from None
        self.addCleanup(self.pages, int(before))
        if meminfo("HugePages_Free") < self.PAGES:
            raise unittest.SkipTest("no huge pages can be had")

    def pages(self, count):
        with open(COUNT, "w") as f:
            f.write(str(count))


class Holes(Pages):
    def punch(self, daemon):
        """Takes all pages out of the pool, and all free huge pages of the
        host."""
        with greeted(daemon) as s:
            info, fd = pool(s)
        failed = LIBC.fallocate(
            fd, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(0),
            ctypes.c_long(info["bytes"]))
        self.assertEqual(failed, 0, os.strerror(ctypes.get_errno()))
        os.close(fd)
        got = []
        while meminfo("HugePages_Free") > meminfo("HugePages_Rsvd"):
            m = mmap.mmap(-1, HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                          | MAP_HUGETLB)
            m[0] = 1
            got.append(m)
        self.assertTrue(got)
        self.addCleanup(lambda: [m.close() for m in got])

    def world_of(self, **both):
        e = self.world.encoded(fields="embedding:u8:4096", blocks=8, pools=[
            {"name": "vit", "blocks": 8, "block_rows": 128,
             "layout": "embedding:u8:4096", "huge_pages": True}], **both)
        d = self.world.langd([e], fields="embedding:u8:4096", **both)
        return e, d

    def attack(self, sent):
        e, d = self.world_of(**(
            {"transfer": {"same_host": "off"}} if sent else {}))
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)  # after it the pool is mapped
        lm.request(2, "enc0")
        enc.opens(2, 500, 500)
        enc.write(2, 0, 500)
        self.punch(e)
        enc.commit(2, 0, 500, final=True)
        if sent:
            self.assertEqual(lm.ready(2), 500)
            enc.done(2)
        else:
            self.assertEqual(lm.failed(2), "corrupt")
            self.assertEqual(enc.failed(2), "corrupt")
        lm.release(2)
        enc.release(2)
        self.assertTrue(e.alive() and d.alive())

    # RULES 6.6; F40
    def test_a_hole_in_a_mapped_pool_costs_a_room(self):
        self.attack(sent=False)

    # F40
    def test_a_hole_in_a_pool_whose_rows_are_sent(self):
        self.attack(sent=True)


class Lent(Pages, Lend):
    PAGES = 16

    def pair_of(self, lend, maps):
        return self.lending(maps, encoded={"pools": [
            {"name": "vit", "blocks": 64, "block_rows": 128, "lend": lend,
             "layout": WIDE, "huge_pages": True}]})

    # RULES 6.7
    def test_those_whose_encode_engines_are_trusted(self):
        e, _, enc, r = self.pair_of("trusted", 2)
        self.lend(enc, r, 1)
        self.churn(e, enc, r, 1, 10)
        r.release(1)
        self.until(e, "lent", 0)
        e.all_free()

    # RULES 6.7
    def test_no_others(self):
        _, d, enc, r = self.pair_of("auto", 0)
        r.request(1, "enc0", rows=ROWS)
        enc.encode(1, ROWS)
        self.assertEqual(r.ready(1), ROWS)
        self.assertEqual((r.lent(1), r.wrong(1)), (False, []))
        self.assertEqual(d.stats()["rooms_lent"], 0)
        r.release(1)


if os.environ.get("MMX_SENT"):
    del Holes.test_a_hole_in_a_mapped_pool_costs_a_room
