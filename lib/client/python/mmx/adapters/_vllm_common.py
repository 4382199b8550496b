"""Shared by both sides of the vLLM connector: settings, the metadata from
scheduler to workers, a connection with its pool."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

import mmx

try:
    from vllm.distributed.ec_transfer.ec_connector.base import (
        ECConnectorBase, ECConnectorMetadata, ECConnectorRole)
except ImportError as e:
    raise ImportError("mmx.adapters.vllm_ec needs a vLLM with encoder-cache "
                      f"connectors: {e}") from e

log = logging.getLogger("mmx.vllm")

__all__ = ["ECConnectorBase", "ECConnectorRole", "Link", "Load",
           "MmxECMetadata", "Offer", "Save", "Settings", "features", "log",
           "rows_of"]


class Settings:
    """The engine's configuration."""

    def __init__(self, config: Any) -> None:
        ec = config.ec_transfer_config
        extra = dict(getattr(ec, "ec_connector_extra_config", None) or {})
        parallel = getattr(config, "parallel_config", None)
        model = getattr(config, "model_config", None)
        self.session = str(ec.engine_id)[:64]
        self.socket: Optional[str] = extra.get("mmx_socket")
        self.pool = extra.get("mmx_pool", "")
        self.layout = extra.get("mmx_layout", "")
        self.field: Optional[str] = extra.get("mmx_field")
        self.deadline = float(extra.get("mmx_deadline_s", 60))
        self.worker_wait = float(extra.get("mmx_worker_wait_s", 10))
        # True if this engine has the encoder's weights.
        self.local_encode = bool(extra.get("mmx_local_encode", True))
        self.ranks = int(getattr(parallel, "tensor_parallel_size", 1))
        self.rank = int(getattr(parallel, "rank", 0))
        self._model = "|".join(str(getattr(model, a, ""))
                               for a in ("model", "revision", "dtype"))

    def key(self, identifier: str) -> bytes:
        """Returns the key of an item's rows; vLLM's hash names the item."""
        return hashlib.sha256(f"{self._model}|{identifier}".encode()).digest()


class Offer(NamedTuple):
    """The room of an item, as a producer returned it to the router."""

    encoder: str
    room: int
    rows: int


class Load(NamedTuple):
    identifier: str
    offer: Offer
    epoch: int  # of the daemon, with runs: for a worker whose daemon ended
    runs: Tuple[mmx.Run, ...]


class Save(NamedTuple):
    identifier: str
    room: int


@dataclass
class MmxECMetadata(ECConnectorMetadata):
    """Metadata from the scheduler to the workers, once per step."""

    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)


class Link:
    """A connection with its pool; both are restored after a restart."""

    def __init__(self, daemon: str, s: Settings, part: str) -> None:
        self.settings = s
        self.conn = mmx.connect(daemon, s.socket, session=s.session,
                                name=f"vllm-{part}-{s.rank}", timeout=0)
        self.mapped: Optional[mmx.Pool] = None  # the last; stays readable
        self._asked: Optional[mmx.Reply] = None

    @property
    def pool(self) -> Optional[mmx.Pool]:
        """The pool; None: no daemon is connected, or it is not mapped yet."""
        if self.conn.connected and self.mapped and \
                self.mapped.epoch == self.conn.epoch:
            return self.mapped
        return None

    def step(self) -> Optional[mmx.Pool]:
        """Steps the connection; asks for the pool after each connect. Never
        waits."""
        self.conn.step()
        if self.pool or not self.conn.connected:
            return self.pool
        if not self._asked or self._asked.error:
            self._asked = self.conn.send(
                mmx.wire.POOL, name=self.settings.pool,
                layout=self.settings.layout)
        if self._asked.done and not self._asked.error:
            self.mapped = mmx.Pool(self._asked.result(), self._asked.fd,
                                   self.conn.epoch)
            self._asked = None
        return self.pool

    def wait_pool(self) -> mmx.Pool:
        """Waits for the pool, in a worker."""
        pool = self.conn.wait(self.step, self.settings.worker_wait)
        assert isinstance(pool, mmx.Pool)
        return pool

    def field(self) -> str:
        assert self.mapped
        return self.settings.field or next(iter(self.mapped.fields))


def features(request: Any) -> Iterable[Any]:
    return getattr(request, "mm_features", None) or ()


def rows_of(feature: Any) -> int:
    """Returns an item's rows: positions that take one, not the span."""
    position = feature.mm_position
    count = getattr(position, "get_num_embeds", None)
    count = count() if callable(count) else count
    return int(position.length if count is None else count)
