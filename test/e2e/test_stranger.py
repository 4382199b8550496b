"""Programs that reach the control port and hold no key: what they cost in
memory, in processor time and in the time of others' rooms; a daemon with a key
connects meanwhile. Figures are printed; limits are generous."""

import contextlib
import socket
import threading
import time

from engine import LIMIT
from pair import Case, eventually, free_port
from rawpeer import PING, cut, hello, part, pour
from test_links import FEW, MANY, floods, together

MIB = 1 << 20
# A peer is lost when its connection ends, not when a slow machine delays it.
BEAT = {"control": {"heartbeat": "10s"}}
CURVE = (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
         + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31))
# The first command of CURVE, to a key that no daemon has.
HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + b"\x07" * 120
# The first record of TLS, up to its session id.
CLIENT_HELLO = (b"\x16\x03\x01\x00\xe0\x01\x00\x00\xdc\x03\x03"
                + b"\x07" * 32 + b"\x20" + b"\x07" * 32 + bytes(64))
NULL = CURVE.replace(b"CURVE", b"NULL\0")


class Attacked(Case):
    """A pair at work; strangers reach one of its ports."""
    limit_s = 600
    counted = ()
    more = {}  # more of langd's configuration

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), LIMIT)

    def begin(self, attacked, port):
        self.attacked, self.port = attacked, port
        self.enc, self.lm = self.engines(self.e, self.d)
        self.room = 0
        self.took = []
        for _ in range(20):
            self.one()
        self.took.clear()

    def one(self):
        self.room += 1
        began = time.monotonic()
        self.deliver(self.enc, self.lm, self.room, 300)
        self.took.append(time.monotonic() - began)

    @contextlib.contextmanager
    def measured(self, what):
        """Rooms are delivered while the body attacks from other threads."""
        rss, cpu = self.attacked.rss_kib(), self.attacked.cpu_ticks()
        lost = self.d.stats()["peers_lost"]
        self.most = rss
        yield
        ms = sorted(1000 * t for t in self.took)
        counted = {k: v for k, v in self.attacked.stats().items()
                   if v and k in self.counted}
        print(f"{what}: {len(ms)} rooms, p50 {ms[len(ms) // 2]:.1f} ms, p99 "
              f"{ms[len(ms) * 99 // 100]:.1f} ms; {self.attacked.name}: "
              f"{(self.most - rss) / 1024:.1f} MiB more, "
              f"{10 * (self.attacked.cpu_ticks() - cpu)} ms of CPU; {counted}")
        self.assertTrue(self.attacked.alive(), self.attacked.tail())
        self.assertEqual(self.d.stats()["peers_lost"], lost)
        # A sanitizer keeps freed memory for a while.
        self.assertLess(self.most - rss, 512 * 1024)
        self.newcomer()

    def until(self, attack):
        """Delivers rooms, one after the other, until the attack ends."""
        ends = []  # stays empty if the attack itself fails
        thread = threading.Thread(target=lambda: ends.append(attack()))
        thread.start()
        while thread.is_alive() or len(self.took) < 20:
            self.one()
            self.most = max(self.most, self.attacked.rss_kib())
        thread.join()
        self.assertEqual(len(ends), 1, "the attack has failed")

    def newcomer(self):
        """Connects a daemon that has a key."""
        late = self.world.langd([self.e], name=f"late{self.room}",
                                **self.more)
        lm = self.world.engine(late)
        self.deliver(self.enc, lm, 10**6 + self.room, 300)

    def hold(self, count, first, seconds):
        """Opens connections that begin a handshake and never end it."""
        crowd = []
        for _ in range(count):
            try:
                s = self.connect()
            except TimeoutError:  # a slow machine, whose queue is full
                continue
            with contextlib.suppress(ConnectionError):
                s.sendall(first)
            crowd.append(s)
            if len(crowd) > 900:  # this process may not have more descriptors
                crowd.pop(0).close()
        threading.Event().wait(seconds)
        for s in crowd:
            s.close()

    def slow(self, said):
        """Sends a byte at a time, on more connections than the daemon
        keeps."""
        crowd = [self.connect() for _ in range(300)]
        for at in range(len(said)):
            for s in list(crowd):
                try:
                    s.send(said[at:at + 1])
                except OSError:
                    s.close()
                    crowd.remove(s)
            if not crowd:
                return
            threading.Event().wait(0.1)
        self.assertEqual(len(crowd), 0)


