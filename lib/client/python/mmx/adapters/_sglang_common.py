"""Shared by both sides of the SGLang plugin: names of rooms, the aux, HTTP
statuses, grids."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import re
from typing import Any, Dict, Optional, Tuple
from urllib.parse import urlsplit

import mmx
from mmx import aux, errors

from ._common import BYTES, SECONDS, number
from ._copies import shown

MARK = "~"  # between a client's request id and the secret
PORT = 7601  # of mmx-encoded, if neither MMX_ENCODERS nor the server names one
PLACE = "/mmx_encoded"  # at an encoder's server: where its mmx-encoded is
GRPC = "grpc://"  # begins the URL of an encoder with a gRPC server
GRPC_PLACE = "/mmx.Encoder/Place"  # the method that answers as PLACE does
# variable of a language server: http, grpc
MODE = "SGLANG_ENCODER_MM_RECEIVER_MODE"
# An SGLang value beside the rows: its name in an aux.
EXTRAS = {"second_per_grid_ts": "seconds", "original_image_sizes": "sizes"}
# lists with one entry per video: in an aux's extra
JSON = ("video_timestamps",)

STATUS = {"timeout": 504, "peer-lost": 502, "engine-lost": 502,
          "unknown-room": 502, "gone": 502, "stale": 503,
          "daemon-lost": 503, "daemon-silent": 503,
          "not-ready": 503, "no-blocks": 503,
          "busy": 503, "quota": 503, "draining": 503, "too-large": 413,
          "aborted": 400, "declined": 400}


def status(error: BaseException) -> int:
    """Returns the HTTP status for a room's reason."""
    return STATUS.get(reason(error), 500)


def reason(error: BaseException) -> str:
    late = isinstance(error, (TimeoutError, asyncio.TimeoutError))
    return getattr(error, "reason", "timeout" if late else "internal")


def words(error: BaseException) -> str:
    """Returns a room's reason and its text."""
    return str(error) if isinstance(error, errors.MmxError) else \
        f"{reason(error)}: {error}"


def gpu_bytes() -> int:
    """Returns how many bytes of rows a rank may hold on its GPU."""
    return int(number("MMX_SGLANG_GPU_MB", "1024", r"\d{1,7}")) << 20


def session() -> str:
    """Returns the session of this server's ranks at langd."""
    said = os.environ.get("MMX_SESSION", "sglang")
    if len(said.encode()) > 63:
        raise ValueError("MMX_SESSION is longer than 63 bytes")
    return said


def reference_of(req_id: str) -> mmx.Reference:
    """Returns what names a part's room: the tokenizer has put the secret
    behind the client's request id."""
    got = re.fullmatch(".*~([0-9a-f]{32})(_local_part_[0-9]+)?", req_id,
                       re.DOTALL)
    if not got:
        raise errors.Malformed("the request names no secret: does the "
                               "language server run with mmx as well?")
    return mmx.Reference(mmx.room_id(req_id), bytes.fromhex(got[1]))


def encoders() -> Dict[str, str]:
    """Returns the value of MMX_ENCODERS; ValueError: it is malformed."""
    said = os.environ.get("MMX_ENCODERS") or "{}"
    try:
        known = json.loads(said)
        if isinstance(known, dict) and all(map(is_place, known.values())):
            return known
    except ValueError:
        pass
    raise ValueError("MMX_ENCODERS is no JSON object that gives URLs of "
                     f"encoders their mmx-encoded's address: {said:.200}")


def is_place(said: Any) -> bool:
    """True if the text may be a name or address of a daemon."""
    return isinstance(said, str) and bool(re.fullmatch("[!-~]{1,128}", said))


def encoder_of(url: str, said: str = "") -> str:
    """Returns the name or address of mmx-encoded beside an encoder server:
    from MMX_ENCODERS, or what the server said when it registered, or port
    7601 of the same host."""
    return encoders().get(url) or said or \
        f"tcp://{urlsplit(url).hostname}:{PORT}"


def reachable(address: str, url: str) -> str:
    """Returns the address at which others reach a socket that listens on all
    interfaces of an encoder server: with that server's host. ValueError: it is
    no address."""
    if not is_place(address):
        raise ValueError(f"no address: {address!r:.200}")
    place = urlsplit(address)
    if place.hostname in ("0.0.0.0", "::", "*"):
        return f"tcp://{urlsplit(url).hostname}:{place.port}"
    return address


def asked_by_grpc(url: str, method: str, timeout: float = 2) -> bytes:
    """Returns an encoder's answer to an empty message; FileNotFoundError: it
    has no such method, other OSErrors: it does not answer."""
    grpc: Any = importlib.import_module("grpc")
    try:
        with grpc.insecure_channel(url[len(GRPC):]) as channel:
            return bytes(channel.unary_unary(method)(b"", timeout=timeout))
    except grpc.RpcError as e:
        missing = e.code() is grpc.StatusCode.UNIMPLEMENTED
        raise (FileNotFoundError if missing else OSError)(
            f"{e.code().name}: {e.details()}") from None


