"""Frames on the socket between an engine and its daemon.

PROTOCOL.md section 1 has the tables of messages, which are the C library's, as
are references and ids of names; test_wire.py checks the constants against
wire.h. Pure: bytes in, values out.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple, \
    Union

from . import errors
from ._lib import call

MAGIC = 0x4C584D4D  # the bytes MMXL
VERSION = 1
PACKET_MAX = 65536
UNKNOWN = 0xFFFFFFFF  # a row count that is not known yet
ALL = 0xFFFFFFFF  # RELEASE: every row, and the cell is free again
TAG_MAX = 0x3FFFFF
NO_KEY = bytes(32)
NO_SECRET = bytes(16)

ROLES = {"any": 0, "encoded": 1, "langd": 2}
STORAGE = {"any": 0, "compact": 1, "padded": 2, "prompt": 3}
MODES = {"whole": 0, "stream": 1}
KEEP, OPEN, FINAL, ANNOUNCED = 1, 2, 1, 16  # flags
NO_READERS = 2  # flag of RELEASE
READ, WRITE, WATCH = 1, 2, 4  # rights of ATTACH
ABLE_LEND = 1  # ability of HELLO
GRANTED, HAVE, WANTED, DONE, LENGTH = 1, 2, 4, 8, 16  # bits of EVENT.what
LANDED, READY, FAILED = 32, 64, 128

_HEADER = struct.Struct("<HHII")  # type, zero, length of the body, seq
_FIXED = {kind: struct.Struct("<" + form) for kind, form in (
    ("u8", "B"), ("u16", "H"), ("u32", "I"), ("u64", "Q"), ("key", "32s"),
    ("secret", "16s"))}
_LENGTH = {"text": struct.Struct("<H"), "blob": struct.Struct("<I")}


class BadFrame(ValueError):
    """Bytes that do not fit the tables."""


class Message:
    """One kind of message: its fields in order, with a limit for texts and
    blobs; made of a line of mmx_messages()."""

    def __init__(self, line: bytes) -> None:
        self.name, number, *fields = line.decode().split(" ")
        self.number = int(number)
        self.fields: List[Tuple[str, str, int]] = []
        for name, kind, *limit in (word.split(":") for word in fields):
            self.fields.append((name, kind, int(*limit)))

    def encode(self, seq: int, /, **values: Any) -> bytes:
        """Returns one frame. Omitted fields are 0 or empty."""
        unknown = set(values) - {field for field, _, _ in self.fields}
        if unknown:
            raise TypeError(f"{self.name} has no field {sorted(unknown)}")
        parts = []
        for name, kind, limit in self.fields:
            if kind in _FIXED:
                value = values.get(name, b"" if kind in ("key", "secret")
                                   else 0)
                try:
                    parts.append(_FIXED[kind].pack(value))
                except struct.error:
                    what = value if isinstance(value, int) \
                        else type(value).__name__
                    raise ValueError(f"{self.name}.{name}: {what} is no "
                                     f"{kind}") from None
                continue
            data = values.get(name, b"")
            if isinstance(data, str):
                data = data.encode()
            if len(data) > limit:
                raise ValueError(f"{self.name}.{name}: {len(data)} bytes, "
                                 f"at most {limit} fit")
            parts += (_LENGTH[kind].pack(len(data)), data)
        body = b"".join(parts)
        return _HEADER.pack(self.number, 0, len(body), seq) + body

    def decode(self, body: memoryview) -> Dict[str, Any]:
        """Returns values by name. Ignores unknown bytes at the end."""
        values: Dict[str, Any] = {}
        at = 0
        for name, kind, limit in self.fields:
            packer = _FIXED.get(kind) or _LENGTH[kind]
            if at + packer.size > len(body):
                raise BadFrame(f"{self.name}: cut off at {name}")
            value, = packer.unpack_from(body, at)
            at += packer.size
            if kind in _LENGTH:
                if value > limit or at + value > len(body):
                    raise BadFrame(f"{self.name}.{name}: length {value}")
                at, data = at + value, bytes(body[at:at + value])
                value = data.decode("utf-8", "replace") if kind == "text" \
                    else data
            values[name] = value
        return values


class Frame(NamedTuple):
    message: Message
    seq: int
    values: Dict[str, Any]


_messages = call("mmx_messages", returns=ctypes.c_char_p)
MESSAGES = {m.number: m for m in map(Message, _messages().split(b"\n")[:-1])}
(HELLO, POOL, ANNOUNCE, COMMIT, REQUEST, ATTACH, RELEASE, ABORT, DECLINE, BYE,
 QUERY, SPACE, TICKET, TICKET_RELEASE, TICKET_QUERY, MAP, MAPPED, ANSWER,
 WELCOME, POOL_INFO, EVENT, REPORT, TICKET_EVENT, LENDER) = map(
     {m.name: m for m in MESSAGES.values()}.__getitem__,
     "hello pool announce commit request attach release abort decline bye query "
     "space ticket ticket_release ticket_query map mapped answer welcome "
     "pool_info event report ticket_event lender".split())


def frames(packet: bytes) -> Iterator[Frame]:
    """Yields the frames of one packet. Skips unknown kinds: a newer daemon
    may send them."""
    view = memoryview(packet)
    at = 0
    while at < len(view):
        if at + _HEADER.size > len(view):
            raise BadFrame("frame header is cut off")
        number, _, length, seq = _HEADER.unpack_from(view, at)
        at += _HEADER.size
        if at + length > len(view):
            raise BadFrame("frame is cut off")
        message = MESSAGES.get(number)
        if message:
            yield Frame(message, seq, message.decode(view[at:at + length]))
        at += length


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

    def _as(self, form: Any) -> bytes:
        out = ctypes.create_string_buffer(50)
        length = form(_REFERENCE.pack(*self), out)
        if length < 0:
            raise ValueError("a reference to room 0")
        return out.raw[:length]

    def __repr__(self) -> str:
        return f"<Reference {self.room:#x}>"  # tracebacks are logged


def runs(blob: bytes) -> Iterator[Tuple[int, int]]:
    """Yields EVENT.runs as (block, blocks) pairs."""
    return struct.iter_unpack("<II", blob[:len(blob) // 8 * 8])


def regions(blob: bytes) -> List[Tuple[int, int]]:
    """Returns POOL_INFO.fields as (offset, bytes per row) pairs."""
    return list(struct.iter_unpack("<QI", blob))


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
