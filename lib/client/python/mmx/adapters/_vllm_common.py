"""Shared by both sides of the vLLM connector: settings, the metadata from
scheduler to workers, a connection with its pool."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import math
import os
import re
import time
from dataclasses import dataclass, field
from typing import (Any, Callable, Dict, Iterable, List, NamedTuple, Optional,
                    Set, Tuple)

import mmx
from mmx import errors

from ._common import Pooled, field_of, other_kind
from ._vllm_engine import (ECConnectorMetadata, ECConnectorWorkerMetadata,
                           log)

__all__ = ["Key", "Link", "Load", "Loaded", "Map", "MmxECMetadata", "Offer",
           "Pause", "Save", "Settings", "session_of"]

Key = Tuple[int, int]  # of a pool: langd's run, and number

BACK_S = 1  # wait for a daemon that was there before


def _digest(*words: Any) -> bytes:
    return hashlib.sha256(json.dumps([str(w) for w in words])
                          .encode()).digest()


def session_of(engine_id: Any) -> str:
    """Returns an engine's session: its id, or a digest if the id is too long
    for a session."""
    said = str(engine_id)
    return said if len(said.encode()) < 64 else _digest(said).hex()[:63]


class Settings:
    """The engine's configuration."""

    def __init__(self, config: Any) -> None:
        ec = config.ec_transfer_config
        extra = dict(getattr(ec, "ec_connector_extra_config", None) or {})
        parallel = getattr(config, "parallel_config", None)
        model = getattr(config, "model_config", None)
        self.session = session_of(ec.engine_id)
        self.socket: Optional[str] = extra.get("mmx_socket")
        self.pool = extra.get("mmx_pool", "")
        self.layout = extra.get("mmx_layout", "")
        self.field: Optional[str] = extra.get("mmx_field")
        self.deadline = float(extra.get("mmx_deadline_s", 60))
        self.worker_wait = float(extra.get("mmx_worker_wait_s", 10))
        # True if this engine has the encoder's weights.
        self.local_encode = bool(extra.get("mmx_local_encode", True))
        # Seconds without a row after which a picture at hand is encoded here.
        self.patience = float(extra.get("mmx_patience_s", 5))
        # Seconds that one pass of an idle scheduler may wait for a daemon.
        self.pause = float(extra.get("mmx_pause_s", 0.005))
        self.rank = int(getattr(parallel, "rank", 0))
        self.stages = getattr(parallel, "pipeline_parallel_size", 1)
        # Processes that load rows. langd lends only after each has mapped the
        # pool.
        self.ranks = math.prod(
            getattr(parallel, f"{kind}_parallel_size", 1)
            for kind in ("pipeline", "tensor", "prefill_context"))
        # pools of encoders: the ranks that have mapped each
        self.mapped: Dict[Key, Set[int]] = {}
        # True if several engines of one name serve one API server.
        self.several = getattr(parallel, "data_parallel_size", 1) > 1
        # True if workers are asked for reports even in passes without tokens.
        self.polled = bool(getattr(config, "use_v2_model_runner", False))
        self._config = config
        # Encoders that requests may name; None: those that langd allows.
        self.encoders: Optional[Set[str]] = None
        if "mmx_encoders" in extra:
            if not isinstance(extra["mmx_encoders"], list):
                raise ValueError("mmx_encoders is no list of encoders")
            self.encoders = set(map(str, extra["mmx_encoders"]))
        said = extra.get("mmx_epoch")
        self.epoch = None if said is None else _digest(said)[:16]
        self._model = _digest(extra.get("mmx_scope", ""), *(
            getattr(model, a, "") for a in ("model", "revision", "dtype")))

    def key(self, identifier: str, epoch: bytes = bytes(16)) -> bytes:
        """Returns the key of an item's rows: vLLM's hash names the item, the
        epoch the encoder's weights. A client may give a name that UTF-8 cannot
        encode."""
        return hashlib.sha256(self._model + epoch + identifier.encode(
            errors="surrogatepass")).digest()

    def allows(self, offer: "Offer") -> bool:
        return self.encoders is None or offer.encoder in self.encoders

    def field_of(self, pool: mmx.Pool) -> mmx.pool.Field:
        return field_of(pool, self.field)

    def misfit(self, field: Any) -> Optional[str]:
        """Returns how the pool's field differs from the model's rows; None: it
        does not, as far as is known here."""
        model = getattr(self._config, "model_config", None)
        other = other_kind(field, getattr(model, "dtype", None))
        if other:
            return f"is {field.dtype}, the model's rows are {other}"
        ec = self._config.ec_transfer_config
        measured = getattr(ec, "mm_encoder_output_widths", None) or {}
        for modality, width in measured.items():
            if field.elements != width:
                return f"is {field.elements} wide, rows of {modality} " \
                    f"are {width}"
        # Rows may be several layers wide.
        size = getattr(model, "get_inputs_embeds_size", int)()
        if size and field.elements % size:
            return f"is {field.elements} wide, the model's embeddings " \
                f"are {size}"
        return None


