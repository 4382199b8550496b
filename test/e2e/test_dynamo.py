"""Dynamo's embedding transfer between real daemons, driven as ai-dynamo 1.6.1
does: an encode worker that sends the tensors of a request at once and awaits
one after the other, a prefill worker that receives all of a request's at once,
each on an asyncio loop. No encoder is listed: langd has a key, and the
reference says which daemon it is."""

import asyncio
import contextlib
import json
import os
import signal
import time
from unittest import mock

import numpy as np
from dynamo.common.multimodal.embedding_transfer import TransferRequest
from dynamo.vllm.multimodal_handlers import encode_worker_handler
from dynamo.vllm.multimodal_utils.prefill_worker_utils import (
    MultiModalEmbeddingLoader)
from pair import LIMIT, Case, eventually

import mmx
from mmx.adapters import _dynamo

WIDTH = 64
FIELDS = f"embedding:f32:{WIDTH}"
SLACK_S = 2  # for a slow machine, above a time that is asserted


def picture(number, rows=300):
    """What an encoder makes of a picture: one of a batch of one."""
    some = np.random.default_rng(number)
    return some.random((1, rows, WIDTH), dtype=np.float32)


def dumped(request):
    """As it goes from worker to worker."""
    return json.dumps(vars(request))


def loaded(text):
    return TransferRequest(**json.loads(text))


class Encode(encode_worker_handler.EncodeWorkerHandler):
    """An encode worker in transfer mode mmx."""

    def __init__(self):
        super().__init__(
            None, encode_worker_handler.EmbeddingTransferMode.LOCAL)
        self.embedding_sender = _dynamo.MmxEmbeddingSender()


