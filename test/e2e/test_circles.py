"""Requests that hold blocks of one daemon and wait for those of another: no
deadline is needed to end that."""

from pair import Case, eventually

# Each is longer than a step of a test may take.
LONG = {"timeouts": {name: "10m" for name in (
    "bootstrap", "progress", "total")}}
LANGD = {"timeouts": {**LONG["timeouts"], "consumer": "10m",
                      "unreachable": "10m"}}


class Circles(Case):
    def consume(self, lm, rooms):
        for room in rooms:
            self.assertEqual(lm.ready(room), 16)
        for room in rooms:
            self.good(lm, room)
            lm.release(room)

    # RULES 5.5
    def test_two_groups_over_two_encoders_of_one_item(self):
        # Each encoder has begun with the other's second item.
        es = [self.world.encoded(n, blocks=1, block_rows=16, **LONG)
              for n in ("enc0", "enc1")]
        d = self.world.langd(es, blocks=16, block_rows=16, **LANGD)
        encs, lm = [self.world.engine(e) for e in es], self.world.engine(d)
        of = {1: 0, 2: 1, 3: 0, 4: 1}
        for room, e in of.items():
            lm.request(room, f"enc{e}", group=(1 + room // 3, 2))
        for room in (1, 4, 3, 2):
            encs[of[room]].announce(room, 16, 16)
        for rooms in ((1, 4), (3, 2)):
            for room in rooms:
                encs[of[room]].granted(room)
                encs[of[room]].finish(room, 0, 16)
                self.assertEqual(encs[of[room]].done(room), [1, 0])
                encs[of[room]].release(room)
        self.consume(lm, of)
        for e in es:
            self.assertEqual(e.stats()["sources_revoked"], 0)

    def test_a_group_waits_for_the_source_of_a_room_that_waits_for_it(self):
        e, d = self.pair(block_rows=16, encoded={"blocks": 1, **LONG},
                         langd={"blocks": 2, "default_blocks": 0, **LANGD})
        enc, lm = self.engines(e, d)
        enc.encode(3, 16)
        for room in (1, 2):
            lm.request(room, "enc0", group=(1, 2))
        for room in (1, 2):
            enc.announce(room, 16, 16)
        eventually(lambda: d.free()[0] == 0, "the group has langd's blocks")
        lm.request(3, "enc0")
        self.assertEqual(lm.failed(3), "no-blocks")
        self.assertEqual(enc.failed(3), "no-blocks")
        lm.release(3)
        lm.request(3, "enc0")  # before it is announced again
        enc.release(3)
        enc.announce(3, 16, 16)
        for room in (1, 2, 3):
            enc.granted(room)
            enc.finish(room, 0, 16)
            self.assertEqual(enc.done(room) if room < 3 else [1, 0], [1, 0])
            if room == 2:
                self.consume(lm, (1, 2))
            if room < 3:
                enc.release(room)
        self.consume(lm, (3,))
        self.assertEqual(enc.done(3), [1, 0])
        enc.release(3)
        self.assertEqual(e.stats()["sources_revoked"], 1)
