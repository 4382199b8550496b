"""Language engines that give a room up before it is announced, however it
went."""

from pair import Case, eventually


class GivenUp(Case):
    def give_up(self, how, e, d, room):
        """Asks at d and gives up as said; E knows of it."""
        before = e.show("status")[0]["declines_held"]
        more = {"deadline": 0.2} if how == "deadline" else {}
        lm = self.world.process(d) if how == "death" else self.world.engine(d)
        lm.request(room, "enc0", **more)
        if how != "deadline":  # it comes by itself
            eventually(lambda: [r for r in e.show("rooms")
                                if r["room"] == room], "it is asked for")
        if how == "abort":
            lm.abort(room)
        elif how == "death":
            lm.kill()
        elif how != "deadline":
            lm.release(room)
        if how == "both":
            lm.conn.wait(lm.conn.decline(room, "enc0"), 10)
        eventually(lambda: e.show("status")[0]["declines_held"] == before + 1,
                   "it is told")

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
