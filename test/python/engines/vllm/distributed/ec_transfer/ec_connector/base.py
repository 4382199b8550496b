"""Stands in for vLLM's module of this name where vLLM is not installed: names,
signatures and defaults of ECConnectorBase, nothing else.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Set, Tuple


class ECConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class ECConnectorMetadata(ABC):
    """Metadata of one step, from the scheduler to its workers."""


class ECConnectorWorkerMetadata(ABC):
    """Metadata from the workers, joined over ranks."""

    @abstractmethod
    def aggregate(self, other: "ECConnectorWorkerMetadata") \
            -> "ECConnectorWorkerMetadata":
        ...


class ECConnectorBase(ABC):
    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        if vllm_config.ec_transfer_config is None:
            raise ValueError("ec_transfer_config is not set")
        self._connector_metadata: Optional[ECConnectorMetadata] = None
        self._vllm_config = vllm_config
        self._role = role
        self._is_producer = vllm_config.ec_transfer_config.is_ec_producer
        self._is_consumer = vllm_config.ec_transfer_config.is_ec_consumer

    @property
    def role(self) -> ECConnectorRole:
        return self._role

    @property
    def is_producer(self) -> bool:
        return bool(self._is_producer)

    @property
    def is_consumer(self) -> bool:
        return bool(self._is_consumer)

    def shutdown(self) -> None:
        return None

    # --- workers ----------------------------------------------------------
    def bind_connector_metadata(
            self, connector_metadata: ECConnectorMetadata) -> None:
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None

    def _get_connector_metadata(self) -> ECConnectorMetadata:
        assert self._connector_metadata is not None
        return self._connector_metadata

    def register_caches(self, ec_caches: Dict[str, Any]) -> None:
        return

    @abstractmethod
    def start_load_caches(self, encoder_cache: Dict[str, Any],
                          **kwargs: Any) -> None:
        ...

    @abstractmethod
    def save_caches(self, encoder_cache: Dict[str, Any], mm_hash: str,
                    **kwargs: Any) -> None:
        ...

    def get_finished(self, finished_req_ids: Set[str]) \
            -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        return None, None

    def build_connector_worker_meta(self) \
            -> Optional[ECConnectorWorkerMetadata]:
        return None

    def get_ec_connector_stats(self) -> Any:
        return None

    def start_save_caches(self, **kwargs: Any) -> None:
        return

    def start_worker_services(self) -> None:
        return

    # --- scheduler --------------------------------------------------------
    @abstractmethod
    def has_cache_item(self, identifier: str) -> bool:
        ...

    def ensure_cache_available(self, request: Any,
                               num_computed_tokens: int) -> bool:
        return True

    def take_unavailable_requests(self) -> Set[str]:
        return set()

    def update_state_after_free(self, request: Any, index: int) -> None:
        return

    @abstractmethod
    def update_state_after_alloc(self, request: Any, index: int) -> None:
        ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) \
            -> ECConnectorMetadata:
        ...

    def update_connector_output(self, connector_output: Any) -> None:
        return

    def request_finished(self, request: Any) \
            -> Tuple[bool, Optional[Dict[str, Any]]]:
        return False, None

    def has_pending_push_work(self) -> bool:
        return False

    @classmethod
    def build_ec_connector_stats(
            cls, data: Optional[Dict[str, Any]] = None) -> Any:
        return None

    @classmethod
    def build_prom_metrics(
            cls, vllm_config: Any, metric_types: Dict[Any, Any],
            labelnames: List[str],
            per_engine_labelvalues: Dict[int, List[object]]) -> Any:
        return None
