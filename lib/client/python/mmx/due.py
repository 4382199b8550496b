"""Times: the timeout of one wait, and deadlines in milliseconds.

A daemon that hangs answers nothing, but its socket stays open. Deadlines of
rooms are the C library's (wait.c). A wait asks, before it ends, a question that
every daemon answers at once, so that its error says who is to blame.
"""

from __future__ import annotations

import time
from math import inf, isnan
from typing import TYPE_CHECKING, Callable, Optional

from . import errors

if TYPE_CHECKING:
    from .client import Connection, Reply

SILENT_S = 0.75  # a daemon that is alive has answered by then
_SLEEP_S = 3600  # the longest sleep: poll() takes at most 24 days


class Patience:
    """The timeout of one wait."""

    def __init__(self, conn: "Connection", timeout: Optional[float]) -> None:
        if timeout is not None and isnan(timeout):
            raise ValueError("a timeout is no number")
        self._conn, self._timeout = conn, timeout
        self._end = inf if timeout is None else time.monotonic() + timeout
        self._doubt: "Optional[Reply]" = None

    def left(self) -> Optional[float]:
        """Returns how long to sleep at most; None: without limit. Shortly
        before the end of a wait that is long enough, asks the daemon for a
        sign of life."""
        if self._timeout is None:
            return None
        left = self._end - time.monotonic()
        if self._doubt or self._timeout < SILENT_S:
            return max(left, 0)
        if left > SILENT_S:
            return min(left - SILENT_S, _SLEEP_S)
        self._doubt = self._conn._sign_of_life()
        return max(left, 0)

    def over(self) -> bool:
        return time.monotonic() >= self._end

    def error(self, lacks: Callable[[], str]) -> TimeoutError:
        """Returns the error that ends the wait. lacks: returns what was
        missing."""
        text = f"{self._conn.path}: {lacks()}: not within {self._timeout:g} s"
        if self._doubt and not self._doubt.done:
            return errors.DaemonSilent(f"{text}, nor any other answer")
        return TimeoutError(text)


def ms(seconds: float) -> int:
    """Rounds a deadline to milliseconds, up to 1: 0 means as configured."""
    if not 0 <= seconds * 1000 < 2**32:
        raise ValueError(f"a deadline is 0 to {2**32 // 1000 - 1} seconds, "
                         f"not {seconds}")
    return max(1, round(seconds * 1000)) if seconds > 0 else 0
