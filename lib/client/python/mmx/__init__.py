"""mmx: embedding rows from encode engines to language engines.

    enc = mmx.connect("encoded", name="vit-0")
    pool = enc.pool("vit")
    src = enc.announce(None, pool, max_rows=rows, total=rows, aux=grid)
    send(str(src.reference))  # by any way, say a router
    src.wait_granted(timeout=30)
    src["embedding"][0:rows] = values
    src.commit(0, rows, final=True)
    src.wait_done(timeout=30)
    src.release()

    lm = mmx.connect("langd", name="prefill-0")
    room = lm.request(mmx.Reference.read(text), lm.pool("vit"), "enc0")
    with room.wait_ready(timeout=30):
        use(room.gather("embedding"), room.aux)

On an asyncio loop:

    lm = await mmx.aconnect("langd", name="prefill-0")
    room = lm.request(reference, await lm.apool("vit"), encoder="enc0")
    await room.ready(timeout=30)
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Iterator, Optional, Sequence

from . import aux_data as aux
from . import errors, wire
from .client import Connection, Event, Item, Link, Reply
from .errors import ForkedError, MmxError, SplitRows, ViewInUse
from .pool import Field, Pool, bf16, from_bf16
from .rooms import Room, Run, Source, State
from .tensor import Tensor, native
from .tickets import Holding, Space, Ticket
from .wire import (DONE, FAILED, GRANTED, HAVE, LANDED, LENGTH, NO_KEY,
                   NO_SECRET, READ, READY, WANTED, WATCH, WRITE, Reference,
                   place, room_id, secret)

__all__ = [
    "Connection", "Event", "Field", "ForkedError", "Holding", "Item",
    "Link", "MmxError", "Pool", "Reference", "Reply", "Room", "Run", "Source", "Space",
    "SplitRows", "State", "Tensor", "Ticket", "ViewInUse", "aconnect", "aux",
    "bf16",
    "connect", "errors", "from_bf16", "native", "place", "room_id", "secret",
    "wait_any",
    "wire", "DONE", "FAILED", "GRANTED", "HAVE", "LANDED", "LENGTH",
    "NO_KEY", "NO_SECRET", "NULL", "READ", "READY", "WANTED", "WATCH", "WRITE",
]
__version__ = "0.1.0"

NULL = "null"  # encoder for warm-up: zero rows at once


def connect(role: str, socket: Optional[str] = None, *,
            name: Optional[str] = None, session: str = "", cells: int = 1024,
            timeout: Optional[float] = 10, lend: bool = True) -> Connection:
    """Connects to the "encoded" or "langd" daemon of this host and waits for
    its WELCOME. socket: the path of its socket, by default as
    $MMX_ENCODED_SOCKET or $MMX_LANGD_SOCKET says, else in /run/mmx. timeout 0:
    does not wait, a later step() connects. Connections with the same session
    (by default the name) are one engine. lend: langd may show rows where an
    encoder on this host has them, once all connections of the session have
    mapped its pools; False where another process reads what this one asked
    for. ValueError: another role."""
    with _connection(role, socket, name, session, cells, timeout,
                     lend) as conn:
        if timeout != 0:
            conn.wait(lambda: conn.connected or conn.refused, timeout)
    return conn


async def aconnect(role: str, socket: Optional[str] = None, *,
                   name: Optional[str] = None, session: str = "",
                   cells: int = 1024, timeout: Optional[float] = 10,
                   lend: bool = True) -> Connection:
    """Connects as connect(), without blocking the loop."""
    with _connection(role, socket, name, session, cells, timeout,
                     lend) as conn:
        if timeout != 0:
            await conn.until(lambda: conn.connected or conn.refused, timeout)
    return conn


@contextlib.contextmanager
def _connection(role: str, socket: Optional[str], name: Optional[str],
                session: str, cells: int, timeout: Optional[float],
                lend: bool) -> Iterator[Connection]:
    """Gives a connection to wait for, and closes one that is not welcome."""
    if role not in ("encoded", "langd"):
        raise ValueError(f"a role is \"encoded\" or \"langd\", not {role!r}; "
                         "a socket's path comes after it")
    path = socket or os.environ.get(f"MMX_{role.upper()}_SOCKET") \
        or f"/run/mmx/{role}.sock"
    conn = Connection(role, path, name or f"python-{os.getpid()}", session,
                      cells, lend)
    try:
        yield conn
        if conn.refused:
            raise conn.refused
    except BaseException as e:
        conn.close()
        if isinstance(e, TimeoutError) and \
                not isinstance(e, errors.DaemonSilent):
            why = conn.unreached or f"no answer in {timeout} s"
            raise conn.not_taken or errors.DaemonLost(f"{path}: {why}")
        raise


def wait_any(conns: Sequence[Connection],
             timeout: Optional[float] = None) -> bool:
    """Blocks until a connection is readable and needs a step(); False after
    `timeout` seconds."""
    poll = select.poll()
    for conn in conns:
        poll.register(conn.fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000 + 1))
