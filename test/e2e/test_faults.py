"""Deaths in the middle of a transfer, at default timings: the survivors hear
of them at once, every block comes back, new rooms work."""

import mmap
import os
import signal
import struct
import subprocess
import sys
import time
import unittest

from engine import LIMIT
from pair import BUILD, Case, eventually, sanitized

import mmx
from mmx._handle import c

CLOCK = os.path.join(BUILD, "test", "preload", "wall_clock.so")
# Of control groups, first and second version: folder, limit of memory, memory
# in use.
GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes",
           "memory.usage_in_bytes", "memory.swappiness"),
          ("/sys/fs/cgroup", "memory.max", "memory.current",
           "memory.swap.max"))
SPARE = 8 << 20
HOG = "open(%r, 'w').write('0'); x = b'x' * (1 << 28)"
HOUR_S, YEAR_S = 3600, 366 * 86400

# A room whose other side falls silent fails after 30 s (timeouts.progress) or
# later. What ends sooner was noticed.
SOON = 15


class Kills(Case):
    released = False

    def within(self, seconds, call, *args):
        began = time.monotonic()
        got = call(*args)
        took = time.monotonic() - began
        self.assertLess(took, seconds, f"{got} came late")
        return got

    # RULES 9.2; F05
    def test_encoded(self):
        e, d, enc, lm = self.at_work()
        self.halfway(enc, lm)
        fd = enc.conn.fd
        e.kill()
        self.assertEqual(self.within(SOON, lm.failed, 1), "peer-lost")
        self.assertEqual(enc.failed(1), "daemon-lost")
        enc.write(1, 640, 2000)  # the old map still exists
        self.assertTrue(lm.rooms[1].reason.advice, "retry")
        self.good(lm, 1, 0, 640)  # rows stay for a reader until its release
        self.assertLess(d.free()[0], 64)
        lm.release(1)
        d.all_free()
        e.start()
        enc.conn.wait(lambda: enc.conn.connected, 10)
        self.assertEqual(enc.conn.fd, fd)
        enc.map_pool()
        self.deliver(enc, lm, 2, 1500)

    # RULES 9.1; F03
    def test_langd(self):
        e, d, enc, lm = self.at_work()
        self.halfway(enc, lm)
        d.kill()
        self.assertEqual(self.within(SOON, enc.failed, 1), "peer-lost")
        self.assertEqual(lm.failed(1), "daemon-lost")
        # The old map can still be read.
        old = lm.rooms[1]
        place = next(old.pieces(0, 1)).place
        self.assertEqual(len(old.pool.rows("embedding", place, 1)), 1)
        enc.release(1)
        e.all_free()
        d.start()
        lm.conn.wait(lambda: lm.conn.connected, 10)
        lm.map_pool()
        self.deliver(enc, lm, 2, 1500)

    def outlives(self, end):
        """An engine ends after its final commit; langd asks for its rows
        later."""
        e, d = self.pair()
        enc, lm = self.world.process(e), self.world.engine(d)
        enc.encode(1, 1500, aux="grid")
        end(enc)
        eventually(lambda: e.show("status")[0]["attachments"] == 0,
                   "encoded has heard of its end")
        self.assertLess(e.free()[0], 64)
        lm.request(1, "enc0")
        lm.ready(1)
        self.good(lm, 1)
        self.assertEqual(lm.aux(1), "grid")
        lm.release(1)
        self.world.all_free()
        self.assertEqual(e.ended(1)["served"], 1)

    # RULES 6.3
    def test_final_rows_outlive_their_engine(self):
        self.outlives(lambda enc: enc.kill())

    # RULES 6.5; F08
    def test_a_closed_connection_is_not_a_dead_process(self):
        # The process lives and may still read: its blocks come back when it
        # ends.
        e, d = self.pair()
        enc, lm = self.world.engine(e), self.world.process(d)
        self.halfway(enc, lm)
        began = d.free()[0]
        lm.drop()
        self.assertEqual(enc.failed(1), "engine-lost")
        self.assertLess(d.free()[0], 64)
        self.assertGreaterEqual(d.free()[0], began)
        lm.kill()
        d.all_free()
        enc.release(1)

    # RULES 6.5; F08
    def test_an_encoder_closes_its_connection_and_lives(self):
        e, d = self.pair()
        enc, lm = self.world.process(e), self.world.engine(d)
        self.halfway(enc, lm)
        enc.drop()
        self.assertEqual(lm.failed(1), "engine-lost")
        self.assertLess(e.free()[0], 64)
        enc.kill()
        e.all_free()
        lm.release(1)

    # RULES 9.3; F04
    def test_a_restart_with_many_rooms_open(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        for room in range(1, 41):
            lm.request(room, "enc0", rows=10)
            enc.announce(room, 10)
        for room in range(1, 41):
            lm.until(room, "WAITING")  # both daemons know the room
        d.kill()
        d.start()
        for room in range(1, 41):
            self.assertEqual(enc.failed(room), "peer-lost")
            enc.release(room)
        e.all_free()
        lm.conn.wait(lambda: lm.conn.connected, 10)
        lm.map_pool()
        self.deliver(enc, lm, 99, 1500)


class Sleeper(Case):
    # RULES 6.2; F07
    def test_stopped_writer_cannot_touch_another_room(self):
        # Two rooms fill the source pool except one block. The sleeper's blocks
        # must not be reused while it can still write.
        e, d = self.pair(encoded={"blocks": 9})
        sleeper, enc = self.world.process(e), self.world.engine(e)
        lm = self.world.engine(d)
        sleeper.opens(1, 500, 500, deadline=0.2)
        sleeper.signal(signal.SIGSTOP)
        eventually(lambda: [r for r in e.show("rooms") if r["room"] == 1
                            and r.get("ended")], "the sleeper's room ends")
        self.assertEqual(e.free(), (5, 9))
        lm.request(2, "enc0")
        enc.opens(2, 600, 600)
        enc.write(2, 0, 600)
        sleeper.signal(signal.SIGCONT)
        sleeper.write(1, 0, 500)
        enc.commit(2, 0, 600, final=True)
        self.assertEqual(lm.ready(2), 600)
        self.good(lm, 2)
        self.assertEqual(sleeper.failed(1), "timeout")
        enc.done(2)
        for x in (enc, lm):
            x.release(2)
        self.assertEqual(e.free(), (5, 9))
        sleeper.release(1)
        e.all_free()

    # RULES 6.1; F07
    def test_stopped_reader_keeps_its_rows(self):
        e, d = self.pair(langd={"blocks": 12})
        enc, lm = self.world.engine(e), self.world.engine(d)
        sleeper = self.world.process(d)
        sleeper.request(1, "enc0", mode="stream", deadline=0.5)
        enc.opens(1, 600, 600)
        enc.write(1, 0, 600)
        enc.commit(1, 0, 300)
        sleeper.rows(1, 256)
        sleeper.signal(signal.SIGSTOP)
        enc.until(1, "FAILED")
        enc.release(1)
        for room in (2, 3, 4):
            lm.request(room, "enc0")
            enc.encode(room, 512)
            lm.ready(room)
            self.over(enc, lm, room)
        sleeper.signal(signal.SIGCONT)
        self.assertEqual(sleeper.wrong(1, 0, 256), [])
        self.assertEqual(sleeper.failed(1), "timeout")
        sleeper.release(1)


class Reconnect(Case):
    # RULES 9.3; F05
    def test_fd_stays_and_wakes_a_loop(self):
        import select
        e, d, enc, lm = self.at_work()
        conn, epoch = enc.conn, enc.conn.epoch
        self.assertEqual([x.link for x in conn.step()], [mmx.Link.UP])
        fd = conn.fd
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        seen = []
        for room, away in enumerate((e.kill, e.stop), 1):
            self.deliver(enc, lm, room, 10)
            away()
            e.start()
            end = time.monotonic() + 10
            while mmx.Link.UP not in seen:
                self.assertLess(time.monotonic(), end)
                if poll.poll(5000):
                    seen += [x.link for x in conn.step() if x.link]
            self.assertEqual(conn.fd, fd)
            self.assertNotEqual(conn.epoch, epoch)
            self.assertEqual(seen, [mmx.Link.DOWN, mmx.Link.UP])
            epoch = conn.epoch
            seen.clear()
            enc.map_pool()
        self.deliver(enc, lm, 3, 10)

    # RULES 9.3
    def test_calls_while_the_daemon_is_away(self):
        e, d = self.pair()
        enc, lm = self.world.engine(e), self.world.engine(d)
        opens = (lambda: enc.announce(1, 10),
                 lambda: enc.conn.announce_batch(
                     enc.pool, [mmx.Item(1, 10), mmx.Item(2, 10)]),
                 lambda: lm.request(1, "enc0"),
                 lambda: lm.conn.attach(1, "enc0"))
        e.kill()
        d.kill()
        for x in (enc, lm):
            x.conn.wait(lambda: not x.conn.connected, 10)
        for call in opens:
            with self.assertRaises(mmx.errors.NotReady) as got:
                call()
            self.assertIn("no daemon", str(got.exception))

    # RULES 7.5
    def test_connect_before_the_daemon(self):
        e = self.world.encoded(start=False)
        with self.assertRaises(mmx.errors.DaemonLost):
            mmx.connect("encoded", e.socket, timeout=0.1)
        enc = self.world.engine(e, timeout=0)
        refused = enc.conn.decline(1, "enc0")
        self.assertEqual(refused.error.reason, "daemon-lost")
        e.start()
        enc.conn.wait(lambda: enc.conn.connected, 10)
        enc.map_pool()

    # RULES 7.3; F15
    def test_slow_engine_finds_the_right_state_in_its_cells(self):
        e, d, enc, lm = self.at_work(blocks=512, block_rows=8)
        rooms = range(1, 401)
        for room in rooms:  # more answers than its socket can hold
            lm.request(room, "enc0", rows=5)
        for room in rooms:
            enc.announce(room, 5, 5)
        for room in rooms:
            # This reads nothing: it sends what the socket did not take before.
            c.cork(lm.conn._it)
            c.uncork(lm.conn._it)
            enc.granted(room)
            enc.finish(room, 0, 5)
            if room > 60:
                continue
            eventually(lambda: lm.state(room)[0] == "SUCCESS", f"cell {room}")
            self.assertEqual(lm.state(room), ["SUCCESS", 5, ""])
        for room in rooms:
            lm.ready(room)
            self.good(lm, room)
            self.over(enc, lm, room)
        self.assertTrue(lm.conn.connected)


class Clocks(Case):
    # F33
    def test_a_wall_clock_that_jumps(self):
        sent = {"transfer": {"same_host": "off", "carrier": "tcp",
                             "encrypt": "on"}}
        e = self.world.encoded(start=False, log="debug", **sent)
        if sanitized(e.binary):
            raise unittest.SkipTest("the sanitizer comes first in the list")
        d = self.world.langd([e], start=False, log="debug", **sent)
        path = os.path.join(self.world.dir, "clock")
        with open(path, "w+b") as f:
            f.write(bytes(mmap.PAGESIZE))
            f.flush()
            page = mmap.mmap(f.fileno(), mmap.PAGESIZE)
        self.addCleanup(page.close)
        for daemon in (e, d):
            daemon.start(env={"LD_PRELOAD": CLOCK, "MMX_CLOCK": path})
        enc, lm = self.engines(e, d)
        jumps = (HOUR_S, -HOUR_S, YEAR_S, -YEAR_S)
        for room, by in enumerate(jumps, 1):
            self.halfway(enc, lm, room)
            struct.pack_into("<q", page, 0, by)
            lm.steps(500)
            enc.finish(room, 640, 2000)
            self.comes(enc, lm, room, 2000)
        for daemon in (e, d):
            self.assertEqual(daemon.stats()["peers_lost"], 0)
            with open(daemon.log) as f:
                days = {line[:10] for line in f}
            for by in jumps[2:]:  # it did believe them
                there = time.gmtime(time.time() + by)
                self.assertIn(time.strftime("%Y-%m-%d", there), days)


class Memory(Case):
    def group(self):
        """Makes a control group; returns its path, and those of its limit and
        of its memory in use. Its memory is never swapped out."""
        for folder, limit, used, swap in GROUPS:
            path = os.path.join(folder, f"mmx{os.getpid()}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            self.addCleanup(os.rmdir, path)
            if os.path.exists(os.path.join(path, limit)):
                if os.path.exists(os.path.join(path, swap)):
                    with open(os.path.join(path, swap), "w") as f:
                        f.write("0")
                return (path, os.path.join(path, limit),
                        os.path.join(path, used))
        raise unittest.SkipTest("no control group of memory can be made")

    # F39
    def test_the_limit_of_its_group_is_reached(self):
        group, limit, used = self.group()
        joins = os.path.join(group, "cgroup.procs")
        e = self.world.encoded()
        d = self.world.langd([e], start=False)
        self.addCleanup(d.stop)  # ends before its control group is removed

        def join():
            with open(joins, "w") as f:
                f.write("0")
        d.before = join
        d.start()
        enc, lm = self.engines(e, d)
        self.halfway(enc, lm)
        with open(f"/proc/{d.pid}/oom_score_adj", "w") as f:
            f.write("1000")
        with open(used) as now, open(limit, "w") as f:
            f.write(str(int(now.read()) + SPARE))
        d.killed = True
        subprocess.run([sys.executable, "-c", HOG % joins], timeout=LIMIT)
        self.assertEqual(d.process.wait(LIMIT), -signal.SIGKILL)
        self.assertEqual(enc.failed(1), "peer-lost")
        self.assertEqual(lm.failed(1), "daemon-lost")
        for engine in (enc, lm):
            engine.release(1)
        e.all_free()
        with open(limit, "w") as f:
            f.write(str(1 << 30))
        d.start()
        lm.conn.wait(lambda: lm.conn.connected, 10)
        lm.map_pool()
        self.deliver(enc, lm, 2, 1500)
