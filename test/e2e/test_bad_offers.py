"""Offers that an engine cannot use: each harms at most its own request. The
engine's log says once why, which room it was, where, and what to do. The next
request gets its rows."""

import os
import signal
import struct
from unittest import mock

import test_sglang
from fake_vllm import FIELDS, WIDTH, VllmCase

import mmx
from mmx.adapters import _sglang_encoder as encoder_side
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
        """Serves a request whose offer `change` has made bad; `why` is in the
        log."""
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
        for odd in (f"{4711:016x}", None):  # None: a room of another user
            self.bad("unknown-room: no such room.*",
                     lambda said: {**said, "room": odd or
                                   said["room"][:17] + "ab" * 16})
        self.bad("timeout: no row within 0.5 s",
                 lambda said: {**said, "encoder": "tcp://127.0.0.1:9"})

    def test_an_encoder_that_was_upgraded(self):
        """Its weights are new; a router still names the old epoch."""
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

        def same(said):  # the next producer has this scope, too
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
                     "give both pools the layout of the model's rows, ")
        self.bad("item-mismatch: 200 rows, 300 were offered",
                 lambda said: self.foreign(FIELDS, 200), "give both .*")
        for daemon, other, room in self.foreign_ones:
            other.release(room)
            self.reclaim(daemon)  # the daemon keeps rows for the room's key

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


class Sglang(test_sglang.Base):
    def setUp(self):
        super().setUp()
        self.log = self.world.dir + "/said"
        limit = mock.patch.dict(os.environ, MMX_DEADLINE_S="1")
        limit.start()
        self.addCleanup(limit.stop)

    def start(self, **how):
        super().start(ranks=2, env={"SAID": self.log}, **how)

    def said(self):
        """Returns the lines of the ranks' logs since the last call."""
        with open(self.log, "r+", encoding="utf-8") as f:
            lines = f.read().splitlines()
            f.truncate(0)
        return lines

    def bad(self, why, code, request=None, remedy=""):
        """One of the ranks logs it."""
        request = request or self.ask("bad", 300)
        self.ranks.start(requests=[request])
        self.failed(self.ranks.results(), code, why)
        digits = mmx.room_id(
            f"bad~{request['urls'][-1][4:36]}_local_part_0") & 0xffffffff
        said = self.said()
        self.assertEqual(len(said), 1, said)
        self.assertRegex(
            said[0], "^WARNING:mmx.sglang:mmx: request bad: its rows cannot be "
            f"had: {why}; {remedy}mmxctl trace ..{digits:08x}, here and at "
            f"{self.e[0].address}, says more$")

    def test_rows_of_another_kind(self):
        self.start(at_langd=ELSE["dtype"])
        self.bad(f"incompatible-layout: .* {FIELDS}, .* {ELSE['dtype']}", 500,
                 remedy="give both pools the layout of the model's rows, ")

    def test_a_pool_of_another_width(self):
        self.start()
        self.encoders[0].width = WIDTH * 2
        why = f"pool vit is {WIDTH} wide, the rows are {WIDTH * 2}"
        with self.assertLogs("mmx.sglang", "WARNING") as said:
            self.ask("r", 300)
            self.answered(500, f"incompatible-layout: {why}")
        self.assertEqual(len(said.output), 1, said.output)
        self.assertRegex(
            said.output[0], "request r: its rows are not delivered: "
            f"incompatible-layout: {why}; give both .*, mmxctl trace "
            "..[0-9a-f]{8} says more$")
        self.encoders[0].width = WIDTH
        self.assertEqual(self.encoders[0].delivery.rooms.refused, {})
        self.good(("r", 300))

    def malformed(self, why):
        self.ranks.start(requests=[self.ask("r", 300)])
        self.failed(self.ranks.results(), None, why)
        return "\n".join(self.said())

    def test_metadata_that_lies_about_its_size(self):
        self.start()
        said = []
        for size in (300 * 2 * WIDTH + 1, 0xffffffff):
            lie = struct.pack("<3sBIHHIII", b"MXA", 1, 24, 65535, 0, 4, size, 0)
            with mock.patch.object(mmx.aux, "split",
                                   lambda says: mmx.aux.Split(lie, b"")):
                said.append(self.malformed(
                    f"its aux has a rest of {size} bytes; 300 rows of 64 "
                    "bytes came"))
            self.good((f"good-{size}", 300))
        # A log has one line a second of each kind.
        self.assertRegex(said[0], "^[^\n]* cannot be had: too-large: .* 300 "
                         "rows of 64 bytes came.* says more$")
        self.d.all_free()

    def test_rows_that_never_come(self):
        self.start()
        self.encoders[0].look.clear()
        self.bad("timeout: .*", 504)
        self.encoders[0].look.set()
        self.posted.join()
        self.good(("r", 300))

    def test_an_encoder_that_hangs(self):
        self.start()
        self.good(("r", 300))
        os.kill(self.e[0].pid, signal.SIGSTOP)
        self.addCleanup(lambda: os.kill(self.e[0].pid, signal.SIGCONT))
        self.bad("(timeout|peer-lost): .*", 504)
        os.kill(self.e[0].pid, signal.SIGCONT)
        self.posted.join()
        self.good(("s", 300))

    def test_an_encoder_that_was_upgraded(self):
        """The aux has a flag that this version does not know."""
        self.start()
        with mock.patch.object(encoder_side, "pack", lambda *_: mmx.aux.pack(
                modality="image", part=(0, 1), flags=4)):
            said = self.malformed("malformed: flags 0x4")
        self.assertRegex(said, "^[^\n]* cannot be had: malformed: flags 0x4 of "
                         "an aux, .* says more$")
        self.good(("s", 300))

    def test_a_room_of_another_user(self):
        self.start()
        request = self.ask("bad", 300)
        self.bad("timeout: .*", 504, {
            **request, "urls": [*request["urls"][:1], "mmx:" + "ab" * 16]})
        self.posted.join()
        self.good(("s", 300))

    def test_a_client_that_leaves_is_no_line(self):
        self.start()
        self.encoders[0].hold.clear()
        self.ranks.start(requests=[self.ask("r", 300)], abort="now")
        self.failed(self.ranks.results(), 400, "Aborted by user")
        self.assertEqual(self.said(), [])
        self.encoders[0].hold.set()
        self.posted.join()
