"""The SGLang plugin of engines on a GPU, over the driver's double and a
stand-in for torch's streams. No turn of the scheduler and no call of the
encoder waits. Rows are copied by kernels on a stream of their own; requests
are served, rooms released and rows committed once these copies have ended."""

import gc
import os
import threading
import types
import unittest
from unittest import mock

import numpy as np
import test_sglang
from ongpu import PINNED, OnGpu, modules, torch
from pair import LIMIT, eventually
from sglang.srt.disaggregation.encoder import receiver
from sglang.srt.managers.schedule_batch import (MultimodalDataItem,
                                               MultimodalInputs)
from test_sglang import WIDTH, picture

from mmx.adapters import _sglang_language

PENDING, SUCCESS, FAIL = (receiver.WaitingMMRequestStatus.PENDING,
                          receiver.WaitingMMRequestStatus.SUCCESS,
                          receiver.WaitingMMRequestStatus.FAIL)


class Encoder(test_sglang.Encoder):
    """Its ViT's kernels run on the loop's stream."""

    def __init__(self, loop):
        super().__init__(loop)
        self.device, self.kernels = "cuda", torch._here.stream
        with modules():
            self.delivery = type(self.delivery)(
                self, cleanup_receive_state=True)

    def encode(self, rows):
        return torch.written(rows)

    @property
    def copies(self):
        return self.delivery.copies._stream

    def queued(self):
        """Returns the number of copies that have not ended."""
        return len(self.delivery.copies._fences)


class Gpu(OnGpu, test_sglang.Base):
    ENCODER = Encoder

    def start(self, **how):
        kernels = torch.Stream()
        made = test_sglang.Base.encoder

        def encoder(case, daemon):  # called on the loop's thread
            case.loop.call_soon_threadsafe(
                setattr, torch._here, "stream", kernels)
            return made(case, daemon)
        with mock.patch.object(test_sglang.Base, "encoder", encoder):
            super().start(ranks=0, **how)
        env = mock.patch.dict(os.environ, self.env)
        env.start()
        self.addCleanup(env.stop)
        self.scheduler = types.SimpleNamespace(
            device="cuda", forward_stream=torch.Stream())
        self.turns = torch.Stream()
        with modules():
            self.lang = _sglang_language.Lang(self.scheduler)
        one = mock.patch.object(_sglang_language.Lang, "one", self.lang)
        one.start()
        self.addCleanup(one.stop)
        self.world.engines.append(self.lang.conn)
        self.receiver = receiver.MMReceiverHTTP([], None)
        self.receiver.scheduler = self.scheduler
        self.until_pinned()
        self.waiting = self.receiver.waiting_list

    def until_pinned(self):
        """Waits until langd's pool is pinned, which the engine does before
        there are rows. So it does with pools that are lent."""
        def is_pinned():
            pool = self.lang.step()
            return pool and pool._map.pinned
        eventually(is_pinned, "the pool is pinned")

    @property
    def copies(self):
        return self.lang.copies._stream

    def turn(self):
        """Runs a turn of the scheduler, which must not wait nor copy pageable
        memory."""
        with torch.in_a_pass(self.turns, list(PINNED.values())):
            self.receiver.process_waiting_requests([])
            self.receiver.ended.clear()

    def asked(self, rid, rows):
        """Puts a request into the scheduler."""
        r = self.ask(rid, rows)
        req = types.SimpleNamespace(rid=rid, input_ids=None, mm_inputs=None,
                                    num_items_assigned=r["items"])

        def put(embeddings, _parts):
            have, = embeddings.values()
            return MultimodalInputs([MultimodalDataItem(
                precomputed_embeddings=have)])
        one = receiver.WaitingZmqRequest(rid, req, put, r["urls"],
                                         "qwen2_vl", "host", 1)
        one.send_encode_request()
        self.waiting.append(one)
        return one

    def begun(self, rid, rows):
        """Has a request whose rows have landed, and whose copies are
        queued."""
        one = self.asked(rid, rows)
        eventually(lambda: self.turn() or one._made is not None or
                   one.status != PENDING, "its rows have landed")
        self.assertEqual(one.status, PENDING, one.error_msg)
        return one

    def served(self, rid, rows):
        one = self.asked(rid, rows)
        eventually(lambda: self.turn() or one.status != PENDING,
                   "it is served")
        self.assertEqual(one.status, SUCCESS, one.error_msg)
        return one

    def want(self, rid, rows):
        return np.concatenate([picture(rid, part, rows) for part in
                               range(len(self.encoders))])

    def check(self, one, rid, rows):
        """Reads the rows as the model does, on SGLang's stream for it."""
        item, = one.recv_req.mm_inputs.mm_items
        stream = self.scheduler.forward_stream
        with torch.on(stream):
            stream.wait_stream(self.turns)
            got = torch.read(item.precomputed_embeddings)
        stream.synchronize()
        np.testing.assert_array_equal(got, self.want(rid, rows))
        self.assertTrue(item.keep_device_embedding)

    def taken(self):
        free, blocks = self.d.free()
        return blocks - free

    def flows(self, stream):
        """Checks that the work that is queued on the stream ends."""
        over = threading.Thread(target=stream.synchronize, daemon=True)
        over.start()
        over.join(LIMIT)
        self.assertFalse(over.is_alive())