class Strangers(Attacked):
    counted = ("peer_ended_strange", "peer_ended_silent", "peer_ended_crowded",
               "peer_ended_flooded", "peer_refused", "peer_keys_refused")

    def setUp(self):
        super().setUp()
        self.e, self.d = self.pair(**BEAT)
        self.begin(self.e, int(self.e.address.rsplit(":", 1)[1]))

    def endless(self, first):
        """Sends `first`, then parts of a message without an end. Returns the
        number of bytes that were taken."""
        s = self.connect()
        with contextlib.suppress(ConnectionError):
            s.sendall(first)
        sent = pour(s, part(bytes(255), more=True) * 512, 64 * MIB)
        s.close()
        return sent

    # F24
    def test_messages_without_an_end(self):
        sent = []
        with self.measured("messages without an end"):
            self.until(lambda: sent.extend(
                self.endless(first) for first in
                (NULL, CURVE, CURVE + HELLO, NULL + part(hello()), b"",
                 CURVE + b"\x06" + (200000).to_bytes(8, "big"))))
        print("bytes taken of each:", sent)
        self.assertLess(max(sent), 64 * MIB)

    def test_floods_that_break(self):
        """Floods that abort libzmq, from programs without a key."""
        def flood(n):
            s = self.connect()
            with contextlib.suppress(ConnectionError):
                s.sendall((CURVE + HELLO, NULL)[n % 2])
            pour(s, floods(hello(f"f{n}"), (MANY, FEW)[n % 2]) + PING,
                 160 * MIB)
            cut(s)

        with self.measured("floods that break"):
            self.until(lambda: together(8, flood))

    def test_five_thousand_that_say_nothing(self):
        with self.measured("5,000 connections, half of a greeting"):
            self.until(lambda: self.hold(5000, CURVE[:32], 0))

    def test_five_thousand_that_greet(self):
        with self.measured("5,000 connections, a greeting"):
            self.until(lambda: self.hold(5000, CURVE, 0))

    def test_a_newcomer_among_five_thousand(self):
        """The newcomer is let in while strangers connect, not after."""
        over = threading.Event()

        def attack():
            while not over.is_set():
                self.hold(1000, CURVE, 0)

        thread = threading.Thread(target=attack)
        with self.measured("a newcomer meanwhile"):
            thread.start()
            try:
                began = time.monotonic()
                self.newcomer()
                print(f"came in after {time.monotonic() - began:.2f} s")
            finally:
                over.set()
                thread.join()
            self.one()


class Handshakes(Attacked):
    counted = Strangers.counted

    def setUp(self):
        super().setUp()
        # The daemon keeps far fewer connections than slow() opens, however
        # slowly these are opened.
        self.e = self.world.encoded(start=False, limits={"peers": 16}, **BEAT)
        self.e.nofile = (600, 600)
        self.e.start()
        self.d = self.world.langd([self.e], **BEAT)
        self.begin(self.e, int(self.e.address.rsplit(":", 1)[1]))

    def test_a_slow_handshake(self):
        with self.measured("slow handshakes"):
            self.until(lambda: self.slow(CURVE + HELLO))
            stats = self.e.stats()
            self.assertGreater(stats["peer_ended_crowded"], 0)
        eventually(lambda: self.e.stats()["peer_keys_refused"] > 0, "counted")


class Data(Attacked):
    """The same at langd's data port, where rows arrive."""
    counted = ("data_strangers", "data_unproven", "data_malformed",
               "data_refused")
    encrypt = "off"

    def setUp(self):
        super().setUp()
        port = free_port()
        sent = {"same_host": "off", "carrier": "tcp", "encrypt": self.encrypt}
        self.more = {"transfer": sent}
        self.e = self.world.encoded(transfer=sent, **BEAT)
        self.d = self.world.langd(
            [self.e], transfer={**sent, "ports": f"{port}-{port}"}, **BEAT)
        self.begin(self.d, port)

    def test_five_thousand_that_say_nothing(self):
        with self.measured(f"5,000 data connections, encrypt {self.encrypt}"):
            self.until(lambda: self.hold(5000, b"", 0))

    def test_five_thousand_that_begin(self):
        with self.measured(f"5,000 data hellos, encrypt {self.encrypt}"):
            self.until(lambda: self.hold(5000, CLIENT_HELLO[:60], 0))

    def test_a_slow_proof(self):
        with self.measured(f"slow proofs, encrypt {self.encrypt}"):
            self.until(lambda: self.slow(CLIENT_HELLO))


class EncryptedData(Data):
    encrypt = "on"
