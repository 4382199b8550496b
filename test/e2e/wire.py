"""Frames between an engine and its daemon, for tests that write them by hand.
The tables are those of lib/wire/local.def, the constants those of wire.h; no
code of the daemons or of the Python package is used."""

import os
import struct
import sys
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "scripts"))

import tables  # noqa: E402

HEADER = struct.Struct("<HHII")  # type, zero, bytes of the body, seq
FIXED = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "key": "32s",
         "secret": "16s"}
LENGTH = {"text": "H", "blob": "I"}
UNKNOWN = ALL = 0xFFFFFFFF
READ = 1  # a right of ATTACH
_DEFINES = tables.defines(os.path.join(ROOT, "lib/wire/wire.h"))
MAGIC, PACKET_MAX = (int(_DEFINES[name], 0)
                     for name in ("LOCAL_MAGIC", "LOCAL_PACKET_MAX"))


class BadFrame(ValueError):
    """Raised for bytes that do not fit the tables."""


class Message:
    """One kind of message."""

    def __init__(self, row):
        self.name, self.number = row["name"].lower(), row["number"]
        self.fields = row["fields"]

    def encode(self, seq, /, **values):
        """Returns one frame. Omitted fields are 0 or empty."""
        body = b""
        for f in self.fields:
            value = values.pop(f.name, None)
            if f.kind in FIXED:
                zero = b"" if f.kind in ("key", "secret") else 0
                body += struct.pack("<" + FIXED[f.kind],
                                    zero if value is None else value)
            else:
                data = value.encode() if isinstance(value, str) else value
                body += struct.pack("<" + LENGTH[f.kind], len(data or b""))
                body += data or b""
        if values:
            raise TypeError(f"{self.name} has no field {min(values)}")
        return HEADER.pack(self.number, 0, len(body), seq) + body

    def decode(self, body):
        """Returns the values; bytes behind the last field are ignored."""
        at, out = 0, {}
        try:
            for f in self.fields:
                form = "<" + (FIXED.get(f.kind) or LENGTH[f.kind])
                value, = struct.unpack_from(form, body, at)
                at += struct.calcsize(form)
                if f.kind in LENGTH:
                    if value > f.limit or at + value > len(body):
                        raise BadFrame(f"{self.name}.{f.name}: {value} bytes")
                    at, value = at + value, bytes(body[at:at + value])
                out[f.name] = value.decode(errors="replace") \
                    if f.kind == "text" else value
        except struct.error as e:
            raise BadFrame(f"{self.name}.{f.name}: {e}") from None
        return out


MESSAGES = {row["number"]: Message(row) for row in tables.messages(
    os.path.join(ROOT, "lib/wire/local.def"))}
# As wire.HELLO and its like.
globals().update({m.name.upper(): m for m in MESSAGES.values()})


class Frame(NamedTuple):
    message: Message
    seq: int
    values: dict


def frames(packet):
    """Yields the frames of one packet, without those of unknown kinds."""
    at = 0
    while at < len(packet):
        if at + HEADER.size > len(packet):
            raise BadFrame("a header is cut off")
        number, _, length, seq = HEADER.unpack_from(packet, at)
        at += HEADER.size
        if at + length > len(packet):
            raise BadFrame("a frame is cut off")
        message = MESSAGES.get(number)
        if message:
            yield Frame(message, seq, message.decode(packet[at:at + length]))
        at += length


def rows(report):
    """Returns the rows of a whole report."""
    found, at = [], 0
    while at < len(report):
        kind = report[at]
        if kind == 1:
            found.append({})
            at += 1
            continue
        name = report[at + 2:at + 2 + report[at + 1]].decode()
        at += 2 + report[at + 1]
        if kind == 3:
            found[-1][name], = struct.unpack_from("<Q", report, at)
            at += 8
            continue
        size, = struct.unpack_from("<I", report, at)
        found[-1][name] = report[at + 4:at + 4 + size].decode()
        at += 4 + size
    return found
