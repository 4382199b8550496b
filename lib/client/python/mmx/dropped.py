"""The end of a connection that was dropped without close().

Its daemon keeps READY rows until the engine says BYE or its process has ended,
since after a closed socket the engine may still read rows in its maps. Here the
end of all reads is known: the connection and all maps of its pools are gone.
Then BYE is sent and the descriptors are closed.
"""

from __future__ import annotations

import os
import select
import socket
import weakref
from typing import Any, List, Optional

from . import wire


class Ends:
    """The descriptors of a connection."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.socket: Optional[socket.socket] = None
        self.epoll = select.epoll()
        self.timers: List[int] = []

    def close(self) -> None:
        for timer in self.timers:
            os.close(timer)
        self.timers.clear()
        self.epoll.close()
        if self.socket:
            self.socket.close()

    def dropped(self) -> None:
        if self.socket and os.getpid() == self.pid:
            try:
                self.socket.send(wire.BYE.encode(0xFFFFFFFF),
                                 socket.MSG_NOSIGNAL)
            except OSError:
                pass  # the daemon does not read, or has ended
        self.close()


class Held:
    """A connection (or a lender) and the maps of its pools refer to this. When
    none of them is left, the ends are dropped."""

    def __init__(self, ends: Any) -> None:
        self.finalizer = weakref.finalize(self, ends.dropped)
        # at exit, the end of the process tells the daemon
        self.finalizer.atexit = False
