"""Data connections under the key of a pair: two hosts that are network
namespaces, one who listens between them, and one who sits in between and
flips, cuts, repeats and swaps what passes. What comes is right or does not
come, and the room goes on when the attack ends."""

import contextlib
import socket
import threading
import unittest

import nets
from engine import LIMIT, pattern
from pair import Case, SENT, eventually

FIELDS = "embedding:u8:4096"
ROWS = 512  # 2 MiB
CONTROL, DATA = 7601, 7701
PIECE = 16


@unittest.skipIf(SENT == "ucx", "keys are of TCP")
class Hosts(Case):
    def setUp(self):
        why = nets.missing()
        if why:
            self.skipTest(why)
        super().setUp()
        self.nets = nets.Nets()
        self.addCleanup(self.nets.close)
        self.e_host, self.l_host = self.nets.add("e"), self.nets.add("l")

    def fleet(self, encrypt="auto", e_encrypt="auto", **more):
        """Encoded on one host and langd on the other one."""
        def transfer(how):
            return {"same_host": "off", "devices": "m0", "carrier": "tcp",
                    "encrypt": how, **more}
        e = self.world.encoded(
            fields=FIELDS, start=False, transfer=transfer(e_encrypt),
            control={"listen": f"tcp://{nets.E_HOST}:{CONTROL}"})
        e.address = f"tcp://{nets.E_HOST}:{CONTROL}"
        d = self.world.langd([e], fields=FIELDS, start=False, transfer={
            **transfer(encrypt), "ports": f"{DATA}-{DATA}"})
        e.inside = ["ip", "netns", "exec", self.e_host]
        d.inside = ["ip", "netns", "exec", self.l_host]
        return e.start(), d.start()


