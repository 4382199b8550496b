"""mmx: embedding rows from encode engines to language engines.

    enc = mmx.connect("encoded", name="vit-0")
    pool = enc.pool("vit")
    src = enc.announce(room, pool, max_rows=rows, total=rows, aux=grid)
    src.granted(timeout=30)
    src["embedding"][0:rows] = values
    src.commit(0, rows, final=True)
    src.done(timeout=30)
    src.release()

    lm = mmx.connect("langd", name="prefill-0")
    room = lm.request(room, lm.pool("vit"), encoder="enc0")
    with room.wait_ready(timeout=30):
        use(room.gather("embedding"), room.aux)
"""

from __future__ import annotations

import os
import select
from typing import Optional, Sequence

from . import errors, wire
from .client import Connection, Event, Link, Reply
from .errors import MmxError, SplitRows, ViewInUse
from .pool import Field, Pool, bf16, from_bf16
from .rooms import Room, Run, Source, State
from .tickets import Holding, Space, Ticket
from .wire import (DONE, FAILED, GRANTED, LANDED, LENGTH, NO_KEY, READ, READY,
                   WANTED, WATCH, WRITE)

__all__ = [
    "Connection", "Event", "Field", "Holding", "Link", "MmxError", "Pool",
    "Reply", "Room", "Run", "Source", "Space", "SplitRows", "State", "Ticket",
    "ViewInUse", "bf16", "connect", "errors", "from_bf16", "wait_any", "wire",
    "DONE", "FAILED", "GRANTED", "LANDED",
    "LENGTH", "NO_KEY", "READ", "READY", "WANTED", "WATCH", "WRITE",
]
__version__ = "0.1.0"

NULL = "null"  # the encoder that gives zero rows at once


def connect(role: str, socket: Optional[str] = None, *,
            name: Optional[str] = None, session: str = "", cells: int = 1024,
            timeout: Optional[float] = 10) -> Connection:
    """Connects to the "encoded" or "langd" daemon of this host and waits for
    its welcome. timeout 0: do not wait, a later step() connects. Connections
    with one session name (by default the name) are one engine."""
    path = socket or os.environ.get(f"MMX_{role.upper()}_SOCKET") \
        or f"/run/mmx/{role}.sock"
    conn = Connection(role, path, name or f"python-{os.getpid()}", session,
                      cells)
    if timeout == 0:
        return conn
    try:
        conn.wait(lambda: conn.connected or conn.refused, timeout)
        if conn.refused:
            raise conn.refused
    except TimeoutError:
        conn.close()
        raise errors.DaemonLost(f"{path}: no answer in {timeout} s") from None
    except BaseException:
        conn.close()
        raise
    return conn


def wait_any(conns: Sequence[Connection],
             timeout: Optional[float] = None) -> bool:
    """Blocks until one of several connections wants a step(); False after so
    many seconds."""
    poll = select.poll()
    for conn in conns:
        poll.register(conn.fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000 + 1))
