"""Stands in for ai-dynamo 1.6.1's module of this name where it is not
installed: the prefill worker's choice of a receiver."""

from dynamo.common.constants import EmbeddingTransferMode
from dynamo.common.multimodal.embedding_transfer import LocalEmbeddingReceiver
from dynamo.vllm.multimodal_utils.prefill_worker_utils import (
    MultiModalEmbeddingLoader)


class BaseWorkerHandler:
    def __init__(self, config, encode_worker_client=None):
        self.loader = self.init_embedding_loader(config, encode_worker_client)

    def init_embedding_loader(self, config, encode_worker_client=None):
        if encode_worker_client is None:
            return None
        if config.embedding_transfer_mode == EmbeddingTransferMode.LOCAL:
            self.embedding_receiver = LocalEmbeddingReceiver()
        else:
            raise ValueError("Invalid embedding transfer mode: "
                             f"{config.embedding_transfer_mode}")
        return MultiModalEmbeddingLoader(
            encode_worker_client=encode_worker_client,
            receiver=self.embedding_receiver)
