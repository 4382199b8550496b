"""Stands in for ai-dynamo 1.6.1's package of this name where it is not
installed: the tables of transfer modes that SGLang's workers look in."""

from dynamo.common.constants import EmbeddingTransferMode
from dynamo.common.multimodal.embedding_transfer import (
    LocalEmbeddingReceiver, LocalEmbeddingSender)

EMBEDDING_SENDER_FACTORIES = {
    EmbeddingTransferMode.LOCAL: LocalEmbeddingSender}
EMBEDDING_RECEIVER_FACTORIES = {
    EmbeddingTransferMode.LOCAL: LocalEmbeddingReceiver}