class Language(Gpu):
    def test_a_request_is_served_after_its_copy(self):
        self.start()
        gate = self.copies.gate()
        one = self.begun("r", 300)
        for _ in range(3):
            self.turn()
        self.assertEqual((one.status, self.taken()), (PENDING, 3))
        gate.set()
        self.copies.synchronize()
        self.turn()
        self.assertEqual(one.status, SUCCESS)
        self.d.all_free()
        self.check(one, "r", 300)

    def test_kernels_of_others_do_not_wait_for_it(self):
        self.start()
        gate = self.copies.gate()
        self.begun("r", 300)
        self.scheduler.forward_stream.wait_stream(self.turns)
        self.flows(self.scheduler.forward_stream)
        gate.set()
        eventually(lambda: self.turn() or not self.waiting, "it is served")

    def test_it_does_not_wait_for_kernels_of_others(self):
        self.start()
        gate = self.scheduler.forward_stream.gate()
        one = self.served("r", 300)
        gate.set()
        self.check(one, "r", 300)

    def test_parts_are_one_batch_and_one_tensor(self):
        self.start(encoders=2)
        batches = self.batches()
        one = self.served("r", 300)
        self.assertEqual(self.batches() - batches, 1)
        self.check(one, "r", 300)

    def test_a_client_that_leaves_amid_the_copy(self):
        self.start()
        gate = self.copies.gate()
        one = self.begun("r", 300)
        one._fail_and_release("Aborted by user", error_code=400)
        for _ in range(3):
            self.turn()
        self.assertEqual((self.waiting, self.taken()), ([], 3))
        gate.set()
        self.copies.synchronize()
        self.turn()
        self.d.all_free()

    def test_another_rank_fails_amid_the_copy(self):
        """The other rank had not attached: this rank learns of the failure
        only from SGLang."""
        self.start()
        self.lang.ranks = 2
        gate = self.copies.gate()
        one = self.begun("r", 300)
        self.receiver.least = lambda held: [(FAIL, "", 0)] * len(held)
        self.turn()
        self.assertEqual((self.waiting, self.taken()), ([], 3))
        gate.set()
        self.copies.synchronize()
        self.turn()
        self.assertNotEqual(one.status, FAIL)
        self.d.all_free()

    def test_langd_ends_amid_the_copy(self):
        self.start()
        gate = self.copies.gate()
        one = self.begun("r", 300)
        self.d.kill()
        for _ in range(3):
            self.turn()
        gate.set()
        self.copies.synchronize()
        self.turn()
        self.check(one, "r", 300)
        self.d.start()
        self.until_pinned()
        self.check(self.served("s", 300), "s", 300)
        del one
        eventually(lambda: gc.collect() >= 0 and len(PINNED) == 3,
                   "only pools in use are pinned")

    def test_gpu_memory_has_a_limit(self):
        self.start()
        self.lang._limit = self.lang._left = 2 * 300 * WIDTH * 2
        first, second = (self.served(rid, 300) for rid in "ab")
        for one, rid in ((first, "a"), (second, "b")):
            self.check(one, rid, 300)
        third = self.asked("c", 300)
        large = self.served("d", 601)
        item, = large.recv_req.mm_inputs.mm_items
        # the same as the engine without a GPU has
        np.testing.assert_array_equal(
            item.precomputed_embeddings, self.want("d", 601))
        eventually(lambda: self.turn() or all(
            r.complete for r in third.rooms.values()), "they have landed")
        self.turn()
        self.assertEqual(third.status, PENDING)
        first.recv_req.mm_inputs.release_features()
        del first, one
        eventually(lambda: self.turn() or third.status == SUCCESS, "served")
        self.check(third, "c", 300)
        self.d.all_free()

    def test_a_gpu_without_memory_costs_its_request(self):
        self.start()
        copies = self.lang.copies
        for at, name in ((copies._torch, "empty"), (copies._fences, "after")):
            with mock.patch.object(at, name, side_effect=RuntimeError(
                    "out of memory")):
                one = self.asked("r", 300)
                eventually(lambda: self.turn() or not self.waiting, "ended")
            self.assertEqual(one.status, FAIL)
            self.assertIn("out of memory", one.error_msg)
            self.d.all_free()
            self.check(self.served("s", 300), "s", 300)

    def test_a_pool_is_pinned_once(self):
        self.start()
        for turn in range(3):
            self.served(f"r{turn}", 300)
        # The third: the encoder's pool, by its engine, and as it is lent.
        eventually(lambda: self.lang.step() and len(PINNED) == 3, "pinned")


