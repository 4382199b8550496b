"""Frames on the socket between an engine and its daemon.

The tables follow PROTOCOL.md section 1; test_wire.py checks them against
local.def and wire.h. Pure: bytes in, values out. References and ids of names
are the C library's.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple, Union

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
GRANTED, HAVE, WANTED, DONE, LENGTH = 1, 2, 4, 8, 16  # bits of EVENT.what
LANDED, READY, FAILED, GONE = 32, 64, 128, 256

_HEADER = struct.Struct("<HHII")  # type, zero, length of the body, seq
_FIXED = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "key": "32s",
          "secret": "16s"}
_LENGTH = {"text": struct.Struct("<H"), "blob": struct.Struct("<I")}


class BadFrame(ValueError):
    """Bytes that do not fit the tables."""


class Message:
    """One kind of message: its fields in order, with a limit for texts and
    blobs ("name:kind" or "name:kind:limit")."""

    def __init__(self, name: str, number: int, fields: str) -> None:
        self.name, self.number = name, number
        self.fields: List[Tuple[str, str, int]] = []
        for word in fields.split():
            parts = word.split(":")
            limit = int(parts[2]) if len(parts) > 2 else 0
            self.fields.append((parts[0], parts[1], limit))
        # Adjacent fields of fixed size are packed and unpacked together.
        self._groups: List[Tuple[List[str], struct.Struct, str, int]] = []
        names: List[str] = []
        for field, kind, limit in self.fields:
            if kind in _FIXED:
                names.append(field)
                continue
            if names:
                self._group(names)
                names = []
            self._groups.append(([field], _LENGTH[kind], kind, limit))
        if names:
            self._group(names)

    def _group(self, names: List[str]) -> None:
        kinds = {field: kind for field, kind, _ in self.fields}
        fmt = "<" + "".join(_FIXED[kinds[n]] for n in names)
        self._groups.append((names, struct.Struct(fmt), "", 0))

    def encode(self, seq: int, /, **values: Any) -> bytes:
        """Returns one frame. Omitted fields are 0 or empty."""
        unknown = set(values) - {field for field, _, _ in self.fields}
        if unknown:
            raise TypeError(f"{self.name} has no field {sorted(unknown)}")
        parts = []
        for names, packer, kind, limit in self._groups:
            if not kind:
                some = [values.get(n, b"" if n in ("key", "secret") else 0)
                        for n in names]
                try:
                    parts.append(packer.pack(*some))
                except struct.error:
                    raise ValueError(self._unfit(names, some)) from None
                continue
            data = values.get(names[0], b"")
            if isinstance(data, str):
                data = data.encode()
            if len(data) > limit:
                raise ValueError(
                    f"{self.name}.{names[0]}: {len(data)} bytes, "
                    f"at most {limit} fit")
            parts += (packer.pack(len(data)), data)
        body = b"".join(parts)
        return _HEADER.pack(self.number, 0, len(body), seq) + body

    def _unfit(self, names: List[str], values: List[Any]) -> str:
        """Says which of the values does not fit its field."""
        kinds = {field: kind for field, kind, _ in self.fields}
        for name, value in zip(names, values):
            try:
                struct.pack("<" + _FIXED[kinds[name]], value)
            except struct.error:
                what = value if isinstance(value, int) else type(value).__name__
                return f"{self.name}.{name}: {what} is no {kinds[name]}"
        raise AssertionError("they fit")

    def decode(self, body: memoryview) -> Dict[str, Any]:
        """Returns values by name. Ignores unknown bytes at the end."""
        values: Dict[str, Any] = {}
        at = 0
        for names, packer, kind, limit in self._groups:
            if at + packer.size > len(body):
                raise BadFrame(f"{self.name}: cut off at {names[0]}")
            got = packer.unpack_from(body, at)
            at += packer.size
            if not kind:
                values.update(zip(names, got))
                continue
            if got[0] > limit or at + got[0] > len(body):
                raise BadFrame(f"{self.name}.{names[0]}: length {got[0]}")
            data = bytes(body[at:at + got[0]])
            at += got[0]
            values[names[0]] = (
                data.decode("utf-8", "replace") if kind == "text" else data)
        return values


class Frame(NamedTuple):
    message: Message
    seq: int
    values: Dict[str, Any]


HELLO = Message("hello", 1, """
    magic:u32 version_min:u8 version_max:u8 role:u8 cells:u32
    name:text:63 session:text:63 abilities:u64""")
POOL = Message("pool", 2, "name:text:63 layout:text:1024")
ANNOUNCE = Message("announce", 3, """
    room:u64 cell:u32 tag:u32 pool:u16 storage:u8 flags:u8 max_rows:u32
    total:u32 required_dst:u16 batch:u16 deadline_ms:u32 key:key
    aux:blob:32768 secret:secret traceparent:text:55""")
COMMIT = Message("commit", 4, """
    cell:u32 tag:u32 first:u32 rows:u32 flags:u8 total:u32 aux:blob:32768""")
REQUEST = Message("request", 5, """
    room:u64 cell:u32 tag:u32 pool:u16 mode:u8 storage:u8 flags:u8 rows:u32
    readers:u16 required_dst:u16 group:u64 group_size:u16 deadline_ms:u32
    key:key encoder:text:128 secret:secret traceparent:text:55""")
ATTACH = Message("attach", 6, """
    room:u64 cell:u32 tag:u32 rights:u8 deadline_ms:u32 encoder:text:128
    secret:secret""")
RELEASE = Message("release", 7, "cell:u32 tag:u32 rows:u32 flags:u8")
ABORT = Message("abort", 8, "cell:u32 tag:u32 reason:u8 text:text:256")
DECLINE = Message("decline", 9, """
    room:u64 key:key encoder:text:128 secret:secret""")
BYE = Message("bye", 10, "")
QUERY = Message("query", 11, "json:u8 what:text:32 args:text:256")
SPACE = Message("space", 12, "n_seq_max:u32 name:text:63")
TICKET = Message("ticket", 13, """
    space:u32 wait_ms:u32 hold_ms:u32 cell:u32 tag:u32 request:text:63""")
TICKET_RELEASE = Message("ticket_release", 14, """
    space:u32 generation:u32 request:text:63""")
TICKET_QUERY = Message("ticket_query", 15, "space:u32 request:text:63")

MAP = Message("map", 16, "token:u64 epoch:u64 name:text:63")
ANSWER = Message("answer", 64, "err:u8 a:u32 b:u32 text:text:512")
WELCOME = Message("welcome", 65, """
    version:u8 role:u8 epoch:u64 cells:u32 rooms_max:u32 aux_max:u32
    name:text:64 advertise:text:128 software:text:32 uid:u32 gid:u32
    abilities:u64""")
POOL_INFO = Message("pool_info", 66, """
    pool:u16 access:u8 block_rows:u32 blocks:u32 bytes:u64 name:text:64
    memory:text:16 layout:text:1024 fields:blob:2048 share:text:16
    handle:blob:128""")
EVENT = Message("event", 67, """
    cell:u32 tag:u32 room:u64 what:u16 state:u8 reason:u8 storage:u8
    generation:u64 first:u32 rows:u32 total:u32 a:u32 b:u32
    aux:blob:32768 runs:blob:16384 text:text:512 pool:u16""")
REPORT = Message("report", 68, "err:u8 more:u8 text:blob:60000")
TICKET_EVENT = Message("ticket_event", 69, """
    space:u32 state:u8 reason:u8 seq:u32 generation:u32 request:text:64""")

MESSAGES = {m.number: m for m in (
    HELLO, POOL, ANNOUNCE, COMMIT, REQUEST, ATTACH, RELEASE, ABORT, DECLINE,
    BYE, QUERY, SPACE, TICKET, TICKET_RELEASE, TICKET_QUERY, MAP, ANSWER,
    WELCOME, POOL_INFO, EVENT, REPORT, TICKET_EVENT)}


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


def runs(blob: bytes) -> List[Tuple[int, int]]:
    """Returns EVENT.runs as (block, blocks) pairs."""
    return list(struct.iter_unpack("<II", blob))


def regions(blob: bytes) -> List[Tuple[int, int]]:
    """Returns POOL_INFO.fields as (offset, bytes per row) pairs."""
    return list(struct.iter_unpack("<QI", blob))