class Dynamo(Case):
    def setUp(self):
        super().setUp()
        self.more = contextlib.ExitStack()
        self.addCleanup(self.more.close)

    def start(self, encoded=None, langd=None, **env):
        """One daemon of each side, and what the workers have of them."""
        self.e = self.world.encoded(fields=FIELDS, **(encoded or {}))
        self.d = self.world.langd([], fields=FIELDS, default_blocks=1, **{
            "control": {"allow": ["key"]}, **(langd or {})})
        self.more.enter_context(mock.patch.dict(
            os.environ, MMX_ENCODED_SOCKET=self.e.socket,
            MMX_LANGD_SOCKET=self.d.socket, **env))

    def play(self, what, *words):
        """Runs it on a loop, with an encode worker and a prefill worker's
        loader; returns what it does."""
        async def on_loop():
            self.enc = Encode()
            self.sender = self.enc.embedding_sender
            self.receiver = _dynamo.MmxEmbeddingReceiver()
            self.loader = MultiModalEmbeddingLoader(None, self.receiver)
            try:
                return await asyncio.wait_for(what(*words), LIMIT)
            finally:
                tasks = [self.enc.send_complete_checker_task,
                         *self.sender._tasks]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for end in (self.sender, self.receiver):
                    if end._daemon.conn:
                        end._daemon.conn.close()
        return asyncio.run(on_loop())

    async def send(self, *numbers, rows=300):
        got = await self.enc.send([picture(n, rows) for n in numbers])
        return [loaded(dumped(request)) for request in got]

    def same(self, tensors, *numbers, rows=300):
        self.assertEqual(len(tensors), len(numbers))
        for tensor, number in zip(tensors, numbers):
            self.assertTrue(np.array_equal(tensor, picture(number, rows)))

    async def moved(self, *numbers, rows=300):
        self.same(await self.loader.load(await self.send(*numbers, rows=rows)),
                  *numbers, rows=rows)

    async def back(self, daemon):
        await asyncio.to_thread(daemon.start)

    # --- what Dynamo's own tests ask of a pair --------------------------------
    async def correctness(self):
        tensors = [picture(n)[0] for n in range(3)]
        sent = await asyncio.gather(*[
            asyncio.create_task(self.sender.send_embeddings(t))
            for t in tensors])
        for (request, done), tensor in zip(sent, tensors):
            number, got = await self.receiver.receive_embeddings(request)
            self.assertTrue(np.array_equal(got, tensor))
            self.receiver.release_tensor(number)
            await done

    async def benchmark(self):
        tensors = [picture(n, 256)[0] for n in range(30)]
        sent = await asyncio.gather(*[
            self.sender.send_embeddings(t, stage_embeddings=True)
            for t in tensors])
        got = await asyncio.gather(*[
            self.receiver.receive_embeddings(request) for request, _ in sent])
        for tensor, (_, done), (number, rows) in zip(tensors, sent, got):
            self.assertTrue(np.array_equal(rows, tensor))
            self.receiver.release_tensor(number)
            await done

    def test_correctness(self):
        self.start()
        self.play(self.correctness)

    def test_benchmark(self):
        self.start(encoded={"blocks": 64}, langd={"blocks": 8})
        self.play(self.benchmark)

    # --- rows -----------------------------------------------------------------
    def test_a_request_of_several_pictures(self):
        self.start()
        self.play(self.moved, *range(8))

    def test_a_large_one_is_copied_by_a_thread(self):
        self.start()
        self.play(lambda: self.moved(1, rows=5000))

    def test_rows_in_two_parts_on_both_sides(self):
        """Every other block is taken, and the pools have no two free ones that
        are neighbours."""
        self.start(encoded={"blocks": 8}, langd={"blocks": 8})
        enc, lm = self.engines(self.e, self.d)
        for room in range(8):
            enc.announce(room + 1, 100, 100)
            enc.granted(room + 1)
            lm.request(room + 1, self.e.address)
            enc.write(room + 1, 0, 100)
        for room in range(1, 9):
            eventually(lambda r=room: lm.rooms[r].state >= 2, "it has blocks")
        eventually(lambda: self.d.free()[0] == 0, "all blocks are taken")
        for room in range(1, 9, 2):
            enc.release(room)
            lm.release(room)
        eventually(lambda: (self.e.free()[0], self.d.free()[0]) == (4, 4),
                   "every other block is free")
        self.play(lambda: self.moved(7, rows=450))
        for room in range(2, 9, 2):
            enc.release(room)
            lm.release(room)

    def test_rows_that_do_not_fit(self):
        self.start()

        async def play():
            with self.assertRaisesRegex(
                    mmx.errors.IncompatibleLayout, "pool vit is f32, the rows "
                    "are float64"):
                await self.sender.send_embeddings(
                    picture(1).astype("f8"))
            with self.assertRaises(mmx.errors.TooLarge):
                await self.send(1, rows=64 * 128 + 1)
            request, = await self.send(1)
            request.embeddings_shape = [1, 299, WIDTH]
            with self.assertRaisesRegex(mmx.errors.ItemMismatch,
                                        "300 rows of 64 f32 came"):
                await self.loader.load([request])
            with self.assertRaisesRegex(mmx.errors.Malformed, "transfer mode"):
                request.serialized_request = "/tmp/encoder_cache.safetensors"
                await self.loader.load([request])
        self.play(play)

    # --- daemons --------------------------------------------------------------
    def test_a_daemon_that_is_late(self):
        self.start(encoded={"start": False}, langd={"start": False})

        async def play():
            sent = asyncio.ensure_future(self.send(1, 2))
            await asyncio.sleep(_dynamo.LOOK_S + 0.2)
            self.assertFalse(sent.done())
            await self.back(self.e)
            requests = await sent
            got = asyncio.ensure_future(self.loader.load(requests))
            await asyncio.sleep(_dynamo.LOOK_S + 0.2)
            self.assertFalse(got.done())
            await self.back(self.d)
            self.same(await got, 1, 2)
        self.play(play)

    def lost(self, daemon, before):
        """A daemon is killed with rows in it; received before or after it is
        back."""
        async def play():
            await self.moved(1)
            requests = await self.send(2, 3)
            daemon.kill()
            if before:
                got = asyncio.ensure_future(self.loader.load(requests))
                await asyncio.sleep(0.3)
                await self.back(daemon)
            else:
                await self.back(daemon)
                got = asyncio.ensure_future(self.loader.load(requests))
            self.same(await got, 2, 3)
            await self.moved(4)
        self.play(play)

    def test_an_encoded_that_is_killed_before_it_is_asked(self):
        self.start(langd={"timeouts": {"unreachable": "1s"}})
        self.lost(self.e, True)

    def test_an_encoded_that_was_killed(self):
        self.start()
        self.lost(self.e, False)

    def test_a_langd_that_is_killed_before_it_is_asked(self):
        self.start()
        self.lost(self.d, True)

    def test_a_langd_that_is_killed_with_rows(self):
        """Its rooms wait for blocks, which a room of another engine has."""
        self.start(langd={"blocks": 4})

        async def play():
            lm = self.world.engine(self.d)
            requests = await self.send(1, 2, 3)
            held, = await self.send(4)
            said = held.serialized_request
            reference = mmx.Reference.read(said["reference"])
            room = lm.conn.request(reference, lm.pool, said["encoder"])
            await asyncio.to_thread(room.wait_ready, LIMIT)
            got = asyncio.ensure_future(self.loader.load(requests))
            await asyncio.sleep(0.3)
            self.d.kill()
            await self.back(self.d)
            self.same(await got, 1, 2, 3)
        self.play(play)

    def test_rows_are_not_written_again_once_their_tensor_may_change(self):
        self.start()

        async def play():
            with mock.patch.object(_dynamo, "HOLD_S", 0.2):
                tensor = picture(1)
                request, done = await self.sender.send_embeddings(
                    tensor, stage_embeddings=True)
                self.assertFalse(done.done())
                await done
                tensor[:] = 0
                self.e.kill()
                await self.back(self.e)
                with self.assertRaises(mmx.errors.UnknownRoom):
                    await self.receiver.receive_embeddings(request)
        self.play(play)

    def hung(self, daemon):
        async def play():
            await self.moved(1)
            os.kill(daemon.pid, signal.SIGSTOP)
            began = time.monotonic()
            try:
                with self.assertRaises(mmx.errors.DaemonSilent):
                    await self.moved(2)
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            self.assertLess(time.monotonic() - began, 2 + 1 + SLACK_S)
            await self.moved(3)
        self.play(play)

    def test_a_hung_encoded(self):
        self.start(MMX_DEADLINE_S="2")
        self.hung(self.e)

    def test_a_hung_langd(self):
        self.start(MMX_DEADLINE_S="2")
        self.hung(self.d)

    def test_a_daemon_that_hangs_for_a_while(self):
        self.start()

        async def play():
            await self.moved(1)
            os.kill(self.e.pid, signal.SIGSTOP)
            sent = asyncio.ensure_future(self.moved(2))
            await asyncio.sleep(0.5)
            os.kill(self.e.pid, signal.SIGCONT)
            await sent
        self.play(play)

    def test_a_daemon_that_does_not_come(self):
        self.start(encoded={"start": False}, MMX_DEADLINE_S="1.5")

        async def play():
            with self.assertRaisesRegex(mmx.errors.DaemonLost, "enc0.sock"):
                await self.send(1)
        self.play(play)