class Listened(Hosts):
    def heard(self, encrypt, e_encrypt="auto"):
        """The rows' pieces that one who listens hears of a room."""
        self.nets.link(self.e_host, self.l_host)
        e, d = self.fleet(encrypt, e_encrypt)
        capture = nets.Capture(self.e_host)
        try:
            enc, lm = self.engines(e, d)
            field = lm.pool.fields["embedding"]
            self.deliver(enc, lm, 7, ROWS)
        finally:
            packets = capture.stop()
        rows = pattern(7, field, 0, ROWS).tobytes()
        self.assertGreater(sum(len(p) for p in packets), len(rows))
        # Packets cut rows anywhere: each of their places is looked at.
        pieces = {rows[i:i + PIECE] for i in range(0, len(rows), PIECE)}
        said = {p[i:i + PIECE] for p in packets
                for i in range(len(p) - PIECE + 1)}
        return len(pieces & said), e.show("peers")[0]["transport"]

    def test_who_listens_hears_no_rows(self):
        heard, path = self.heard("auto")
        self.assertEqual(heard, 0)
        self.assertIn("encrypted", path)

    def test_nor_with_the_longer_key(self):
        heard, path = self.heard("aes-256", "on")
        self.assertEqual(heard, 0)
        self.assertIn("encrypted (AES-256)", path)

    def test_without_encryption_he_would(self):
        heard, path = self.heard("off")
        self.assertGreater(heard, ROWS * 4096 // PIECE // 2)
        self.assertIn("proved", path)

    def test_who_insists_sends_nothing_in_the_clear(self):
        self.insists("off", "on")

    def test_who_insists_on_the_longer_key_sends_by_no_other(self):
        self.insists("on", "aes-256")

    def insists(self, encrypt, e_encrypt):
        self.nets.link(self.e_host, self.l_host)
        e, d = self.fleet(encrypt, e_encrypt)
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0", deadline=3)
        enc.encode(1, 8)
        lm.failed(1)
        eventually(lambda: "transfer.encrypt" in e.tail(400),
                   "the encoder's log says why")


class Relay:
    """In the place of langd on encoded's host, and of encoded on langd's.
    attack(number, connection) says what becomes of data: see below."""

    def __init__(self, e_host, l_host, attack):
        self.attack, self.count, self.over = attack, 0, False
        self.heard = []  # what the sender said, by data connection
        self.open = []
        self.hosts = e_host, l_host
        for host, at, port, to, to_host, serve in (
                (l_host, nets.E_HOST, CONTROL, nets.E_HOST, e_host,
                 self.control),
                (e_host, nets.L_HOST, DATA, nets.L_HOST, l_host, self.data)):
            listener = nets.inside(host, lambda a=at, p=port:
                                   socket.create_server((a, p)))
            self.open.append(listener)
            threading.Thread(target=self.serve, daemon=True, args=(
                listener, to, port, to_host, serve)).start()

    def serve(self, listener, to, port, host, serve):
        while not self.over:
            try:
                a, _ = listener.accept()
                b = nets.inside(host, lambda: socket.create_connection(
                    (to, port), LIMIT))
            except OSError:
                continue
            for s in (a, b):
                s.settimeout(None)
                self.open.append(s)
            serve(a, b)

    def carry(self, a, b, change):
        """Bytes of a to b, as `change` has them; None: the end."""
        at = 0
        with contextlib.suppress(OSError):
            while True:
                data = a.recv(65536)
                out = change(at, data) if data else None
                if not out:
                    break
                at += len(data)
                b.sendall(out)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def start(self, a, b, up, down):
        for args in ((a, b, up), (b, a, down)):
            threading.Thread(target=self.carry, daemon=True, args=args).start()

    def control(self, a, b):
        self.start(a, b, lambda _, data: data, lambda _, data: data)

    def data(self, a, b):
        number, said = self.count, bytearray()
        self.count += 1
        self.heard.append(said)
        attack = self.attack(number, self)

        def up(at, data):
            said.extend(data)
            return attack(at, data)
        self.start(a, b, up, lambda _, data: data)

    def say(self, data):
        """Says it to langd on a connection of its own; True: it was closed."""
        with nets.inside(self.hosts[1], lambda: socket.create_connection(
                (nets.L_HOST, DATA), LIMIT)) as s:
            s.settimeout(LIMIT)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                s.sendall(data)
                while s.recv(65536):
                    pass
            return True

    def close(self):
        self.over = True
        for s in self.open:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


class InTheMiddle(Hosts):
    ATTACKS = 2  # connections of each kind

    def between(self, attack, **how):
        """No link between the hosts: each has the other one's address."""
        for name, own, other in ((self.e_host, nets.E_HOST, nets.L_HOST),
                                 (self.l_host, nets.L_HOST, nets.E_HOST)):
            nets.ip("-n", name, "link", "add", "m0", "type", "veth", "peer",
                    "name", "m1")
            nets.ip("-n", name, "address", "add", f"{own}/24", "dev", "m0")
            nets.ip("-n", name, "address", "add", f"{other}/32", "dev", "lo")
            for device in ("m0", "m1"):
                nets.ip("-n", name, "link", "set", device, "up")
        relay = Relay(self.e_host, self.l_host, attack)
        self.addCleanup(relay.close)
        return relay, *self.fleet(streams=1, **how)

    def survives(self, attack, **how):
        """A room comes whole by the connection after the attacked ones."""
        def for_some(number, relay):
            if number < self.ATTACKS:
                return attack
            return lambda _, data: data
        relay, e, d = self.between(for_some, **how)
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, ROWS)
        self.assertGreater(relay.count, self.ATTACKS)
        self.deliver(enc, lm, 2, 3)
        return relay, d

    def test_flipped(self):
        def flip(at, data):
            place = 300000 - at
            if not 0 <= place < len(data):
                return data
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1:]
        _, d = self.survives(flip)
        self.assertGreater(d.stats()["data_malformed"], 0)

    def test_flipped_in_the_proof(self):
        def flip(at, data):
            return bytes([data[0]]) + data[1:-1] + bytes([data[-1] ^ 1]) \
                if at == 0 else data
        stats = self.survives(flip)[1].stats()
        self.assertGreater(stats["data_unproven"] + stats["data_strangers"], 0)

    def test_cut(self):
        self.survives(lambda at, data: data if at < 300000 else None)

    def test_cut_where_rows_are_in_the_clear(self):
        self.survives(lambda at, data: data if at < 300000 else None,
                      encrypt="off")

    def repeated(self, how):
        relay, e, d = self.between(lambda *_: lambda _, data: data,
                                   encrypt=how)
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, ROWS)
        landed = d.stats()["segments_landed"]
        self.assertTrue(relay.say(bytes(relay.heard[0])))
        stats = d.stats()
        self.assertEqual(stats["data_unproven"], 1)
        self.assertEqual(stats["segments_landed"], landed)
        self.deliver(enc, lm, 2, ROWS)

    def test_repeated(self):
        self.repeated("auto")

    def test_repeated_where_rows_are_in_the_clear(self):
        self.repeated("off")
