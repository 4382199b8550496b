"""An engine for tests, of either side: the Python client plus a pattern that
tells every row of every room from every other. Used inside a test, or run as
a process of its own that carries out one JSON command per line of stdin, so
that it can be killed or stopped at a chosen moment."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import socket
import sys
import threading
import time
import traceback

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "lib/client/python"))
os.environ["MMX_LIBRARY"] = os.path.join(
    os.environ.get("MMX_BUILD", os.path.join(ROOT, "build")), "libmmx.so.0")

import numpy as np  # noqa: E402

import mmx  # noqa: E402
import mmx.cuda  # noqa: E402

# Seconds that a blocking step may take before a test fails; four times as
# many under sanitizers, as test/t.h has it.
LIMIT = 80 if os.environ.get("SAN") else 20


def pattern(room: int, field: mmx.Field, first: int, end: int) -> np.ndarray:
    """Rows [first, end) of a field as they must be, as an array of bytes."""
    u64 = np.uint64
    words = (field.row_bytes + 7) // 8
    with np.errstate(over="ignore"):
        name = u64(int.from_bytes(field.name.encode()[:7], "little"))
        row = np.arange(first, end, dtype=u64) * u64(0xBF58476D1CE4E5B9)
        seed = row + u64(room & (2**64 - 1)) * u64(0x9E3779B97F4A7C15) + name
        col = np.arange(words, dtype=u64) * u64(0x94D049BB133111EB)
        mix = seed[:, None] + col[None, :]
        mix ^= mix >> u64(29)
        mix *= u64(0xD6E8FEB86659FD93)
        mix ^= mix >> u64(32)
    got = mix.view(np.uint8)[:, :field.row_bytes]
    return got & 1 if field.dtype == "bool" else got


def cut(conn: mmx.Connection, path: str = "") -> None:
    """Ends what the connection has to the socket at this path, by default its
    daemon's."""
    with open(f"/proc/self/fdinfo/{conn.fd}", encoding="ascii") as f:
        numbers = re.findall(r"tfd: +(\d+)", f.read())
    for number in numbers:
        with contextlib.suppress(OSError), \
                socket.socket(fileno=os.dup(int(number))) as s:
            if s.getpeername() == (path or conn.path):
                s.shutdown(socket.SHUT_RDWR)


