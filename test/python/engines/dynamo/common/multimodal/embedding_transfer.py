"""Stands in for ai-dynamo 1.6.1's module of this name where it is not
installed: names, signatures and what the methods promise. Arrays stand in for
tensors, a list for files."""

import asyncio
from abc import ABC, abstractmethod


class TransferRequest:
    def __init__(self, *, embeddings_shape, embedding_dtype_str,
                 serialized_request):
        self.embeddings_shape = embeddings_shape
        self.embedding_dtype_str = embedding_dtype_str
        self.serialized_request = serialized_request


class AbstractEmbeddingReceiver(ABC):
    @abstractmethod
    async def receive_embeddings(self, request):
        """Returns the tensor's number and the tensor."""

    @abstractmethod
    def release_tensor(self, tensor_id):
        """Called when the tensor is not used any more; not called after an
        error."""


class AbstractEmbeddingSender(ABC):
    @abstractmethod
    async def send_embeddings(self, embeddings, stage_embeddings=False):
        """Returns a TransferRequest and an awaitable. stage_embeddings: the
        tensor does not change until the awaitable is done."""


FILES = []


class LocalEmbeddingSender(AbstractEmbeddingSender):
    def __init__(self):
        self.sender_id = "one"

    async def send_embeddings(self, embeddings, stage_embeddings=False):
        FILES.append(embeddings.copy())
        sent = asyncio.get_event_loop().create_future()
        sent.set_result(None)
        return TransferRequest(
            embeddings_shape=list(embeddings.shape),
            embedding_dtype_str=str(embeddings.dtype),
            serialized_request=f"/tmp/{len(FILES) - 1}"), sent


class LocalEmbeddingReceiver(AbstractEmbeddingReceiver):
    def __init__(self):
        super().__init__()
        self.received_tensors = {}

    async def receive_embeddings(self, request):
        number = int(request.serialized_request.rsplit("/")[-1])
        return number, FILES[number]

    def release_tensor(self, tensor_id):
        FILES[tensor_id] = None
