"""vLLM's encoder cache over mmx: an out-of-tree connector, one class for
producers (encode nodes) and consumers (language nodes), schedulers and
workers.

    --ec-transfer-config '{"ec_connector": "MmxECConnector",
        "ec_connector_module_path": "mmx.adapters.vllm_ec",
        "ec_role": "ec_consumer",
        "ec_connector_extra_config": {"mmx_pool": "vit"}}'

A room is one delivery of one item to one request; the key is the item. So two
requests for one picture are two rooms over the same rows at the encoder, and
a repeated request finds the rows if they were kept.

Consumer: the scheduler requests rooms, or takes those that a thread has asked
for when the request's text arrived, and reads their cells; when all rows have
landed the request is admitted, the step's metadata says where they are,
each worker copies them, and the scheduler releases the rooms when the workers
have said so. Items of a prefix hit are declined, those that this engine cannot
encode when their request ends: after a preemption it needs their rows.
Preempted requests ask for
the same room again. Producer: the scheduler announces before the encoder runs
and defers the request until blocks are granted; one worker writes;
request_finished() returns encoder, room and key to the router. An item whose
rows exist already (have) is not written, which also covers vLLM's own cache
hits.

No scheduler hook waits while a request runs; in an idle engine one waits some
ms for an answer, instead of vLLM's sleep between two passes. A worker waits
for the daemon's map, which it has from its first load on.
Multi-node tensor parallelism needs a scheduler that reaches every host's
langd, which vLLM's does not: one host per engine here.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import _vllm_engine as engine
from ._vllm_common import Loaded, MmxECMetadata, Pause, Settings
from ._vllm_consumer import ConsumerScheduler, ConsumerWorker
from ._vllm_producer import ProducerScheduler, ProducerWorker


class MmxECConnector(engine.ECConnectorBase):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        if self.is_producer and self.is_consumer:
            raise ValueError(
                "mmx.adapters.vllm_ec: ec_role is ec_both; no router asks for "
                "what such an engine would announce: start an ec_producer "
                "and an ec_consumer")
        s = self.settings = Settings(vllm_config)
        if self.is_consumer and s.stages > 1 and not s.polled:
            raise ValueError(
                "mmx.adapters.vllm_ec: vLLM's older model runner drops what "
                "workers report with --pipeline-parallel-size: set "
                "VLLM_USE_V2_MODEL_RUNNER=1")
        here = role is engine.ECConnectorRole.SCHEDULER
        described = engine.Described(vllm_config) if here else None
        self._pause = Pause(s.pause)
        self._consumer = ConsumerScheduler(s, described, self._pause) \
            if here and self.is_consumer else None
        self._producer = ProducerScheduler(s, described, self._pause) \
            if here and self.is_producer else None
        self._loader = ConsumerWorker(s) \
            if not here and self.is_consumer else None
        self._saver = ProducerWorker(s) \
            if not here and self.is_producer else None

    def shutdown(self) -> None:
        if self._consumer:
            self._consumer.ahead.close()
        for worker in (self._loader, self._saver):
            if worker:
                worker.copies.close()
        for side in (self._consumer, self._producer, self._loader,
                     self._saver):
            if side and side.link:
                side.link.close()

    # --- scheduler --------------------------------------------------------
    def has_cache_item(self, identifier: str) -> bool:
        return bool(self._consumer and self._consumer.has(identifier))

    def ensure_cache_available(self, request: Any, num_computed_tokens: int,
                               local_cache_hashes: Iterable[str] = ()) -> bool:
        if self._consumer:
            return self._consumer.ensure(request, num_computed_tokens,
                                         local_cache_hashes)
        return self._producer.ensure(request) if self._producer else True

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        if self._consumer:
            self._consumer.allocated(request, index)

    def update_state_after_free(self, request: Any, index: int) -> None:
        if self._consumer:
            self._consumer.freed(request, index)

    def build_connector_meta(self, scheduler_output: Any) -> MmxECMetadata:
        out = MmxECMetadata()
        if self._consumer:
            self._consumer.meta(out, getattr(
                scheduler_output, "free_encoder_mm_hashes", ()))
        if self._producer:
            self._producer.meta(
                out, bool(scheduler_output.num_scheduled_tokens))
        self._pause.passed(scheduler_output.num_scheduled_tokens)
        return out

    def update_connector_output(self, connector_output: Any) -> None:
        loaded = getattr(connector_output, "ec_connector_worker_meta", None)
        if self._consumer and isinstance(loaded, Loaded):
            self._consumer.loaded(loaded)

    def request_finished(self, request: Any) \
            -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._pause.running.discard(request.request_id)
        if self._consumer:
            self._consumer.finished(request)
        return False, self._producer.finished(request) \
            if self._producer else None

    def has_pending_push_work(self) -> bool:
        side = self._producer or self._consumer
        return bool(side and side.pending())

    def take_unavailable_requests(self) -> Set[str]:
        """Returns requests that cannot be served: an item is unavailable and
        this engine cannot encode it."""
        if not self._consumer:
            return set()
        taken, self._consumer.unavailable = self._consumer.unavailable, set()
        return taken

    def get_ec_connector_stats(self) -> Optional[engine.Counts]:
        """Returns what the scheduler's side counted since the last call."""
        side = self._consumer or self._producer
        return side.counts.take(bool(side.link.pool)) if side else None

    @classmethod
    def build_ec_connector_stats(cls, data: Optional[Dict[str, Any]] = None) \
            -> engine.Counts:
        return engine.Counts(data)

    @classmethod
    def build_prom_metrics(
            cls, vllm_config: Any, metric_types: Any, labelnames: List[str],
            per_engine_labelvalues: Dict[int, List[object]]) -> Any:
        return engine.Prom(vllm_config, metric_types, labelnames,
                           per_engine_labelvalues)

    # --- workers ----------------------------------------------------------
    def start_worker_services(self) -> None:
        for side in (self._loader, self._saver):
            if side and side.link:
                side.link.meet()

    def bind_connector_metadata(
            self, connector_metadata: engine.ECConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._loader:
            self._loader.bind(connector_metadata)
        if self._saver:
            self._saver.bind(connector_metadata.saves)

    def start_load_caches(self, encoder_cache: Dict[str, Any],
                          **kwargs: Any) -> None:
        if self._loader:
            self._loader.load(encoder_cache, self._get_connector_metadata())

    def start_save_caches(self, **kwargs: Any) -> None:
        """Before the encoder runs, in every step."""
        if self._saver and "encoder_cache" in kwargs:
            self._saver.seen(kwargs["encoder_cache"])

    def save_caches(self, encoder_cache: Dict[str, Any], mm_hash: str,
                    **kwargs: Any) -> None:
        if self._saver and self._saver.link:
            self._saver.save(encoder_cache, mm_hash)

    def build_connector_worker_meta(self) -> Optional[Loaded]:
        return self._loader.take_loaded() if self._loader else None

    def get_finished(self, finished_req_ids: Set[str]) \
            -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        if self._saver:
            self._saver.save_rest()
        return None, None
