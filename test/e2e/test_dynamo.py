"""Dynamo's embedding transfer between real daemons, driven as ai-dynamo 1.6.1
does: an encode worker sends the tensors of a request at once and awaits one
after the other; a prefill worker receives all of a request's at once; each
runs an asyncio loop. No encoder is listed: langd has a key, and the reference
names the daemon."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
from dynamo.common.multimodal.embedding_transfer import TransferRequest
from dynamo.vllm.multimodal_handlers import encode_worker_handler
from dynamo.vllm.multimodal_utils.prefill_worker_utils import (
    MultiModalEmbeddingLoader)
from pair import LIMIT, Case, eventually

import mmx
from mmx.adapters import _common, _dynamo

WIDTH = 64
FIELDS = f"embedding:f32:{WIDTH}"
SLACK_S = 2  # for a slow machine, on top of a time that is asserted
# For tests in which langd's blocks are short: lent rows take none of them.
COPY = {"transfer": {"same_host": "copy"}}


def picture(number, rows=300):
    """Returns what an encoder makes of a picture: a batch of one."""
    some = np.random.default_rng(number)
    return some.random((1, rows, WIDTH), dtype=np.float32)


def dumped(request):
    """Returns the request as workers send it to each other."""
    return json.dumps(vars(request))


def loaded(text):
    return TransferRequest(**json.loads(text))


class Encode(encode_worker_handler.EncodeWorkerHandler):
    """An encode worker in transfer mode mmx."""

    def __init__(self):
        super().__init__(
            None, encode_worker_handler.EmbeddingTransferMode.LOCAL)
        self.embedding_sender = _dynamo.MmxEmbeddingSender()


async def prefill(path):
    """A prefill worker: prints the sums of the rows of each line's request."""
    os.environ["MMX_LANGD_SOCKET"] = path
    loader = MultiModalEmbeddingLoader(None, _dynamo.MmxEmbeddingReceiver())
    while line := await asyncio.to_thread(sys.stdin.readline):
        tensors = await loader.load([loaded(t) for t in json.loads(line)])
        print(json.dumps([float(t.sum()) for t in tensors]), flush=True)


