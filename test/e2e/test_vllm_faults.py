"""What must not end a vLLM engine, nor cost it more than the request
concerned: what clients send, rooms without rows, pools that do not fit,
encoders that are gone."""

import gc
import json
import os
import signal
import time
from unittest import mock

import numpy as np
from engine import LIMIT
from fake_vllm import WIDTH, Request, VllmCase, room_of, tensor
from pair import eventually
from test_reload import reload

import mmx
from mmx.adapters import _vllm_engine
from mmx.adapters._vllm_common import Link

ONE = f"{1:016x}"
ODD = ["room", 7, None, [1], {}, {"room": "x"}, {"room": 7, "rows": 3},
       {"encoder": "e", "room": -1, "rows": 300},
       {"encoder": "e", "room": 1 << 64, "rows": 300},
       {"encoder": "e", "room": "9" * 30, "rows": 300},
       {"encoder": "e", "room": True, "rows": 300},
       {"encoder": "e", "room": 1.5, "rows": 300},
       {"encoder": "e", "room": ONE, "rows": "300"},
       {"encoder": "e", "room": ONE, "rows": 0},
       {"encoder": "e", "room": ONE, "rows": 1 << 40},
       {"encoder": 5, "room": ONE, "rows": 300},
       {"encoder": "", "room": ONE, "rows": 300},
       {"encoder": "e" * 129, "room": ONE, "rows": 300},
       {"encoder": "\ud800", "room": ONE, "rows": 300},
       {"encoder": "a\nb", "room": ONE, "rows": 300},
       {"encoder": "e", "room": ONE, "rows": 300, "epoch": "ab"},
       {"encoder": "e", "room": ONE, "rows": 300, "epoch": "g" * 32},
       {"encoder": "e", "room": ONE, "rows": 300, "epoch": 5},
       {"encoder": "e", "room": ONE + "-ab", "rows": 300},
       {"encoder": "e", "room": "0" * 16, "rows": 300}]
LOGGER = "vllm.mmx"


def counts(engine):
    """Returns what the scheduler's side has counted since the last call."""
    got = engine.scheduler.get_ec_connector_stats()
    return dict(got.data) if got else {}


