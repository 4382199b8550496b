"""Engines written from PROTOCOL.md alone: their frames are packed here by
hand, without a line of either client. What is refused is listed at the end."""

import mmap
import socket
import struct

from pair import Case

HEADER = struct.Struct("<HHII")
ALL = UNKNOWN = 0xFFFFFFFF
GRANTED, DONE, LENGTH, READY = 1, 8, 16, 64
ANSWER, WELCOME, POOL_INFO, EVENT = 64, 65, 66, 67
MALFORMED = 7
OPEN = 2  # a flag
NO_SECRET = bytes(16)


def text(value):
    return struct.pack("<H", len(value)) + value


def hello(role, name=b"foreign", cells=16):
    return struct.pack("<IBBBI", 0x4C584D4D, 1, 1, role, cells) + text(
        name) + text(b"") + bytes(8)


def announce(room, cell, tag, rows, flags=0, required=0, aux=b""):
    return struct.pack("<QIIHBBIIHHI32sI", room, cell, tag, 0, 1, flags, rows,
                       rows, required, 0, 0, bytes(32), len(aux)) \
        + aux + NO_SECRET + text(b"")


def commit(cell, tag, rows, flags=1):
    return struct.pack("<IIIIBII", cell, tag, 0, rows, flags, UNKNOWN, 0)


def request(room, cell, tag, encoder=b"enc0"):
    return struct.pack("<QIIHBBBIHHQHI32s", room, cell, tag, 0, 0, 0, 0, 0, 0,
                       0, 0, 0, 0, bytes(32)) \
        + text(encoder) + NO_SECRET + text(b"")


def release(cell, tag):
    return struct.pack("<IIIB", cell, tag, ALL, 0)


class Engine:
    """Reads the fields that it knows, and no byte more."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(10)
        self.s.connect(path)
        self.seq, self.heard, self.events = 0, [], []

    def hear(self):
        packet, fds, _, _ = socket.recv_fds(self.s, 65536, 4)
        if not packet:
            raise ConnectionError("ended")
        at = 0
        while at < len(packet):
            kind, zero, size, seq = HEADER.unpack_from(packet, at)
            assert zero == 0
            at += HEADER.size
            body = packet[at:at + size]
            at += size
            (self.events if kind == EVENT else self.heard).append(
                (kind, seq, body, fds))

    def ask(self, number, body):
        """Sends a message; returns the answer's kind, body and descriptors."""
        self.seq += 1
        self.s.send(HEADER.pack(number, 0, len(body), self.seq) + body)
        while not self.heard:
            self.hear()
        kind, seq, body, fds = self.heard.pop(0)
        assert seq == self.seq
        return kind, body, fds

    def err(self, number, body):
        """Returns (err, a, text) of the ANSWER."""
        kind, got, _ = self.ask(number, body)
        assert kind == ANSWER, kind
        err, a, _, n = struct.unpack_from("<BIIH", got)
        return err, a, got[11:11 + n].decode()

    def open(self, role):
        """Says HELLO, asks for the first pool, maps it; returns its name."""
        kind, body, fds = self.ask(1, hello(role))
        assert kind == WELCOME
        version, got, _, cells = struct.unpack_from("<BBQI", body)
        assert (version, got, cells) == (1, role, 16)
        self.cells = mmap.mmap(fds[0], 8 * cells, prot=mmap.PROT_READ)
        kind, body, fds = self.ask(2, text(b"") + text(b""))
        assert kind == POOL_INFO
        number, access, _, _, size, n = struct.unpack_from("<HBIIQH", body)
        assert number == 0
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if access else 0)
        self.rows = mmap.mmap(fds[0], size, prot=prot)
        return body[21:21 + n].decode()

    def event(self, what):
        """Returns the runs and aux of the next event with any of these
        bits."""
        while True:
            while not self.events:
                self.hear()
            _, _, body, _ = self.events.pop(0)
            got, = struct.unpack_from("<H", body, 16)
            if not got & what:
                continue
            n, = struct.unpack_from("<I", body, 49)
            aux = body[53:53 + n]
            k, = struct.unpack_from("<I", body, 53 + n)
            return aux, list(struct.iter_unpack(
                "<II", body[57 + n:57 + n + k]))

    def word(self, cell):
        return struct.unpack_from("<Q", self.cells, 8 * cell)[0]


