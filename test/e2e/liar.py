"""A langd that holds what it can: it maps the pools of an encoder of this
host, asks for rooms, is told where their rows lie, and then sends nothing but
PONG. Run with the encoder's address, its Unix socket, the layout of the pool
and the rooms; prints a line when it has asked."""

import array
import socket
import struct
import sys

from rawpeer import HEADER, Dealer, frame, init, says
import wire

EPOCH, NAME = 5, "liar"


def hello(port, mapped):
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = bytes.fromhex(f.read().strip().replace("-", "")).ljust(32, b"\0")
    address = b"tcp1" + bytes(16) + struct.pack("<BBBHB", 1, 1, 1, port, 4) \
        + socket.inet_aton("127.0.0.1")
    return frame(1, says(NAME, 2, 0, boot, address, mapped), room=0,
                 generation=0, from_epoch=EPOCH)


class Peer(Dealer):
    def exactly(self, n):
        got = b""
        while len(got) < n:
            more = self.s.recv(n - len(got))
            if not more:
                raise SystemExit("the encoder has ended the connection")
            got += more
        return got

    def message(self):
        """Returns the next message; answers PINGs meanwhile."""
        while True:
            flags = self.exactly(1)[0]
            size = struct.unpack(">Q", self.exactly(8))[0] if flags & 2 \
                else self.exactly(1)[0]
            data = self.exactly(size)
            if not flags & 4:
                return data
            if data.startswith(b"\x04PING"):
                pong = b"\x04PONG" + data[7:]
                self.s.sendall(bytes([4, len(pong)]) + pong)

    def token(self):
        """Returns (epoch, socket, token) of the encoder's HELLO."""
        while True:
            data = self.message()
            head = HEADER.unpack_from(data)
            if head[2] == 1:
                break
        at, words = HEADER.size + 8 + 32, []
        for width in (2, 2, 2, 4, 4, 2):
            n = int.from_bytes(data[at:at + width], "little")
            words.append(data[at + width:at + width + n])
            at += width + n
        return head[6], struct.unpack_from("<Q", data, at)[0]


def fnv(layout):
    h = 0xCBF29CE484222325
    for byte in layout.encode():
        h = (h ^ byte) * 0x100000001B3 & 2**64 - 1
    return h


def main(address, path, layout, rooms):
    rows = socket.create_server(("127.0.0.1", 0))  # never read
    port = rows.getsockname()[1]
    peer = Peer(address)
    peer.s.settimeout(None)
    peer.send(hello(port, 0))
    epoch, token = peer.token()
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(path)
    s.send(wire.MAP.encode(1, token=token, epoch=EPOCH, name=NAME))
    held = array.array("i")
    while not held:
        data, fds, _, _ = socket.recv_fds(s, wire.PACKET_MAX, 4)
        if not data:
            raise SystemExit("the encoder gives no pools")
        held.extend(fds)
    peer.send(hello(port, 1))
    peer.token()
    for i, room in enumerate(rooms):
        peer.send(init(room, epoch, EPOCH, 100 + i, fnv(layout), 10000, 16, 128,
                       0))
    print("asked", flush=True)
    while True:
        peer.message()


if __name__ == "__main__":
    main(*sys.argv[1:4], [int(r) for r in sys.argv[4:]])