class Clients(VllmCase):
    def test_what_is_no_offer_is_encoded_here(self):
        self.start(ranks=1)
        for i, said in enumerate([*({"cat": odd} for odd in ODD),
                                  "text", 5, ["list"], {"dog": "x"}]):
            r = Request(f"r{i}", ("cat", 300))
            r.ec_transfer_params = said
            with self.subTest(said=said):
                self.assertTrue(self.consumer.ready(r))
                self.consumer.step(r)
                self.consumer.finish(r)
                self.consumer.caches[0].clear()
        self.assertEqual(len(self.consumer.encoded), len(ODD) + 4)
        # A producer without rows sends None or {}: not malformed.
        self.assertEqual(counts(self.consumer)["offers_malformed"],
                         len(ODD) + 4 - 1)

    def test_an_encoder_that_is_not_named_is_not_asked(self):
        """A client's request may name any encoder, to which langd would
        connect."""
        self.start(ranks=1, mmx_encoders=["tcp://192.0.2.7:7601"])
        opened = self.opened()
        r = self.hand_over("r1", ("cat", 300))
        with self.assertLogs(LOGGER, "WARNING") as said:
            self.assertTrue(self.consumer.ready(r))
        self.assertIn(f"r1: encoder {self.e.address} is none of mmx_encoders",
                      said.output[0])
        self.consumer.step(r)
        self.consumer.finish(r)
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.assertEqual(counts(self.consumer)["offers_malformed"], 1)
        self.assertEqual(self.opened(), opened)
        allowed = self.engine_of(self.d, "consumer", 1,
                                 mmx_encoders=["x", self.e.address])
        allowed.take(r)
        self.check(allowed, r)
        allowed.finish(r)

    def test_an_offer_under_a_name_that_is_no_text(self):
        """A JSON text may have half of a surrogate pair."""
        self.start(ranks=1)
        r = Request("r", ("cat", 300))
        r.ec_transfer_params = {"\ud800": {
            "encoder": "enc0", "room": ONE, "rows": 300}}
        self.assertTrue(self.consumer.ready(r))
        self.consumer.step(r)
        self.consumer.finish(r)
        self.assertEqual(self.consumer.encoded, ["cat"])

    def test_what_was_declined_is_forgotten(self):
        """Requests for a picture that vLLM has, each with a room of its own:
        a long life of them takes no memory."""
        self.start()
        both = [self.hand_over(f"b{n}", ("dog", 20)) for n in range(2)]
        for r in both:
            self.consumer.take(r)
        for n in range(3):
            r = self.hand_over(f"r{n}", ("cat", 300), ("dog", 20))
            self.consumer.serve(r)
        for r in both:
            self.consumer.finish(r)
        side = self.consumer.scheduler._consumer
        self.assertEqual((len(side._declined), side._offers), (0, {}))
        self.d.all_free()

    def test_what_is_logged_has_no_secret(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300))
        said = r.ec_transfer_params["cat"]
        r.ec_transfer_params["cat"] = {**said, "rows": 301}
        with self.assertLogs(LOGGER) as log:
            self.consumer.admit(r)
        self.assertNotIn(said["room"][17:], "".join(log.output))
        self.consumer.finish(r)
        self.connect()
        self.declined(said)

    def test_a_room_survives_a_router_that_reads_doubles(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300))
        r.ec_transfer_params = json.loads(
            json.dumps(r.ec_transfer_params), parse_int=float)
        for said in r.ec_transfer_params.values():
            said["rows"] = int(said["rows"])
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])

    def test_one_name_for_two_requests(self):
        """Two requests of a client have one name; each has a room of its
        own."""
        self.start()
        for _ in range(3):
            r = self.hand_over("the same", ("cat", 300), ("dog", 20))
            self.fetch(r)
            self.consumer.step(Request("other"), evict=["cat", "dog"])
        self.assertEqual(self.consumer.encoded, [])

    def test_a_router_repeats_what_it_was_told(self):
        """A router gives one answer to two requests at once, and again after
        vLLM has evicted the rows. Another client's request is undisturbed."""
        self.start()
        first = self.hand_over("r", ("cat", 300))
        said = first.ec_transfer_params
        other = self.hand_over("other", ("dog", 300))
        for n in range(3):
            both = [Request(f"r{n}{x}", ("cat", 300)) for x in "ab"]
            for r in both:
                r.ec_transfer_params = said
            for r in (*both, other)[:3 if n == 1 else 2]:
                self.consumer.take(r)
                self.check(self.consumer, r)
            for r in both:
                self.consumer.finish(r)
            self.consumer.step(Request("next"), evict=["cat"])
            self.d.all_free()
        self.assertNotIn("dog", self.consumer.encoded)
        self.consumer.finish(other)

    def test_tensors_that_are_kept_hold_no_blocks(self):
        self.start()
        kept = []
        for n in range(20):  # 60 blocks in all, of 32
            r = self.hand_over(f"r{n}", (f"cat{n}", 300))
            self.consumer.take(r)
            kept.append(self.consumer.caches[0][f"cat{n}"])
            self.consumer.finish(r)
            self.d.all_free()
            self.reclaim()
        self.assertEqual(self.consumer.encoded, [])

    def test_a_reference_without_rows_fails_alone(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300), reference=True)
        said = r.ec_transfer_params["cat"]
        r.ec_transfer_params["cat"] = {
            **said, "room": f"{room_of(r, 'cat') ^ 1:016x}"}
        with self.assertLogs(LOGGER, "WARNING") as log:
            eventually(lambda: self.consumer.failed(r), "it is named")
        self.assertRegex(log.output[-1], "r1 .*cat")
        # One without any offer, and one with a malformed offer.
        bare = Request("r2", ("dog", 9), reference=True)
        self.assertTrue(self.consumer.failed(bare))
        bare = Request("r3", ("cow", 9), reference=True)
        bare.ec_transfer_params = {"cow": "moo"}
        self.assertTrue(self.consumer.failed(bare))
        # The engine goes on.
        ok = self.hand_over("r4", ("fox", 30))
        self.consumer.take(ok)
        self.check(self.consumer, ok)
        for x in (r, ok):
            self.consumer.finish(x)
        self.assertEqual(counts(self.consumer)["requests_failed"], 3)
        self.declined(said)

    def test_a_reference_to_rows_that_vllm_may_evict_is_fetched(self):
        """vLLM may evict rows that no running request holds, in any step. A
        reference cannot be encoded instead."""
        self.start()
        first = self.hand_over("r1", ("cat", 300))
        self.consumer.take(first)
        self.consumer.scheduler.update_state_after_free(first, 0)
        r = self.hand_over("r2", ("cat", 300), reference=True)
        self.consumer.admit(r)
        # vLLM evicts the rows in the step that admits r. The connector has
        # other ones ready.
        self.consumer.caches = [{} for _ in self.consumer.ranks]
        self.consumer.step(r)
        self.check(self.consumer, r)
        for x in (first, r):
            self.consumer.finish(x)

    def test_a_client_leaves_before_its_picture_is_encoded(self):
        """The worker has the room by then, and must give it up."""
        self.start()
        saver = self.producer.ranks[0]._saver
        for n in range(3):
            r = Request(f"r{n}", ("cat", 300))
            self.producer.admit(r)
            self.producer.step(Request("other"))
            self.assertEqual(len(saver.todo), 1)
            r.status = "FINISHED_ABORTED"
            self.producer.finish(r)
            eventually(lambda: self.producer.step(Request("other")) or
                       not saver.todo, "the worker lets go of it")
        eventually(lambda: not self.producer.scheduler
                   .has_pending_push_work(), "nothing is pending")
        self.e.all_free()

    def test_a_client_leaves_before_its_rows_are_read(self):
        """Readers that were announced never attach: the blocks come back at
        once."""
        self.start()
        r = self.hand_over("r1", ("cat", 300), ("dog", 300))
        self.consumer.admit(r)
        self.assertLess(self.d.free()[0], self.d.free()[1])
        self.consumer.finish(r)
        self.d.all_free()


