"""Words of the socket between an engine and its daemon: constants, limits of
what messages hold, references, ids of names, reports.

PROTOCOL.md section 1 has the tables of messages, which are the C library's;
test_wire.py checks the constants against wire.h. Pure: bytes in, values out.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from operator import index
from typing import Any, Dict, List, NamedTuple, Sequence, Union

from . import errors
from ._lib import call

UNKNOWN = 0xFFFFFFFF  # a row count that is not known yet
ALL = 0xFFFFFFFF  # RELEASE: every row, and the cell is free again
TAG_MAX = 0x3FFFFF
NO_KEY = bytes(32)
NO_SECRET = bytes(16)

ROLES = {"any": 0, "encoded": 1, "langd": 2}
STORAGE = {"any": 0, "compact": 1, "padded": 2, "prompt": 3}
MODES = {"whole": 0, "stream": 1}
READ, WRITE, WATCH = 1, 2, 4  # rights of ATTACH
GRANTED, HAVE, WANTED, DONE, LENGTH = 1, 2, 4, 8, 16  # bits of EVENT.what
LANDED, READY, FAILED = 32, 64, 128

# What messages have place for, by the names of their fields.
BITS = {"room": 64, "group": 64, "cells": 32, "max_rows": 32, "rows": 32,
        "total": 32, "first": 32, "n_seq_max": 32, "readers": 16,
        "required_dst": 16, "group_size": 16, "batch": 16, "rights": 8}
BYTES = {"name": 63, "session": 63, "layout": 1024, "encoder": 128,
         "what": 32, "request": 63, "aux": 32768}


def check(message: str, **values: Any) -> None:
    """Raises ValueError for a value that the message has no place for, which C
    would cut."""
    for name, value in values.items():
        if name in BITS:
            least = name == "room"  # no room has the id 0
            try:
                fits = least <= index(value) < 1 << BITS[name]
            except TypeError:
                fits, value = False, type(value).__name__
            if not fits:
                raise ValueError(f"{message}.{name}: {value} is no "
                                 f"u{BITS[name]} from {least:d} on")
            continue
        data = value.encode() if isinstance(value, str) else value
        if len(data) > BYTES[name]:
            raise ValueError(f"{message}.{name}: {len(data)} bytes, at most "
                             f"{BYTES[name]} fit")
        if isinstance(value, str) and b"\0" in data:
            raise ValueError(f"{message}.{name}: a text has no byte of 0")


_REFERENCE = struct.Struct("@Q16s")  # struct mmx_reference
_chars = ctypes.c_char_p
_room_id = call("mmx_room_id", _chars, ctypes.c_size_t,
                returns=ctypes.c_uint64)
_draw = call("mmx_reference_draw", _chars)
_text = call("mmx_reference_text", _chars, _chars)
_bytes = call("mmx_reference_bytes", _chars, _chars)
_read = call("mmx_reference_read", _chars, ctypes.c_size_t, _chars)


def room_id(name: Union[str, bytes]) -> int:
    """Returns the room id of a name. The id of a name that users can choose is
    guessable: use a key as well."""
    data = name.encode() if isinstance(name, str) else name
    return int(_room_id(data, len(data)))


class _Encoder(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("load", ctypes.c_uint32),
                ("weight", ctypes.c_uint64))


_place = call("mmx_place", _chars, ctypes.c_size_t, ctypes.POINTER(_Encoder),
              ctypes.c_int, ctypes.c_uint)


def place(key: bytes, encoders: Sequence[str], load: Sequence[int],
          bound: int = 125) -> List[str]:
    """Returns the names of the encoders, all that are up and do not drain, in
    the order in which an item is to be offered to them: its owner comes first.
    The same names and loads give the same order in every process
    (EMBEDDING.md, section 6). load: of each, the items that wait there, or any
    other measure; those with `bound` percent of the mean, or more, come last.
    ValueError: there is no encoder, they and load differ in length, a load is
    no u32, or the bound is not from 100 to 10,000."""
    made = (_Encoder * len(encoders))(*(
        (name.encode(), n) for name, n in zip(encoders, load)))
    if len(encoders) != len(load) or not 100 <= bound <= 10000 or \
            not all(0 <= n < 2**32 for n in load) or \
            _place(key, len(key), made, len(made), bound):
        raise ValueError(f"{len(encoders)} encoders, {len(load)} loads, "
                         f"bound {bound}")
    return [e.name.decode() for e in made]


_CONTEXT = re.compile(
    "(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-"
    "[0-9a-f]{2}")


def traceparent(text: str) -> str:
    """Returns the trace context if it is empty or of W3C's form."""
    if text and not _CONTEXT.fullmatch(text):
        raise ValueError(
            f"a traceparent is 00-<32 digits>-<16 digits>-<2 digits>, not "
            f"{text!r}")
    return text


def secret() -> bytes:
    """Returns the secret of a new room: 16 random bytes."""
    return os.urandom(16)


class Reference(NamedTuple):
    """What names a room to the other side, which passes it whole: the side
    that comes first has it as `.reference`, and its text (str) or bytes
    travel. It is all that a program needs to receive the rows or to end the
    room: keep it out of logs."""

    room: int
    secret: bytes = NO_SECRET  # as it is: there is none

    @classmethod
    def draw(cls) -> "Reference":
        """Returns a new one, to hand to both sides."""
        out = ctypes.create_string_buffer(_REFERENCE.size)
        if _draw(out):
            raise OSError(ctypes.get_errno(), "no random bytes")
        return cls(*_REFERENCE.unpack(out.raw))

    @classmethod
    def read(cls, said: Union[str, bytes]) -> "Reference":
        """Reads the text or the bytes of one; ValueError: it is neither."""
        data = said.encode() if isinstance(said, str) else said
        out = ctypes.create_string_buffer(_REFERENCE.size)
        if not isinstance(data, bytes) or _read(data, len(data), out) \
                or isinstance(said, bytes) != (len(data) == 24):
            raise ValueError("a reference is 16 hex digits, - and 32 more, or "
                             "24 bytes, and not to room 0")
        return cls(*_REFERENCE.unpack(out.raw))

    def __str__(self) -> str:
        return self._as(_text).decode()

    def __bytes__(self) -> bytes:
        return self._as(_bytes)

    def packed(self) -> bytes:
        """Returns it as struct mmx_reference."""
        return _REFERENCE.pack(*self)

    def _as(self, form: Any) -> bytes:
        out = ctypes.create_string_buffer(50)
        length = form(self.packed(), out)
        if length < 0:
            raise ValueError("a reference to room 0")
        return out.raw[:length]

    def __repr__(self) -> str:
        return f"<Reference {self.room:#x}>"  # tracebacks are logged


def rows(data: bytes) -> List[Dict[str, Any]]:
    """Returns the rows of a report: marks (1), texts (2) and numbers (3), each
    of these with its column's name. Malformed: it ends amid a cell, or has one
    of another kind, as a newer daemon's may."""
    found: List[Dict[str, Any]] = []
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(data):
            raise errors.Malformed(f"a report of {len(data)} bytes is cut")
        return data[at - size:at]

    while at < len(data):
        kind, = take(1)
        if kind == 1:
            found.append({})
            continue
        if kind not in (2, 3) or not found:
            raise errors.Malformed(f"a report with cell {kind} at {at - 1}")
        name = take(take(1)[0]).decode("utf-8", "replace")
        value: Any = int.from_bytes(take(4 if kind == 2 else 8), "little")
        if kind == 2:
            value = take(value).decode("utf-8", "replace")
        found[-1][name] = value
    return found
