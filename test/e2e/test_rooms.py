"""A room's life between one daemon of each side: lengths, passes, modes,
orders, fields, readers, aborts, reasons."""

from engine import LIMIT
from pair import Case, eventually

import mmx

# The fields of the system that mmx grew from, 4 fields of which 3 are wide.
WIDE = ("embedding:bf16:8192,fill_ids:i32:1,mrope_t:i32:1,mrope_h:i32:1,"
        "mrope_w:i32:1,deepstack_0:bf16:8192,deepstack_1:bf16:8192,"
        "deepstack_2:bf16:8192")


class Lengths(Case):
    # RULES 4.1
    def test_500_rows_take_one_pass(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0")
        enc.announce(1, 500, 500, aux="500")
        enc.granted(1)
        lm.until(1, "WAITING")
        enc.write(1, 0, 500)
        enc.commit(1, 0, 500, final=True)
        self.assertEqual(lm.ready(1), 500)
        self.good(lm, 1)
        self.assertEqual(lm.state(1), ["SUCCESS", 500, ""])
        self.assertEqual(enc.done(1), [1, 0])
        for e in (enc, lm):
            e.release(1)
        row = self.world.daemons[1].ended(1)
        self.assertEqual((row["resumes"], row["total"]), (0, 500))

    # RULES 4.3
    def test_2000_rows_announced_are_widened_before_data(self):
        e, d = self.pair(blocks=64)
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0")
        enc.announce(1, 2000, 2000)
        enc.granted(1)
        lm.until(1, "WAITING")
        lm.conn.wait(lambda: lm.rooms[1].total == 2000, 10)
        self.assertEqual(lm.state(1)[:2], ["WAITING", 0])
        enc.finish(1, 0, 2000, step=300)
        self.assertEqual(lm.ready(1), 2000)
        self.good(lm, 1)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)
        row = d.ended(1)
        self.assertGreaterEqual(row["resumed_us"], row["length_us"])
        # Not asked for: rows of the first grant may land meanwhile.
        stats = d.stats()
        self.assertEqual((stats["widened"], stats["wants"]), (1, 0))

    # RULES 4.5
    def test_2000_rows_known_at_commit_take_one_resume(self):
        # Another room holds what a wider grant would need, so that the end
        # of the first pass can be seen.
        e, d = self.pair(langd={"blocks": 16})
        enc, lm = self.engines(e, d)
        lm.request(9, "enc0", rows=700)
        enc.encode(9, 700)
        lm.ready(9)
        lm.request(1, "enc0")
        enc.announce(1, 2000)
        enc.granted(1)
        lm.until(1, "WAITING")
        enc.write(1, 0, 2000)
        enc.commit(1, 0, 2000, final=True)
        lm.until(1, "TRANSFERRING")
        eventually(lambda: [r for r in d.show("rooms") if r["room"] == 1
                            and r["landed"] == 1024], "the first pass")
        enc.done(9)
        for x in (enc, lm):
            x.release(9)
        self.assertEqual(lm.ready(1), 2000)
        self.good(lm, 1)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)
        row = d.ended(1)
        self.assertEqual(row["resumes"], 1)
        self.assertGreater(row["resumed_us"], row["init_us"])

    def test_10000_rows_stream_through_2048(self):
        e, d = self.pair(encoded={"blocks": 100}, langd={"blocks": 16})
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0", mode="stream")
        enc.encode(1, 10000, aux="long")
        rows, bad, _ = lm.stream(1, 512)
        self.assertEqual((rows, bad, lm.aux(1)), (10000, [], "long"))
        self.assertEqual(enc.done(1), [1, 0])
        for x in (enc, lm):
            x.release(1)
        self.assertGreaterEqual(d.ended(1)["resumes"], 4)

    # RULES 5.9
    def test_10000_rows_whole_are_too_large(self):
        e, d = self.pair(encoded={"blocks": 100}, langd={"blocks": 16})
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0")
        enc.announce(1, 10000, 10000)
        self.assertEqual(lm.failed(1), "too-large")
        lm.conn.wait(lambda: lm.rooms[1].reason.a, 10)
        reason = lm.rooms[1].reason
        self.assertEqual((reason.a, reason.b), (10000, 2048))
        self.assertEqual(reason.advice, "give-up")
        self.assertEqual(enc.failed(1), "too-large")
        for x in (enc, lm):
            x.release(1)

    # RULES 4.8
    def test_zero_rows(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0")
        enc.announce(1, 0, 0, aux="nothing")
        enc.granted(1)
        enc.commit(1, 0, 0, final=True)
        self.assertEqual((lm.ready(1), lm.aux(1)), (0, "nothing"))
        self.assertEqual(lm.state(1), ["SUCCESS", 0, ""])
        self.assertEqual(enc.done(1), [1, 0])
        for x in (enc, lm):
            x.release(1)

    def test_lengths_around_blocks_and_units(self):
        e, d = self.pair(block_rows=16, langd={"default_blocks": 2})
        enc, lm = self.engines(e, d)
        for room, rows in enumerate(
                (1, 15, 16, 17, 31, 32, 33, 48, 511, 512, 513, 1024), 1):
            with self.subTest(rows=rows):
                self.deliver(enc, lm, room, rows)

    # RULES 4.1
    def test_expected_rows_are_granted_at_once(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0", rows=2000)
        enc.encode(1, 2000, known=False)
        self.assertEqual(lm.ready(1), 2000)
        self.good(lm, 1)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)
        self.assertEqual(d.ended(1)["resumes"], 0)


class Fields(Case):
    def test_all_fields_and_aux(self):
        # 300 rows of 65,552 bytes: about 20 MB.
        e, d = self.pair(fields=WIDE, blocks=8,
                         langd={"default_blocks": 1})
        enc, lm = self.engines(e, d)
        self.assertEqual(lm.pool.fields["embedding"].row_bytes, 16384)
        for room, known in ((1, True), (2, False)):
            lm.request(room, "enc0")
            enc.encode(room, 300, known=known, step=64, aux="g" * 32768)
            self.assertEqual(lm.ready(room), 300)
            self.assertEqual(lm.aux(room), "g" * 32768)
            self.good(lm, room)
            enc.done(room)
            for x in (enc, lm):
                x.release(room)

    def test_layout_by_the_first_engine(self):
        e, d = self.pair(fields="engine")
        layout = "embedding:bf16:32,mask:bool:3,ids:i64:1"
        enc = self.world.engine(e, layout=layout)
        lm = self.world.engine(d, layout=layout)
        self.deliver(enc, lm, 1, 300)
        said = self.refusal("incompatible-layout", self.world.engine, d,
                            layout="embedding:bf16:64")
        self.assertIn("bf16:32", said.text)
        self.assertIn("bf16:64", said.text)

    def test_two_layouts_are_refused(self):
        e, d = self.pair(langd={"fields": "embedding:u8:32"})
        enc, lm = self.engines(e, d)
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
        enc.announce(1, 200, 200)
        enc.granted(1)
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
            view[0, 0] = 1  # the pool is read-only here
        part = view[10:20, 3]
        del view
        with self.assertRaises(mmx.ViewInUse):
            room.release()
        del part
        lm.release(1)
        enc.done(1)
        enc.release(1)


class Orders(Case):
    # RULES 4.2
    def test_announce_before_and_after_request(self):
        enc, lm = self.engines(*self.pair())
        enc.encode(1, 300, aux="a")
        self.assertEqual(enc.state(1)[0], "BOOTSTRAPPING")
        lm.request(1, "enc0")
        self.assertEqual(lm.ready(1), 300)
        self.good(lm, 1)
        lm.request(2, "enc0")
        self.assertEqual(lm.state(2)[0], "BOOTSTRAPPING")
        enc.encode(2, 300, aux="b")
        self.assertEqual(lm.ready(2), 300)
        self.good(lm, 2)
        for room in (1, 2):
            enc.done(room)
            for x in (enc, lm):
                x.release(room)

    # RULES 4.4
    def test_ranges_in_any_order(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0", mode="stream")
        enc.announce(1, 1000, 1000)
        enc.granted(1)
        enc.write(1, 0, 1000)
        enc.commit(1, 500, 700)
        enc.commit(1, 700, 1000)
        enc.commit(1, 128, 500)
        self.assertEqual(lm.state(1)[1], 0)
        enc.commit(1, 0, 100)
        enc.commit(1, 100, 128, final=True, total=1000)
        self.assertEqual(lm.ready(1), 1000)
        self.good(lm, 1)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

    # RULES 4.4
    def test_commits_that_break_a_promise_change_nothing(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0")
        enc.announce(1, 300, 200)
        enc.granted(1)
        enc.write(1, 0, 200)
        self.refusal("malformed", enc.commit, 1, 0, 201)
        self.refusal("malformed", enc.commit, 1, 250, 400)
        self.refusal("malformed", enc.commit, 1, 0, 100, True, 150)
        enc.commit(1, 0, 200, final=True)
        self.assertEqual(lm.ready(1), 200)
        self.good(lm, 1)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

    def test_prefix_in_stream_mode(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0", mode="stream")
        enc.announce(1, 600, 600)
        enc.granted(1)
        enc.write(1, 0, 600)
        enc.commit(1, 0, 256)
        self.assertGreaterEqual(lm.rows(1, 256), 256)
        self.good(lm, 1, 0, 256)
        self.refusal("malformed", lm.release, 1, 400)
        lm.release(1, 200)
        with self.assertRaises(mmx.errors.Gone):
            lm.rooms[1].gather("embedding", 199, 256)
        self.good(lm, 1, 200, 256)
        enc.commit(1, 256, 600, final=True)
        self.assertEqual(lm.ready(1), 600)
        self.good(lm, 1, 200, 600)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

    # RULES 7.5
    def test_null_encoder(self):
        _, d = self.pair()
        lm = self.world.engine(d)
        lm.request(1, mmx.NULL)
        self.assertEqual(lm.ready(1), 0)
        self.assertEqual(lm.state(1), ["SUCCESS", 0, ""])
        lm.release(1)

    def test_encoder_by_address(self):
        e = self.world.encoded()
        d = self.world.langd([], control={"allow": ["tcp://127.0.0.1:*"]})
        enc, lm = self.engines(e, d)
        self.assertEqual(enc.conn.info["advertise"], e.address)
        self.deliver(enc, lm, 1, 300, encoder=e.address)

    # RULES 7.5
    def test_langd_before_encoded(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e], timeouts={"unreachable": "60s"})
        lm = self.world.engine(d)
        lm.request(1, "enc0")
        e.start()
        enc = self.world.engine(e)
        enc.encode(1, 300)
        self.assertEqual(lm.ready(1), 300)
        self.good(lm, 1)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

    def test_many_rooms_in_many_cells(self):
        enc, lm = self.engines(*self.pair(blocks=32))
        for room in range(1, 301):
            lm.request(room, "enc0", rows=10)
            enc.announce(room, 10, 10)
            enc.granted(room)
            enc.finish(room, 0, 10)
            lm.ready(room)
            if room % 50 == 0:
                self.good(lm, room)
            lm.release(room)
            enc.done(room)
            enc.release(room)


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
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

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


class Readers(Case):
    def readers(self, d):
        owner = self.world.engine(d, "owner", session="s")
        ranks = [self.world.engine(d, f"rank{i}", session="s")
                 for i in (0, 1)]
        return owner, ranks

    # RULES 7.1
    def test_attach_before_and_after(self):
        e, d = self.pair(blocks=8)
        enc = self.world.engine(e)
        owner, (early, late) = self.readers(d)
        early.attach(1, "enc0")
        owner.request(1, "enc0", readers=2)
        enc.encode(1, 600, aux="x")
        owner.ready(1)
        late.attach(1, "enc0")
        for x in (owner, early, late):
            self.assertEqual(x.ready(1), 600)
            self.assertEqual(x.aux(1), "x")
            self.good(x, 1)
        enc.done(1)
        enc.release(1)
        owner.release(1)
        early.release(1)
        self.assertEqual(d.free(), (3, 8))
        self.good(late, 1)
        late.release(1)
        d.all_free()

    def test_owner_releases_before_the_reader_comes(self):
        e, d = self.pair(blocks=8)
        enc = self.world.engine(e)
        owner, (one, two) = self.readers(d)
        owner.request(1, "enc0", readers=2)
        enc.encode(1, 100)
        owner.ready(1)
        owner.release(1)
        for x in (one, two):
            x.attach(1, "enc0")
            self.assertEqual(x.ready(1), 100)
            self.good(x, 1)
            x.release(1)
        enc.done(1)
        enc.release(1)

    def test_stream_gives_back_what_all_have_released(self):
        e, d = self.pair(encoded={"blocks": 64}, langd={"blocks": 16})
        enc = self.world.engine(e)
        owner, (one, two) = self.readers(d)
        for x in (one, two):
            x.attach(1, "enc0")
        owner.request(1, "enc0", mode="stream", readers=2)
        enc.encode(1, 4000)
        three = (owner, one, two)
        owner.conn.wait(owner.rooms[1].opened, 10)
        step, at = owner.rooms[1].stream_rows // 2, 0
        while at < 4000:
            end = min(at + step, 4000)
            for x in three:
                x.rows(1, end)
                self.good(x, 1, at, end)
                if end < 4000:
                    x.release(1, end)
            at = end
        enc.done(1)
        for x in (enc, *three):
            x.release(1)

    def test_a_late_reader_is_shown_no_released_rows(self):
        e, d = self.pair(encoded={"blocks": 64}, langd={"blocks": 16})
        enc = self.world.engine(e)
        owner, (late, _) = self.readers(d)
        owner.request(1, "enc0", mode="stream")
        enc.announce(1, 4000, 4000)
        enc.granted(1)
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

    # RULES 4.4
    def test_writer_is_another_connection(self):
        e, d = self.pair()
        scheduler = self.world.engine(e, "sched", session="v")
        worker = self.world.engine(e, "work", session="v")
        lm = self.world.engine(d)
        worker.attach(1, rights=mmx.WRITE)
        scheduler.announce(1, 300, 300)
        lm.request(1, "enc0")
        worker.granted(1)
        worker.finish(1, 0, 300, step=100)
        self.assertEqual(lm.ready(1), 300)
        self.good(lm, 1)
        scheduler.done(1)
        for x in (worker, scheduler, lm):
            x.release(1)

    def test_a_watcher_may_not_commit(self):
        e, _ = self.pair()
        owner = self.world.engine(e, "o", session="v")
        other = self.world.engine(e, "w", session="v")
        owner.announce(1, 100, 100)
        owner.granted(1)
        other.attach(1, rights=mmx.WATCH)
        self.refusal("not-owner", other.commit, 1, 0, 100)
        other.release(1)
        owner.release(1)

    # RULES 7.1
    def test_sessions_do_not_see_each_other(self):
        _, d = self.pair()
        mine = self.world.engine(d, "a", session="a")
        theirs = self.world.engine(d, "b", session="b")
        mine.request(1, "enc0")
        mine.conn.wait(mine.rooms[1].opened, 10)
        theirs.attach(1, "enc0")
        self.assertEqual(theirs.failed(1), "not-owner")
        theirs.release(1)
        mine.release(1)


class Reasons(Case):
    # RULES 1.6
    def test_duplicate_room(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0")
        other = self.world.engine(d)
        other.request(1, "enc0")
        self.assertEqual(other.failed(1), "duplicate-room")
        other.release(1)
        enc.encode(1, 300)
        self.assertEqual(lm.ready(1), 300)
        self.good(lm, 1)
        enc.announce(2, 10)
        enc.granted(2)
        second = self.world.engine(e)
        second.announce(2, 10)
        self.assertEqual(second.failed(2), "duplicate-room")
        second.release(2)
        enc.done(1)
        lm.release(1)
        for room in (1, 2):
            enc.release(room)

    def test_item_mismatch(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0", key=b"a" * 32)
        enc.announce(1, 100, 100, key=b"b" * 32)
        self.assertEqual(lm.failed(1), "item-mismatch")
        lm.release(1)
        lm.request(2, "enc0", storage="padded")
        enc.announce(2, 100, 100, storage="compact")
        self.assertEqual(lm.failed(2), "item-mismatch")
        lm.release(2)
        for room in (1, 2):
            enc.abort(room)
            enc.release(room)

    def test_same_key_on_both_sides(self):
        enc, lm = self.engines(*self.pair())
        key = bytes(range(32))
        lm.request(1, "enc0", key=key, storage="prompt")
        enc.encode(1, 100, key=key, storage="prompt")
        self.assertEqual(lm.ready(1), 100)
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

    # RULES 4.10
    def test_source_is_gone(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 100)
        lm.request(1, "enc0")
        self.assertEqual(lm.failed(1), "unknown-room")
        lm.conn.wait(lambda: lm.rooms[1].reason.text, 10)
        self.assertEqual(lm.rooms[1].reason.advice, "encode-locally")
        lm.release(1)

    def test_source_pool_is_too_small(self):
        e, _ = self.pair(encoded={"blocks": 8})
        enc = self.world.engine(e)
        enc.announce(1, 1025)
        said = self.refusal("too-large", enc.granted, 1)
        self.assertEqual((said.a, said.b), (1025, 1024))
        enc.release(1)

    # RULES 4.11
    def test_destinations_disagree(self):
        enc, lm = self.engines(*self.pair())
        enc.announce(1, 100, 100, destinations=2)
        enc.granted(1)
        lm.request(1, "enc0", destinations=3)
        self.assertEqual(lm.failed(1), "destinations-disagree")
        lm.release(1)
        enc.abort(1)
        enc.release(1)

    def test_the_text_of_an_abort_names_no_path_of_its_host(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0")
        enc.announce(1, 100, 100)
        enc.granted(1)
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

    def test_decline(self):
        enc, lm = self.engines(*self.pair())
        enc.encode(1, 100)
        lm.conn.wait(lm.conn.decline(1, "enc0"), 10)
        self.assertEqual(enc.failed(1), "declined")
        enc.release(1)

    def test_unknown_encoder(self):
        _, d = self.pair()
        lm = self.world.engine(d)
        lm.request(1, "nobody")
        self.assertEqual(lm.failed(1), "not-ready")
        self.assertIn("no peer of that name", lm.rooms[1].reason.text)
        lm.release(1)

    # RULES 1.6
    def test_room_id_again_is_a_new_room(self):
        enc, lm = self.engines(*self.pair())
        # Announced first: a request of a room that was here and is gone is
        # told so at once.
        for rows in (100, 1500, 300):
            enc.encode(7, rows)
            lm.request(7, "enc0")
            self.assertEqual(lm.ready(7), rows)
            self.good(lm, 7)
            enc.done(7)
            lm.release(7)
            enc.release(7)


class Aborts(Case):
    def begin(self, enc, lm, room, state):
        """Leads a room into a state, as far as both sides see it."""
        if state == "requested":
            lm.request(room, "enc0")
            return
        enc.announce(room, 2000, 2000)
        enc.granted(room)
        if state == "announced":
            return
        lm.request(room, "enc0", mode="stream")
        lm.until(room, "WAITING")
        if state == "transferring":
            enc.write(room, 0, 640)
            enc.commit(room, 0, 640)
            lm.rows(room, 640)

    def test_by_the_encode_engine(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        for room, state in enumerate(
                ("announced", "waiting", "transferring"), 1):
            with self.subTest(state=state):
                self.begin(enc, lm, room, state)
                enc.abort(room)
                self.assertEqual(enc.failed(room), "aborted")
                enc.release(room)
                if state == "announced":
                    e.all_free()
                    continue
                self.assertEqual(lm.failed(room), "aborted")
                if state == "transferring":  # still ours to read
                    self.good(lm, room, 0, 640)
                lm.release(room)
                self.world.all_free()

    # RULES 4.9
    def test_by_the_language_engine(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
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

    # RULES 4.9
    def test_release_withdraws_an_announce(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        self.begin(enc, lm, 1, "transferring")
        enc.release(1)
        self.assertEqual(lm.failed(1), "aborted")
        lm.release(1)

    # RULES 4.7
    def test_success_is_final(self):
        enc, lm = self.engines(*self.pair())
        lm.request(1, "enc0")
        enc.encode(1, 100)
        lm.ready(1)
        enc.done(1)
        lm.abort(1)
        enc.abort(1)
        self.assertEqual(lm.state(1), ["SUCCESS", 100, ""])
        self.assertEqual(enc.state(1)[0], "SUCCESS")
        self.good(lm, 1)
        for x in (enc, lm):
            x.release(1)


class Deadlines(Case):
    # RULES 8.3
    def test_bootstrap_at_both_sides(self):
        e, d = self.pair(timeouts={"bootstrap": "150ms", "drain": "1s"})
        enc, lm = self.engines(e, d)
        enc.announce(1, 100, 100)
        lm.request(2, "enc0")
        self.assertEqual(enc.failed(1), "timeout")
        self.assertEqual(lm.failed(2), "timeout")
        self.assertEqual(lm.rooms[2].reason.advice, "retry")
        enc.release(1)
        lm.release(2)

    def test_of_the_announce(self):
        e, _ = self.pair()
        enc = self.world.engine(e)
        enc.announce(1, 100, 100, deadline=0.1)
        self.assertEqual(enc.failed(1), "timeout")
        enc.release(1)

    # RULES 8.3
    def test_total_of_a_request(self):
        enc, lm = self.engines(*self.pair())
        enc.announce(1, 300, 300)
        enc.granted(1)
        enc.write(1, 0, 300)
        enc.commit(1, 0, 200)
        lm.request(1, "enc0", deadline=0.2)
        self.assertEqual(lm.failed(1), "timeout")
        self.assertIn(enc.failed(1), ("timeout", "aborted"))
        for x in (enc, lm):
            x.release(1)

    def test_a_reader_past_the_consumer_deadline_keeps_its_rows(self):
        e, d = self.pair(langd={"timeouts": {"consumer": "100ms"}})
        enc, lm = self.engines(e, d)
        lm.request(1, "enc0")
        enc.encode(1, 100)
        lm.ready(1)
        eventually(lambda: d.stats()["consumer_overdue"] == 1, "overdue")
        self.good(lm, 1)
        self.assertLess(d.free()[0], d.free()[1])
        enc.done(1)
        for x in (enc, lm):
            x.release(1)

    def test_of_an_attach(self):
        _, d = self.pair()
        lm = self.world.engine(d)
        lm.attach(1, "enc0", deadline=0.1)
        self.assertIn(lm.failed(1), ("timeout", "unknown-room"))
        lm.release(1)
