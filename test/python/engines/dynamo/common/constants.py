"""Stands in for ai-dynamo 1.6.1's module of this name where it is not
installed."""

from enum import Enum


class EmbeddingTransferMode(Enum):
    LOCAL = "local"
    NIXL_WRITE = "nixl-write"
    NIXL_READ = "nixl-read"
