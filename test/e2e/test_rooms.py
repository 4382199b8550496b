"""A room's life between one daemon of each side: lengths, fields,
readers, aborts, reasons."""

from engine import LIMIT
from pair import Case

import mmx

# The fields of a model with deepstack: 8, of which 4 are wide.
WIDE = ("embedding:bf16:8192,fill_ids:i32:1,mrope_t:i32:1,mrope_h:i32:1,"
        "mrope_w:i32:1,deepstack_0:bf16:8192,deepstack_1:bf16:8192,"
        "deepstack_2:bf16:8192")


class Lengths(Case):
    """Through every carrier: ucx-matrix and rdma run it, too."""

    def test_10000_rows_stream_through_2048(self):
        e, d, enc, lm = self.at_work(
            encoded={"blocks": 100}, langd={"blocks": 16})
        lm.request(1, "enc0", mode="stream")
        enc.encode(1, 10000, aux="long")
        rows, bad, _ = lm.stream(1, 512)
        self.assertEqual((rows, bad, lm.aux(1)), (10000, [], "long"))
        self.over(enc, lm)
        self.assertGreaterEqual(d.ended(1)["resumes"], 4)


class Fields(Case):
    def test_all_fields_and_aux(self):
        # 300 rows of 65,552 bytes: about 20 MB.
        e, d, enc, lm = self.at_work(
            fields=WIDE, blocks=8, langd={"default_blocks": 1})
        self.assertEqual(lm.pool.fields["embedding"].row_bytes, 16384)
        for room, known in ((1, True), (2, False)):
            lm.request(room, "enc0")
            enc.encode(room, 300, known=known, step=64, aux="g" * 32768)
            self.assertEqual(lm.ready(room), 300)
            self.assertEqual(lm.aux(room), "g" * 32768)
            self.good(lm, room)
            self.over(enc, lm, room)

    # F25
    def test_two_layouts_are_refused(self):
        e, d, enc, lm = self.at_work(langd={"fields": "embedding:u8:32"})
        lm.request(1, "enc0")
        enc.announce(1, 100, 100)
        self.assertEqual(lm.failed(1), "incompatible-layout")
        lm.conn.wait(lambda: lm.rooms[1].reason.text, 10)
        said = lm.rooms[1].reason.text
        self.assertIn("u8:32", said)
        self.assertIn("u8:64", said)
        lm.release(1)
        enc.abort(1)
        enc.release(1)

    def test_views(self):
        import numpy as np
        enc, lm = self.engines(*self.pair(fields="embedding:bf16:16"))
        lm.request(1, "enc0")
        enc.opens(1, 200, 200)
        values = np.arange(200 * 16, dtype=np.float32).reshape(200, 16) % 256
        source = enc.rooms[1]
        source["embedding"][0:200] = mmx.bf16(values)
        with self.assertRaises(TypeError):
            source["embedding"][0:200] = values
        enc.commit(1, 0, 200, final=True)
        lm.ready(1)
        room = lm.rooms[1]
        view = room.view("embedding")
        self.assertEqual(view.dtype.metadata["mmx"], "bf16")
        self.assertTrue((mmx.from_bf16(view) == values).all())
        self.assertTrue((room.gather("embedding", 50, 60) == view[50:60])
                        .all())
        with self.assertRaises(ValueError):
            view[0, 0] = 1  # a pool is read-only on this side
        part = view[10:20, 3]
        del view
        with self.assertRaises(mmx.ViewInUse):
            room.release()
        del part
        self.over(enc, lm)


class Orders(Case):
    def test_encoder_by_address(self):
        e = self.world.encoded()
        d = self.world.langd([], control={"allow": ["tcp://127.0.0.1:*"]})
        enc, lm = self.engines(e, d)
        self.assertEqual(enc.conn.info["advertise"], e.address)
        self.deliver(enc, lm, 1, 300, encoder=e.address)


class Edges(Case):
    def test_more_rows_than_a_stream_can_hold_are_refused_at_once(self):
        enc, lm = self.engines(*self.pair(langd={"blocks": 16}))
        lm.request(1, "enc0", mode="stream")
        enc.announce(1, 4000, 4000)
        room = lm.rooms[1]
        lm.conn.wait(room.opened, LIMIT)
        most = room.stream_rows
        self.assertLess(0, most)
        for wait in (lambda: room.wait_rows(most + 1),
                     lambda: next(room.windows(most + 1))):
            with self.assertRaisesRegex(ValueError, f"at most {most}"):
                wait()
        enc.granted(1)
        enc.write(1, 0, 4000)
        enc.commit(1, 0, 4000, final=True)
        room.wait_rows(most, LIMIT)
        room.release(most)
        room.wait_rows(2 * most, LIMIT)
        with self.assertRaisesRegex(ValueError, f"at most {most}"):
            room.wait_rows(4000)
        for x in (enc, lm):
            x.release(1)

    def test_a_short_item_is_waited_for_whatever_was_asked(self):
        enc, lm = self.engines(*self.pair(langd={"blocks": 16}))
        lm.request(1, "enc0", mode="stream")
        enc.encode(1, 300)
        lm.conn.wait(lambda: lm.rooms[1].total, LIMIT)
        lm.rooms[1].wait_rows(10**6, LIMIT)
        self.good(lm, 1, 0, 300)
        self.over(enc, lm)

    def test_a_refused_argument_takes_nothing(self):
        e, d = self.pair()
        enc = self.world.engine(e, cells=1)
        lm = self.world.engine(d, cells=1)
        for room, deadline in ((2**64, 0), (-1, 0), (1, -1), (1, 1e9)):
            with self.assertRaises(ValueError):
                enc.announce(room, 10, 10, deadline=deadline)
            with self.assertRaises(ValueError):
                lm.request(room, "enc0", deadline=deadline)
            with self.assertRaises(ValueError):
                lm.attach(room, "enc0", deadline=deadline)
        self.deliver(enc, lm, 1, 10)


