"""Stands in for ai-dynamo 1.6.1's module of this name where it is not
installed: all tensors of a request are received at once; tensors read from a
file belong to the worker."""

import asyncio

from dynamo.common.multimodal.embedding_transfer import LocalEmbeddingReceiver


class MultiModalEmbeddingLoader:
    def __init__(self, encode_worker_client, receiver,
                 embedding_cache_manager=None, session_scoped_cache=None):
        self._encode_worker_client = encode_worker_client
        self._receiver = receiver

    async def load(self, requests):
        tasks = [asyncio.create_task(self._receiver.receive_embeddings(r))
                 for r in requests]
        loaded = await asyncio.gather(*tasks)
        if isinstance(self._receiver, LocalEmbeddingReceiver):
            return [tensor for _, tensor in loaded]
        copies = [tensor.copy() for _, tensor in loaded]
        for number, _ in loaded:
            self._receiver.release_tensor(number)
        return copies
