"""A DEALER by hand: just enough ZMTP 3.0 with the NULL mechanism to bring
arbitrary bytes to mmx-encoded as one message."""

import socket
import struct

GREETING = (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
            + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31))
MAGIC = 0x50584D4D
HEADER = struct.Struct("<IBBHIIQQQQ")


def frame(kind, body, room=1, generation=1, version=1, magic=MAGIC,
          from_epoch=5, to_epoch=0, seq=1, length=None):
    return HEADER.pack(magic, version, kind, 0, seq,
                       len(body) if length is None else length, from_epoch,
                       to_epoch, room, generation) + body


class Dealer:
    def __init__(self, address):
        host, port = address.replace("tcp://", "").rsplit(":", 1)
        self.s = socket.create_connection((host, int(port)), 5)
        self.s.settimeout(5)
        self.s.sendall(GREETING)
        got = b""
        while len(got) < 64:
            got += self.s.recv(64 - len(got))
        ready = (b"\x05READY" + b"\x0bSocket-Type"
                 + struct.pack(">I", 6) + b"DEALER")
        self.s.sendall(bytes([4, len(ready)]) + ready)

    def send(self, data, more=False):
        if len(data) < 256:
            head = struct.pack(">BB", int(more), len(data))
        else:
            head = struct.pack(">BQ", 2 | int(more), len(data))
        self.s.sendall(head + data)

    def close(self):
        self.s.close()
