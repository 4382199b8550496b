"""Language engines that give a room up before it is announced: each is one
destination less, however it went. Open rooms may be asked for early."""

from pair import Case, eventually


class GivenUp(Case):
    def held(self, e, n):
        eventually(lambda: e.show("status")[0]["declines_held"] == n,
                   f"{n} langds have given a room up")

    def give_up(self, how, e, d, room, destinations=1):
        """Asks at d and gives up as said; E knows of it."""
        before = e.show("status")[0]["declines_held"]
        more = {"destinations": destinations}
        if how == "deadline":
            more["deadline"] = 0.2
        lm = self.world.process(d) if how == "death" else self.world.engine(d)
        lm.request(room, "enc0", **more)
        if how != "deadline":  # it comes by itself
            eventually(lambda: [r for r in e.show("rooms")
                                if r["room"] == room], "it is asked for")
        if how == "release":
            lm.release(room)
        elif how == "abort":
            lm.abort(room)
        elif how == "death":
            lm.kill()
        elif how == "both":
            lm.release(room)
            lm.conn.wait(lm.conn.decline(room, "enc0"), 10)
        self.held(e, before + 1)

    # RULES 7.4
    def test_the_only_destination(self):
        e, d = self.pair()
        enc = self.world.engine(e)
        reasons = {"release": "aborted", "abort": "aborted",
                   "deadline": "timeout", "death": "engine-lost",
                   "both": "aborted"}
        for room, how in enumerate(reasons, 1):
            with self.subTest(how=how):
                self.give_up(how, e, d, room)
                enc.announce(room, 100, 100)
                self.assertEqual(enc.failed(room), reasons[how])
                enc.release(room)
        self.world.all_free()

    def test_one_of_two(self):
        e, d = self.pair()
        d2 = self.world.langd([e], "lang1")
        enc, lm = self.world.engine(e), self.world.engine(d2)
        for room, how in enumerate(
                ("release", "abort", "deadline", "death", "both"), 1):
            with self.subTest(how=how):
                self.give_up(how, e, d, room, destinations=2)
                lm.request(room, "enc0", destinations=2)
                enc.encode(room, 100, destinations=2)
                lm.ready(room)
                self.good(lm, room)
                lm.release(room)
                # what is done is said with how many had it
                enc.failed(room)
                row = e.ended(room)
                self.assertEqual((row["served"], row["failed"]), (1, 1))
                enc.release(room)
        self.world.all_free()

    # RULES 9.4
    def test_its_encoder_is_told_when_it_comes(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e], timeouts={"unreachable": "10ms"})
        lm = self.world.engine(d)
        lm.conn.wait(lm.conn.decline(1, "enc0"), 10)
        eventually(lambda: d.show("peers")[0]["state"] == "unreachable",
                   "the encoder is called by the decline alone")
        e.start()
        self.held(e, 1)
        enc = self.world.engine(e)
        enc.announce(1, 100, 100)
        self.assertEqual(enc.failed(1), "declined")
        enc.release(1)

    def test_a_second_try_is_served(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        self.give_up("release", e, d, 1)
        lm.request(1, "enc0")
        self.held(e, 0)
        self.deliver_asked(enc, lm)

    def deliver_asked(self, enc, lm):
        enc.encode(1, 100)
        lm.ready(1)
        self.good(lm, 1)
        lm.release(1)
        enc.done(1)
        enc.release(1)
        self.world.all_free()


class Flood(Case):
    # RULES 5.19
    def test_declines_fill_no_table_of_rooms(self):
        limits = {"limits": {"rooms": 64, "tombstones": 64}}
        e, d = self.pair(encoded=limits)
        enc, lm = self.engines(e, d)
        eventually(lambda: self.taken(lm, 1), "langd has connected")
        replies = [lm.conn.decline(room, "enc0") for room in range(2, 5001)]
        lm.conn.wait(lambda: replies[-1].done, 20)
        # langd forgets the oldest as well, if it cannot say them that fast.
        eventually(lambda: sum(x.stats()["declines_forgotten"]
                               for x in (e, d)) >= 4900,
                   "encoded has heard them")
        status = e.show("status")[0]
        self.assertEqual((status["rooms_held"], status["declines_held"]),
                         (0, 64))
        self.deliver(enc, lm, 10_000, 1500)

    def taken(self, lm, room):
        reply = lm.conn.decline(room, "enc0")
        lm.conn.wait(lambda: reply.done, 10)
        return not reply.error


class Open(Case):
    def test_asked_for_before_the_announce(self):
        e, d = self.pair()
        langds = [d] + [self.world.langd([e], f"lang{i}") for i in (1, 2)]
        enc = self.world.engine(e)
        lms = [self.world.engine(x) for x in langds]
        for lm in lms:
            lm.request(1, "enc0")
        eventually(lambda: [r for r in e.show("rooms") if r["asked"] == 3],
                   "all have asked")
        enc.encode(1, 100, open=True)
        for lm in lms:
            lm.ready(1)
            self.good(lm, 1)
            lm.release(1)
        eventually(lambda: [r for r in e.show("rooms") if r["served"] == 3],
                   "all are served")
        enc.release(1)
        self.world.all_free()