class Foreign(Case):
    def opened(self):
        e, d = self.pair()
        enc, lm = Engine(e.socket), Engine(d.socket)
        self.addCleanup(enc.s.close)
        self.addCleanup(lm.s.close)
        self.assertEqual((enc.open(1), lm.open(2)), ("vit", "vit"))
        return enc, lm

    # RULES 2.3
    def test_a_room_from_announce_to_release(self):
        enc, lm = self.opened()
        for tag in range(1, 4):
            room, rows = 100 + tag, 200
            self.assertEqual(lm.err(5, request(room, 3, tag))[0], 0)
            self.assertEqual(enc.err(
                3, announce(room, 2, tag, rows, aux=b"grid"))[0], 0)
            _, runs = enc.event(GRANTED)
            at = 0
            for block, blocks in runs:
                n = min(blocks * 128, rows - at)
                enc.rows.seek(block * 128 * 64)
                enc.rows.write(bytes([tag]) * n * 64)
                at += n
            self.assertEqual(enc.err(4, commit(2, tag, rows))[0], 0)
            aux, runs = lm.event(READY)
            self.assertEqual(aux, b"grid")
            at = 0
            for block, blocks in runs:
                n = min(blocks * 128, rows - at)
                lm.rows.seek(block * 128 * 64)
                self.assertEqual(lm.rows.read(n * 64), bytes([tag]) * n * 64)
                at += n
            self.assertEqual(at, rows)
            self.assertEqual(lm.word(3), 4 | tag << 10 | rows << 32)
            self.assertEqual(lm.err(7, release(3, tag))[0], 0)
            enc.event(DONE)
            self.assertEqual(enc.err(7, release(2, tag))[0], 0)

    def test_what_is_refused(self):
        enc, lm = self.opened()
        for engine, number, body, why in (
                (enc, 3, announce(1, 0, 0, 9), "tags are 1 to"),
                (lm, 5, request(1, 0, 0), "tags are 1 to"),
                (enc, 3, announce(1, 0, 1, 9, OPEN, 1), "required_dst 0"),
                (enc, 3, announce(1, 0, 1, 9, 8), "flags is 0x8, and only 0x3"),
                (enc, 4, commit(0, 1, 9, 129), "flags is 0x81, and only 0x1"),
                (lm, 12, struct.pack("<I", 4) + text(b"n" * 64),
                 "name has 64 bytes, at most 63 fit"),
                (lm, 15, struct.pack("<I", 0) + text(b"n" * 64),
                 "request has 64 bytes")):
            err, _, said = engine.err(number, body)
            self.assertEqual(err, MALFORMED)
            self.assertIn(why, said)
        s = Engine(self.world.daemons[0].socket)
        self.assertEqual(s.err(1, hello(0, b"n" * 64))[0], MALFORMED)
        s.s.close()
        # The refused frames changed nothing: the cells are free.
        self.assertEqual(enc.err(3, announce(1, 0, 1, 9, OPEN))[0], 0)
        self.assertEqual(lm.err(5, request(1, 0, 1))[0], 0)
        self.assertEqual(lm.err(7, release(0, 1))[0], 0)
        self.assertEqual(enc.err(7, release(0, 1))[0], 0)

    def test_the_header_s_zero(self):
        enc, _ = self.opened()
        enc.s.send(HEADER.pack(10, 1, 0, 9))
        enc.hear()
        _, seq, body, _ = enc.heard.pop(0)
        self.assertEqual((seq, body[0]), (9, MALFORMED))
        self.assertIn(b"zero is 0x1, and only 0x0 is known", body)