# --- metrics --------------------------------------------------------------
class Metrics:
    """Metrics beside SGLang's own, at its /metrics; there are none if SGLang
    has none (--enable-metrics). side: a label, "encode" or "language"."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._made: Dict[str, Any] = {}
        self._used: Optional[bool] = None  # as said last
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:  # SGLang sets it
            return
        try:
            kinds: Any = importlib.import_module("prometheus_client")
        except ImportError:
            return
        if not _kept:
            _kept.update(
                seconds=kinds.Histogram(
                    "sglang:mmx_transfer_seconds", "language: from asking for "
                    "a request's rows until they are there; encode: from "
                    "having a part's until they are delivered", ["side"],
                    buckets=SECONDS),
                bytes=kinds.Histogram(
                    "sglang:mmx_transfer_bytes", "bytes of these rows",
                    ["side"], buckets=BYTES),
                failed=kinds.Counter(
                    "sglang:mmx_failed", "language: requests whose rows could "
                    "not be had; encode: parts that were not delivered",
                    ["side", "reason"]),
                used=kinds.Gauge(
                    "sglang:mmx_in_use", "1: the daemon's pool can be used; "
                    "0: it cannot, and requests fail", ["side"],
                    multiprocess_mode="mostrecent"))
        self._made = _kept

    def moved(self, seconds: float, size: int) -> None:
        if self._made:
            self._made["seconds"].labels(self._side).observe(seconds)
            self._made["bytes"].labels(self._side).observe(size)

    def failed(self, error: BaseException) -> None:
        if self._made:
            self._made["failed"].labels(self._side, reason(error)).inc()

    def used(self, use: bool) -> None:
        if self._made and use != self._used:
            self._used = use
            self._made["used"].labels(self._side).set(int(use))


_kept: Dict[str, Any] = {}  # of this process: they are made once


# --- aux ------------------------------------------------------------------
def plain(value: Any) -> Any:
    """Returns a tensor, an array or a nest of them as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def merge_of(grid: Any, rows: int) -> int:
    """Returns how many patches make one row, along height and width each;
    0: the rows do not say it."""
    patches = sum(t * h * w for t, h, w in grid)
    side = math.isqrt(patches // rows) if rows else 0
    return side if side * side * rows == patches else 0


def mrope(config: Any) -> bool:
    """True if a model of transformers has M-RoPE."""
    text = getattr(config, "text_config", config)
    rope = getattr(text, "rope_parameters", None) or \
        getattr(text, "rope_scaling", None) or {}
    return "mrope_section" in rope


def pack(data: Any, beside: Dict[str, Any], flags: int = 0) -> bytes:
    """Returns the aux of an EmbeddingData. beside: SGLang's further values,
    by name; flags: of an aux; ValueError: a value that it has no place
    for."""
    grid = plain(data.grid_dim)
    values: Dict[str, Any] = {
        "modality": data.modality.name.lower(), "flags": flags or None,
        "part": (data.part_idx, data.num_parts), "rows": [data.shape[0]]}
    if values["modality"] not in aux.MODALITIES:
        raise ValueError(f"no modality for an aux: {values['modality']}")
    extra: Dict[str, Any] = {}
    if grid and all(isinstance(g, list) and len(g) == 3 for g in grid):
        values["grid"] = grid
        side = merge_of(grid, data.shape[0])
        if side:
            values["merge"] = side
            values["rows"] = [t * h * w // side**2 for t, h, w in grid]
    else:
        extra["grid"] = grid
    for name, value in beside.items():
        if value is None:
            continue
        if name in EXTRAS:
            values[EXTRAS[name]] = plain(value)
        elif name in JSON:
            extra[name] = plain(value)
        else:
            raise ValueError(f"{name} cannot go beside the rows")
    return aux.pack(extra=extra or None, **values)


def unpack(data: bytes) -> "Tuple[Dict[str, Any], Dict[str, Any]]":
    """Returns (modality, part and grid; SGLang's further values)."""
    got = aux.unpack(data)
    extra = got.get("extra", {})
    unknown = set(extra) - {"grid", *JSON}
    if unknown or "part" not in got or "modality" not in got or \
            not isinstance(got["modality"], str):
        raise errors.Malformed("not an aux of an SGLang encoder" +
                               (f": {min(unknown)}" if unknown else ""))
    if got.get("flags", 0) & ~(aux.BOTH_WAYS | aux.MROPE):
        raise errors.Malformed(f"flags {got['flags']:#x} of an aux, of which "
                               "this mmx knows two")
    beside = {name: got[ours] for name, ours in EXTRAS.items() if ours in got}
    beside.update({n: extra[n] for n in JSON if n in extra})
    grid = [list(g) for g in got["grid"]] if "grid" in got \
        else extra.get("grid")
    return {"modality": got["modality"], "part": got["part"],
            "grid": grid}, beside


def numbers(values: Any) -> Any:
    """Returns a grid as a tensor of whole numbers."""
    import numpy as np

    return shown(np.asarray(values, dtype="i8"), "i64")