class Offer(NamedTuple):
    """The room of an item, as a producer returned it to the router."""

    encoder: str
    room: mmx.Reference
    rows: int
    epoch: bytes = bytes(16)

    @classmethod
    def read(cls, said: Any) -> "Optional[Offer]":
        """Returns the offer; None: it is malformed. Any client may send it
        with a request, so it may be anything. The room is the text of its
        reference, the epoch 32 hexadecimal digits."""
        if not isinstance(said, dict):
            return None
        encoder, room, rows = (said.get(k) for k in ("encoder", "room",
                                                     "rows"))
        epoch = said.get("epoch", "0" * 32)
        if not (isinstance(encoder, str) and isinstance(room, str) and
                type(rows) is int and isinstance(epoch, str)):
            return None
        if not (0 < rows < 1 << 32 and encoder.isprintable() and
                0 < len(encoder.encode()) <= 128 and
                re.fullmatch("[0-9a-f]{32}", epoch)):
            return None
        with contextlib.suppress(ValueError):
            return cls(encoder, mmx.Reference.read(room), rows,
                       bytes.fromhex(epoch))
        return None


class Load(NamedTuple):
    """The places of an item's rows. The scheduler's process holds them until
    the workers have reported `number`."""

    number: int
    identifier: str
    rows: int
    pool: Key
    runs: Tuple[mmx.Run, ...]


class Map(NamedTuple):
    """A pool of host memory that another process has mapped."""

    pid: int
    fd: int
    info: Dict[str, Any]

    def open(self, epoch: int) -> mmx.Pool:
        """Maps the pool in this process, even if its daemon has ended."""
        fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_CLOEXEC | (
            os.O_RDWR if self.info["access"] == 1 else os.O_RDONLY))
        return mmx.Pool(self.info, fd, epoch)


class Save(NamedTuple):
    identifier: str
    room: mmx.Reference
    # The part of the aux that goes behind the rows. None: an earlier step had
    # it.
    rest: Optional[bytes] = b""


@dataclass
class MmxECMetadata(ECConnectorMetadata):
    """Metadata from the scheduler to the workers, once per step."""

    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)
    maps: Dict[Key, Map] = field(default_factory=dict)  # the pools of `loads`
    # Pools of encoders in which rooms of the scheduler may show rows, with the
    # ranks that have reported the pool.
    lent: Dict[Key, Set[int]] = field(default_factory=dict)


@dataclass
class Loaded(ECConnectorWorkerMetadata):
    """By number of a load: the ranks that have begun to copy it, less those
    that are done. vLLM joins the reports of all ranks of a step before the
    scheduler gets them, and all ranks begin in the same step. With an executor
    that passes on only one rank's reports (Ray: the first rank's), that rank
    speaks for all: its report follows a pass in which the kernels of all
    ranks, which wait for their copies, have met."""

    copying: Dict[int, int]
    # Ranks that hold these pools of encoders as long as the scheduler does.
    mapped: Dict[Key, Set[int]] = field(default_factory=dict)

    def aggregate(self, other: Any) -> "Loaded":
        both = collections.Counter(self.copying)
        both.update(other.copying)
        return Loaded(dict(both), {
            key: self.mapped.get(key, set()) | other.mapped.get(key, set())
            for key in {*self.mapped, *other.mapped}})


