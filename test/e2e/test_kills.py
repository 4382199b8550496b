"""Kills of either daemon at any moment of a transfer, and of engines inside a
call: no byte is wrong, no block is lost, and the others live. MMX_KILLS says
how many, MMX_TLS over which transports of UCX (with run --sent ucx)."""

import contextlib
import os
import random
import time
import unittest

from pair import SENT, Case, eventually

import mmx

KILLS = int(os.environ.get("MMX_KILLS", "6"))
TLS = os.environ.get("MMX_TLS", "tcp")
ROOMS, ROWS = 4, 1000
FIELDS = "embedding:u8:2048"


class Storm(Case):
    limit_s = 60 + 3 * KILLS
    encrypt = "off"

    def setUp(self):
        super().setUp()
        more = {"tls": TLS} if SENT == "ucx" else {"encrypt": self.encrypt}
        self.e, self.d = self.pair(fields=FIELDS, transfer=more)
        self.enc, self.lm = self.engines(self.e, self.d)
        self.room = 0
        self.draw = random.Random(int(os.environ.get("MMX_SEED", "1")))

    def fill(self):
        """Opens rooms whose rows are all committed; returns their ids."""
        rooms = [self.room + i + 1 for i in range(ROOMS)]
        self.room += ROOMS
        for room in rooms:
            self.lm.request(room, "enc0", mode="stream")
            self.enc.announce(room, ROWS, ROWS)
        for room in rooms:
            self.enc.granted(room)
            self.enc.finish(room, 0, ROWS, 250)
        return rooms

    def ends(self, rooms):
        """Checks the rooms that arrived whole; returns how many did."""
        whole = 0
        for room in rooms:
            got = self.lm.rooms[room]
            eventually(lambda r=room, got=got: self.lm.step() is not None and
                       (got.reason or self.lm.state(r)[1] == ROWS),
                       f"room {room} ends")
            if not got.reason:
                self.good(self.lm, room)
                whole += 1
            self.lm.release(room)
        return whole

    def back(self, daemon, engine):
        daemon.start()
        engine.conn.wait(lambda: engine.conn.connected, 10)
        engine.map_pool()
        engine.rooms.clear()

    def kill(self, victim):
        rooms = self.fill()
        # Some rows of some room have come, others are on their way.
        self.lm.rows(self.draw.choice(rooms), self.draw.randrange(ROWS))
        victim.kill()
        whole = 0
        if victim is self.e:
            whole = self.ends(rooms)
            self.back(self.e, self.enc)
        else:
            for room in rooms:
                with contextlib.suppress(mmx.MmxError):
                    self.enc.done(room)
                self.enc.release(room)
            self.back(self.d, self.lm)
        self.assertTrue(self.e.alive() and self.d.alive())
        self.room += 1
        self.deliver(self.enc, self.lm, self.room, ROWS)
        self.world.all_free()
        return whole

    # F02, F03, F04
    def test_kills(self):
        whole = 0
        for i in range(KILLS):
            whole += self.kill(self.draw.choice((self.e, self.d)))
        print(f"{KILLS} kills over {SENT or 'memory'} {TLS}, encrypt "
              f"{self.encrypt}: {whole} of the rooms under way came whole",
              flush=True)


@unittest.skipUnless(SENT == "tcp", "rows that TCP carries are encrypted")
class EncryptedStorm(Storm):
    encrypt = "on"


class Engines(Case):
    """Engines are killed inside a call: a daemon shares no lock with them."""
    limit_s = 60 + 3 * KILLS

    # F50
    def test_kills_inside_a_call(self):
        e, d, enc, lm = self.at_work(fields=FIELDS)
        draw = random.Random(int(os.environ.get("MMX_SEED", "1")))
        for room in range(1, 2 * KILLS, 2):
            at = draw.choice((e, d))
            victim = self.world.process(at)
            if at is e:
                lm.request(room, "enc0")
                victim.begin("encode", room=room, rows=ROWS)
            else:
                enc.encode(room, ROWS)
                victim.begin("request", room=room, encoder="enc0")
            time.sleep(draw.uniform(0, 0.01))
            victim.kill()
            (lm if at is e else enc).release(room)
            self.deliver(enc, lm, room + 1, ROWS)
            self.world.all_free()
