"""Engines that send more than their share: other engines, the service manager
and the log are not affected."""

import time

from engine import LIMIT
from manager import Manager
from pair import Case, eventually
from rawengine import call, greeted, open_rooms, packet, release_rooms
import wire

import mmx

ROOMS = 4000
# The best of this many tries counts, since a busy machine may spoil some of
# them.
TRIES = 5


class Flood(Case):
    def crowd(self, rooms=ROOMS, **more):
        """Starts encoded with many open rooms; returns it and their
        connection."""
        beats = Manager(self)
        e = self.world.encoded(blocks=rooms, block_rows=1, start=False, **more)
        e.start(beats.env(500))
        s = greeted(e, cells=rooms, session="crowd")
        open_rooms(s, rooms)
        return e, s, beats

    def worst(self, s, seconds):
        """Returns the longest call of a good engine in this time."""
        worst, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            # refused: encoded has no sequence spaces
            call(s, wire.SPACE.encode(5))
            worst = max(worst, time.monotonic() - began)
        return worst

    def end(self, *all_of_them):
        for s in all_of_them:
            call(s, wire.BYE.encode(99))
            s.close()

    # F41
    def test_reports_of_all_connections_take_turns(self):
        e, s, beats = self.crowd()
        good = greeted(e, session="good")

        def turns():
            began, asks = time.monotonic(), []
            for i in range(8):
                asks.append(greeted(e, session=f"asks{i}"))
                asks[i].send(b"".join(wire.QUERY.encode(
                    9 + n, what="rooms")
                                      for n in range(3)))
            worst = self.worst(good, 0.5)
            for x in asks:  # all answers come, in the order of the calls
                reports = []
                while len(reports) < 3:
                    for f in packet(x):
                        self.assertEqual(f.values["err"], 0)
                        if not f.values["more"]:
                            reports.append(f.seq)
                self.assertEqual(reports, [9, 10, 11])
                x.close()
            return worst, beats.longest(began)
        self.at_best(turns)
        self.end(s, good)

    def at_best(self, attack):
        """Attacks up to TRIES times, until calls were answered and the service
        manager was served."""
        seen = []
        while not any(call < 1 and beat < 2 for call, beat in seen):
            self.assertLess(len(seen), TRIES, seen)
            seen.append(attack())

    def test_a_full_daemon_says_so(self):
        e = self.world.encoded(limits={"connections": 2})
        # Its own user may have four more connections.
        all_of_them = [greeted(e, session=f"{i}") for i in range(6)]
        with self.assertRaises(mmx.errors.Quota) as caught:
            mmx.connect("encoded", e.socket, timeout=3)
        self.assertIn("limits.connections", str(caught.exception))
        got = e.ctl("status", check=False)
        self.assertEqual(got.returncode, 1)
        self.assertIn("limits.connections", got.stderr)
        self.end(*all_of_them)
        mmx.connect("encoded", e.socket, timeout=LIMIT).close()
        self.assertGreaterEqual(e.stats()["connections_refused"], 2)

    def test_lines_that_an_engine_causes_are_rated(self):
        e = self.world.encoded(blocks=1000, block_rows=1)
        s = greeted(e, cells=1000)
        began = time.monotonic()
        for _ in range(5):
            open_rooms(s, 1000)
            release_rooms(s, 1000)
        seconds = time.monotonic() - began + 2
        left = eventually(lambda: e.stats()["log_lines_left_out"], "counted")
        eventually(lambda: "more lines were left out" in e.tail(), "told")
        with open(e.log) as f:
            lines = sum("room " in line for line in f)
        self.assertLess(lines, 100 * seconds)
        self.assertGreaterEqual(lines + left, 5000)
        s.close()
