"""Daemons that hang: SIGSTOP in each phase of a room, for the Python and the C
client. Each call and each room ends by its deadline and a second."""

import asyncio
import ctypes
import itertools
import os
import signal
import time
from concurrent import futures

from engine import LIMIT
from pair import BUILD, Case

import mmx

D = 0.8  # of rooms and waits
SLACK = 1.0  # for a slow machine
LIB = os.path.join(BUILD, "libmmx.so.0")
GRANTED, READY, DONE, ALL = 1, 64, 8, 0xFFFFFFFF


class Opt(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("role", ctypes.c_int),
                ("socket", ctypes.c_char_p), ("engine", ctypes.c_char_p),
                ("session", ctypes.c_char_p), ("cells", ctypes.c_uint32),
                ("timeout_ms", ctypes.c_int), ("why", ctypes.c_char_p),
                ("why_size", ctypes.c_size_t)]


class Pool(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("id", ctypes.c_int)]


class Handle(ctypes.Structure):
    _fields_ = [("cell", ctypes.c_uint32), ("tag", ctypes.c_uint32)]


class Announce(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("id", ctypes.c_uint64),
                ("pool", ctypes.c_int), ("storage", ctypes.c_int),
                ("flags", ctypes.c_uint), ("rows", ctypes.c_uint32),
                ("max_rows", ctypes.c_uint32),
                ("required_dst", ctypes.c_uint16), ("batch", ctypes.c_uint16),
                ("deadline_ms", ctypes.c_uint32)]


class Request(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("id", ctypes.c_uint64),
                ("pool", ctypes.c_int), ("mode", ctypes.c_int),
                ("storage", ctypes.c_int), ("flags", ctypes.c_uint),
                ("rows", ctypes.c_uint32), ("readers", ctypes.c_uint16),
                ("required_dst", ctypes.c_uint16), ("group", ctypes.c_uint64),
                ("group_size", ctypes.c_uint16),
                ("deadline_ms", ctypes.c_uint32), ("key", ctypes.c_void_p),
                ("encoder", ctypes.c_char_p)]


