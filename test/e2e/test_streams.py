"""Rooms whose rows go over four connections to a peer, through one device and
through two."""

import unittest

from pair import Case, SENT

ROOM = 2048  # rows: 16 MiB


@unittest.skipIf(SENT == "ucx", "streams are of TCP")
class Streams(Case):
    def wide(self, devices):
        sent = {"transfer": {"streams": 4, "same_host": "off"}}
        e, d = self.pair(
            fields="embedding:u8:8192", blocks=48, encoded=sent, langd={
                "transfer": {**sent["transfer"], "devices": devices},
                "default_blocks": 16})
        enc, lm = self.engines(e, d)
        for room in range(1, 4):
            self.deliver(enc, lm, room, ROOM)
        self.deliver(enc, lm, 4, 3)
        self.assertEqual(e.show("peers")[0]["transport"], "tcp/lo x4 proved")

    def test_four(self):
        self.wide("lo")

    def test_several_devices(self):
        self.wide("lo,lo")
