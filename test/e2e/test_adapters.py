"""The vLLM adapter against real daemons: one picture in two requests,
preemption, prefix hits, the producer's own cache, failures."""

import itertools
import os
import pickle
import signal
import struct
import sys
import time
import types
from unittest import mock

import fake_vllm
import numpy as np
from engine import LIMIT
from fake_vllm import WIDTH, Request, VllmCase, room_of, tensor
from pair import eventually

import mmx
from mmx.adapters import _vllm_engine


class Vllm(VllmCase):
    def test_a_request_with_three_pictures_on_four_ranks(self):
        self.start(ranks=4)
        r = self.hand_over("r1", ("cat", 300), ("dog", 129), ("cat", 300))
        self.assertEqual(self.producer.encoded, ["cat", "dog"])
        self.assertEqual(set(r.ec_transfer_params), {"cat", "dog"})
        self.consumer.take(r)
        self.assertEqual(self.consumer.encoded, [])
        self.check(self.consumer, r)
        self.d.all_free()  # no rank reads any more, though the request goes on
        self.consumer.finish(r)
        self.assertEqual(self.d.stats()["rooms_succeeded"], 2)

    def test_metadata_larger_than_an_aux(self):
        """Metadata goes in rows that vLLM does not see; any engine reads
        it."""
        self.start(blocks=512, langd={"blocks": 512})
        lm = self.world.engine(self.d).conn
        for frames in (10, 4000, 12800, 131072):  # the last: 1 MiB
            name = f"video-{frames}"
            r = self.hand_over(f"r{frames}", (name, 300), ("cat", 20))
            self.assertEqual(r.ec_transfer_params[name]["rows"], 300)
            self.fetch(r)
            # finds the kept rows
            again = self.hand_over(f"a{frames}", (name, 300))
            said = again.ec_transfer_params[name]
            room = lm.request(
                mmx.Reference.read(said["room"]), lm.pool(), said["encoder"],
                key=bytes.fromhex(said["key"])).wait_ready(LIMIT)
            self.assertEqual(room.total - mmx.aux.rest_rows(room), 300)
            self.assertEqual(mmx.aux.unpack(mmx.aux.whole(room)), {
                "modality": "video", "rows": [300], "grid": [(1, 2, 600)],
                "merge": 2, "times": [i / 2 for i in range(frames)]})
            np.testing.assert_array_equal(
                room.gather("embedding", 0, 300), tensor(name, 300))
            room.release()
        self.assertEqual(self.consumer.encoded, [])
        self.d.all_free()

    def test_metadata_goes_to_the_workers_once(self):
        """Also if the encoder's turn comes some steps later. A step without
        tokens, which may not reach the workers, carries none."""
        self.start(blocks=512, langd={"blocks": 512})
        r, engine = Request("r", ("video-131072", 300)), self.producer
        engine.admit(r)
        sizes = []
        for tokens in ({}, {"r": 1}, {"r": 1}, {"r": 1}):
            meta = pickle.dumps(engine.scheduler.build_connector_meta(
                types.SimpleNamespace(free_encoder_mm_hashes=[],
                                      num_scheduled_tokens=tokens)))
            sizes.append(len(meta))
            for rank, cache in zip(engine.ranks, engine.caches) \
                    if tokens else ():
                engine.run(rank, cache, pickle.loads(meta), [])
        self.assertGreater(min(sizes[:2]), 1 << 20)
        self.assertLess(max(sizes[2:]), 1000)
        engine.step(r)
        said = engine.finish(r)["video-131072"]
        lm = self.world.engine(self.d).conn
        room = lm.request(mmx.Reference.read(said["room"]), lm.pool(),
                          said["encoder"],
                          key=bytes.fromhex(said["key"])).wait_ready(LIMIT)
        self.assertEqual(mmx.aux.unpack(mmx.aux.whole(room))["times"],
                         [i / 2 for i in range(131072)])
        room.release()

    def test_metadata_that_lies_about_its_size(self):
        """The item is encoded at the consumer; the next request is not
        affected."""
        self.start()
        for size in (300 * 2 * WIDTH + 1, 0xffffffff):
            lie = struct.pack("<3sBIHHIII", b"MXA", 1, 24, 65535, 0, 4, size, 0)
            with mock.patch.object(mmx.aux, "split",
                                   lambda says: mmx.aux.Split(lie, b"")):
                r = self.hand_over(f"r{size}", (f"lie {size}", 300))
            with self.assertLogs("vllm.mmx") as said:
                self.consumer.serve(r)
            digits = room_of(r, f"lie {size}") & 0xffffffff
            self.assertRegex(
                said.output[-1], f"the rows of lie {size} cannot be had: "
                f"too-large: .* a rest of {size} bytes; 300 rows of 64 bytes "
                f"came.*; mmxctl trace ..{digits:08x}, here and at "
                f"{self.e.address}, says more")
            _vllm_engine.warn.last.clear()
            self.assertEqual(self.consumer.encoded[-1:], [f"lie {size}"])
            said = self.consumer.scheduler.get_ec_connector_stats().data
            self.assertEqual((said["items_given_up"],
                              said["items_encoded_here"]), (1, 1))
            self.fetch(self.hand_over(f"g{size}", (f"good {size}", 300)))
        self.d.all_free()

    def test_the_aux_of_another_make(self):
        """An aux that is not of our format is ignored: vLLM computes what it
        would have said."""
        self.start()
        with mock.patch.object(mmx.aux, "split",
                               lambda says: mmx.aux.Split(b"grid", b"")):
            r = self.hand_over("r", ("cat", 300))
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])
        self.d.all_free()

    def test_the_clients_trace_context_goes_with_the_room(self):
        self.start()
        for name, context, kept in (
                ("cat", "00-4bf92f3577b34da6a3ce929d0e0e4736-"
                 "00f067aa0ba902b7-01", True), ("dog", "nonsense", False)):
            r = Request(name, (name, 100))
            r.trace_headers = {"traceparent": context, "tracestate": "a=b"}
            self.producer.take(r)
            r.ec_transfer_params = self.producer.finish(r)
            self.consumer.serve(r)
            for daemon in (self.e, self.d):
                self.assertEqual(
                    daemon.ended(room_of(r, name)).get("traceparent"),
                    context if kept else None)

    def test_one_picture_in_two_requests_is_moved_once(self):
        self.start()
        a, b = Request("a", ("cat", 300)), Request("b", ("cat", 300))
        self.producer.admit(a)
        self.producer.admit(b)  # before the first is written
        self.producer.step(a)
        self.producer.step(b)
        self.assertEqual(self.producer.encoded, ["cat"])
        for r in (a, b):
            r.ec_transfer_params = self.producer.finish(r)
        self.assertNotEqual(a.ec_transfer_params["cat"]["room"],
                            b.ec_transfer_params["cat"]["room"])
        self.consumer.ready(a)
        self.consumer.ready(b)
        for r in (a, b):
            self.consumer.admit(r)
        self.consumer.step(a)
        self.consumer.step(b)
        self.check(self.consumer, b)
        self.assertEqual(self.opened(), 1)
        row = self.e.ended(room_of(b, "cat"))
        self.assertEqual(row["reason"], "declined")
        for r in (a, b):
            self.consumer.finish(r)

    def test_preempted_and_evicted_is_fetched_again(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300))
        for _ in range(3):
            self.consumer.take(r)
            self.check(self.consumer, r)
            self.consumer.step(Request("other"), evict=["cat"])
        self.assertEqual((self.opened(), self.consumer.encoded), (3, []))
        # The fourth time the encoder's daemon has no rows either: the consumer
        # encodes the picture.
        self.reclaim()
        self.consumer.serve(r)
        self.assertEqual(self.consumer.encoded, ["cat"])

    # RULES 7.4
    def test_a_prefix_hit_is_declined(self):
        self.start()
        self.connect()
        opened = self.opened()
        r = self.hand_over("r1", ("cat", 300), ("dog", 200))
        past_the_cat = r.mm_features[1].mm_position.offset
        self.consumer.admit(r, past_the_cat)
        row = self.e.ended(room_of(r, "cat"))
        self.assertEqual((row["reason"], row["served"]), ("declined", 0))
        self.consumer.step(r, computed=past_the_cat)
        self.assertNotIn("cat", self.consumer.caches[0])
        self.assertIn("dog", self.consumer.caches[1])
        self.assertEqual(self.opened(), opened + 1)
        self.consumer.finish(r)

    def test_a_reference_is_declined_when_its_request_ends(self):
        """But not at a prefix hit: if that is lost vLLM needs the rows, and
        there is no picture to encode."""
        self.start()
        self.connect()
        r = self.hand_over("r1", ("cat", 300), ("dog", 200), reference=True)
        past_the_cat = r.mm_features[1].mm_position.offset
        self.consumer.admit(r, past_the_cat)
        self.consumer.step(r, computed=past_the_cat)
        self.fetch(r)  # the request was preempted, and its prefix evicted
        again = self.hand_over("r2", ("cat", 300), reference=True)
        self.consumer.admit(again, 10**6)
        self.consumer.finish(again)
        row = self.e.ended(room_of(again, "cat"))
        self.assertEqual((row["reason"], row["served"]), ("declined", 0))

    def test_a_second_reference_is_kept_beside_the_rows(self):
        """vLLM may evict the rows while its request runs."""
        self.start()
        self.connect()
        two = [self.hand_over(f"r{n}", ("cat", 300), reference=True)
               for n in range(2)]
        for r in two:
            self.consumer.ready(r)
        self.consumer.admit(two[0])
        self.consumer.step(two[0])
        self.consumer.finish(two[0])
        counts = self.consumer.scheduler.get_ec_connector_stats
        self.assertNotIn("items_declined", counts().data)
        self.consumer.finish(two[1])
        self.assertEqual(counts().data["items_declined"], 1)

    # RULES 7.4
    def test_a_request_that_ends_in_the_queue_is_declined(self):
        self.start()
        self.connect()
        r = self.hand_over("r1", ("cat", 300))
        r.status = "FINISHED_ABORTED"
        self.consumer.finish(r)
        row = self.e.ended(room_of(r, "cat"))
        self.assertEqual((row["reason"], row["served"]), ("declined", 0))
        # A room that another request waits for is not declined: a router may
        # repeat an offer.
        r, again = self.hand_over("r2", ("dog", 300)), Request(
            "r3", ("dog", 300))
        again.ec_transfer_params = r.ec_transfer_params
        self.consumer.ready(again)
        self.consumer.finish(r)
        own = self.hand_over("r4", ("dog", 300))
        self.consumer.finish(own)
        self.fetch(again)
        said = self.consumer.scheduler.get_ec_connector_stats().data
        self.assertEqual(said["items_declined"], 2)
        self.assertEqual(self.e.ended(room_of(own, "dog"))["reason"],
                         "declined")

    def test_a_refused_decline_is_said_again(self):
        self.start()
        self.connect()
        link = self.consumer.scheduler._consumer.link
        conn = link.conn
        decline, refused = conn.decline, []

        def refuse(*how, **more):
            reply = mmx.Reply("DECLINE")
            reply._finish(mmx.errors.Busy())
            refused.append(how)
            conn.decline = decline
            return reply
        conn.decline = refuse
        r = self.hand_over("r1", ("cat", 300))
        self.consumer.admit(r, 10**6)  # all of it is a prefix hit
        eventually(lambda: self.consumer.ready(Request("other", ("x", 3))) and
                   not link._unwanted, "it goes on")
        self.assertEqual(self.e.ended(room_of(r, "cat"))["reason"],
                         "declined")
        self.assertEqual(len(refused), 1)
        self.consumer.finish(r)

    def test_the_producers_own_cache_hit(self):
        self.start()
        first = self.hand_over("r1", ("cat", 300))
        self.consumer.take(first)
        # vLLM has the encoder's output: it neither encodes nor calls
        # save_caches. In the first round the daemon still has the rows (have),
        # in the second it does not (granted).
        for name in ("r2", "r3"):
            r = self.hand_over(name, ("cat", 300))
            self.consumer.step(Request("other"), evict=["cat"])
            self.consumer.take(r)
            self.check(self.consumer, r)
            self.reclaim()
            self.consumer.finish(r)
        self.assertEqual(self.producer.encoded, ["cat"])
        self.assertEqual((self.opened(), self.consumer.encoded), (3, []))
        self.consumer.finish(first)

    def other_weights(self):
        """From now on the encoder makes other rows of a picture."""
        patch = mock.patch.object(
            fake_vllm, "tensor", lambda *how: tensor(*how) ^ 1)
        patch.start()
        self.addCleanup(patch.stop)
        for engine in (self.producer, self.consumer):
            engine.caches = [{} for _ in engine.ranks]

    def cat_of(self, **extra):
        """Fetches the picture through a consumer that has nothing yet."""
        self.consumer = self.engine_of(self.d, "consumer", self.RANKS,
                                       mmx_patience_s=60, **extra)
        r = self.hand_over("r", ("cat", 300))
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])

    def test_an_engine_that_starts_again_has_no_rows_of_the_last(self):
        """The weights may have been replaced in the same path."""
        self.start()
        self.cat_of()
        self.other_weights()
        self.producer.close()
        self.world.engines.remove(self.producer)
        self.producer = self.engine_of(self.e, "producer", self.RANKS)
        self.cat_of()

    def test_rows_of_an_epoch_that_is_given_are_kept(self):
        """Engines with the same epoch and the same scope share rows."""
        self.start()
        had = []
        for epoch, scope in (("v1", ""), ("v1", ""), ("v2", ""), ("v2", "a")):
            self.producer = self.engine_of(
                self.e, "producer", self.RANKS, mmx_epoch=epoch,
                mmx_scope=scope)
            self.cat_of(mmx_scope=scope)
            got = self.producer.scheduler.get_ec_connector_stats().reduce()
            had.append(got.get("items_had", 0))
        self.assertEqual(had, [0, 1, 0, 0])

    def resettable(self):
        """Starts both engines; returns what vLLM calls for
        /reset_encoder_cache."""
        name = "vllm.v1.core.sched.scheduler"
        theirs = types.ModuleType(name)

        class Scheduler:
            resets = 0

            def reset_encoder_cache(self):
                self.resets += 1
        theirs.Scheduler = Scheduler
        with mock.patch.dict(sys.modules, {name: theirs}):
            self.start()
        return Scheduler()

    def test_what_vllm_has_dropped_is_fetched_again(self):
        """Also for a request that vLLM computes anew, and that has only a
        reference: no picture could be encoded in place of the rows."""
        scheduler = self.resettable()
        r = self.hand_over("r1", ("cat", 300), reference=True)
        for opened in (1, 2):
            self.consumer.admit(r)
            self.consumer.step(r)
            self.check(self.consumer, r)
            self.assertEqual(self.opened(), opened)
            scheduler.reset_encoder_cache()
            self.consumer.caches = [{} for _ in self.consumer.ranks]
        self.consumer.finish(r)
        self.assertEqual(self.consumer.scheduler._consumer.items, {})

    def test_weights_that_change_under_an_engine(self):
        """vLLM is told by /reset_encoder_cache."""
        scheduler = self.resettable()
        self.cat_of()
        self.producer.caches = [{} for _ in self.producer.ranks]
        self.cat_of()
        counts = self.producer.scheduler.get_ec_connector_stats().reduce()
        self.assertEqual(counts["items_had"], 1)
        scheduler.reset_encoder_cache()
        self.assertEqual(scheduler.resets, 1)
        self.other_weights()
        self.cat_of()

    def test_rows_that_landed_before_weights_changed_are_not_loaded(self):
        """They would be another request's, too: vLLM keeps one item of a
        name."""
        scheduler = self.resettable()
        early = self.hand_over("early", ("cat", 300))
        self.consumer.admit(early)
        scheduler.reset_encoder_cache()
        self.other_weights()
        late = self.hand_over("late", ("cat", 300))
        self.consumer.take(early)
        self.check(self.consumer, early)
        self.fetch(late)
        self.consumer.finish(early)
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.d.all_free()

    def test_requests_wait_for_source_blocks_whole(self):
        """Requests have two pictures each and three pictures fit: no request
        holds blocks for one picture and waits for the other's."""
        self.start(blocks=6)
        rs = [Request(n, (n + "1", 256), (n + "2", 256)) for n in "abc"]
        while rs:  # as a scheduler does: whoever is ready first
            r = eventually(lambda: next(
                (x for x in rs if self.producer.ready(x)), None), "one goes")
            rs.remove(r)
            self.producer.step(r)
            r.ec_transfer_params = self.producer.finish(r)
            self.consumer.serve(r)
        self.assertEqual(self.consumer.encoded, [])

    def test_an_announce_that_is_refused_for_now_is_repeated(self):
        self.start()
        r = Request("r1", ("cat", 300))
        link = self.producer.scheduler._producer.link
        eventually(link.step, "a pool")
        with mock.patch.object(link.conn, "announce_batch",
                               side_effect=mmx.errors.Quota("for now")):
            self.assertFalse(self.producer.ready(r))
        self.assertEqual(set(self.producer.serve(r)), {"cat"})
        self.assertIn("room", self.hand_over("r2", ("cat", 300))
                      .ec_transfer_params["cat"])

    def test_an_aborted_request_gives_its_blocks_back(self):
        self.start()
        r = Request("r1", ("cat", 300))
        self.producer.admit(r)
        r.status = "FINISHED_ABORTED"
        self.assertIsNone(self.producer.finish(r))
        eventually(lambda: not self.producer.scheduler
                   .has_pending_push_work(), "nothing is pending")
        r = Request("e1", ("fox", 300))
        self.producer.admit(r)
        r.status = "FINISHED_ERROR"
        self.assertIsNone(self.producer.finish(r))
        self.e.all_free()
        # b's picture, which a has announced, is written for b.
        a, b = Request("a", ("dog", 300)), Request("b", ("dog", 300))
        for x in (a, b):
            self.producer.admit(x)
        a.status = "FINISHED_ABORTED"
        self.producer.finish(a)
        b.ec_transfer_params = self.producer.serve(b)
        self.fetch(b)

    def test_an_abort_before_a_worker_writes(self):
        """vLLM aborts a request while its step is at the workers."""
        self.start(ranks=1)
        scheduler, worker = self.producer.scheduler, self.producer.ranks[0]
        worker.settings.worker_wait = 1e6
        for turn, before in enumerate((True, False)):
            r = Request(f"r{turn}", ("cat", 300))
            self.producer.admit(r)
            meta = scheduler.build_connector_meta(types.SimpleNamespace(
                num_scheduled_tokens={r.request_id: 1}))
            if not before:
                worker.bind_connector_metadata(meta)
            r.status = "FINISHED_ABORTED"
            self.assertIsNone(self.producer.finish(r))
            if before:
                worker.bind_connector_metadata(meta)
            worker.save_caches({"cat": tensor("cat", 300)}, "cat")
            worker.get_finished(set())
            worker.clear_connector_metadata()
            self.e.all_free()

    def test_without_an_encoder_here_the_request_is_named(self):
        self.start(mmx_deadline_s=0.3, mmx_local_encode=False)
        r = self.hand_over("r1", ("cat", 300))
        self.e.kill()
        scheduler = self.consumer.scheduler

        def unavailable():
            self.assertFalse(self.consumer.ready(r))
            return scheduler.take_unavailable_requests()
        self.assertEqual(eventually(unavailable, "it is named"), {"r1"})
        self.consumer.finish(r)

    def test_half_of_a_request_is_lost(self):
        """One room of the request never comes; the other one's rows are read
        all the same."""
        self.start()
        r = self.hand_over("r1", ("cat", 300), ("dog", 200))
        said = r.ec_transfer_params["cat"]
        r.ec_transfer_params["cat"] = {
            **said, "room": f"{room_of(r, 'cat') ^ 1:016x}"}
        self.consumer.take(r)
        self.check(self.consumer, r)
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.consumer.finish(r)
        self.declined(said)

    def test_another_picture_under_the_same_room_is_refused(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300))
        liar = Request("r2", ("dog", 300))
        liar.ec_transfer_params = {"dog": r.ec_transfer_params["cat"]}
        self.consumer.serve(liar)
        self.assertEqual(self.consumer.encoded, ["dog"])
        self.fetch(r)

    def test_langd_ends_between_ready_and_load(self):
        """The load must not fail, which would end vLLM: with no map of the
        pool yet, with the map, and with that of langd's next run."""
        self.start()
        for n, known in enumerate(("none", "this", "next")):
            with self.subTest(known=known):
                r = self.hand_over(f"r{n}", (f"cat{n}", 300))
                self.consumer.admit(r)
                links = [rank._loader.link for rank in self.consumer.ranks]
                if known == "this":
                    for link in links:
                        link.wait_pool()
                self.d.kill()
                if known == "next":
                    self.d.start()
                    for link in links:
                        eventually(lambda link=link: link.step(), "mapped")
                self.consumer.step(r)  # the memory is still mapped
                self.check(self.consumer, r)
                if known != "next":
                    self.d.start()
                self.consumer.finish(r)
                self.consumer.caches = [{} for _ in links]
                r = self.hand_over(f"s{n}", (f"dog{n}", 300))
                self.fetch(r)
                self.assertEqual(self.consumer.encoded, [])

    def test_a_load_asks_langd_for_nothing(self):
        """A langd that is stopped (SIGSTOP) holds up no worker's load."""
        self.start()
        self.connect()
        r = self.hand_over("r1", ("cat", 300))
        self.consumer.admit(r)
        with self.d.stopped():
            self.consumer.step(r)
        self.check(self.consumer, r)
        self.d.all_free()
        self.consumer.finish(r)

    # RULES 6.7
    def test_rows_are_loaded_from_the_encoders_pool(self):
        """Once all workers have said that they keep it, whichever daemon ends
        between READY and load."""
        self.start(langd={"transfer": {"same_host": "lend"}})
        numbers = itertools.count()

        def lent():
            n = next(numbers)
            r = self.hand_over(f"r{n}", (f"cat{n}", 300))
            before = self.d.stats()["rooms_lent"]
            self.consumer.admit(r)
            if self.d.stats()["rooms_lent"] > before:
                return r
            self.loads(r)
            return None
        for ends in ((), (self.d,), (self.e,), (self.e, self.d)):
            with self.subTest(ends=[d.name for d in ends]):
                r = eventually(lent, "they are lent")
                for d in ends:
                    d.kill()
                for rank in self.consumer.ranks if ends else ():
                    conn = rank._loader.link.conn
                    eventually(lambda conn=conn: not (
                        conn.step() or conn._lenders), "a worker knows")
                for d in ends:
                    d.start()
                self.loads(r)
                for word in ("lent", "orphaned"):
                    eventually(lambda word=word: self.e.show("pools")[0][
                        word] == 0 or self.consumer.step(Request("none")),
                        f"none is {word}")
        self.assertEqual(self.consumer.encoded, [])

    # RULES 6.7
    def test_several_pictures_of_a_request_are_lent(self):
        self.start(langd={"transfer": {"same_host": "lend"}})
        numbers = itertools.count()

        def both():
            n = next(numbers)
            before = self.d.stats()["rooms_lent"]
            self.fetch(self.hand_over(f"r{n}", (f"cat{n}", 300),
                                      (f"dog{n}", 20)))
            return self.d.stats()["rooms_lent"] - before == 2
        eventually(both, "both are lent")
        self.assertEqual(self.consumer.encoded, [])

    def test_a_worker_that_is_not_connected_has_none_lent(self):
        """langd knows nothing of it, and has been told of no other pool."""
        self.start(langd={"transfer": {"same_host": "lend"}})
        link = self.consumer.ranks[1]._loader.link
        link.wait_pool()
        link.conn.close()
        for n in range(9):
            self.fetch(self.hand_over(f"r{n}", (f"cat{n}", 300)))
        eventually(self.consumer.scheduler._consumer.link.lent,
                   "the scheduler has mapped the encoder's pool")
        for n in range(9, 12):
            self.fetch(self.hand_over(f"r{n}", (f"cat{n}", 300)))
        self.assertEqual(self.d.stats()["rooms_lent"], 0)

    def test_a_lost_report_of_a_lent_pool_is_repeated(self):
        self.start(langd={"transfer": {"same_host": "lend"}})
        numbers, report, lost = itertools.count(), self.consumer.report, []

        def fetch():
            n = next(numbers)
            self.fetch(self.hand_over(f"r{n}", (f"cat{n}", 300)))
            return self.d.stats()["rooms_lent"]

        def drop(said):
            lost.extend(x for x in said if x and x.mapped)
            report([x and type(x)(x.copying) for x in said])

        self.consumer.report = drop
        eventually(lambda: fetch() or len(lost) > 1, "workers report it")
        self.assertEqual(fetch(), 0)
        self.consumer.report = report
        eventually(fetch, "rows are lent")

    def loads(self, request):
        """Runs the consumer's pass, and checks that it loaded the picture's
        rows."""
        self.consumer.step(request)
        self.check(self.consumer, request)
        self.consumer.finish(request)

    def test_stages_whose_reports_vllm_drops_are_refused(self):
        """vLLM would drop their reports, so that no room would be released."""
        self.start()
        with self.assertRaisesRegex(ValueError, "VLLM_USE_V2_MODEL_RUNNER"):
            self.engine_of(self.d, "consumer", stages=2)
        self.engine_of(self.d, "consumer", stages=2, v2=True)
        self.engine_of(self.e, "producer", stages=2)

    def test_an_idle_engine_gets_its_rows_in_one_pass(self):
        self.start(mmx_pause_s=20)
        self.connect()
        r = self.hand_over("r1", ("cat", 300), ("dog", 20))
        self.assertTrue(self.consumer.ready(r))
        self.consumer.step(r)
        # Beside a running request no hook waits for rows.
        conn = self.consumer.scheduler._consumer.link.conn
        wait, conn.wait = conn.wait, None
        other = self.hand_over("r2", ("fox", 30))
        self.consumer.admit(other)
        conn.wait = wait
        for x in (r, other):
            self.consumer.finish(x)
        # That request has ended: the engine is idle again.
        r = self.hand_over("r3", ("cow", 30))
        self.assertTrue(self.consumer.ready(r))
        self.consumer.step(r)
        self.assertEqual(self.consumer.encoded, [])
        self.consumer.finish(r)

    def test_no_hook_of_a_scheduler_waits(self):
        """Every hook returns while both daemons are stopped."""
        self.start()
        r = self.hand_over("r1", ("cat", 300))
        for d in (self.e, self.d):
            os.kill(d.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            self.assertFalse(self.consumer.ready(r))
            self.assertFalse(self.consumer.scheduler.has_cache_item("cat"))
            self.assertFalse(self.producer.ready(Request("r2", ("dog", 9))))
            for engine in (self.consumer, self.producer):
                engine.scheduler.build_connector_meta(types.SimpleNamespace(
                    free_encoder_mm_hashes=[], num_scheduled_tokens={}))
            # What waits for a daemon waits for a minute.
            self.assertLess(time.monotonic() - began, LIMIT)
        finally:
            for d in (self.e, self.d):
                os.kill(d.pid, signal.SIGCONT)
        self.fetch(r)
        self.producer.close()  # its request is not over
        self.world.engines.remove(self.producer)
        self.producer = self.engine_of(self.e, "producer", 1)