class Engine:
    def __init__(self, role, socket, name, session="", pool="", layout="",
                 cells=1024, timeout=10):
        self.conn = mmx.connect(role, socket, name=name, session=session,
                                cells=cells, timeout=timeout)
        self.pool = self.conn.pool(pool, layout) if timeout else None
        self.rooms = {}
        self.items = {}  # rooms that show another room's rows: that room

    def close(self):
        self.conn.close()

    def map_pool(self, name=""):
        self.pool = self.conn.pool(name)

    def item(self, rooms, item):
        """Records that these rooms have the rows of room `item`."""
        self.items.update(dict.fromkeys(rooms, item))

    # --- encode side ------------------------------------------------------
    def announce(self, room, max_rows, total=None, aux="",
                 secret=mmx.NO_SECRET, **more):
        self.rooms[room] = self.conn.announce(
            mmx.Reference(room, secret), self.pool, max_rows, total, aux=aux.encode(), **more)

    def announce_keyed(self, room, rows, number, **more):
        """Announces with a key made from a number: JSON has no bytes."""
        self.announce(room, rows, rows, key=number.to_bytes(32, "little"),
                      **more)

    def granted(self, room, timeout=LIMIT):
        return self.rooms[room].wait_granted(timeout).may_write

    def opens(self, room, max_rows, total=None, aux="", **more):
        """Announces a room and waits until its rows may be written."""
        self.announce(room, max_rows, total, aux, **more)
        self.granted(room)

    def have(self, room, timeout=LIMIT):
        """Returns whether the rows existed already, once the room is
        granted."""
        return self.rooms[room].wait_granted(timeout).have

    def served(self, rooms):
        """Returns how many of the rooms have their blocks."""
        self.conn.step()
        return self.granted_now(rooms)

    def granted_now(self, rooms):
        """As served, without reading new events."""
        return sum(self.rooms[r].may_write >= 0 for r in rooms)

    def write(self, room, first, end):
        """Fills rows of every field, without a look at the room's state: as a
        process does that slept through the room's end."""
        for field in self.pool.fields.values():
            rows = pattern(self.items.get(room, room), field, first, end)
            for run in self.rooms[room].pieces(first, end):
                a = run.first - first
                view = self.pool.rows(field.name, run.place, run.rows)
                view.view(np.uint8)[:] = rows[a:a + run.rows]

    def commit(self, room, first, end, final=False, total=None, aux=""):
        reply = self.rooms[room].commit(first, end, final=final, total=total,
                                        aux=aux.encode())
        self.conn.wait(reply, LIMIT)

    def encode(self, room, rows, known=True, step=0, aux="", **more):
        """Takes a room from its announce to its last commit."""
        self.announce(room, rows, rows if known else None,
                      aux if known else "", **more)
        self.granted(room)
        self.finish(room, 0, rows, step, "" if known else aux)

    def finish(self, room, first, rows, step=0, aux=""):
        step = step or max(rows, 1)
        for a in range(first, rows, step):
            b = min(a + step, rows)
            self.write(room, a, b)
            if b < rows:
                self.commit(room, a, b)
        last = max(first, (rows - 1) // step * step) if rows else 0
        self.commit(room, last, rows, final=True, aux=aux)

    def done(self, room, timeout=LIMIT):
        source = self.rooms[room].wait_done(timeout)
        return [source.served, source.failed]

    def ends(self, room):
        """Waits until the room is done and releases it."""
        self.done(room)
        self.release(room)

    # --- language side ----------------------------------------------------
    def request(self, room, encoder, secret=mmx.NO_SECRET, **more):
        self.rooms[room] = self.conn.request(
            mmx.Reference(room, secret), self.pool, encoder, **more)

    def attach(self, room, encoder="", rights=mmx.READ,
               secret=mmx.NO_SECRET, **more):
        self.rooms[room] = self.conn.attach(
            mmx.Reference(room, secret), encoder, rights, **more)

    def ready(self, room, timeout=LIMIT):
        return self.rooms[room].wait_ready(timeout).total

    def rows(self, room, rows, timeout=LIMIT):
        return self.rooms[room].wait_rows(rows, timeout).readable

    def wrong(self, room, first=0, end=None):
        """Places whose bytes are not the pattern: [field, row], at most 8."""
        got = self.rooms[room]
        end = got.readable if end is None else end
        bad = []
        for field in self.pool.fields.values():
            have = got.gather(field.name, first, end)
            have = have.view(np.uint8).reshape(end - first, field.row_bytes)
            want = pattern(self.items.get(room, room), field, first, end)
            rows = np.nonzero((have != want).any(axis=1))[0]
            bad += [[field.name, first + int(r)] for r in rows[:8]]
        return bad[:8]

    def stream(self, room, window=0, timeout=LIMIT):
        """Reads an item in windows; [rows, wrong places, windows]."""
        got = self.rooms[room]
        self.conn.wait(got.opened, LIMIT)
        bad, count, end = [], 0, 0
        for first, end in got.windows(window or got.stream_rows, timeout):
            bad += self.wrong(room, first, end)
            count += 1
        return [end, bad, count]

    def until_maps(self, number):
        """Steps until `number` pools are mapped, those of encoders too, and
        langd has been told."""
        conn = self.conn
        conn.wait(lambda: 1 + len(conn._lent) == number and all(
            lent.told for lent in conn._lenders.values()), LIMIT)
        conn.query("status")  # langd has handled all earlier messages

    def lent(self, room):
        """True if the rows are read in the encoder's pool."""
        return self.rooms[room].pool.number != self.pool.number

    def shown(self, room):
        """Returns what wrong() does, or None if the room is not ready."""
        return self.wrong(room) if self.rooms[room].complete else None

    # --- both -------------------------------------------------------------
    def is_up(self):
        return self.conn.connected

    def until_up(self):
        """Steps until the daemon is connected; its pool is mapped then."""
        self.conn.wait(lambda: self.conn.connected, LIMIT)

    def steps(self, ms):
        """Steps for this many milliseconds."""
        end = time.monotonic() + ms / 1000
        while time.monotonic() < end:
            mmx.wait_any([self.conn], 0.005)
            self.conn.step()

    def aux(self, room):
        return self.rooms[room].aux.decode()

    def state(self, room):
        """Returns [name of the state, rows, reason] from the cell alone."""
        got = self.rooms[room]
        reason = got.reason
        return [got.state.name, got.rows, reason.reason if reason else ""]

    def step(self):
        return len(self.conn.step())

    def until(self, room, state, timeout=LIMIT):
        got = self.rooms[room]
        self.conn.wait(lambda: got.state == mmx.State[state], timeout, 0.005)

    def failed(self, room, timeout=LIMIT):
        """Returns the reason's name once the room has failed."""
        self.until(room, "FAILED", timeout)
        return self.state(room)[2]

    def release(self, room, rows=None):
        got = self.rooms[room]
        reply = got.release() if rows is None else got.release(rows)
        self.conn.wait(lambda: reply.done, LIMIT)
        if rows is None:
            del self.rooms[room]
        elif reply.error:
            raise reply.error

    def abort(self, room):
        reply = self.rooms[room].abort("aborted", "test")
        self.conn.wait(lambda: reply.done, LIMIT)

    def keep_copying(self, room, rows, libcuda):
        """A thread copies a GPU's bytes over the room's rows, pinned, again
        and again, for as long as the process lives."""
        driver = mmx.cuda.Driver.get(libcuda)
        mmx.cuda.pin(self.pool)
        places = [self.pool.rows(f.name, run.place, run.rows)
                  for f in self.pool.fields.values()
                  for run in self.rooms[room].pieces(0, rows)]
        source, stream = ctypes.c_uint64(), ctypes.c_void_p()
        with driver.context(0):
            assert driver.lib.cuMemAlloc_v2(
                ctypes.byref(source),
                ctypes.c_size_t(max(p.nbytes for p in places))) == 0
            driver.stream(ctypes.byref(stream), 1)
        begun = threading.Event()

        def copy():
            with driver.context(0):
                while True:
                    for p in places:
                        driver.copy(p.ctypes.data, source.value, p.nbytes,
                                    stream)
                    driver.sync(stream)
                    begun.set()
        threading.Thread(target=copy, daemon=True).start()
        assert begun.wait(LIMIT)

    def drop(self):
        """Closes the socket without BYE; the process lives on."""
        self.conn._closed = True
        self.conn._end()


def serve(kind) -> None:
    """The process: one command per line in, one result per line out."""
    how = json.loads(sys.stdin.readline())
    if how.get("uid"):  # the connections are of this user
        os.setgroups(how.pop("groups", []))
        os.seteuid(how.pop("uid"))
    engine = kind(**how)
    print(json.dumps({"ok": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            do = getattr(engine, command.pop("do"))
            answer = {"ok": do(**command)}
        except Exception as e:  # the test decides what an error means
            answer = {"error": str(e), "type": type(e).__name__,
                      "trace": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    engine.close()


if __name__ == "__main__":
    serve(Engine)