class Ids(Case):
    # F29
    def test_an_id_that_is_open(self):
        e, d, enc, lm = self.at_work()
        others = self.world.engine(e), self.world.engine(d)
        lm.request(1, "enc0")
        enc.opens(1, 300, 300)
        lm.conn.wait(lm.rooms[1].opened, LIMIT)
        others[0].announce(1, 200, 200)
        others[1].request(1, "enc0")
        for engine in others:
            self.refusal("duplicate-room", engine.conn.wait,
                         engine.rooms[1].opened, LIMIT)
            engine.release(1)
        enc.finish(1, 0, 300)
        self.comes(enc, lm, 1, 300)


class Readers(Case):
    def test_a_late_reader_is_shown_no_released_rows(self):
        e, d = self.pair(encoded={"blocks": 64}, langd={"blocks": 16})
        enc = self.world.engine(e)
        owner, late = (self.world.engine(d, name, session="s")
                       for name in ("owner", "late"))
        owner.request(1, "enc0", mode="stream")
        enc.opens(1, 4000, 4000)
        size = owner.pool.block_rows
        enc.write(1, 0, 6 * size)
        enc.commit(1, 0, 6 * size)
        owner.rows(1, 6 * size)
        owner.release(1, 3 * size)
        late.attach(1, "enc0")
        room = late.rooms[1]
        late.conn.wait(lambda: room.readable == 6 * size, LIMIT)
        for look in (room.gather, room.view):
            for first, end in ((0, 6 * size), (0, size), (size, 4 * size)):
                with self.assertRaises(mmx.errors.Gone):
                    look("embedding", first, end)
        with self.assertRaises(IndexError):
            list(room.pieces(0, 6 * size))
        with self.assertRaisesRegex(mmx.errors.Gone, "rows below"):
            next(room.windows(size, LIMIT))
        self.assertEqual(room.runs[0].first, 3 * size)
        self.good(late, 1, 3 * size, 6 * size)
        for x in (enc, owner, late):
            x.release(1)


class Reasons(Case):
    def test_the_text_of_an_abort_names_no_path_of_its_host(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0")
        enc.opens(1, 100, 100)
        lm.conn.wait(lambda: lm.rooms[1].total == 100, 10)
        with self.assertRaisesRegex(TimeoutError, enc.conn.path) as got:
            enc.conn.wait(lambda: False, 0.01)
        enc.rooms[1].abort("timeout", str(got.exception))
        self.assertEqual(lm.failed(1), "timeout")
        lm.conn.wait(lambda: lm.rooms[1].reason.text, 10)
        self.assertNotIn(enc.conn.path, lm.rooms[1].reason.text)
        self.assertIn("not within 0.01 s", lm.rooms[1].reason.text)
        for engine in (enc, lm):
            engine.release(1)

    def test_unknown_encoder(self):
        _, d = self.pair()
        lm = self.world.engine(d)
        lm.request(1, "nobody")
        self.assertEqual(lm.failed(1), "not-ready")
        self.assertIn("no peer of that name", lm.rooms[1].reason.text)
        lm.release(1)


class Aborts(Case):
    def begin(self, enc, lm, room, state):
        """Leads a room into a state, as both sides see it."""
        if state == "requested":
            lm.request(room, "enc0")
            return
        enc.opens(room, 2000, 2000)
        lm.request(room, "enc0", mode="stream")
        lm.until(room, "WAITING")
        if state == "transferring":
            enc.write(room, 0, 640)
            enc.commit(room, 0, 640)
            lm.rows(room, 640)

    # RULES 4.9; F32
    def test_by_the_language_engine(self):
        e, d, enc, lm = self.at_work()
        for room, state in enumerate(
                ("requested", "waiting", "transferring"), 1):
            for how in ("abort", "release"):
                with self.subTest(state=state, how=how):
                    self.begin(enc, lm, room, state)
                    if how == "abort":
                        lm.abort(room)
                        self.assertEqual(lm.failed(room), "aborted")
                    lm.release(room)
                    if state != "requested":
                        self.assertEqual(enc.failed(room), "aborted")
                        enc.release(room)
                    self.world.all_free()