class Router(VllmCase):
    def test_the_producer_says_what_vllms_own_does(self):
        self.start()
        a, b, c = ("cat", 300), ("dog", 20), ("cat", 300)
        said = self.producer.serve(Request("r1", a, b, c))
        self.assertEqual({h: p["item_indices"] for h, p in said.items()},
                         {"cat": [0, 2], "dog": [1]})
        self.assertEqual(said["dog"]["metadata"],
                         {"image_grid_thw": [[1, 2, 40]]})
        json.dumps(said)
        r = Request("r1", a, b, c)
        r.ec_transfer_params = said
        self.consumer.admit(r)
        self.consumer.finish(r)

    def test_without_a_room_no_reference_is_sent(self):
        self.start()
        self.e.kill()
        said = self.engine_of(self.e, "producer", mmx_patience_s=0.1).serve(
            Request("r1", ("cat", 300)))
        self.assertEqual(said, {"cat": {"item_indices": [0], "metadata": {}}})
        r = Request("r1", ("cat", 300))
        r.ec_transfer_params = said
        self.assertTrue(self.consumer.ready(r))
        self.consumer.step(r)
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.assertNotIn("offers_malformed", counts(self.consumer))
        self.consumer.finish(r)

    def test_no_reference_goes_beside_a_picture(self):
        """vLLM would refuse a request that mixes the two, as the client's
        error."""
        self.start(blocks=4, ranks=1)
        r = self.hand_over("r1", ("cat", 128), ("long", 1000))
        said = r.ec_transfer_params
        self.assertNotIn("room", said["long"])
        self.assertEqual({str(x["metadata"]) for x in said.values()}, {"{}"})
        self.fetch(r)

    def test_a_picture_of_no_rows(self):
        """A picture of no rows is not sent; the other one is."""
        self.start(ranks=1)
        r = self.hand_over("r1", ("cat", 300), ("none", 0))
        self.assertNotIn("room", r.ec_transfer_params["none"])
        self.consumer.serve(r)
        np.testing.assert_array_equal(self.consumer.caches[0]["cat"],
                                      tensor("cat", 300))

    def test_what_is_counted(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300), ("dog", 200))
        self.consumer.serve(r)
        self.assertEqual(counts(self.producer),
                         {"rooms_announced": 2, "in_use": 1})
        got = counts(self.consumer)
        for seconds in got.pop("fetch_seconds"):
            self.assertTrue(0 < seconds < LIMIT)
        self.assertEqual(got, {
            "rooms_requested": 2, "items_fetched": 2, "rows_fetched": 500,
            "fetch_bytes": [300 * 2 * WIDTH, 200 * 2 * WIDTH], "in_use": 1})
        self.assertEqual(counts(self.consumer), {})
        kind = type(self.consumer.scheduler)
        both = kind.build_ec_connector_stats({"rows_fetched": 1}).aggregate(
            kind.build_ec_connector_stats({"rows_fetched": 2}))
        self.assertEqual(both.reduce(), {"rows_fetched": 3})

    def test_a_computed_request_costs_no_step(self):
        """In every step vLLM also calls the hook for running requests."""
        self.start()
        r = self.hand_over("r1", ("cat", 300))
        self.consumer.take(r)
        link = self.consumer.scheduler._consumer.link
        self.assertTrue(self.consumer.ready(r, 10**6))
        steps, link.step = [], lambda: steps.append(1)
        self.assertTrue(self.consumer.ready(r, 10**6))
        del link.step
        self.assertEqual(steps, [])
        self.consumer.finish(r)


