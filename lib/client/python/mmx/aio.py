"""A connection on an asyncio loop.

The connection's descriptor never changes, so one add_reader() serves it for
life, over reconnects too; no thread, no polling. A connection belongs to the
loop that awaited it first. Cancelling an await does not affect the room, which
can be awaited again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from . import due

if TYPE_CHECKING:
    from .client import Connection, Event


class Watch:
    def __init__(self, conn: "Connection") -> None:
        self._conn = conn
        self.loop = asyncio.get_running_loop()
        self._waiting: "Dict[asyncio.Future[Any], Callable[[], Any]]" = {}
        # Changes of one room accumulate in one event until it is taken.
        self._events: "Dict[Any, Event]" = {}
        self.loop.add_reader(conn.fd, self._readable)
        self.soon()  # events received before are handed out soon

    def leave(self) -> None:
        """Takes the descriptor off the loop. Call it before the descriptor is
        closed: the copy of a forked child would wake the loop for ever."""
        if not self.loop.is_closed():
            self.loop.remove_reader(self._conn.fd)

    def close(self) -> None:
        self.look()
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(ConnectionError("closed"))

    def soon(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._conn.closed:
            return
        for event in self._conn.step():
            key = event.room or event.ticket or event.link
            old = self._events.pop(key, None)
            if old:
                event.what |= old.what
            self._events[key] = event
        self.look()

    def look(self) -> None:
        """Checks the conditions of all waiting futures."""
        for future, condition in list(self._waiting.items()):
            if future.done():
                continue
            try:
                got = condition()
                if got:
                    future.set_result(got)
            except Exception as e:
                future.set_exception(e)

    def forget(self, room: Any) -> None:
        self._events.pop(room, None)

    def take(self) -> "Optional[Event]":
        for key in self._events:
            return self._events.pop(key)
        return None

    def events(self) -> bool:
        return bool(self._events)

    async def until(self, condition: Callable[[], Any],
                    timeout: Optional[float],
                    lacks: Callable[[], str]) -> Any:
        got = condition()
        if got:
            return got
        future: "asyncio.Future[Any]" = self.loop.create_future()
        self._waiting[future] = condition
        patience = due.Patience(self._conn, timeout)
        try:
            while not future.done() and not patience.over():
                await asyncio.wait({future}, timeout=patience.left())
            if future.done():
                return future.result()
            raise patience.error(lacks)
        finally:
            del self._waiting[future]


def watch(conn: "Connection") -> Watch:
    """Returns the connection's watch on the running loop."""
    loop = asyncio.get_running_loop()
    old = conn._watch
    if old and old.loop is loop:
        return old
    if old and not old.loop.is_closed():
        raise RuntimeError("the connection belongs to another event loop")
    conn._watch = Watch(conn)
    return conn._watch
