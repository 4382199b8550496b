"""Rooms whose rows go by several connections to a peer: right over one and
over four of them, by one device and by two, also when daemons are killed in
the middle."""

import os
import unittest

from pair import Case, SENT

FIELDS = "embedding:u8:8192"
ROOM = 2048  # rows: 16 MiB
KILLS = int(os.environ.get("MMX_KILLS", 4))


def transfer(streams, devices="lo"):
    return {"transfer": {"streams": streams, "devices": devices,
                         "same_host": "off"}}


@unittest.skipIf(SENT == "ucx", "streams are of TCP")
class Streams(Case):
    def wide(self, e_streams, l_streams, devices="lo"):
        return self.pair(fields=FIELDS, blocks=48,
                         encoded=transfer(e_streams),
                         langd={**transfer(l_streams, devices),
                                "default_blocks": 16})

    def connections(self, d):
        """Data connections of a daemon, as its peer's row names them."""
        return d.show("peers")[0]["transport"]

    def several_rooms(self, e, d, first=1):
        enc, lm = self.engines(e, d)
        for room in range(first, first + 3):
            self.deliver(enc, lm, room, ROOM)
        self.deliver(enc, lm, first + 3, 3)

    def test_four(self):
        e, d = self.wide(4, 4)
        self.several_rooms(e, d)
        self.assertEqual(self.connections(e), "tcp/lo x4 proved")

    def test_several_devices(self):
        e, d = self.wide(4, 4, "lo,lo")
        self.several_rooms(e, d)
        self.assertEqual(self.connections(e), "tcp/lo x4 proved")


@unittest.skipIf(SENT == "ucx", "streams are of TCP")
class Kills(Case):
    """One side dies in the middle of a room, again and again; what comes
    after is right, and no block is lost."""
    released = False

    def test_four(self):
        streams = 4
        # A pace so low that the death comes in the middle of the room.
        slow = transfer(streams)
        slow["transfer"]["pace"] = f"{64 // streams}MiB"
        e, d = self.pair(fields=FIELDS, blocks=48, encoded=slow,
                         langd={**transfer(streams), "default_blocks": 16})
        room = 1
        for i in range(KILLS):
            enc, lm = self.engines(e, d)
            lm.request(room, "enc0", mode="stream")
            enc.announce(room, ROOM, ROOM)
            enc.granted(room)
            enc.write(room, 0, ROOM - 128)
            enc.commit(room, 0, ROOM - 128)  # so it cannot end before
            lm.rows(room, 128)
            dies = (e, d)[i % 2]
            dies.kill()
            (lm if dies is e else enc).failed(room)
            readable = lm.rooms[room].readable
            self.good(lm, room, 0, readable)
            self.world.end_engines()
            (d if dies is e else e).all_free()
            dies.start()
            enc, lm = self.engines(e, d)
            self.deliver(enc, lm, room + 1, 300)
            self.world.end_engines()
            room += 2