class Pools(VllmCase):
    def refused(self, **how):
        """Starts engines whose rows do not fit the pool: both run, and say why
        they do not use mmx; returns the log line."""
        self.start(ranks=1)
        self.connect()
        with self.assertLogs(LOGGER, "ERROR") as said:
            producer = self.engine_of(self.e, "producer", 1, **how)
            consumer = self.engine_of(self.d, "consumer", 1, **how)
            r = Request("r1", ("cat", 300))
            r.ec_transfer_params = producer.serve(Request("r1", ("cat", 300)))
            self.assertNotIn("room", r.ec_transfer_params["cat"])
            # An offer of the fitting producer does not help either.
            r.ec_transfer_params = self.producer.serve(
                Request("r2", ("cat", 300)))
            consumer.take(r)
        self.assertEqual(consumer.encoded, ["cat"])
        consumer.finish(r)
        # Another dtype has another key: the room was not declined.
        self.declined(r.ec_transfer_params["cat"])
        self.assertEqual({x.split(":")[2] for x in said.output},
                         {"mmx is not used"}, said.output)
        return said.output[0]

    def test_a_pool_of_another_dtype(self):
        self.assertIn("pool vit is bf16, the model's rows are f32; set ",
                      self.refused(dtype="torch.float32"))

    def test_a_pool_that_is_not_there(self):
        """The pool is not waited for, and each process logs it once."""
        self.start(ranks=1)
        with self.assertLogs(LOGGER, "ERROR") as said:
            producer = self.engine_of(self.e, "producer", 1, mmx_pool="vat",
                                      mmx_patience_s=60)
            consumer = self.engine_of(self.d, "consumer", 1, mmx_pool="vat",
                                      mmx_patience_s=60)
            for name in ("cat", "dog"):
                r = Request(name, (name, 300))
                self.assertNotIn("room", producer.serve(r)[name])
                r.ec_transfer_params = self.producer.serve(
                    Request(f"{name}2", (name, 300)))
                consumer.serve(r)
            for link in (producer.ranks[0]._saver.link,
                         consumer.ranks[0]._loader.link):
                eventually(lambda link=link: link.step() or link.is_refused,
                           "the worker has heard of it")
        self.assertEqual(consumer.encoded, ["cat", "dog"])
        self.assertEqual(len(said.output), 4, said.output)
        for line in said.output:
            self.assertRegex(line, "no pool `vat` here; name .* mmx_pool")

    def test_a_pool_that_cannot_be_mapped(self):
        self.start(ranks=1)
        with self.assertLogs(LOGGER, "ERROR") as said, \
                mock.patch.object(mmx, "Pool",
                                  side_effect=RuntimeError("no driver")):
            odd = self.engine_of(self.e, "producer", 1, mmx_patience_s=60)
            params = odd.serve(Request("r1", ("cat", 300)))
            # a worker does not wait for it either
            link = odd.ranks[0]._saver.link
            link.settings.worker_wait = 1e6
            with self.assertRaises(mmx.errors.IncompatibleLayout):
                link.wait_pool()
        self.assertNotIn("room", params["cat"])
        self.assertIn("no driver; the pool cannot be mapped", said.output[0])

    def test_a_daemon_that_is_away_is_named_once(self):
        self.start(ranks=1)
        self.connect()
        picture = [self.hand_over(f"r{n}", (f"cat{n}", 3)) for n in range(2)]
        self.d.kill()
        self.consumer.scheduler.settings.patience = 1.5
        with self.assertLogs(LOGGER, "WARNING") as said:
            for r in picture:
                self.consumer.take(r)
        self.assertEqual(self.consumer.encoded, ["cat0", "cat1"])
        away = [x for x in said.output if "does not answer at" in x]
        self.assertEqual(len(away), 1, said.output)
        self.assertIn(self.d.socket, away[0])
        self.d.start()
        for r in picture:
            self.consumer.finish(r)
        eventually(lambda: self.consumer.scheduler._consumer.link.step(),
                   "the consumer has its pool again")
        back = self.hand_over("back", ("fox", 3))
        self.consumer.scheduler.settings.patience = 60
        self.consumer.serve(back)
        for n, r in enumerate(picture):
            self.declined(r.ec_transfer_params[f"cat{n}"])

    def test_a_daemon_that_is_away_fills_no_log(self):
        """vLLM calls the hook in every pass."""
        self.start(ranks=1)
        self.connect()
        rs = [self.hand_over(f"r{n}", (f"cat{n}", 3)) for n in range(4)]
        self.d.kill()
        _vllm_engine.warn.last.clear()
        end = time.monotonic() + 0.5
        with self.assertLogs(LOGGER, "INFO") as said:
            while time.monotonic() < end:
                for r in rs:
                    self.assertFalse(self.consumer.ready(r))
        self.assertLess(len([x for x in said.output if "no daemon is" in x]),
                        3)
        self.d.start()
        for r in rs:
            self.consumer.serve(r)
        self.assertEqual(self.consumer.encoded, [])

    def test_an_answer_of_an_earlier_run_is_not_taken(self):
        """An answer that came with the daemon's end is of no use: its memory
        is not the next run's."""
        self.start(ranks=1)
        settings = self.consumer.scheduler.settings
        links = [Link("langd", settings, "scheduler") for _ in range(2)]
        late = links[0]

        def answered():
            if late._asked:
                late.conn.step()
            else:
                late.step()
            return late._asked and late._asked.done
        eventually(answered, "the pool is told")
        self.d.kill()
        self.d.start()
        for link in links:
            eventually(link.step, "the pool is mapped")
        self.assertEqual(*(os.fstat(x.maps[x.mapped.key].fd).st_ino
                           for x in links))
        for link in links:
            link.close()

    def test_maps_of_earlier_runs_are_let_go(self):
        self.start(ranks=1)
        link = Link("langd", self.consumer.scheduler.settings, "scheduler")
        held = []
        for _ in range(4):
            eventually(link.step, "the pool is mapped")
            gc.collect()  # objects that other tests left
            held.append(len(os.listdir("/proc/self/fd")))
            self.d.kill()
            self.d.start()
            link.conn.step()
        self.assertEqual(len(link.maps), 2)
        self.assertEqual(held[2], held[3])
        link.close()
        for other in (self.consumer.ranks[0]._loader.link,
                      self.producer.scheduler._producer.link):
            eventually(other.step, "the pool is mapped")
            self.assertEqual(other.maps, {})  # it hands out none

    def test_a_pool_of_another_width(self):
        self.assertIn("32 wide", self.refused(width=48))

    def test_rows_that_do_not_fit_are_not_written(self):
        """The engine learns only from its first rows that they do not fit."""
        self.start(ranks=1)
        odd = self.engine_of(self.e, "producer", 1, wide=16)
        with self.assertLogs(LOGGER, "WARNING") as said:
            params = odd.serve(Request("r1", ("cat", 300)))
        self.assertIn("16", said.output[-1])
        r = Request("r1", ("cat", 300))
        r.ec_transfer_params = params
        self.consumer.serve(r)
        self.assertEqual(self.consumer.encoded, ["cat"])
        eventually(lambda: not odd.scheduler.has_pending_push_work(),
                   "it has left its rooms")


