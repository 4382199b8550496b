"""Deadlines that a connection watches itself, in case its daemon hangs: such a
daemon ends no room and answers nothing, but its socket stays open.

A little after a room's deadline, when the daemon's own event should have come,
the connection asks a question that every daemon answers at once. Rooms whose
question has no answer SILENT_S later fail as daemon-silent. A daemon that
answers ends the room itself, and the room is not looked at again. A wait asks
the same before it ends, so that its error says who is to blame.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from math import inf, isnan
from typing import TYPE_CHECKING, Callable, Optional

from . import errors, wire

if TYPE_CHECKING:
    from .client import Connection, Reply
    from .rooms import Shown

SILENT_S = 0.75  # a daemon that is alive has answered by then
_LOOK_S = 0.25  # the event of a deadline has come by then
_SLEEP_S = 3600  # the longest sleep: poll() takes at most 24 days
_CLOEXEC = 0o2000000  # TFD_CLOEXEC


class Timer:
    """A timerfd that makes a connection's `fd` readable when something is due.
    Python's os module has timerfds from 3.13 on."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC,
                                                 os.O_NONBLOCK | _CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, seconds: float) -> None:
        """Sets the time anew; 0: stops the timer."""
        whole, part = divmod(int(seconds * 1e9), 10**9)
        spec = struct.pack("@qqqq", 0, 0, whole, part)
        self._libc.timerfd_settime(self.fd, 0, spec, None)


class Dues:
    """The deadlines of a connection's rooms. They have a timer of their own,
    since other threads set the one for connecting."""

    def __init__(self, conn: "Connection") -> None:
        self._conn = conn
        self._next = inf  # no room is due before this time
        # Made before any room is requested, since this may fail.
        self._timer = conn._new_timer()
        self._doubt: "Optional[Reply]" = None

    def add(self, room: "Shown", seconds: float) -> None:
        """Sets a time soon after the room's deadline for look(); 0: no
        deadline."""
        if seconds:
            room._due = time.monotonic() + seconds + _LOOK_S
            if room._due < self._next:
                self._arm(room._due)

    def clear(self) -> None:
        self._arm(inf)

    def _arm(self, due: float) -> None:
        self._next = due
        left = due - time.monotonic()
        self._timer.set(0 if due == inf else max(left, 1e-6))

    def look(self) -> None:
        """Fails the rooms whose deadline has passed if the daemon does not
        answer. Call it in a step() that has read all input."""
        now = time.monotonic()
        if now < self._next:
            return
        due = inf
        for room in self._conn._shown():
            if room._due <= now:
                self._judge(room, now)
            due = min(due, room._due)
        self._arm(due)

    def _judge(self, room: "Shown", now: float) -> None:
        doubt, room._due = room._doubt, inf
        if room._has_ended:
            return
        if not doubt:
            room._doubt, room._due = self.doubt(), now + SILENT_S
        elif not doubt.done:
            self._conn._fail(room, errors.DaemonSilent(
                f"{self._conn.path}: no answer, and the deadline of room "
                f"{room.room:#x} has passed"))

    def doubt(self) -> "Reply":
        """Asks the daemon for a sign of life, unless such a question is
        unanswered: it asks for a pool of an impossible name, which any daemon
        answers and no counter counts."""
        if not self._doubt or self._doubt.done:
            self._doubt = self._conn.send(wire.POOL, name="?")
        return self._doubt


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
        self._doubt = self._conn._dues.doubt()
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
