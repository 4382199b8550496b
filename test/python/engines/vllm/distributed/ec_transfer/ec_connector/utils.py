"""Stands in for vLLM's module of this name where vLLM is not installed: for a
model that sizes pictures and videos by their grid, and by times."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Set


class PlaceholderMetadataResolver:
    def __init__(self, model_config: Any) -> None:
        pass

    def fields_for(self, modality: str) -> Set[str]:
        return {f"{modality}_grid_thw", "timestamps"}


def collect_ec_item_metadata(
        mm_features: Iterable[Any], resolver: PlaceholderMetadataResolver) \
        -> Dict[str, Dict[str, Any]]:
    items: Dict[str, Dict[str, Any]] = {}
    for i, feature in enumerate(mm_features):
        wanted = resolver.fields_for(feature.modality)
        item = items.setdefault(feature.identifier, {
            "item_indices": [], "metadata": {
                k: v.data for k, v in feature.data.items() if k in wanted}})
        item["item_indices"].append(i)
    return items
