"""Data connections under the key of a pair, between two hosts that are network
namespaces. An attacker listens between the hosts, or sits in between and
flips, cuts, repeats and swaps bytes. No wrong byte is taken, and the room goes
on when the attack ends."""

import random
import unittest

import nets
from engine import pattern
from pair import Case, SENT, eventually, merged
from relay import Relay, cut, whole

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

    def fleet(self, encrypt="auto", e_encrypt="auto", conf=None, **more):
        """Starts encoded on one host and langd on the other; conf: more of
        both configurations, beside their transfer section."""
        conf = conf or {}
        def transfer(how):
            return {"same_host": "off", "devices": "m0", "carrier": "tcp",
                    "encrypt": how, **more}
        e = self.world.encoded(fields=FIELDS, start=False, **merged(conf, {
            "transfer": transfer(e_encrypt),
            "control": {"listen": f"tcp://{nets.E_HOST}:{CONTROL}"}}))
        e.address = f"tcp://{nets.E_HOST}:{CONTROL}"
        d = self.world.langd([e], fields=FIELDS, start=False, **merged(conf, {
            "transfer": {"ports": f"{DATA}-{DATA}", **transfer(encrypt)}}))
        e.inside = ["ip", "netns", "exec", self.e_host]
        d.inside = ["ip", "netns", "exec", self.l_host]
        return e.start(), d.start()


class Listened(Hosts):
    def heard(self, encrypt, e_encrypt="auto"):
        """Delivers a room; returns how many pieces of its rows a listener
        finds, and the transport."""
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
        # Packets cut rows anywhere: pieces are looked for at each place.
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


class Middle(Relay):
    """Stands between the hosts: encoded takes it for langd, and langd for
    encoded. attack(number) returns the change of what encoded sends on a data
    connection, says(number) the change of what both sides send on a control
    connection."""

    def __init__(self, e_host, l_host, attack, says=None):
        super().__init__()
        self.attack, self.says = attack, says or (lambda _: whole)
        self.count = self.controls = 0
        self.door((nets.E_HOST, CONTROL), (nets.E_HOST, CONTROL),
                  self.control, l_host, e_host)
        self.door((nets.L_HOST, DATA), (nets.L_HOST, DATA), self.data,
                  e_host, l_host)

    def control(self, a, b):
        number = self.controls
        self.controls += 1
        self.start(a, b, self.says(number), self.says(number))

    def data(self, a, b):
        number = self.count
        self.count += 1
        self.start(a, b, self.attack(number), whole)


class InTheMiddle(Hosts):
    ATTACKS = 2  # connections of each kind

    def between(self, attack, says=None, **how):
        """Starts both daemons with no link between the hosts, but for this
        relay: each has the other's address."""
        for name, own, other in ((self.e_host, nets.E_HOST, nets.L_HOST),
                                 (self.l_host, nets.L_HOST, nets.E_HOST)):
            nets.ip("-n", name, "link", "add", "m0", "type", "veth", "peer",
                    "name", "m1")
            nets.ip("-n", name, "address", "add", f"{own}/24", "dev", "m0")
            nets.ip("-n", name, "address", "add", f"{other}/32", "dev", "lo")
            for device in ("m0", "m1"):
                nets.ip("-n", name, "link", "set", device, "up")
        relay = Middle(self.e_host, self.l_host, attack, says)
        self.addCleanup(relay.close)
        return relay, *self.fleet(streams=1, **how)

    # F45
    def test_flipped(self):
        def flip(at, data):
            place = 300000 - at
            if not 0 <= place < len(data):
                return data
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1:]
        relay, e, d = self.between(
            lambda number: flip if number < self.ATTACKS else whole)
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, ROWS)
        self.assertGreater(relay.count, self.ATTACKS)
        self.deliver(enc, lm, 2, 3)
        self.assertGreater(d.stats()["data_malformed"], 0)

    # F43
    def test_cut_at_any_byte(self):
        """The connection is cut at random bytes, in the proof, a header or
        rows, again and again within one outage."""
        draw = random.Random(1)
        cuts = [draw.randrange(1, end) for end in (2, 64, 512, 4096, 1 << 20)]

        def attack(number):
            return cut(cuts[number]) if number < len(cuts) else whole
        relay, e, d = self.between(attack)
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, ROWS)
        self.assertGreater(relay.count, len(cuts))
        self.assertEqual(d.stats()["peers_lost"], 0)

    # F43
    def test_control_is_cut_at_any_byte(self):
        draw = random.Random(2)
        cuts = [draw.randrange(1, end) for end in (2, 64, 300, 1000)]

        def says(number):
            return cut(cuts[number]) if number < len(cuts) else whole
        relay, e, d = self.between(lambda *_: whole, says)
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0")
        eventually(lambda: relay.controls > len(cuts), "all were cut")
        enc.encode(1, ROWS)
        self.comes(enc, lm, 1, ROWS)
