"""Stands in for ai-dynamo 1.6.1's package of this name where it is not
installed: the tables in which SGLang's workers look up transfer modes."""

from dynamo.common.constants import EmbeddingTransferMode
from dynamo.common.multimodal.embedding_transfer import (
    LocalEmbeddingReceiver, LocalEmbeddingSender)

EMBEDDING_SENDER_FACTORIES = {
    EmbeddingTransferMode.LOCAL: LocalEmbeddingSender}
EMBEDDING_RECEIVER_FACTORIES = {
    EmbeddingTransferMode.LOCAL: LocalEmbeddingReceiver}