class Encode(Gpu):
    def source(self):
        sources = self.encoders[0].delivery.rooms.sources
        return eventually(lambda: list(sources.values()), "announced")[0]

    def held_back(self, gate):
        one = self.asked("r", 300)
        source = self.source()
        eventually(self.encoders[0].queued, "the copy is queued")
        for _ in range(3):
            self.turn()
        self.assertEqual(source.rows, 0)
        gate.set()
        eventually(lambda: self.turn() or one.status == SUCCESS,
                   "it is served")
        self.check(one, "r", 300)
        self.posted.join()
        self.assertEqual(self.answers, [])
        self.e[0].all_free()

    def test_rows_are_committed_when_they_are_copied(self):
        self.start()
        self.held_back(self.encoders[0].copies.gate())

    def test_rows_are_copied_after_the_kernels_that_write_them(self):
        self.start()
        self.held_back(self.encoders[0].kernels.gate())

    def test_the_loop_goes_on(self):
        self.start()
        gate = self.encoders[0].copies.gate()
        self.asked("r", 300)
        eventually(self.encoders[0].queued, "the copy is queued")
        over = threading.Event()
        self.loop.call_soon_threadsafe(over.set)
        self.assertTrue(over.wait(LIMIT))
        gate.set()
        eventually(lambda: self.turn() or not self.waiting, "it is served")

    def test_a_call_given_up_amid_the_copy_keeps_its_blocks(self):
        self.start()
        gate = self.encoders[0].copies.gate()
        one = self.asked("r", 300)
        eventually(self.encoders[0].queued, "the copy is queued")
        one._fail_and_release("Aborted by user", error_code=400)
        for state in list(self.encoders[0].req_states.values()):
            state.release_requested = True
        for _ in range(3):
            self.turn()
        self.assertTrue(self.posted.is_alive())
        free, blocks = self.e[0].free()
        self.assertEqual(blocks - free, 3)
        gate.set()
        self.posted.join(LIMIT)
        self.e[0].all_free()

    def test_rows_that_are_on_the_host(self):
        """SGLang's caches hold rows in host memory."""
        self.start()
        with mock.patch.object(Encoder, "encode", lambda self, rows: rows):
            batches = self.batches()
            one = self.served("r", 300)
        self.assertEqual(self.batches(), batches)
        self.check(one, "r", 300)

    def test_a_gpu_without_memory_costs_its_request(self):
        self.start()
        with mock.patch.object(torch.Tensor, "contiguous",
                               side_effect=RuntimeError("out of memory")):
            one = self.asked("r", 300)
            self.answered(500, "internal: out of memory")
        eventually(lambda: self.turn() or not self.waiting, "it has failed")
        self.assertIn("out of memory", one.error_msg)
        self.e[0].all_free()
        self.check(self.served("s", 300), "s", 300)

    def test_rows_of_another_width_are_not_copied(self):
        self.start()
        with mock.patch.object(
                Encoder, "encode", lambda self, rows: torch.written(
                    np.ascontiguousarray(rows[:, :16]))):
            one = self.asked("r", 300)
            self.answered(500, "32 wide, the rows are 16")
        eventually(lambda: self.turn() or not self.waiting, "it has failed")
        self.assertNotEqual(one.status, SUCCESS)


del Gpu

if __name__ == "__main__":
    unittest.main()