class Dynamo(Case):
    def setUp(self):
        super().setUp()
        self.more = contextlib.ExitStack()
        self.addCleanup(self.more.close)

    def start(self, encoded=None, langd=None, **env):
        """Starts one daemon of each side, and sets the workers'
        environment."""
        self.e = self.world.encoded(fields=FIELDS, **(encoded or {}))
        self.d = self.world.langd([], fields=FIELDS, default_blocks=1, **{
            "control": {"allow": ["key"]}, **(langd or {})})
        self.more.enter_context(mock.patch.dict(
            os.environ, MMX_ENCODED_SOCKET=self.e.socket,
            MMX_LANGD_SOCKET=self.d.socket, **env))

    def play(self, what, *words):
        """Runs `what` on a loop with an encode worker and a prefill worker's
        loader; returns its result."""
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

    def test_a_large_one_is_copied_by_a_thread(self):
        self.start()
        self.play(lambda: self.moved(1, rows=5000))

    def test_rows_in_two_parts_on_both_sides(self):
        """Every other block is taken: no two free blocks of a pool are
        neighbours."""
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
        """Kills a daemon that has rows. They are received `before` it is back,
        or after."""
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
        """The killed langd's rooms wait for blocks, which another engine's
        room holds."""
        self.start(langd={"blocks": 4, **COPY})

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

    def test_a_daemon_that_does_not_come(self):
        self.start(encoded={"start": False}, MMX_DEADLINE_S="1.5")

        async def play():
            with self.assertRaisesRegex(mmx.errors.DaemonLost, "enc0.sock"):
                await self.send(1)
        self.play(play)

    # --- full pools -----------------------------------------------------------
    def test_sends_that_wait_for_blocks(self):
        """Requests of three pictures each, through a pool of two pictures."""
        self.start(encoded={"blocks": 6}, langd={"blocks": 6})

        async def one(first):
            got = [await self.loader.load(await self.send(n, rows=380))
                   for n in range(first, first + 3)]
            self.same([t for t, in got], *range(first, first + 3), rows=380)
        self.play(lambda: asyncio.gather(*map(one, range(0, 30, 3))))

    def test_requests_that_wait_for_more_of_their_pictures(self):
        """langd has space for two requests: none holds some of its pictures
        and waits for the others."""
        self.start(langd={"blocks": 6, **COPY})

        async def play():
            requests = [await self.send(*range(n, n + 3)) for n in range(5)]
            got = await asyncio.gather(*map(self.loader.load, requests))
            for n, tensors in enumerate(got):
                self.same(tensors, *range(n, n + 3))
        self.play(play)

    def test_what_nobody_fetches_gives_way(self):
        self.start(encoded={"blocks": 6, "timeouts": {"unclaimed": "1s"}},
                   MMX_DEADLINE_S="4")

        async def play():
            await self.send(1, 2)  # of a worker that has ended
            began = time.monotonic()
            await self.moved(3)
            self.assertGreater(time.monotonic() - began, 0.5)
            self.assertLess(time.monotonic() - began, 1 + SLACK_S)
        self.play(play)

    # --- cancelled requests and dead workers ----------------------------------
    def test_a_request_that_is_cancelled_while_it_receives(self):
        self.start(langd={"blocks": 3, **COPY})

        async def play():
            held, *requests = await self.send(1, 2, 3)
            lm = self.world.engine(self.d)
            said = held.serialized_request
            room = lm.conn.request(mmx.Reference.read(said["reference"]),
                                   lm.pool, said["encoder"])
            await asyncio.to_thread(room.wait_ready, LIMIT)
            got = asyncio.ensure_future(self.loader.load(requests))
            await asyncio.sleep(0.3)
            got.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await got
            await asyncio.to_thread(room.release)
            await asyncio.to_thread(self.e.all_free, SLACK_S)
            await asyncio.to_thread(self.d.all_free, SLACK_S)
            await self.moved(4)
        self.play(play)

    def test_one_that_is_cancelled_while_it_sends(self):
        self.start(encoded={"blocks": 3})

        async def play():
            held, = await self.send(1)
            waits = asyncio.ensure_future(self.send(2))
            await asyncio.sleep(0.3)
            self.assertFalse(waits.done())
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            self.same(await self.loader.load([held]), 1)
            await asyncio.to_thread(self.e.all_free, SLACK_S)
            await self.moved(3)
        self.play(play)

    # RULES 7.1
    def test_each_worker_is_a_session(self):
        """The end of a worker's session ends its rooms, while other workers go
        on."""
        self.start()

        async def play():
            ends = [_common.Opened("encoded", "dynamo") for _ in range(2)]
            for one in ends:
                await one.pool(LIMIT)
            self.assertEqual(len({one.conn.session for one in ends}), 2)
            for one in ends:
                await one.conn.aclose()
        self.play(play)

    def test_a_prefill_worker_that_dies_before_it_asks(self):
        self.start(MMX_DEADLINE_S="1.5")

        async def play():
            await self.send(1, 2, 3)
            self.assertLess(self.e.free()[0], 64)
            await asyncio.to_thread(self.e.all_free, 1.5 + SLACK_S)
            await self.moved(4)
        self.play(play)

    def test_a_prefill_worker_that_is_killed_while_it_receives(self):
        """The worker's rooms wait for blocks. All of them end with it."""
        self.start(langd={"blocks": 4, **COPY})

        async def play():
            held, *requests = await self.send(1, 2, 3, 4)
            said = held.serialized_request
            lm = self.world.engine(self.d)
            room = lm.conn.request(mmx.Reference.read(said["reference"]),
                                   lm.pool, said["encoder"])
            await asyncio.to_thread(room.wait_ready, LIMIT)
            with subprocess.Popen(
                    [sys.executable, __file__, self.d.socket], text=True,
                    env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                child.stdin.write(json.dumps(
                    [dumped(r) for r in requests]) + "\n")
                child.stdin.flush()
                try:
                    await asyncio.to_thread(
                        eventually, lambda: [
                            r for r in self.d.show("rooms")
                            if not r.get("ended")][3:],
                        "all have been asked for")
                finally:
                    child.kill()
            await asyncio.to_thread(room.release)
            await asyncio.to_thread(self.e.all_free, SLACK_S)
            await asyncio.to_thread(self.d.all_free, SLACK_S)
            await self.moved(5)
        self.play(play)

    def test_an_encode_worker_that_ends_after_it_has_sent(self):
        """The daemon keeps the rows of an encoder that has ended."""
        self.start()
        requests = self.play(self.send, 1, 2)
        self.play(lambda: self.load_and_see(requests))

    async def load_and_see(self, requests):
        self.same(await self.loader.load(requests), 1, 2)


if __name__ == "__main__":
    asyncio.run(prefill(sys.argv[1]))
