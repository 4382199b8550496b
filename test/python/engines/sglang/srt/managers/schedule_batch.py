"""Stands in for SGLang 0.5.23's module of this name where it is not
installed."""

from __future__ import annotations

import dataclasses
from typing import Any, List


@dataclasses.dataclass
class MultimodalDataItem:
    feature: Any = None
    precomputed_embeddings: Any = None
    keep_device_embedding: bool = False


@dataclasses.dataclass
class MultimodalInputs:
    mm_items: List[MultimodalDataItem]

    def release_features(self):
        for item in self.mm_items:
            item.feature = None
