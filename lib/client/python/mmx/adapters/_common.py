"""Shared by the adapters of all engines: lines of a log that are rated, rows
of torch as rows of a pool."""

from __future__ import annotations

import logging
import time
from typing import Any, Dict

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


def kind_of(dtype: Any) -> str:
    """Returns our name of a dtype of torch; "": there is none."""
    return BY_TORCH.get(str(dtype).split(".")[-1], "")


def from_tensor(rows: Any) -> Any:
    """Returns rows for a pool: of numpy, bf16 as its bits."""
    if not hasattr(rows, "detach"):
        return rows
    import torch

    rows = rows.detach().cpu().contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view("u2")
    return rows.numpy()
