"""What is offered to an engine and cannot be had: it costs its request at most,
the engine's log says once why, which room it was, where, and what to do, and
the next request gets its rows."""

import os
import signal

from fake_vllm import FIELDS, WIDTH, VllmCase

from mmx.adapters import _vllm_engine

ELSE = {"width": f"embedding:bf16:{2 * WIDTH}",
        "dtype": FIELDS.replace("bf16", "f16")}


class Vllm(VllmCase):
    def setUp(self):
        super().setUp()
        self.n = 0

    def start(self, **how):
        super().start(**how)
        self.consumer.scheduler._consumer.link.meet()

    def bad(self, why, change, remedy=""):
        """why: the cause in the log; change: the offer into what is no good."""
        self.n += 1
        name = f"cat{self.n}"
        r = self.hand_over(f"bad{self.n}", (name, 300))
        own = r.ec_transfer_params[name]
        odd = change(own)
        r.ec_transfer_params = {name: odd}
        _vllm_engine.warn.last.clear()
        with self.subTest(why), self.assertLogs("vllm.mmx") as said:
            self.consumer.serve(r)
        self.assertEqual(len(said.output), 1, said.output)
        line = said.output[0]
        self.assertRegex(
            line, f"WARNING:vllm.mmx:the rows of {name} cannot be had: {why}; "
            f"{remedy}mmxctl trace ..{odd['room'][8:16]}, here and at "
            f"{odd['encoder']}, says more$")
        self.assertEqual(self.consumer.encoded.pop(), name)
        self.declined(own)
        self.good()

    def good(self):
        self.n += 1
        self.fetch(self.hand_over(f"good{self.n}", (f"dog{self.n}", 300)))
        self.assertEqual(self.consumer.encoded, [])

    def test_rooms_that_are_not_there(self):
        self.start(mmx_patience_s=0.5)
        for odd in (f"{4711:016x}", None):  # None: of another user
            self.bad("unknown-room: no such room.*",
                     lambda said: {**said, "room": odd or
                                   said["room"][:17] + "ab" * 16})
        self.bad("timeout: no row within 0.5 s",
                 lambda said: {**said, "encoder": "tcp://127.0.0.1:9"})

    def test_an_encoder_that_was_upgraded(self):
        """Its weights are others; a router has kept its epoch of before."""
        self.start()
        before = self.producer.scheduler._producer.epoch.hex()
        self.producer.scheduler._producer.reset()
        self.bad("item-mismatch: announced and asked for with different keys",
                 lambda said: {**said, "epoch": before},
                 "give both engines one model and mmx_scope, .* mmx_epoch, ")

    def test_an_encoder_that_hangs(self):
        self.start(mmx_patience_s=0.5)

        def hangs(said):
            os.kill(self.e.pid, signal.SIGSTOP)
            return said
        declined, self.declined = self.declined, lambda said: (
            os.kill(self.e.pid, signal.SIGCONT), declined(said))
        self.addCleanup(lambda: os.kill(self.e.pid, signal.SIGCONT))
        self.bad("(timeout|peer-lost): .*", hangs)

    def test_an_engine_of_another_scope(self):
        self.start(mmx_scope="another")

        def same(said):  # the next producer is of this scope
            self.producer = self.engine_of(
                self.e, "producer", self.RANKS, mmx_scope="another",
                mmx_patience_s=60)
            return said
        self.bad("item-mismatch: announced and asked for with different keys",
                 same, "give both engines one model and mmx_scope, .*")

    def foreign(self, fields, rows):
        """Returns an offer of rows that another encoder's daemon has."""
        daemon = self.world.encoded(f"other{self.n}", fields=fields)
        other, room = self.world.engine(daemon), 70 + self.n
        other.announce(room, rows, rows, key=self.consumer.scheduler.settings
                       .key(f"cat{self.n}"))
        other.granted(room)
        other.commit(room, 0, rows, final=True)
        self.foreign_ones.append((daemon, other, room))
        return {"encoder": daemon.address, "room": f"{room:016x}",
                "rows": 300}

    def test_rows_of_another_kind(self):
        self.start()
        self.foreign_ones = []
        for what, fields in ELSE.items():
            self.bad(f"incompatible-layout: encoded's pool vit has {fields}, "
                     f"langd's has {FIELDS}",
                     lambda said: self.foreign(fields, 300),
                     "give both pools one layout, ")
        self.bad("item-mismatch: 200 rows, 300 were offered",
                 lambda said: self.foreign(FIELDS, 200), "give both .*")
        for daemon, other, room in self.foreign_ones:
            other.release(room)
            self.reclaim(daemon)  # what is kept for its key

    def test_an_offer_of_another_count(self):
        self.start()
        r = self.hand_over("bad", ("cat", 300))
        own = r.ec_transfer_params["cat"]
        r.ec_transfer_params = {"cat": {**own, "rows": 299}}
        with self.assertLogs("vllm.mmx") as said:
            self.consumer.serve(r)
        self.assertEqual(said.output, [
            "WARNING:vllm.mmx:request bad: cat has 300 rows here, 299 were "
            "offered: have both engines preprocess alike"])
        self.assertEqual(self.consumer.encoded.pop(), "cat")
        self.declined(own)
        self.good()