class Pause:
    """How long one pass of the scheduler may wait for a daemon's answer: a few
    ms while no request runs, otherwise not at all. An idle vLLM sleeps between
    two passes anyway, and a daemon answers in less time than a pass takes."""

    def __init__(self, limit: float) -> None:
        self.limit = self.left = limit
        self.running: Set[str] = set()

    def passed(self, scheduled: Iterable[str]) -> None:
        """Notes a pass and the requests that it scheduled."""
        self.running, self.left = set(scheduled), self.limit

    def wait(self, conn: mmx.Connection, until: Callable[[], Any],
             elsewhere: bool = False) -> None:
        """Waits until the condition holds, or this pass has waited long
        enough. elsewhere: the condition may change without an event of the
        connection."""
        if self.running or self.left <= 0 or until():
            return
        began = time.monotonic()
        try:
            conn.wait(until, self.left, every=0.001 if elsewhere else None)
        except (errors.MmxError, TimeoutError):
            pass
        self.left -= time.monotonic() - began


class Link(Pooled):
    """A connection with its pool; both are restored after a restart."""

    def __init__(self, daemon: str, s: Settings, part: str) -> None:
        self.settings = s
        super().__init__(mmx.connect(
            daemon, s.socket, session=s.session,
            name=f"vllm-{part}-{s.rank}", timeout=0), log,
            ("mmx_pool", "mmx_socket"), s.pool, s.layout)
        if part != "worker":  # workers read rows of rooms that others request
            self.conn.may_lend = lambda key: \
                len(s.mapped.get(key, ())) == s.ranks
        self.before: Optional[mmx.Pool] = None  # of the daemon's previous run
        self.maps: Dict[Key, Map] = {}  # of both pools, for the workers
        self.speaks = part == "scheduler"
        self.hands_on = self.speaks and daemon == "langd"

    def _take(self, asked: mmx.Reply) -> mmx.Pool:
        """Takes the pool if the model's rows fit it. Keeps the descriptor if
        workers may ask for it."""
        fd = os.dup(asked.fd) if self.hands_on and asked.fd >= 0 else -1
        try:
            pool = super()._take(asked)
            if self.before:
                self._forget(self.before.key)
            self.before = self.mapped
            if fd >= 0 and pool.memory == "host":
                self.maps[pool.key], fd = Map(
                    os.getpid(), fd, dict(asked.values)), -1
            return pool
        finally:
            if fd >= 0:
                os.close(fd)

    def _check(self, pool: mmx.Pool) -> None:
        why = self.settings.misfit(self.settings.field_of(pool))
        if why:
            raise errors.IncompatibleLayout(f"pool {pool.name} {why}")

    def _forget(self, key: Key) -> None:
        gone = self.maps.pop(key, None)
        if gone:
            os.close(gone.fd)

    def close(self) -> None:
        self.conn.close()
        for key in list(self.maps):
            self._forget(key)

    def usable(self) -> mmx.Pool:
        """Returns the pool, or raises why there is none."""
        if self.pool:
            return self.pool
        if self.is_refused:
            raise errors.IncompatibleLayout(str(self.unusable))
        if self.conn.connected and self.unusable:
            raise self.unusable
        raise errors.NotReady("no daemon is connected")

    def request(self, identifier: str, offer: Offer, pool: mmx.Pool,
                group: Optional[Tuple[int, int]],
                context: str = "") -> mmx.Room:
        s = self.settings
        return self.conn.request(
            offer.room, pool, offer.encoder, rows=offer.rows,
            storage="compact", key=s.key(identifier, offer.epoch),
            group=group, announced=True, deadline=s.deadline,
            traceparent=context)

    def lent(self) -> Dict[Key, mmx.Pool]:
        """Returns the pools of encoders that this connection has mapped. Any
        thread."""
        pools = (ref() for ref in self.conn._lent.valuerefs())
        return {pool.key: pool for pool in pools if pool}

    def meet(self) -> None:
        """Waits for the pool when an engine starts, before its first pass."""
        with contextlib.suppress(errors.MmxError, TimeoutError):
            self.conn.wait(lambda: self.step() or self.is_refused, BACK_S)

    def wait_pool(self) -> mmx.Pool:
        """Waits for the pool in a worker: only briefly if the daemon has
        ended, because all of the engine's requests wait, and not at all if the
        pool is refused."""
        limit = self.settings.worker_wait
        self.conn.wait(lambda: self.step() or self.is_refused,
                       min(limit, BACK_S) if self.mapped else limit)
        return self.usable()