class Gone(VllmCase):
    def held_up(self, patience):
        """Stops encoded: it answers no message, and no one reports that."""
        self.connect()
        self.settings = self.consumer.scheduler.settings
        self.settings.patience = patience
        os.kill(self.e.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.e.pid, signal.SIGCONT)

    def goes_on(self):
        self.settings.patience = 60
        os.kill(self.e.pid, signal.SIGCONT)

    def test_rows_that_come_are_waited_for(self):
        self.start(ranks=1)
        other = self.world.engine(self.e)
        key = self.consumer.scheduler.settings.key("cat")
        other.opens(77, 300, 300, key=key)
        other.commit(77, 0, 128)
        r = Request("r1", ("cat", 300))
        r.ec_transfer_params = {"cat": {
            "encoder": self.e.address, "room": f"{77:016x}", "rows": 300}}
        items = self.consumer.scheduler._consumer.items

        def comes():
            self.assertFalse(self.consumer.ready(r))
            room = items["cat"].room
            return room and room.state is mmx.State.TRANSFERRING
        eventually(comes, "rows come")
        self.consumer.scheduler.settings.patience = 0
        self.assertFalse(self.consumer.ready(r))
        other.commit(77, 128, 300, final=True)
        self.consumer.serve(r)
        self.assertEqual(self.consumer.encoded, [])
        other.ends(77)

    def test_a_second_encoder_is_tried_first(self):
        self.start()
        other = self.world.encoded("enc1", fields=self.FIELDS)
        second = self.engine_of(other, "producer", self.RANKS)
        r = self.hand_over("r1", ("cat", 300))
        again = Request("r2", ("cat", 300))
        again.ec_transfer_params = second.serve(Request("r2", ("cat", 300)))
        self.held_up(0.2)
        self.assertFalse(self.consumer.ready(r))
        self.assertFalse(self.consumer.ready(again))
        item = self.consumer.scheduler._consumer.items["cat"]
        eventually(lambda: self.consumer.ready(again) or not item.offers,
                   "the second is asked")
        self.settings.patience = 60
        self.consumer.take(again)
        self.check(self.consumer, again)
        self.assertEqual(self.consumer.encoded, [])
        self.goes_on()
        for x in (r, again):
            self.consumer.finish(x)
        self.reclaim(other, second)

    def test_what_is_known_to_be_gone_is_not_waited_for(self):
        """The deadline is a minute; the failure is seen at once."""
        self.start(mmx_deadline_s=60)
        self.connect()
        reload(self.d, timeouts={"unreachable": "100ms"})
        picture = self.hand_over("r1", ("cat", 300))
        reference = self.hand_over("r2", ("dog", 300), reference=True)
        unknown = self.hand_over("r3", ("cow", 300), reference=True)
        said = unknown.ec_transfer_params["cow"]
        unknown.ec_transfer_params = {"cow": {**said, "room": f"{4711:016x}"}}
        eventually(lambda: self.consumer.failed(unknown), "unknown", 20)
        self.declined(said)
        self.e.kill()
        eventually(lambda: self.consumer.failed(reference), "it is named", 20)
        self.consumer.take(picture)
        self.assertEqual(self.consumer.encoded, ["cat"])
        for r in (unknown, reference, picture):
            self.consumer.finish(r)
        self.d.all_free()

    def test_a_langd_that_hangs_ends_no_more_than_the_deadline(self):
        """langd alone would end the room, and a reference has no other
        source."""
        self.start(mmx_deadline_s=0.5)
        self.connect()
        r = self.hand_over("r1", ("cat", 300), reference=True)
        with self.d.stopped():
            began = time.monotonic()
            eventually(lambda: self.consumer.failed(r), "it is named")
            self.assertGreater(time.monotonic() - began, 1)
            self.consumer.finish(r)
        self.declined(r.ec_transfer_params["cat"])

    def test_an_encoded_that_hangs_ends_no_producers_request(self):
        self.start(ranks=1)
        self.producer.scheduler.settings.patience = 0.3
        r = self.hand_over("r1", ("cat", 300))
        self.consumer.serve(r)
        with self.e.stopped():
            with self.assertLogs(LOGGER, "WARNING") as said:
                params = self.producer.serve(Request("r2", ("dog", 300)))
            self.assertIn("r2: no blocks within 0.3 s", said.output[0])
            self.assertNotIn("room", params["dog"])

    def test_a_worker_waits_once_for_an_encoded_that_hangs(self):
        """All requests of the engine wait while a worker waits."""
        self.start(ranks=1)
        self.connect()
        self.producer.ranks[0].settings.worker_wait = 1
        r = Request("r1", *((f"cat{n}", 100) for n in range(4)))
        self.producer.admit(r)
        with self.e.stopped():
            began = time.monotonic()
            self.producer.step(r)
            self.assertLess(time.monotonic() - began, 3)
        self.producer.finish(r)
        eventually(lambda: not self.producer.scheduler
                   .has_pending_push_work(), "nothing is pending")

    def test_a_full_pool_is_not_waited_for_without_end(self):
        self.start(blocks=4)
        other = self.world.engine(self.e)
        other.opens(77, 4 * 128)
        self.producer.scheduler.settings.patience = 0.3
        with self.assertLogs(LOGGER, "WARNING") as said:
            params = self.producer.serve(Request("r1", ("cat", 300)))
        self.assertIn("r1: no blocks within 0.3 s", said.output[0])
        self.assertNotIn("room", params["cat"])
        self.assertEqual(counts(self.producer)["items_not_announced"], 1)
        other.release(77)
        self.producer.scheduler.settings.patience = 60
        r = self.hand_over("r2", ("dog", 300))
        self.fetch(r)

    def test_a_reference_waits_for_its_encoder(self):
        self.start()
        r = self.hand_over("r1", ("cat", 300), reference=True)
        self.held_up(0)
        for _ in range(20):
            self.assertFalse(self.consumer.ready(r))
            time.sleep(0.01)
        self.goes_on()
        self.fetch(r)


