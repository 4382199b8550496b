"""The loop that an engine should write around a room that fails.

    def ask():                       # a new request each time
        return lm.request(room_id, lm.pool("vit"), encoder, key=key)

    with policy.run(ask, encode_locally=None) as room:
        use(room.gather("embedding"))

Every failure carries its advice, and that is all there is to know: `retry`
asks again after a pause, a few times; `encode-locally` (and retries that are
used up) takes what encode_locally gives, in an engine that has the encoder's
weights and the pixels; `give-up` and everything else fails the request with
the reason. A failed room is released before anything else is done.
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
    """A room with every row there, to be released by the caller; or what
    encode_locally(error) returned; or the error is raised. The pause doubles
    with each retry."""
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
    """run() to be awaited. When it is cancelled the room is released."""
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
    """Releases the room. What has happened, and is it worth another try?
    What is not about the room (Ctrl-C, a bug) goes on upwards."""
    if room:
        room.release(force=True)
    if isinstance(e, TimeoutError):
        e = errors.TimedOut(str(e))
    if not isinstance(e, errors.MmxError):
        raise e
    return e, more and e.advice == "retry"


def _otherwise(error: errors.MmxError, encode_locally: Local) -> Any:
    if encode_locally and error.advice in ("retry", "encode-locally"):
        return encode_locally(error)
    raise error


def _wait(room: "Optional[Room]", seconds: float) -> None:
    """Lets time pass on a connection that goes on working: when the daemon
    was lost, it is often back by then."""
    if not room:
        time.sleep(seconds)
        return
    try:
        room.conn.wait(lambda: False, seconds)
    except TimeoutError:
        pass
