"""Strangers at langd's data port, and a log that is not read: rooms go on, and
the daemon still ends when told to."""

import contextlib
import os
import socket
import time

from engine import LIMIT
from pair import Case, eventually, free_port

STRANGERS = 1200


def full_pipe():
    """Returns the ends of a full pipe, (reader's, writer's). It is filled
    through a file description of its own, so that the writer's end stays
    blocking."""
    r, w = os.pipe()
    own = os.open(f"/proc/self/fd/{w}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(own, b"x")
    os.close(own)
    return r, w


class DataPort(Case):
    def langd(self, e, **more):
        self.port = free_port()
        return self.world.langd([e], transfer={
            "carrier": "tcp", "ports": f"{self.port}-{self.port}"}, **more)

    def encoded(self):
        return self.world.encoded(transfer={"carrier": "tcp"})

    def strangers(self, count):
        """Connects `count` times; each connection sends 20 bytes that are no
        greeting."""
        for i in range(count):
            with socket.create_connection(("127.0.0.1", self.port),
                                          LIMIT) as s:
                s.sendall(b"GET / HTTP/1.1\r\n\r\n!!")
                if i % 50 == 0:  # langd reads it and closes the connection
                    with contextlib.suppress(ConnectionResetError):
                        self.assertEqual(s.recv(1), b"")

    # F36
    def test_a_log_that_nobody_reads_stops_nothing(self):
        e = self.encoded()
        d = self.langd(e, start=False)
        r, w = full_pipe()
        try:
            d.start(stderr=w)
            self.strangers(STRANGERS)
            enc, lm = self.engines(e, d)
            for room in range(1, 21):
                self.deliver(enc, lm, room, 300)
            stats = d.stats()
            self.assertGreaterEqual(stats["data_strangers"], STRANGERS * 0.9)
            self.assertGreater(stats["log_lines_lost"], 0)
            self.world.end_engines()
            d.all_free()
            self.assertEqual(d.stop(), 0)
        finally:
            os.close(r)
            os.close(w)

    # F36
    def test_a_log_whose_disk_is_full_stops_nothing(self):
        e = self.encoded()
        d = self.langd(e, start=False)
        with open("/dev/full", "wb") as full:
            d.start(stderr=full)
        enc, lm = self.engines(e, d)
        for room in range(1, 21):
            self.deliver(enc, lm, room, 300)
        self.assertGreater(d.stats()["log_lines_lost"], 0)

    def test_strangers_write_few_lines(self):
        e = self.encoded()
        d = self.langd(e)
        before, began = os.path.getsize(d.log), time.monotonic()
        self.strangers(STRANGERS)
        eventually(lambda: d.stats()["data_strangers"] >= STRANGERS,
                   "all were refused")
        # Of each kind of line five a second are written. One line for each
        # stranger would be more.
        with open(d.log, encoding="utf-8") as f:
            f.seek(before)
            lines = len(f.readlines())
        seconds = time.monotonic() - began
        self.assertLess(lines, min(20 * (seconds + 2), STRANGERS))
