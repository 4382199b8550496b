"""Bytes that break the protocols are refused: nothing changes, nothing leaks,
and the next honest engine is served."""

import fcntl
import os
import random
import resource
import socket
import struct
import traceback

from engine import LIMIT
from pair import Case, eventually
from rawengine import (answer, call, connect, greeted, hello, open_rooms,
                       packet, pool, release_rooms)
from rawpeer import HEADER, Dealer, frame, hello as peer_hello
import wire

import mmx


def garbage(pick):
    """Returns one packet that breaks a rule, or is nonsense."""
    cells = {"cell": pick.randrange(2**32), "tag": pick.randrange(2**32)}
    honest = pick.choice((
        wire.POOL.encode(2, name="no such pool"),
        wire.COMMIT.encode(2, rows=2**32 - 1, first=7, **cells),
        wire.RELEASE.encode(2, rows=1, **cells),
        wire.ABORT.encode(2, reason=255, **cells),
        wire.ANNOUNCE.encode(2, pool=9999, **cells),
        wire.REQUEST.encode(2, pool=0, mode=9, encoder="\0", **cells),
        wire.ATTACH.encode(2, rights=0, **cells),
        wire.QUERY.encode(2, what="everything"),
        hello()))
    kind = pick.randrange(6)
    if kind == 0:
        return bytes(pick.randrange(256) for _ in range(pick.randrange(1, 90)))
    if kind == 1:
        return honest[:pick.randrange(1, len(honest))]
    if kind == 2:  # a frame longer than its packet
        return honest[:4] + struct.pack("<I", pick.randrange(2**32)) \
            + honest[8:]
    if kind == 3:  # an unknown kind
        return struct.pack("<H", pick.randrange(12, 65536)) + honest[2:]
    if kind == 4:  # one bit is flipped
        at = pick.randrange(len(honest) * 8)
        out = bytearray(honest)
        out[at // 8] ^= 1 << at % 8
        return bytes(out)
    return honest


class Local(Case):
    def honest(self, e, d, room):
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, room, 300)
        self.world.end_engines()

    def attack(self, daemon, count, seed):
        pick = random.Random(seed)
        s = None
        for _ in range(count):
            if s is None:
                s = connect(daemon)
                if pick.randrange(8):
                    s.send(hello())
                    self.assertEqual(answer(s).message, wire.WELCOME)
            if self.is_over(s, garbage(pick)) or pick.randrange(8) == 0:
                s.close()
                s = None
        if s:
            s.close()

    def is_over(self, s, packet):
        """Sends the packet and reads the answer; True at the connection's
        end."""
        try:
            s.send(packet)
            return answer(s) is None
        except (BrokenPipeError, ConnectionResetError):
            return True
        except socket.timeout:
            self.fail(f"no answer to {packet.hex()}")

    def in_process(self, attack, *args):
        """Runs in a process of its own: daemons watch processes, and its end
        tells them that all of its connections are over."""
        pid = os.fork()
        if pid == 0:
            try:
                attack(*args)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    # F23
    def test_a_thousand_malformed_frames(self):
        e, d = self.pair()
        for daemon in (e, d):
            self.in_process(self.attack, daemon, 100, 1)
        self.honest(e, d, 1)
        for daemon in (e, d):
            with self.subTest(daemon=daemon.name):
                rss, fds = daemon.rss_kib(), daemon.fds()
                for seed in range(2, 12):
                    self.in_process(self.attack, daemon, 100, seed)
                self.assertTrue(daemon.alive())
                eventually(lambda: daemon.fds() <= fds, "descriptors closed")
                self.assertLess(daemon.rss_kib() - rss, 512)
                self.assertGreater(daemon.stats()["malformed_local"], 100)
        self.honest(e, d, 2)

    # RULES 2.4
    def test_texts_are_clean_where_others_read_them(self):
        dirty = b"\x1b[2J gr\xc3\xbc\xc3\x9f \xff\xc2\x9b"
        clean = "?[2J gr\u00fc\u00df ???"
        e, d = self.pair()
        enc, s = self.world.engine(e), greeted(d)
        self.taken(s, wire.REQUEST, room=1, tag=1, encoder="enc0")
        enc.opens(1, 10, 10)
        while not any(f.values["total"] == 10 for f in packet(s)):
            pass
        self.taken(s, wire.ABORT, tag=1, text=dirty)
        with self.assertRaises(mmx.errors.MmxError) as got:
            enc.done(1)
        self.assertIn(clean, str(got.exception))
        space = self.taken(s, wire.SPACE, n_seq_max=4, name="s")
        self.taken(s, wire.TICKET, space=space["a"], cell=wire.ALL,
                   request=dirty)
        for daemon, what in ((d, "sequences"), (d, "rooms"), (e, "rooms")):
            self.assertIn(clean, daemon.ctl(what).stdout)
            self.assertTrue(daemon.show(what))
        for daemon in (e, d):
            with open(daemon.log, encoding="utf-8") as f:  # strict UTF-8
                self.assertIn(clean, f.read())
        enc.release(1)
        s.close()

    def taken(self, s, message, **values):
        """Sends a message that the daemon accepts; returns the answer's
        values."""
        got, = call(s, message.encode(5, **values))
        self.assertEqual(got.values["err"], 0, got)
        return got.values

    # F31
    def test_cells_and_tags_of_others(self):
        e, _ = self.pair()
        owner, other = greeted(e, session="one"), greeted(e, session="one")
        open_rooms(owner, 1)
        for s, frame in (
                *((other, wire.RELEASE.encode(5, cell=cell, tag=tag,
                                              rows=wire.ALL))
                  for cell, tag in ((0, 1), (0, 9), (2**31, 1))),
                (owner, wire.COMMIT.encode(5, tag=2, rows=1)),
                # A cell that is in use cannot be bound again.
                (owner, wire.ANNOUNCE.encode(5, room=2, tag=77, max_rows=5,
                                             total=wire.UNKNOWN, storage=1))):
            got, = call(s, frame)
            self.assertNotEqual(got.values["err"], 0, got)
        self.assertEqual([r["state"] for r in e.show("rooms")],
                         ["Bootstrapping"])
        release_rooms(owner, 1)
        got, = call(owner, wire.RELEASE.encode(5, cell=0, tag=1, rows=wire.ALL))
        self.assertNotEqual(got.values["err"], 0, got)
        for s in (owner, other):
            s.close()

    def test_flags_of_a_pool_reach_no_other_engine(self):
        e, d = self.pair()
        for daemon, mode in ((e, os.O_RDWR), (d, os.O_RDONLY)):
            one, two = greeted(daemon, session="1"), greeted(daemon,
                                                             session="2")
            a, b = pool(one)[1], pool(two)[1]
            self.assertEqual(fcntl.fcntl(a, fcntl.F_GETFL) & os.O_ACCMODE,
                             mode)
            before = fcntl.fcntl(b, fcntl.F_GETFL)
            fcntl.fcntl(a, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
            os.lseek(a, 64, os.SEEK_SET)
            self.assertEqual(fcntl.fcntl(b, fcntl.F_GETFL), before)
            self.assertEqual(os.lseek(b, 0, os.SEEK_CUR), 0)
            if mode == os.O_RDWR:
                self.assertEqual(os.pwrite(b, b"rows", 0), 4)
            third = pool(greeted(daemon, session="3"))[1]
            self.assertEqual(fcntl.fcntl(third, fcntl.F_GETFL), before)
            for fd in (a, b, third):
                os.close(fd)

    # F37
    def test_a_daemon_without_descriptors_keeps_its_engines(self):
        e, d = self.pair()
        self.joined(d)
        s = greeted(e, session="1")
        limits = resource.prlimit(e.pid, resource.RLIMIT_NOFILE)
        fds = e.fds()
        # Descriptors for a connection, but not for its cells.
        resource.prlimit(e.pid, resource.RLIMIT_NOFILE,
                         (fds + 2, limits[1]))
        late = connect(e)
        late.send(hello(session="2"))
        self.assertEqual(answer(late).values["err"], mmx.errors.Busy.number)
        self.assertIsNone(answer(late))
        late.close()
        eventually(lambda: e.fds() <= fds, "closed")
        resource.prlimit(e.pid, resource.RLIMIT_NOFILE, (fds, limits[1]))
        s.send(wire.POOL.encode(7) + wire.SPACE.encode(8))
        s.settimeout(0.3)
        with self.assertRaises(socket.timeout):
            # the daemon holds the answer back, and those that follow
            answer(s)
        resource.prlimit(e.pid, resource.RLIMIT_NOFILE, limits)
        s.settimeout(LIMIT)
        self.assertEqual(answer(s).message, wire.POOL_INFO)
        self.assertEqual(answer(s).seq, 8)
        s.close()

    # F40
    def test_pools_cannot_be_changed_by_their_readers(self):
        import mmap
        _, d = self.pair()
        s = greeted(d)
        info, sent = pool(s)
        fd = os.open(f"/proc/self/fd/{sent}", os.O_RDWR)
        with self.assertRaises(OSError):
            mmap.mmap(fd, info["bytes"], mmap.MAP_SHARED,
                      mmap.PROT_READ | mmap.PROT_WRITE)
        for call in (lambda: os.ftruncate(fd, info["bytes"] * 2),
                     lambda: os.ftruncate(fd, 1),
                     lambda: os.pwrite(fd, b"x", 0)):
            self.assertRaises(OSError, call)
        for one in (fd, sent):
            os.close(one)
        s.close()


class Control(Case):
    def bad(self, pick):
        kind = pick.randrange(1, 14)
        body = bytes(pick.randrange(256) for _ in range(pick.randrange(120)))
        how = pick.randrange(6)
        if how == 0:
            return body
        if how == 1:
            return frame(kind, body, magic=pick.randrange(2**32))
        if how == 2:
            return frame(kind, body, version=pick.randrange(256))
        if how == 3:
            return frame(kind, body, length=pick.randrange(2**32))
        if how == 4:
            return frame(pick.randrange(256), body,
                         room=pick.randrange(2**64),
                         to_epoch=pick.randrange(2**64))
        return frame(kind, body)[:pick.randrange(HEADER.size)]

    # F23
    def test_a_thousand_malformed_frames(self):
        self.world.insecure = True
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        for count, seed in ((200, 1), (1000, 2)):
            rss = e.rss_kib()
            pick = random.Random(seed)
            dealers, before = [], e.stats()["malformed_peer"]
            for i in range(count):
                if i % 100 == 0:
                    dealers.append(Dealer(e.address))
                    dealers[-1].send(peer_hello(f"bad{i}"))
                dealers[-1].send(self.bad(pick))
            # Some are well-formed frames for another epoch.
            eventually(lambda: e.stats()["malformed_peer"] - before
                       > count // 2, "counted")
            for dealer in dealers:
                dealer.close()
            self.deliver(enc, lm, 1 + seed, 300)
        # A sanitizer keeps what was freed.
        self.assertLess(e.rss_kib() - rss,
                        8192 if os.environ.get("SAN") else 1024)
