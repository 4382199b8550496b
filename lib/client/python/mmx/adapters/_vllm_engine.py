"""What the connector uses of vLLM: base class, logger, description of items,
and counters."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional

import mmx

from ._common import BYTES, SECONDS, Rated
from ._copies import Here, copies

try:
    from vllm.distributed.ec_transfer.ec_connector.base import (
        ECConnectorBase, ECConnectorMetadata, ECConnectorRole,
        ECConnectorWorkerMetadata)
    from vllm.distributed.ec_transfer.ec_connector.metrics import (
        ECConnectorPromMetrics, ECConnectorStats)
    from vllm.distributed.ec_transfer.ec_connector.utils import (
        PlaceholderMetadataResolver, collect_ec_item_metadata)
    from vllm.logger import init_logger
    # vLLM's check for waits on the GPU allows those in this context.
    from vllm.utils.gpu_sync_debug import gpu_sync_allowed
except ImportError as e:
    raise ImportError("mmx.adapters.vllm_ec needs vLLM 0.32 or a newer one: "
                      f"{e}") from e

log: Any = init_logger("vllm.mmx")  # vLLM prints what its own loggers say

__all__ = ["COUNTS", "Counts", "Described", "ECConnectorBase",
           "ECConnectorMetadata", "ECConnectorRole",
           "ECConnectorWorkerMetadata", "copier", "features", "log",
           "Prom", "rows_of", "warn", "watch_resets"]

# Counters, with their texts in vLLM's /metrics.
COUNTS = {
    "rooms_requested": "rooms that this engine requested from mmx-langd",
    "rooms_ahead": "of these, rooms asked for before the scheduler did",
    "rooms_failed": "rooms that ended without rows",
    "items_fetched": "items whose rows were fetched",
    "rows_fetched": "rows of these items",
    "items_given_up": "items encoded here, or failed, for want of their rows",
    "items_encoded_here": "of these, items that this engine has encoded",
    "requests_failed": "requests that failed: no rows, and nothing to encode",
    "offers_malformed": "entries of ec_transfer_params that are not an offer, "
                        "or of an encoder that mmx_encoders has not",
    "items_declined": "offers that were not needed",
    "rooms_announced": "rooms that this engine announced to mmx-encoded",
    "items_had": "items whose rows mmx-encoded had: not written again",
    "items_not_announced": "items that no router hears of: not to be had",
}


# Observed for each fetched item: text and upper bounds.
HISTOGRAMS = {
    "fetch_seconds": ("seconds from an item's request to its admission",
                      SECONDS),
    "fetch_bytes": ("bytes of an item's rows", BYTES),
}
IN_USE = "in_use"
IN_USE_SAYS = "1: the daemon's pool is mapped and fits; 0: vLLM does without"

# Facts about a video beside its grid: their names in an aux.
TIMES = {"second_per_grid_ts": "seconds", "timestamps": "times"}


class Counts(ECConnectorStats):  # type: ignore[misc]
    """Counters and observations of one interval, as vLLM's loggers take
    them."""

    def __init__(self, data: Optional[Dict[str, Any]] = None) -> None:
        self.data: Dict[str, Any] = dict(data or {})
        self._in_use: Optional[int] = None  # as last reported

    def add(self, name: str, amount: float = 1) -> None:
        assert name in COUNTS
        self.data[name] = self.data.get(name, 0) + amount

    def observe(self, **values: float) -> None:
        for name, value in values.items():
            assert name in HISTOGRAMS
            self.data.setdefault(name, []).append(value)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: Any) -> "Counts":
        for name, amount in other.data.items():
            self.data[name] = amount if name == IN_USE or \
                name not in self.data else self.data[name] + amount
        return self

    def reduce(self) -> Dict[str, Any]:
        """Returns one number for each counter and histogram, for vLLM's log
        line."""
        return {name: self.data[name] if name not in HISTOGRAMS else round(
            sum(self.data[name]) / len(self.data[name]), 4)
            for name in (*COUNTS, *HISTOGRAMS, IN_USE) if name in self.data}

    def is_empty(self) -> bool:
        return not self.data

    def take(self, in_use: bool) -> "Optional[Counts]":
        """Returns the counts since the last call, and whether mmx is in use if
        that has changed; None: nothing to report."""
        if in_use != self._in_use:
            self._in_use = self.data[IN_USE] = int(in_use)
        if not self.data:
            return None
        taken = Counts(self.data)
        self.data = {}
        return taken


class Prom(ECConnectorPromMetrics):  # type: ignore[misc]
    """Registers and feeds a Prometheus metric for each counter and
    histogram."""

    def __init__(self, config: Any, types: Any, labels: List[str],
                 values: Dict[int, List[object]]) -> None:
        super().__init__(config, types, labels, values)
        # By name and number of the engine: the function that takes a value.
        self.made: Dict[str, Dict[int, Callable[[Any], Any]]] = {}

        def make(kind: Any, name: str, says: str, **more: Any) -> Any:
            metric = kind(name=f"vllm:mmx_{name}", documentation=says,
                          labelnames=labels, **more)
            return {i: metric.labels(*v) for i, v in values.items()}.items()
        for name, says in COUNTS.items():
            self.made[name] = {i: m.inc for i, m in make(
                self._counter_cls, name, says)}
        for name, (says, bounds) in HISTOGRAMS.items():
            self.made[name] = {i: lambda seen, m=m: [
                m.observe(v) for v in seen] for i, m in make(
                    self._histogram_cls, name, says, buckets=bounds)}
        self.made[IN_USE] = {i: m.set for i, m in make(
            self._gauge_cls, IN_USE, IN_USE_SAYS,
            multiprocess_mode="mostrecent")}

    def observe(self, transfer_stats_data: Dict[str, Any],
                engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            if name in self.made:
                self.made[name][engine_idx](amount)


class Described:
    """Describes items as vLLM's own connectors do: by the fields that size a
    placeholder. A router matches items by identifier, and sends these fields,
    a reference, in place of a picture."""

    def __init__(self, config: Any) -> None:
        self._resolver = PlaceholderMetadataResolver(config.model_config)

    def __call__(self, request: Any) -> Dict[str, Dict[str, Any]]:
        return dict(collect_ec_item_metadata(list(features(request)),
                                             self._resolver))

    def aux(self, feature: Any) -> bytes:
        """Returns data that a language host of another engine needs beside the
        rows; vLLM's own host computes them. Empty if an aux cannot hold them:
        that must not end vLLM."""
        try:
            return self._aux(feature)
        except Exception as e:
            warn("aux", "%s goes without metadata, which other engines may "
                 "need: %s", feature.identifier, e)
            return b""

    def _aux(self, feature: Any) -> bytes:
        said = collect_ec_item_metadata([feature], self._resolver)
        known = next(iter(said.values()), {}).get("metadata") or {}
        values: Dict[str, Any] = {"modality": feature.modality,
                                  "rows": [rows_of(feature)]}
        extra = {}
        for name, value in known.items():
            grid = _flat(value) if name.endswith("_grid_thw") else []
            merge = round((grid[0] * grid[1] * grid[2] /
                           values["rows"][0]) ** 0.5) if len(grid) == 3 else 0
            if merge:
                values.update(grid=[tuple(grid)], merge=merge)
            elif name in TIMES:
                values[TIMES[name]] = _flat(value)
            else:
                extra[name] = value
        try:
            return mmx.aux.pack(extra=extra or None, **values)
        except ValueError as e:
            if not extra:
                raise
            warn("extra", "%s goes without %s: %s", feature.identifier,
                 ", ".join(extra), e)
            return mmx.aux.pack(**values)

    def encodable(self, feature: Any) -> bool:
        """True if vLLM can encode the item; False: it is a reference."""
        data = getattr(feature, "data", None)
        if not data:
            return False
        known = self._resolver.fields_for(feature.modality)
        return any(v.data is not None for k, v in data.items()
                   if k not in known)


def _flat(value: Any) -> List[Any]:
    if isinstance(value, (list, tuple)):
        return [n for part in value for n in _flat(part)]
    return [value] if isinstance(value, (int, float)) else []


warn = Rated(log)


_watchers: "weakref.WeakSet[Any]" = weakref.WeakSet()


def watch_resets(side: Any) -> None:
    """Has side.reset() called when vLLM's scheduler drops the encoder's
    output, as vLLM does when weights change; connectors get no call for that.
    Without Scheduler.reset_encoder_cache nothing is watched."""
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
        original = Scheduler.reset_encoder_cache
    except (ImportError, AttributeError):
        return
    _watchers.add(side)
    if getattr(original, "_mmx", False):
        return

    @functools.wraps(original)
    def reset(self: Any, *args: Any, **more: Any) -> Any:
        for watcher in list(_watchers):
            watcher.reset()
        return original(self, *args, **more)
    reset._mmx = True  # type: ignore[attr-defined]
    Scheduler.reset_encoder_cache = reset


def copier() -> Here:
    """Returns an object that copies rows to and from the model's device."""
    try:
        from vllm.platforms import current_platform as platform
    except ImportError:
        return Here()
    return copies(platform.device_type, log, gpu_sync_allowed)


def features(request: Any) -> Iterable[Any]:
    return getattr(request, "mm_features", None) or ()


def context_of(request: Any) -> str:
    """Returns the trace context of the client's request, which vLLM keeps in
    trace_headers; empty: there is none, or it is not of W3C's form."""
    headers = getattr(request, "trace_headers", None) or {}
    try:
        return mmx.wire.traceparent(headers.get("traceparent", ""))
    except (TypeError, ValueError):
        return ""


def rows_of(feature: Any) -> int:
    """Returns the number of an item's rows: positions that take a row, not the
    span."""
    position = feature.mm_position
    count = getattr(position, "get_num_embeds", None)
    count = count() if callable(count) else count
    return int(position.length if count is None else count)

