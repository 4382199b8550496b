"""Rooms that are admitted together or wait together: groups at the language
side, batches at the encode side."""

import collections
import random

from pair import Case, eventually

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
        """Checks and releases the groups that are whole; how many."""
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
        # Four rooms of at most 4 blocks fit; no two groups do.
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
            enc.done(r)
            enc.release(r)
        self.world.all_free()

    # RULES 5.14
    def test_rooms_alone_between_groups(self):
        # Consumed as they come; neither kind starves the other.
        e, d = self.pair(block_rows=16, encoded={"blocks": 500},
                         langd={"blocks": 8, "default_blocks": 2})
        enc, lm = self.engines(e, d)
        whole = Prefill(self.world.engine(d))
        for i in range(1, 21):
            whole.ask(i, (100 + 2 * i, 101 + 2 * i))
            lm.request(i, "enc0")
        rooms = list(range(1, 21)) + list(range(102, 142))
        for room in rooms:
            enc.encode(room, 60)
        alone, groups = set(range(1, 21)), 0
        while alone or groups < 20:
            got = whole.consume(lambda r: self.good(whole.engine, r))
            groups += got
            lm.conn.step()
            for room in [r for r in alone if lm.rooms[r].complete]:
                self.good(lm, room)
                lm.release(room)
                alone.remove(room)
                got += 1
            if not got:
                self.assertTrue(mmx.wait_any((lm.conn, whole.engine.conn), 20),
                                (alone, groups))
        for room in rooms:
            enc.done(room)
            enc.release(room)

    def test_too_large(self):
        e, d = self.pair(langd={"blocks": 8})
        enc, lm = self.engines(e, d)
        for room in (1, 2):
            lm.request(room, "enc0", group=(1, 2))
            enc.announce(room, 600, 600)
        for room in (1, 2):
            self.assertEqual(lm.failed(room), "too-large")
            lm.conn.wait(lambda: lm.rooms[room].reason.b, 10)
            self.assertEqual(lm.rooms[room].reason.b, 1024)
            self.assertEqual(enc.failed(room), "too-large")
            lm.release(room)
            enc.release(room)
        self.world.all_free()

    def test_a_group_of_one_and_the_null_encoder(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
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
            enc.done(room)
            enc.release(room)

    def test_members_that_say_something_else(self):
        e, d = self.pair()
        lm = self.world.engine(d)
        lm.request(1, "enc0", group=(1, 2))
        lm.request(2, "enc0", group=(1, 3))
        self.assertEqual(lm.failed(2), "malformed")
        lm.request(3, "enc0", group=(2, 2), mode="stream")
        self.assertEqual(lm.failed(3), "malformed")
        lm.request(4, "enc0", group=(1, 2))
        lm.request(5, "enc0", group=(1, 2))
        self.assertEqual(lm.failed(5), "malformed")
        for room in range(1, 6):
            lm.release(room)

    def test_a_member_fails(self):
        # The others go on without it.
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        for room in (1, 2, 3):
            lm.request(room, "enc0", group=(9, 3))
        for room in (1, 2):
            enc.encode(room, 300)
        enc.announce(3, 300, 300)
        enc.granted(3)
        lm.until(3, "WAITING")
        enc.abort(3)
        self.assertEqual(lm.failed(3), "aborted")
        for room in (1, 2):
            self.assertEqual(lm.ready(room), 300)
            self.good(lm, room)
            enc.done(room)
        for x in (enc, lm):
            for room in (1, 2, 3):
                x.release(room)

    def test_the_same_group_again(self):
        # A request that was preempted asks again, under its own name.
        e, d = self.pair(langd={"blocks": 8})
        enc, lm = self.engines(e, d)
        for turn in range(3):
            rooms = (10 * turn + 1, 10 * turn + 2)
            for room in rooms:
                lm.request(room, "enc0", group=(77, 2))
                enc.encode(room, 400)
            for room in rooms:
                self.assertEqual(lm.ready(room), 400)
                self.good(lm, room)
                enc.done(room)
            for x in (enc, lm):
                for room in rooms:
                    x.release(room)

    def test_the_engine_dies(self):
        e, d = self.pair(langd={"blocks": 8})
        enc, lm = self.world.engine(e), self.world.engine(d)
        dead = self.world.process(d)
        dead.request_group([1, 2], 5)
        for room in (1, 2):
            enc.announce(room, 1000)
            enc.granted(room)
        enc.write(1, 0, 500)
        enc.commit(1, 0, 500)
        for room in (1, 2):
            enc.conn.wait(lambda: enc.rooms[room].wanted, 10)
        dead.kill()
        for room in (1, 2):
            self.assertEqual(enc.failed(room), "engine-lost")
            enc.release(room)
        self.deliver(enc, lm, 3, 1000)
        self.world.all_free()

    def test_no_rows_are_taken_before_all_wait(self):
        e, d = self.pair(langd={"blocks": 16})
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0", group=(1, 2))
        lm.request(2, "enc0", group=(1, 2))
        enc.encode(1, 1000)
        lm.until(1, "WAITING")
        eventually(lambda: d.stats()["wants"] == 1, "its WANT")
        self.assertEqual(d.free(), (16, 16))
        enc.encode(2, 1000)
        for room in (1, 2):
            self.assertEqual(lm.ready(room), 1000)
            enc.done(room)
        for x in (enc, lm):
            for room in (1, 2):
                x.release(room)


class Batches(Case):
    # RULES 4.2
    def test_all_or_nothing(self):
        e, _ = self.pair(encoded={"blocks": 8})
        one, two = self.world.engine(e), self.world.engine(e)
        one.announce_batch([1, 2], 300)  # 6 blocks
        for room in (1, 2):
            one.granted(room)
        two.announce_batch([11, 12, 13], 128)  # 3 blocks, 2 are free
        two.conn.wait(two.rooms[13].opened, 10)
        self.assertEqual((e.free(), two.served([11, 12, 13])), ((2, 8), 0))
        one.announce(3, 100, 100)  # behind the batch, though it would fit
        one.conn.wait(one.rooms[3].opened, 10)
        self.assertEqual(one.served([3]), 0)
        one.release(1)
        for room in (11, 12, 13):
            two.granted(room)
        one.granted(3)
        for x, rooms in ((one, (2, 3)), (two, (11, 12, 13))):
            for room in rooms:
                x.release(room)

    def test_larger_than_the_pool(self):
        e, _ = self.pair(encoded={"blocks": 8})
        enc = self.world.engine(e)
        enc.announce_batch([1, 2, 3], 400)
        self.refusal("too-large", enc.granted, 3)
        for room in (1, 2):  # what fits together is granted together
            enc.granted(room)
        for room in (1, 2, 3):
            enc.release(room)

    def test_two_that_compete_do_not_deadlock(self):
        e, d = self.pair(block_rows=16, encoded={"blocks": 8},
                         langd={"blocks": 300})
        encoders = [self.world.engine(e) for _ in range(2)]
        lm = self.world.engine(d)
        waiting = {x: collections.deque(
            [range(1000 * i + 3 * n, 1000 * i + 3 * n + 3)
             for n in range(20)]) for i, x in enumerate(encoders, 1)}
        open_rooms = {}
        for batches in waiting.values():
            for rooms in batches:
                for room in rooms:
                    lm.request(room, "enc0", rows=30)
        for x, batches in waiting.items():  # two at a time each
            for _ in range(2):
                self.begin(x, batches, open_rooms)
        done = 0
        while done < 40:
            before = done
            for x in encoders:
                x.conn.step()
                # What comes from here on is still there for wait_any.
                for rooms in [r for r in open_rooms if open_rooms[r] is x]:
                    served = x.granted_now(rooms)
                    if served < 3:
                        self.assertEqual(served, 0)
                        continue
                    for room in rooms:
                        x.finish(room, 0, 30)
                        x.done(room)
                        x.release(room)
                    del open_rooms[rooms]
                    done += 1
                    if waiting[x]:
                        self.begin(x, waiting[x], open_rooms)
            if done == before:
                self.assertTrue(mmx.wait_any([x.conn for x in encoders], 20),
                                f"{done} of 40 batches, then nothing")
        for room in list(lm.rooms):
            self.assertEqual(lm.ready(room), 30)
            self.good(lm, room)
            lm.release(room)

    def begin(self, engine, batches, open_rooms):
        rooms = tuple(batches.popleft())
        engine.announce_batch(rooms, 30)
        open_rooms[rooms] = engine

    def test_one_of_them_is_withdrawn_while_they_wait(self):
        e, _ = self.pair(encoded={"blocks": 8})
        enc = self.world.engine(e)
        enc.announce(9, 1000, 1000)
        enc.granted(9)
        enc.announce_batch([1, 2, 3], 256)
        enc.release(1)  # the first, under which the batch is queued
        enc.release(9)
        for room in (2, 3):
            enc.granted(room)
        self.assertEqual(e.free(), (4, 8))
        for room in (2, 3):
            enc.release(room)

    def test_the_engine_dies_in_the_middle_of_one(self):
        e, _ = self.pair(encoded={"blocks": 8})
        enc, dead = self.world.engine(e), self.world.process(e)
        dead.begin_batch(1, 300)
        dead.kill()
        enc.announce(2, 1000, 1000)
        enc.granted(2)
        enc.release(2)
        e.all_free()