class Refused(Exception):
    """reason: its name."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


class CEngine:
    """What the tests need of the C library: structs up to their last member
    in use, as an older program would have them."""

    def __init__(self, role, socket):
        self.c = ctypes.CDLL(LIB)
        self.c.mmx_reason.restype = ctypes.c_char_p
        self.role, self.socket = role, socket
        self.m, self.rooms = ctypes.c_void_p(), {}
        opt = Opt(ctypes.sizeof(Opt), {"encoded": 1, "langd": 2}[role],
                  socket.encode(), timeout_ms=int(D * 1000))
        self._ok(self.c.mmx_open(ctypes.byref(opt), ctypes.byref(self.m)))

    def _ok(self, result):
        if result < 0:
            raise Refused(self.c.mmx_reason(result, None, None).decode())

    def find_pool(self):
        pool = Pool(ctypes.sizeof(Pool))
        self._ok(self.c.mmx_pool(self.m, b"vit", None, int(D * 1000),
                                 ctypes.byref(pool)))
        self.pool = pool.id

    def _open(self, call, struct):
        self.rooms[struct.id] = room = Handle()
        self._ok(call(self.m, ctypes.byref(struct), ctypes.byref(room)))

    def announce(self, room, rows):
        self._open(self.c.mmx_announce, Announce(
            ctypes.sizeof(Announce), room, self.pool, rows=rows,
            deadline_ms=int(D * 1000)))

    def request(self, room):
        self._open(self.c.mmx_request, Request(
            ctypes.sizeof(Request), room, self.pool, encoder=b"enc0",
            deadline_ms=int(D * 1000)))

    def commit(self, room, rows):
        self._ok(self.c.mmx_commit_final(self.m, self.rooms[room], 0, rows,
                                         rows, None, 0))

    def wait(self, room, what, seconds=None):
        self._ok(self.c.mmx_wait_room(
            self.m, self.rooms[room], what,
            -1 if seconds is None else int(seconds * 1000)))

    def granted(self, room, seconds=None):
        self.wait(room, GRANTED, seconds)

    def done(self, room, seconds=None):
        self.wait(room, DONE, seconds)

    def ready(self, room, seconds=None):
        self.wait(room, READY, seconds)

    def release(self, room):
        self._ok(self.c.mmx_release(self.m, self.rooms[room], ALL, 0))

    def close(self):
        self.c.mmx_close(ctypes.byref(self.m))


class PythonEngine:
    def __init__(self, role, socket):
        self.role, self.socket = role, socket
        self.conn = mmx.connect(role, socket, timeout=D)
        self.rooms = {}

    def find_pool(self):
        self.pool = self.conn.pool("vit", timeout=D)

    def announce(self, room, rows):
        self.rooms[room] = self.conn.announce(room, self.pool, rows, rows,
                                              deadline=D)

    def request(self, room):
        self.rooms[room] = self.conn.request(room, self.pool, "enc0",
                                             deadline=D)

    def commit(self, room, rows):
        self.rooms[room].commit(0, rows, final=True)

    def granted(self, room, seconds=None):
        self.rooms[room].wait_granted(seconds)

    def done(self, room, seconds=None):
        self.rooms[room].wait_done(seconds)

    def ready(self, room, seconds=None):
        self.rooms[room].wait_ready(seconds)

    def release(self, room):
        self.rooms[room].release()

    def close(self):
        self.conn.close(timeout=D)


class Silent(Case):
    def setUp(self):
        super().setUp()
        self.e, self.d = self.pair()
        self.makes = [PythonEngine, CEngine]

    def stop(self, daemon):
        os.kill(daemon.pid, signal.SIGSTOP)
        self.addCleanup(self.go_on, daemon)

    def go_on(self, daemon):
        if daemon.alive():
            os.kill(daemon.pid, signal.SIGCONT)

    def ends(self, call, *args, reasons=("daemon-silent",)):
        """The call fails with one of the reasons, and soon."""
        began = time.monotonic()
        with self.assertRaises((mmx.MmxError, Refused)) as caught:
            call(*args)
        self.assertLess(time.monotonic() - began, D + 1 + SLACK)
        self.assertIn(caught.exception.reason, reasons)

    def at_once(self, call, values):
        with futures.ThreadPoolExecutor(len(values)) as pool:
            list(pool.map(call, values))

    # Phases of a room, up to where the daemon hangs and from there to what the
    # engine waits for.
    def announcing(self, engine, room):
        yield
        engine.announce(room, 64)
        yield engine.granted

    def writing(self, engine, room):
        engine.announce(room, 64)
        engine.granted(room, LIMIT)
        yield
        engine.commit(room, 64)
        yield engine.done

    def written(self, engine, room):
        engine.announce(room, 64)
        engine.granted(room, LIMIT)
        engine.commit(room, 64)
        yield
        yield engine.done

    def waiting_for_blocks(self, engine, room):
        engine.announce(room, self.e.free()[0] * 128 + 1)
        with self.assertRaises((TimeoutError, Refused)):
            engine.granted(room, 0.05)
        yield
        yield engine.granted

    def requesting(self, engine, room):
        yield
        engine.request(room)
        yield engine.ready

    def requested(self, engine, room):
        engine.request(room)
        with self.assertRaises((TimeoutError, Refused)):
            engine.ready(room, 0.05)
        yield
        yield engine.ready

    def announced(self, engine, room):
        engine.request(room)
        enc = self.world.engine(self.e)
        enc.announce(room, 300, 300)
        enc.granted(room)
        yield
        enc.finish(room, 0, 300)
        yield engine.ready

    def rooms_end(self, daemon, *phases):
        engines = []
        for room, (phase, make) in enumerate(
                itertools.product(phases, self.makes), 1):
            engine = make(daemon.role, daemon.socket)
            engine.find_pool()
            engines.append((room, engine, phase(engine, room)))
            next(engines[-1][2])
        self.stop(daemon)
        waits = [(next(phase), room) for room, _, phase in engines]
        self.at_once(lambda wait: self.ends(*wait), waits)
        for room, engine, _ in engines:
            engine.release(room)
        self.go_on(daemon)
        for _, engine, _ in engines:
            engine.close()
        self.world.end_engines()
        self.world.all_free()

    # RULES 8.5
    def test_rooms_of_the_encode_side_end(self):
        self.rooms_end(self.e, self.announcing, self.writing, self.written,
                       self.waiting_for_blocks)

    # RULES 8.5
    def test_rooms_of_the_language_side_end(self):
        self.rooms_end(self.d, self.requesting, self.requested, self.announced)

    # RULES 8.5
    def test_calls_end(self):
        engines = [make(daemon.role, daemon.socket)
                   for make in self.makes for daemon in (self.e, self.d)]
        for daemon in (self.e, self.d):
            self.stop(daemon)

        def calls(engine):
            self.ends(engine.find_pool)
            self.ends(type(engine), engine.role, engine.socket)
            began = time.monotonic()
            engine.close()
            self.assertLess(time.monotonic() - began, D + 1 + SLACK)
        self.at_once(calls, engines)
        for daemon in (self.e, self.d):
            self.go_on(daemon)

    def test_a_wait_says_who_is_silent(self):
        lm = self.world.engine(self.d)
        lm.request(1, "enc0")
        lm.conn.wait(lm.rooms[1].opened, LIMIT)
        with self.assertRaisesRegex(
                TimeoutError, "room 0x1 is bootstrapping: enc0 has not "
                "announced it: not within 0.8 s") as caught:
            lm.ready(1, D)
        self.assertNotIsInstance(caught.exception, mmx.MmxError)
        self.stop(self.d)
        self.ends(lm.ready, 1, D)
        self.go_on(self.d)
        lm.conn.wait(lm.rooms[1].release(), LIMIT)

    def test_so_does_an_await(self):
        async def main():
            async with await mmx.aconnect("langd", self.d.socket) as lm:
                pool = await lm.apool()
                room = lm.request(1, pool, "enc0", deadline=D)
                waits = lm.request(2, pool, "enc0")
                with self.assertRaises(TimeoutError) as caught:
                    await waits.ready(0.05)
                self.assertNotIsInstance(caught.exception, mmx.MmxError)
                self.stop(self.d)
                with self.assertRaises(mmx.errors.DaemonSilent):
                    await room.ready()  # its own deadline
                with self.assertRaises(mmx.errors.DaemonSilent):
                    await waits.ready(D)
                self.go_on(self.d)
                for shown in (room, waits):
                    await lm.until(shown.release(), LIMIT)
        asyncio.run(main())

    # RULES 8.5
    def test_what_goes_on_later_frees_its_blocks(self):
        for room, make in enumerate(self.makes, 1):
            engine = make("langd", self.d.socket)
            engine.find_pool()
            phase = self.announced(engine, room)
            next(phase)
            self.stop(self.d)
            self.ends(next(phase), room)
            self.go_on(self.d)
            self.ends(engine.ready, room)  # still
            engine.release(room)
            self.d.all_free()
            engine.close()
            self.world.end_engines()
