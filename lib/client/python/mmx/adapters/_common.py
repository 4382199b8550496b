"""Shared by the adapters of all engines: lines of a log that are rated, the
question for a pool, rows of torch as rows of a pool."""

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


class Question:
    """Asks a daemon for its pool, once after each connect."""

    def __init__(self, conn: mmx.Connection, name: str,
                 layout: str = "") -> None:
        self._conn, self._name, self._layout = conn, name, layout
        self._asked: Optional[mmx.Reply] = None
        self._asked_of = 0  # the daemon's run

    def answer(self) -> Optional[mmx.Reply]:
        """Returns the answer, once; asks if that was not done."""
        asked, conn = self._asked, self._conn
        # The answer of an earlier run came with its end.
        if not asked or self._asked_of != conn.epoch:
            self._asked_of = conn.epoch
            asked = self._asked = conn.send(mmx.wire.POOL, name=self._name,
                                            layout=self._layout)
        if not asked.done:
            return None
        self._asked = None
        return asked


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
