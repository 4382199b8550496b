"""Shared by the adapters of all engines: lines of a log that are rated, a
connection's pool, rows of torch as rows of a pool."""

from __future__ import annotations

import logging
import time
from typing import Any, Dict, Optional

import mmx
from mmx.dtypes import BY_TORCH


class Rated:
    """Logs lines, of each kind at most one a second: what a client sends, or
    a daemon that is away, must not fill the log."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.last: Dict[str, float] = {}  # kind -> time of its last line

    def __call__(self, kind: str, text: str, *words: Any,
                 level: int = logging.WARNING) -> None:
        now = time.monotonic()
        if now - self.last.get(kind, -1e9) >= 1:
            self.last[kind] = now
            self._log.log(level, text, *words)


class Pooled:
    """A connection's pool, which is asked for once after each connect."""

    def __init__(self, conn: mmx.Connection, name: str,
                 layout: str = "") -> None:
        self.conn, self._name, self._layout = conn, name, layout
        self.mapped: Optional[mmx.Pool] = None  # the last; stays readable
        self._asked: Optional[mmx.Reply] = None
        self._asked_of = 0  # the daemon's run

    @property
    def pool(self) -> Optional[mmx.Pool]:
        """The pool; None: no daemon is connected, or it is not mapped yet."""
        if self.conn.connected and self.mapped and \
                self.mapped.epoch == self.conn.epoch:
            return self.mapped
        return None

    def look(self) -> Optional[mmx.Pool]:
        """Asks for the pool; never waits."""
        if self.pool or not self.conn.connected:
            return self.pool
        # The answer of an earlier run came with its end.
        if not self._asked or self._asked_of != self.conn.epoch:
            self._asked_of = self.conn.epoch
            self._asked = self.conn.send(
                mmx.wire.POOL, name=self._name, layout=self._layout)
        if self._asked.done:
            asked, self._asked = self._asked, None
            self._answered(asked)
        return self.pool

    def _answered(self, asked: mmx.Reply) -> None:
        """Maps the pool, or notes why it cannot be had."""
        raise NotImplementedError


def kind_of(dtype: Any) -> str:
    """Returns our name of a dtype of torch; "": there is none."""
    return BY_TORCH.get(str(dtype).split(".")[-1], "")


def misfit(field: Any, width: int, dtype: Any) -> str:
    """Returns in what a pool's field differs from rows; "": in nothing.
    dtype: torch's; of bits, which numpy has, it may be any."""
    kind = kind_of(dtype)
    if kind and field.dtype != kind:
        return f"is {field.dtype}, the rows are {kind}"
    if field.elements != width:
        return f"is {field.elements} wide, the rows are {width}"
    return ""


def from_tensor(rows: Any) -> Any:
    """Returns rows for a pool: of numpy, bf16 as its bits."""
    if not hasattr(rows, "detach"):
        return rows
    import torch

    rows = rows.detach().cpu().contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view("u2")
    return rows.numpy()
