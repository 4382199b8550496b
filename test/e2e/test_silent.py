"""Daemons that hang: SIGSTOP in each phase of a room. Each call and each room
of an engine ends within a second of its deadline; client_due_test.c has the
waits of C."""

import asyncio
import os
import signal
import time
from concurrent import futures

from engine import LIMIT
from pair import Case

import mmx

D = 0.8  # seconds: deadline of rooms and waits
SLACK = 1.0  # seconds, for a slow machine


class Client:
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

    def stop(self, daemon):
        os.kill(daemon.pid, signal.SIGSTOP)
        self.addCleanup(self.go_on, daemon)

    def go_on(self, daemon):
        if daemon.alive():
            os.kill(daemon.pid, signal.SIGCONT)

    def ends(self, call, *args, reasons=("daemon-silent",)):
        """Checks that the call fails by its deadline, with one of the
        reasons."""
        began = time.monotonic()
        with self.assertRaises(mmx.MmxError) as caught:
            call(*args)
        self.assertLess(time.monotonic() - began, D + 1 + SLACK)
        self.assertIn(caught.exception.reason, reasons)

    def at_once(self, call, values):
        with futures.ThreadPoolExecutor(len(values)) as pool:
            list(pool.map(call, values))

    # For each phase of a room: what comes before the daemon hangs, and what
    # the engine then waits for.
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
        with self.assertRaises(TimeoutError):
            engine.granted(room, 0.05)
        yield
        yield engine.granted

    def requesting(self, engine, room):
        yield
        engine.request(room)
        yield engine.ready

    def requested(self, engine, room):
        engine.request(room)
        with self.assertRaises(TimeoutError):
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
        for room, phase in enumerate(phases, 1):
            engine = Client(daemon.role, daemon.socket)
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
        engines = [Client(x.role, x.socket) for x in (self.e, self.d)]
        for daemon in (self.e, self.d):
            self.stop(daemon)

        def calls(engine):
            self.ends(engine.find_pool)
            self.ends(Client, engine.role, engine.socket)
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
                    await room.ready()  # by the room's own deadline
                with self.assertRaises(mmx.errors.DaemonSilent):
                    await waits.ready(D)
                self.go_on(self.d)
                for shown in (room, waits):
                    await lm.until(shown.release(), LIMIT)
        asyncio.run(main())

    # RULES 8.5
    def test_what_goes_on_later_frees_its_blocks(self):
        engine = Client("langd", self.d.socket)
        engine.find_pool()
        phase = self.announced(engine, 1)
        next(phase)
        self.stop(self.d)
        self.ends(next(phase), 1)
        self.go_on(self.d)
        self.ends(engine.ready, 1)  # the room does not become ready either
        engine.release(1)
        self.d.all_free()
        engine.close()
        self.world.end_engines()
