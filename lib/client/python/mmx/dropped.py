"""The end of a connection that no one has closed.

Its daemon keeps READY rows until the engine says BYE or its process is gone:
that a socket was closed does not prove that rows are not read any more. This
side knows when they are not: when neither the connection nor a map of its
pools is there any more. Then BYE is said, and the descriptors are closed.
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
                pass  # the daemon does not read, or is gone
        self.close()


class Held:
    """Referred to by a connection, or a lender, and by the maps of its pools.
    With the last of them its ends are dropped."""

    def __init__(self, ends: Any) -> None:
        self.finalizer = weakref.finalize(self, ends.dropped)
        self.finalizer.atexit = False  # the end of the process says it
