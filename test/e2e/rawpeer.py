"""A DEALER and a ROUTER by hand: just enough ZMTP 3.0 with the NULL mechanism
to bring arbitrary bytes to a daemon as one message."""

import socket
import struct

from engine import LIMIT

# Seconds: a daemon that still reads takes some bytes in this time.
STALL_S = 3
GREETING = (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
            + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31))
MAGIC = 0x50584D4D
STATE, NACK = 12, 13  # kinds of frames
HEADER = struct.Struct("<IBBHIIQQQQ")


def frame(kind, body, room=1, generation=1, version=1, magic=MAGIC,
          from_epoch=5, to_epoch=0, seq=1, length=None):
    return HEADER.pack(magic, version, kind, 0, seq,
                       len(body) if length is None else length, from_epoch,
                       to_epoch, room, generation) + body


def text(value):
    raw = value.encode()
    return struct.pack("<H", len(raw)) + raw


def blob(data=b""):
    return struct.pack("<I", len(data)) + data


def says(name, role, answer=0, boot=bytes(32), address=b"", mapped=0,
         versions=(1, 1)):
    """Returns the body of a HELLO that daemons accept, with an address of
    carrier tcp."""
    return struct.pack("<BBBBI", *versions, role, answer, 65536) + boot \
        + text(name) + text("") + text("raw") \
        + blob(address and struct.pack("<H", len(address)) + address) + blob() \
        + text("") + struct.pack("<QIQB", 0, mapped, 0, 1) + text("tcp") \
        + blob() + struct.pack("<BBB", 0, 0, 0) + text("") \
        + struct.pack("<Q", 0)


def hello(name="raw", role=2, answer=0, from_epoch=5):
    """Returns a HELLO; role 1: encoded, 2: langd."""
    return frame(1, says(name, role, answer), room=0, generation=0,
                 from_epoch=from_epoch)


def init(room, to_epoch, from_epoch=5, generation=None, layout=1, granted=0,
         unit=1, part=1, deadline_ms=1000):
    """Returns an INIT for a room, which need not be announced."""
    body = struct.pack("<QIIIIIHBBI", layout, 0, granted, 0, unit, part, 1, 0,
                       0, deadline_ms) \
        + bytes(32) + struct.pack("<BI", 0, 0) + blob() + bytes(16) + text("") \
        + bytes(8)
    return frame(2, body, room=room, generation=generation or room,
                 from_epoch=from_epoch, to_epoch=to_epoch)


def part(data, more=False):
    """Returns one part of a ZMTP message."""
    if len(data) < 256:
        return struct.pack(">BB", int(more), len(data)) + data
    return struct.pack(">BQ", 2 | int(more), len(data)) + data


def command(data):
    return bytes([4, len(data)]) + data


PING = command(b"\x04PING" + bytes(2))


def shake(s, kind, identity=b""):
    """Does the greeting and the handshake on a TCP connection."""
    s.settimeout(LIMIT)
    s.sendall(GREETING)
    got = b""
    while len(got) < 64:
        more = s.recv(64 - len(got))
        if not more:
            raise ConnectionError("ended in the greeting")
        got += more
    s.sendall(command(b"\x05READY" + b"\x0bSocket-Type"
                      + struct.pack(">I", len(kind)) + kind
                      + b"\x08Identity"
                      + struct.pack(">I", len(identity)) + identity))


class Dealer:
    def __init__(self, address, identity=b"", own=""):
        host, port = address.replace("tcp://", "").rsplit(":", 1)
        self.s = socket.create_connection(
            (host.strip("[]"), int(port)), LIMIT,
            (own, 0) if own else None)
        shake(self.s, b"DEALER", identity)

    def send(self, data, more=False):
        self.s.sendall(part(data, more))

    def answer(self, kind):
        """Reads until a frame of this kind comes; returns the sender's
        epoch."""
        got = b""
        mark = struct.pack("<IBB", MAGIC, 1, kind)
        while mark not in got or len(got) < got.index(mark) + HEADER.size:
            more = self.s.recv(65536)
            if not more:
                raise ConnectionError("ended")
            got += more
        return HEADER.unpack_from(got, got.index(mark))[6]

    def ended(self):
        """Reads until the daemon ends the connection; False: it does not."""
        self.s.settimeout(LIMIT)
        try:
            while self.s.recv(65536):
                pass
        except socket.timeout:
            return False
        except ConnectionError:
            pass
        return True

    def close(self):
        self.s.close()


def pour(s, chunk, limit):
    """Sends a chunk again and again until TCP takes no more, the connection
    ends, or `limit` bytes are sent; returns how many were."""
    s.settimeout(STALL_S)
    sent = 0
    try:
        while sent < limit:
            at = 0
            while at < len(chunk):
                at += s.send(chunk[at:])
            sent += at
    except (socket.timeout, ConnectionError):
        pass
    return sent


def cut(s):
    """Ends a connection with a reset."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