class Steps(VllmCase):
    """A process dies before each step of a request in turn. The request ends
    with its rows, or its picture is encoded at the consumer; another one is
    served; no block is lost."""

    STEPS = ("announced", "written", "said", "asked", "ready", "loaded")

    def life(self, name, dies, k):
        """Takes a request through its steps; calls dies() before step k."""
        here, there = Request(name, ("cat", 300)), Request(name, ("cat", 300))
        for i, step in enumerate(self.STEPS):
            if i == k:
                dies()
            producer, consumer = self.producer, self.consumer
            if step == "announced":
                producer.admit(here)
            elif step == "written":
                producer.step(here)
            elif step == "said":
                there.ec_transfer_params = producer.finish(here)
            elif step == "asked":
                consumer.ready(there)
            elif step == "ready":
                consumer.admit(there)
            else:
                consumer.step(there)
        self.check(self.consumer, there)
        self.consumer.finish(there)
        for engine in (self.producer, self.consumer):
            engine.step(Request("next"), evict=[
                h for h in ("cat",) if h in engine.caches[0]])
        self.d.all_free()

    def enumerate(self, dies, back):
        # Rows that no router has heard of live until then.
        self.start(ranks=1, encoded={"timeouts": {"bootstrap": "5s"}})
        for k in range(len(self.STEPS)):
            with self.subTest(before=self.STEPS[k]):
                self.patience(0.3)
                self.life(f"r{k}", dies, k)
                self.patience(60)
                back()
                encoded = len(self.consumer.encoded)
                self.life(f"s{k}", dies, -1)
                self.assertEqual(len(self.consumer.encoded), encoded)

    def patience(self, seconds):
        for engine in (self.producer, self.consumer):
            engine.scheduler.settings.patience = seconds

    def test_the_encoders_daemon_dies(self):
        def back():
            self.e.start()
            eventually(lambda: self.producer.scheduler._producer.link.step(),
                       "the producer has its pool again")
            eventually(self.reaches, "langd has met it again")
        self.enumerate(lambda: self.e.kill(), back)

    def test_langd_dies(self):
        def dies():
            self.d.kill()
            self.d.start()
        self.enumerate(dies, self.connected)

    def test_the_encoders_daemon_ends_before_a_worker_writes(self):
        """All requests of the engine wait while a worker waits."""
        self.start(ranks=1)
        self.producer.ranks[0].settings.worker_wait = 1e6
        self.connect()
        r = Request("r1", ("cat", 300))
        self.producer.admit(r)
        self.e.kill()
        self.producer.step(r)
        self.assertNotIn("room", self.producer.finish(r)["cat"])

    def test_the_encoders_daemon_ends_before_a_hit_is_scheduled(self):
        """The rows that another request wrote are gone with it."""
        self.start(ranks=1)
        self.producer.serve(Request("r1", ("cat", 300)))
        r = Request("r2", ("cat", 300))
        self.producer.admit(r)
        self.assertTrue(
            self.producer.scheduler._producer.rooms["r2"]["cat"].have)
        self.e.kill()
        self.assertFalse(self.producer.ready(r))
        self.e.start()
        self.producer.caches = [{}]
        self.producer.take(r)
        self.assertIn("room", self.producer.finish(r)["cat"])

    def test_the_producer_dies(self):
        def dies():
            self.producer.close()
            self.world.engines.remove(self.producer)
            self.producer = self.engine_of(self.e, "producer", 1,
                                           mmx_patience_s=0.3)
        self.enumerate(dies, lambda: None)

    def connected(self):
        eventually(lambda: self.consumer.scheduler._consumer.link.step(),
                   "the consumer has its pool again")

    def reaches(self):
        """True if a picture comes through; its rows are released."""
        n = self.tries = getattr(self, "tries", 0) + 1
        r = self.hand_over(f"t{n}", (f"try{n}", 3))
        self.consumer.serve(r)
        return f"try{n}" not in self.consumer.encoded
