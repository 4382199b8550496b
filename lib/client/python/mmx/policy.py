"""A loop for engines around a room that may fail.

    def ask():                       # a new request each time
        return lm.request(room_id, lm.pool("vit"), encoder, key=key)

    with policy.run(ask, encode_locally=None) as room:
        use(room.gather("embedding"))

Every failure carries one advice: `retry` asks again after a pause, a few
times; `encode-locally` (and the last failed retry) returns the result of
encode_locally, in an engine that has the encoder's weights and the pixels;
`give-up` and everything else raises the reason. A failed room is released
first.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from . import errors

if TYPE_CHECKING:
    from .rooms import Room

Local = Optional[Callable[[errors.MmxError], Any]]


def run(ask: "Callable[[], Room]", *, retries: int = 3,
        encode_locally: Local = None, timeout: Optional[float] = 60,
        pause: float = 0.05) -> Any:
    """Returns a ready room, which the caller releases, or the result of
    encode_locally(error), or raises the error. The pause doubles with each
    retry."""
    room: "Optional[Room]" = None
    for turn in range(retries + 1):
        try:
            room = ask()
            return room.wait_ready(timeout)
        except BaseException as e:
            error, again = _look(room, e, turn < retries)
        if not again:
            return _otherwise(error, encode_locally)
        _wait(room, pause * 2**turn)
        room = None
    raise AssertionError("not reached")


async def arun(ask: "Callable[[], Room]", *, retries: int = 3,
               encode_locally: Local = None, timeout: Optional[float] = 60,
               pause: float = 0.05) -> Any:
    """Runs as run(), without blocking the loop. Cancelling it releases the
    room."""
    room: "Optional[Room]" = None
    for turn in range(retries + 1):
        try:
            room = ask()
            return await room.ready(timeout)
        except BaseException as e:
            error, again = _look(room, e, turn < retries)
        if not again:
            return _otherwise(error, encode_locally)
        await asyncio.sleep(pause * 2**turn)
        room = None
    raise AssertionError("not reached")


def _look(room: "Optional[Room]", e: BaseException,
          more: bool) -> Tuple[errors.MmxError, bool]:
    """Releases the room. Returns its error, and True if a retry may help.
    Raises exceptions that are not about the room (Ctrl-C, a bug)."""
    if room:
        room.release(force=True)
    if isinstance(e, TimeoutError) and not isinstance(e, errors.MmxError):
        e = errors.TimedOut(str(e))
    if not isinstance(e, errors.MmxError):
        raise e
    return e, more and e.advice == "retry"


def _otherwise(error: errors.MmxError, encode_locally: Local) -> Any:
    if encode_locally and error.advice in ("retry", "encode-locally"):
        return encode_locally(error)
    raise error


def _wait(room: "Optional[Room]", seconds: float) -> None:
    """Waits while the room's connection keeps stepping, so that it can
    reconnect."""
    if not room:
        time.sleep(seconds)
        return
    try:
        room.conn.wait(lambda: False, seconds)
    except TimeoutError:
        pass
