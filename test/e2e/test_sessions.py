"""One engine of several processes: who may attach, who is waited for, and what
stays when one of them dies. Rows that a survivor was shown are checked after
other rooms have filled the pool again and again."""

from pair import Case

import mmx


class Sessions(Case):
    def refill(self, enc, lm, first, count=8, rows=500):
        """Delivers other rooms through all free blocks."""
        for room in range(first, first + count):
            self.deliver(enc, lm, room, rows)

    def session(self, daemon, names, remote=()):
        """Returns connections of one session; remote ones are processes."""
        make = {True: self.world.process, False: self.world.engine}
        return [make[n in remote](daemon, n, session="tp") for n in names]


class Ranks(Sessions):
    # RULES 7.1
    def test_eight_ranks_and_the_bytes_move_once(self):
        e, d = self.pair(blocks=32)
        enc = self.world.engine(e)
        owner, *ranks = self.session(d, [f"rank{i}" for i in range(8)])
        before = d.stats()["bytes_moved"]
        for rank in ranks[:4]:
            rank.attach(1, "enc0")
        owner.request(1, "enc0", readers=7)
        enc.encode(1, 3000, aux="grid")
        owner.ready(1)
        for rank in ranks[4:]:
            rank.attach(1, "enc0")
        for rank in (owner, *ranks):
            self.assertEqual(rank.ready(1), 3000)
            self.assertEqual(rank.aux(1), "grid")
            self.good(rank, 1)
        moved = d.stats()["bytes_moved"] - before
        self.assertEqual(moved, 3000 * 64)
        self.assertEqual(e.stats()["bytes_moved"], moved)
        enc.ends(1)
        for i, rank in enumerate((owner, *ranks)):
            self.assertEqual(d.free(), (32 - 24, 32), f"after {i} releases")
            rank.release(1)
        d.all_free()

    def test_a_watcher_holds_nothing(self):
        e, d = self.pair(blocks=16)
        enc = self.world.engine(e)
        owner, other = self.session(d, ("owner", "watcher"))
        other.attach(1, "enc0", mmx.WATCH)
        owner.request(1, "enc0")
        enc.encode(1, 500)
        owner.ready(1)
        other.conn.wait(lambda: other.rooms[1].state == mmx.State.SUCCESS, 10)
        other.conn.wait(lambda: other.rooms[1].complete, 10)
        # rows of the room are not in its map
        with self.assertRaises(IndexError):
            other.rooms[1].gather("embedding", 0, 500)
        enc.done(1)
        for x in (owner, enc):
            x.release(1)
        d.all_free()
        other.release(1)


class LanguageSideDies(Sessions):
    """One process of a language engine is killed, at each step."""

    STEPS = ("requested", "waiting", "half", "ready", "released")

    def lead(self, enc, owner, ranks, room, step):
        for rank in ranks:
            rank.attach(room, "enc0")
        owner.request(room, "enc0", mode="stream", readers=len(ranks))
        if step == "requested":
            return
        enc.opens(room, 1000, 1000)
        enc.write(room, 0, 1000)
        owner.until(room, "WAITING")
        if step == "waiting":
            return
        enc.commit(room, 0, 640)
        for x in (owner, *ranks):
            x.rows(room, 640)
        if step == "half":
            return
        enc.commit(room, 640, 1000, final=True)
        for x in (owner, *ranks):
            x.ready(room)
        if step == "released":
            owner.release(room)

    def finish(self, enc, room, step):
        """Does what is left to do on the encode side."""
        if step == "requested":
            enc.opens(room, 1000, 1000)
            enc.write(room, 0, 1000)
        if step in ("requested", "waiting"):
            enc.commit(room, 0, 640)
        if step in ("requested", "waiting", "half"):
            enc.commit(room, 640, 1000, final=True)

    def one_of_them(self, victim):
        e, d = self.pair(encoded={"blocks": 32}, langd={"blocks": 20})
        enc, other = self.world.engine(e), self.world.engine(e)
        lm = self.world.engine(d)
        for n, step in enumerate(self.STEPS, 1):
            with self.subTest(step=step):
                names = ("owner", "dies", "stays")
                owner, dies, stays = self.session(
                    d, names, {"owner" if victim == "owner" else "dies"})
                dead = owner if victim == "owner" else dies
                self.lead(enc, owner, (dies, stays), n, step)
                if step == "requested":
                    # The kill must come after the request is taken.
                    enc.announce(n + 50, 1)
                    stays.conn.wait(stays.rooms[n].opened, 10)
                    lm.request(n + 50, "enc0")
                    lm.until(n + 50, "WAITING")
                    for x in (lm, enc):
                        x.abort(n + 50)
                        x.release(n + 50)
                dead.kill()
                self.refill(other, lm, 1000 * n, 3, 1400)
                if step not in ("requested", "waiting"):
                    end = 640 if step == "half" else 1000
                    self.good(stays, n, 0, end)
                self.finish(enc, n, step)
                self.assertEqual(stays.ready(n), 1000)
                self.refill(other, lm, 1000 * n + 100, 3, 1400)
                self.good(stays, n)
                enc.ends(n)
                for x in (owner, dies, stays):
                    if x is not dead and n in x.rooms:
                        x.release(n)
                for x in (owner, dies, stays):
                    if x is not dead:
                        x.close()
                self.world.all_free()

    def test_owner(self):
        self.one_of_them("owner")

    def test_reader(self):
        self.one_of_them("reader")


class EncodeSideDies(Sessions):
    def test_the_owner_dies_and_the_writer_goes_on(self):
        e, d = self.pair(encoded={"blocks": 12}, langd={"blocks": 32})
        lm = self.world.engine(d)
        scheduler, worker = self.session(e, ("scheduler", "worker"),
                                         ("scheduler",))
        worker.attach(1, rights=mmx.WRITE)
        lm.request(1, "enc0", mode="stream")
        scheduler.announce(1, 1000, 1000)
        worker.granted(1)
        worker.write(1, 0, 640)
        worker.commit(1, 0, 640)
        lm.rows(1, 640)
        scheduler.kill()
        worker.finish(1, 640, 1000)
        self.comes(worker, lm, 1, 1000)
