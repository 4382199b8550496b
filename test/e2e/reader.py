"""A language engine for tests on the C library, with the words of Engine. It
reads what is lent to it in the encoder's pool. Run as a process, it is served
as engine.py is."""

from __future__ import annotations

import ctypes as c
import os
import time

from engine import LIMIT, mmx, np, pattern, serve

ROLES = {"encoded": 1, "langd": 2}
READY, UP, DOWN = 1 << 6, 1 << 16, 1 << 17


class Opt(c.Structure):
    _fields_ = [("size", c.c_size_t), ("role", c.c_int),
                ("socket", c.c_char_p), ("engine", c.c_char_p),
                ("session", c.c_char_p), ("cells", c.c_uint32),
                ("timeout_ms", c.c_int), ("why", c.c_char_p),
                ("why_size", c.c_size_t)]


class Field(c.Structure):
    _fields_ = [("name", c.c_char * 32), ("dtype", c.c_char * 8),
                ("elements", c.c_uint32), ("row_bytes", c.c_uint32),
                ("data", c.c_void_p)]


class Pool(c.Structure):
    _fields_ = [("size", c.c_size_t), ("id", c.c_int), ("writable", c.c_int),
                ("block_rows", c.c_uint32), ("blocks", c.c_uint32),
                ("bytes", c.c_uint64), ("base", c.c_void_p),
                ("fields_count", c.c_uint32), ("name", c.c_char * 65),
                ("memory", c.c_char * 17), ("layout", c.c_char * 1025),
                ("fields", Field * 32), ("gpu", c.c_int)]


class Room(c.Structure):
    _fields_ = [("cell", c.c_uint32), ("tag", c.c_uint32)]


class Request(c.Structure):
    _fields_ = [("size", c.c_size_t), ("id", c.c_uint64), ("pool", c.c_int),
                ("mode", c.c_int), ("storage", c.c_int), ("flags", c.c_uint),
                ("rows", c.c_uint32), ("readers", c.c_uint16),
                ("required_dst", c.c_uint16), ("group", c.c_uint64),
                ("group_size", c.c_uint16), ("deadline_ms", c.c_uint32),
                ("key", c.c_void_p), ("encoder", c.c_char_p),
                ("user", c.c_void_p), ("traceparent", c.c_char_p),
                ("reference", c.c_void_p)]


class Attach(c.Structure):
    _fields_ = [("size", c.c_size_t), ("id", c.c_uint64), ("pool", c.c_int),
                ("rights", c.c_int), ("deadline_ms", c.c_uint32),
                ("encoder", c.c_char_p), ("user", c.c_void_p),
                ("reference", c.c_void_p)]


class Look(c.Structure):
    _fields_ = [("size", c.c_size_t), ("id", c.c_uint64),
                ("generation", c.c_uint64), ("user", c.c_void_p),
                ("seen", c.c_uint32), ("state", c.c_int),
                ("reason", c.c_int), ("storage", c.c_int),
                ("first", c.c_uint32), ("rows", c.c_uint32),
                ("total", c.c_uint32), ("stream_rows", c.c_uint32),
                ("aux", c.c_void_p), ("aux_len", c.c_uint32),
                ("pool", c.c_int)]


MAPPED = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Pool), c.c_int)


def sized(kind, **more):
    return kind(size=c.sizeof(kind), **more)


