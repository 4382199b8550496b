"""Stands in for ai-dynamo 1.6.1's module of this name where it is not
installed: an encode worker that prints the class with which it would send."""

import argparse
import asyncio

from dynamo.common.constants import EmbeddingTransferMode
from dynamo.vllm.multimodal_handlers.encode_worker_handler import (
    EncodeWorkerHandler)

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--embedding-transfer-mode", default="nixl-write",
                   choices=[m.value for m in EmbeddingTransferMode])

    async def sender():
        words, _ = p.parse_known_args()
        return EncodeWorkerHandler(None, EmbeddingTransferMode(
            words.embedding_transfer_mode)).embedding_sender
    print(type(asyncio.run(sender())).__name__)
