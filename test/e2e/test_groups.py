"""Groups at the language side: rooms that are admitted together."""

import random

from pair import Case

import mmx


class Prefill:
    """A language engine that consumes a group as a whole: when every room of
    it is READY, not in the order in which rooms come."""

    def __init__(self, engine):
        self.engine, self.groups = engine, {}

    def ask(self, group, rooms, **more):
        self.groups[group] = list(rooms)
        for room in rooms:
            self.engine.request(room, "enc0", group=(group, len(rooms)),
                                **more)

    def consume(self, check):
        """Checks and releases the groups whose rooms are all READY; returns
        how many."""
        self.engine.conn.step()
        rooms = self.engine.rooms
        whole = [g for g, members in self.groups.items()
                 if all(rooms[r].complete for r in members)]
        for group in whole:
            for room in self.groups.pop(group):
                check(room)
                self.engine.release(room)
        return len(whole)


class Groups(Case):
    # RULES 5.5
    def test_50_groups_through_a_pool_of_one(self):
        # Four rooms of at most 4 blocks fit; two groups never do.
        e, d = self.pair(block_rows=16, encoded={"blocks": 1000},
                         langd={"blocks": 16, "default_blocks": 2})
        enc = self.world.engine(e, cells=4096)
        lms = [Prefill(self.world.engine(d, cells=4096)) for _ in range(2)]
        pick, room, lengths = random.Random(5), 0, {}
        for group in range(1, 51):
            count = pick.randrange(2, 5)
            rooms = range(room + 1, room + 1 + count)
            room += count
            for r in rooms:
                lengths[r] = pick.randrange(0 if group % 7 == 0 else 33, 65)
            lms[group % 2].ask(group, rooms)
        order = list(lengths)
        pick.shuffle(order)
        for r in order:
            known = pick.random() < 0.5
            enc.announce(r, 64 if not known else lengths[r],
                         lengths[r] if known else None)
            enc.granted(r)
            enc.finish(r, 0, lengths[r], step=30)
        served = 0
        conns = [p.engine.conn for p in lms]
        while served < 50:
            got = sum(p.consume(lambda r, p=p: self.good(p.engine, r))
                      for p in lms)
            served += got
            if not got:
                self.assertTrue(mmx.wait_any(conns, 20),
                                f"{served} of 50 groups, then nothing")
        for r in order:
            enc.ends(r)
        self.world.all_free()

    def test_a_group_of_one_and_the_null_encoder(self):
        e, d, enc, lm = self.at_work()
        lm.request(1, "enc0", group=(1, 1))
        enc.encode(1, 300)
        self.assertEqual(lm.ready(1), 300)
        lm.request(2, mmx.NULL, group=(2, 2))
        lm.request(3, "enc0", group=(2, 2))
        enc.encode(3, 300)
        self.assertEqual((lm.ready(2), lm.ready(3)), (0, 300))
        for room in (1, 2, 3):
            self.good(lm, room)
            lm.release(room)
        for room in (1, 3):
            enc.ends(room)