class Reader:
    def __init__(self, role, socket, name, session=""):
        self.lib = c.CDLL(os.environ["MMX_LIBRARY"])
        self.m = c.c_void_p()
        self.event = c.create_string_buffer(1024)
        self.rooms, self.up = {}, False
        self.maps = []  # ids of the pools that are mapped
        opt = sized(Opt, role=ROLES[role], socket=socket.encode(),
                    engine=name.encode(), timeout_ms=LIMIT * 1000)
        if session:
            opt.session = session.encode()
        self._ok(self.lib.mmx_open(c.byref(opt), c.byref(self.m)))
        self._callback = MAPPED(self._mapped)
        self._ok(self.lib.mmx_on_map(self.m, self._callback, None))
        self.map_pool()

    def map_pool(self):
        self.pool = sized(Pool)
        self._ok(self.lib.mmx_pool(self.m, None, None, LIMIT * 1000,
                                   c.byref(self.pool)))

    def _mapped(self, _, pool, mapped):
        if mapped:
            self.maps.append(pool.contents.id)
        else:
            self.maps.remove(pool.contents.id)

    def _ok(self, result):
        if result < 0:
            name = c.create_string_buffer(512)
            self.lib.mmx_error_text(self.m, name, 512)
            raise RuntimeError(f"{result}: {name.value.decode()}")
        return result

    def close(self):
        self.lib.mmx_close(c.byref(self.m))

    def step(self, ms=0):
        """Steps once, or for at most ms until there is an event."""
        if self._ok(self.lib.mmx_wait(self.m, self.event, 1, ms)):
            what = int.from_bytes(self.event.raw[:4], "little")
            self.up |= bool(what & UP)
            self.up &= not what & DOWN

    def _until(self, condition, what):
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {LIMIT} s: {what}")
            self.step(10)

    def until_maps(self, number):
        """Steps until `number` pools are mapped and langd has been told."""
        self._until(lambda: len(self.maps) == number,
                    f"{number} pools are mapped, have {self.maps}")
        self.step()
        self.step()

    def is_up(self):
        return self.up

    def until_up(self):
        """Steps until the daemon is connected; maps its pool."""
        self._until(lambda: self.up, "up")
        self.map_pool()

    def request(self, room, encoder, rows=0, readers=0):
        q = sized(Request, id=room, pool=self.pool.id, rows=rows,
                  encoder=encoder.encode(), readers=readers)
        self.rooms[room] = Room()
        self._ok(self.lib.mmx_request(self.m, c.byref(q),
                                      c.byref(self.rooms[room])))

    def attach(self, room, encoder):
        a = sized(Attach, id=room, rights=1, encoder=encoder.encode())
        self.rooms[room] = Room()
        self._ok(self.lib.mmx_attach(self.m, c.byref(a),
                                     c.byref(self.rooms[room])))

    def look(self, room):
        look = sized(Look)
        self._ok(self.lib.mmx_look(self.m, self.rooms[room], c.byref(look)))
        return look

    def ready(self, room):
        self._until(lambda: self.look(room).seen & READY, "the room is ready")
        return self.look(room).total

    def failed(self, room):
        self._until(lambda: self.look(room).reason, "the room has failed")
        return mmx.errors.BY_NUMBER[self.look(room).reason].reason

    def lent(self, room):
        """True if the rows are read in the encoder's pool."""
        return self.look(room).pool != self.pool.id

    def wrong(self, room, first=0, end=None):
        """As Engine.wrong."""
        end = self.look(room).rows if end is None else end
        bad = []
        for f in self.pool.fields[:self.pool.fields_count]:
            name = f.name.decode()
            have = np.zeros((end - first, f.row_bytes), np.uint8)
            self._ok(self.lib.mmx_gather(
                self.m, self.rooms[room], f.name, first, end - first,
                c.c_void_p(have.ctypes.data), c.c_size_t(0)))
            field = mmx.Field(name, f.dtype.decode(), f.elements, 0,
                              f.row_bytes)
            want = pattern(room, field, first, end)
            rows = np.nonzero((have != want).any(axis=1))[0]
            bad += [[name, first + int(r)] for r in rows[:8]]
        return bad[:8]

    def shown(self, room):
        """As wrong; None if the room is not ready."""
        return self.wrong(room) if self.look(room).seen & READY else None

    def release(self, room):
        self._ok(self.lib.mmx_release(self.m, self.rooms.pop(room),
                                      c.c_uint32(0xffffffff), 0))
        self.step()

    def steps(self, ms):
        """Steps for this long."""
        end = time.monotonic() + ms / 1000
        while time.monotonic() < end:
            self.step(5)


if __name__ == "__main__":
    serve(Reader)
