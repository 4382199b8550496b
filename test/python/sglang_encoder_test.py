"""Tests the encode side of the SGLang plugin without a daemon: what it
announces of a batch, where rows are until they are sent, and blocks that are
being written."""

import asyncio
import os
import sys
import threading
import types
import unittest
import unittest.mock

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             # last, so that a real one comes first
                             "engines"))

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.disaggregation.encoder import receiver, server  # noqa: E402

import mmx  # noqa: E402
from mmx.adapters import _sglang_common as common  # noqa: E402
from mmx.adapters import _sglang_encoder  # noqa: E402


class Encoder(unittest.TestCase):
    def test_a_batch_is_told_its_own_sizes(self):
        told = []

        waited = []

        async def pool():
            waited.append(1)
            return "pool"

        def announce(data, beside, flags, pool):
            self.assertEqual((flags, pool), (mmx.aux.MROPE, "pool"))
            told.append((data, beside["original_image_sizes"]))

        async def original(self, ctx, requests):
            pass
        rooms = types.SimpleNamespace(announce=announce, pool_or_why=pool)
        encoder = types.SimpleNamespace(
            rank=0, delivery=types.SimpleNamespace(
                rooms=rooms, metrics=common.Metrics("encode")),
            model_config=server.MMEncoder().model_config,
            req_states={n: types.SimpleNamespace(embedding_data=n)
                        for n in "ab"})
        ctx = types.SimpleNamespace(
            is_health_check=False, items_per_req=[1, 2],
            aux_data={"original_image_sizes": [(1, 1), (2, 2), (3, 3)]})
        ours = _sglang_encoder
        requests = [{"req_id": n} for n in "abc"]
        asyncio.run(ours.published(original, encoder, ctx, requests[:2]))
        self.assertEqual(told, [("a", [(1, 1)]), ("b", [(2, 2), (3, 3)])])
        # once for the batch, not for each request
        self.assertEqual(len(waited), 1)
        for change in ({"rank": 1}, {"req_states": {}}):
            told.clear()
            other = types.SimpleNamespace(**{**vars(encoder), **change})
            asyncio.run(ours.published(original, other, ctx, requests[:2]))
            self.assertEqual(told, [])

    def test_rows_stay_on_the_gpu_unless_they_are_read_on_the_host(self):
        def left(later=True, health=False, cache=False, prefix=False,
                 audio=None, rank=0):
            encoder = types.SimpleNamespace(rank=rank)
            if rank == 0:  # the other ranks deliver nothing
                encoder.delivery = types.SimpleNamespace(
                    copies=types.SimpleNamespace(later=later))
            ctx = types.SimpleNamespace(
                is_health_check=health, use_global_cache=cache,
                preprocess_result=types.SimpleNamespace(
                    mm_inputs={"video_audio_features": audio}))
            with unittest.mock.patch.object(
                    runtime_context.MM, "enable_prefix_mm_cache", prefix):
                return asyncio.run(_sglang_encoder.computed(
                    server.MMEncoder._compute_embedding, encoder, ctx,
                    keep_on_gpu=False))
        self.assertTrue(left())
        for how in ({"later": False}, {"health": True}, {"cache": True},
                    {"prefix": True}, {"audio": [1]}, {"rank": 1}):
            self.assertFalse(left(**how), how)

    def test_a_requests_rows_keep_no_others_on_the_gpu(self):
        """Rows of a fused batch are views of one tensor, which would stay
        until the last of them is sent."""
        def staged(later, *rows):
            encoder = server.MMEncoder()
            encoder.delivery = types.SimpleNamespace(
                copies=types.SimpleNamespace(later=later))
            datas = [self.data(n, r) for n, r in enumerate(rows)]
            encoder.req_states = {d.req_id: server.ReqState(d.req_id)
                                  for d in datas}
            _sglang_encoder.staged(
                server.MMEncoder._stage_embedding_batch, encoder, datas)
            return [s.embedding_data.embedding for s in
                    encoder.req_states.values()]

        def view(is_cuda=True):
            return types.SimpleNamespace(is_cuda=is_cuda, shape=(1, 1),
                                         dtype=None, clone=lambda: "own")
        alone, host, batch = view(), view(False), [view(), view()]
        self.assertEqual(staged(True, *batch), ["own", "own"])
        for later, rows in ((True, [alone]), (True, [host, host]),
                            (False, batch), (True, [None, None])):
            self.assertEqual(staged(later, *rows), rows)

    def data(self, number, rows):
        return receiver.EmbeddingData(f"r{number}", 1, 0, None,
                                      receiver.Modality.IMAGE, rows)

    def test_blocks_that_are_written_are_kept_until_that_ends(self):
        """SGLang cancels the calls of requests that it has given up."""
        began, go = threading.Event(), threading.Event()

        def write():
            began.set()
            go.wait(60)

        async def turn():
            doing = asyncio.ensure_future(_sglang_encoder.whole(
                asyncio.to_thread(write)))
            await asyncio.to_thread(began.wait, 60)
            for _ in range(2):
                doing.cancel()
                await asyncio.sleep(0)
                self.assertFalse(doing.done())
            go.set()
            with self.assertRaises(asyncio.CancelledError):
                await doing
        asyncio.run(turn())


if __name__ == "__main__":
    unittest.main()
