"""Stands in for vLLM's module of this name where vLLM is not installed."""

from __future__ import annotations

from typing import Any, Dict, List


class ECConnectorStats:
    data: Dict[str, Any]


class ECConnectorPromMetrics:
    def __init__(self, vllm_config: Any, metric_types: Dict[str, Any],
                 labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        self._counter_cls = metric_types["counter"]
        self._gauge_cls = metric_types["gauge"]
        self._histogram_cls = metric_types["histogram"]
