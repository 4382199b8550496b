"""Data connections under the key of a pair: two hosts that are network
namespaces, and one who listens between them. Who sits in between and changes
what passes is data_safe_test.c."""

import unittest

import nets
from engine import pattern
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
    def heard(self, encrypt):
        """The rows' pieces that one who listens hears of a room."""
        self.nets.link(self.e_host, self.l_host)
        e, d = self.fleet(encrypt)
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

    def test_without_encryption_he_would(self):
        heard, path = self.heard("off")
        self.assertGreater(heard, ROWS * 4096 // PIECE // 2)
        self.assertIn("proved", path)

    def test_who_insists_sends_nothing_in_the_clear(self):
        self.nets.link(self.e_host, self.l_host)
        e, d = self.fleet("off", "on")
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0", deadline=3)
        enc.encode(1, 8)
        lm.failed(1)
        eventually(lambda: "transfer.encrypt" in e.tail(400),
                   "the encoder's log says why")
