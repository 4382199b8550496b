"""Stands in for ai-dynamo 1.6.1's module of this name where it is not
installed: the encode worker's choice of a sender, and how it sends."""

import asyncio

from dynamo.common.constants import EmbeddingTransferMode
from dynamo.common.multimodal.embedding_transfer import LocalEmbeddingSender


class EncodeWorkerHandler:
    def __init__(self, engine_args, embedding_transfer_mode,
                 enable_frontend_decoding=False, *,
                 embedding_cache_capacity_gb=0.0):
        self.engine_args = engine_args
        if embedding_transfer_mode == EmbeddingTransferMode.LOCAL:
            self.embedding_sender = LocalEmbeddingSender()
        else:
            raise ValueError("Invalid embedding transfer mode: "
                             f"{embedding_transfer_mode}")
        self.send_complete_queue = asyncio.Queue()
        self.send_complete_checker_task = asyncio.create_task(
            self.check_complete(self.send_complete_queue))

    async def check_complete(self, queue):
        """Awaits transfers one after the other; an error ends it for good."""
        while True:
            transfer_future, embedding = await queue.get()
            if transfer_future is None:
                break
            await transfer_future
            queue.task_done()

    async def send(self, tensors):
        """Does the part of generate() that sends what was encoded."""
        tasks = [asyncio.create_task(self.embedding_sender.send_embeddings(
            tensor, stage_embeddings=True)) for tensor in tensors]
        sent = await asyncio.gather(*tasks)
        for (_, future), tensor in zip(sent, tensors):
            self.send_complete_queue.put_nowait((future, tensor))
        return [request for request, _ in sent]
