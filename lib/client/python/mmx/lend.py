"""Pools of encoders on this host in which a language engine reads rows where
they are (RULES.md 6.7).

langd names such an encoder in LENDER. A Lender says MAP on the encoder's own
socket, maps the pools that it is offered, read-only, and says MAPPED to langd,
which may show rows there then: EVENT calls pool i of lender n 16 * n + i.

The encoder uses the blocks again when langd says RETURN or, once langd is dead,
when each reader has said BYE. A reader says BYE when it has no map of the
encoder's pools: no lender, room or array holds one. A lender drops its maps when
its connection to the encoder, or the connection to langd, ends. If the first
ends, langd can still show rows there in rooms that were requested before: those
rooms hold the maps until they end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import socket
import struct
import threading
import time
from typing import (TYPE_CHECKING, Any, Collection, Dict, List, Optional, Set,
                    Tuple)

from . import dropped, errors, wire
from .pool import Pool

if TYPE_CHECKING:
    from .client import Connection

log = logging.getLogger("mmx")

POOLS = 16  # pools of one lender at most
_AGAIN_S, _ANSWER_S = 0.25, 5
# errors after which a connection may succeed later
_FULL = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)


def reached(path: str) -> socket.socket:
    """Returns a non-blocking connected socket."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.setblocking(False)
        s.connect(path)
    except OSError:
        s.close()
        raise
    return s


def received(s: socket.socket) -> Optional[Tuple[bytes, List[int]]]:
    """Returns a packet and its descriptors, empty if the connection has ended;
    None: no packet has come."""
    while True:
        try:
            return socket.recv_fds(s, wire.PACKET_MAX, 1,
                                   socket.MSG_CMSG_CLOEXEC)[:2]
        except BlockingIOError:
            return None
        except ConnectionResetError:
            pass  # this error comes before packets received earlier
        except OSError as e:
            log.debug("%s", e)
            return b"", []


class _Ends:
    """The connection to an encoder, with what is needed to end it."""

    def __init__(self, said: Dict[str, Any]) -> None:
        self.said, self.pid = said, os.getpid()
        self.socket: Optional[socket.socket] = None
        self.known = False  # the encoder answered MAP, so it waits for BYE

    def map(self, parting: bool = False) -> bytes:
        return wire.MAP.encode(1, parting=parting, **{
            field: self.said[field] for field in ("token", "epoch", "name")})

    def hang(self) -> None:
        if self.socket:
            self.socket.close()
        self.socket = None

    def dropped(self) -> None:
        """Sends BYE, on a new connection if this one has ended."""
        if os.getpid() == self.pid and self.socket:
            with contextlib.suppress(OSError):
                self.socket.send(wire.BYE.encode(2), socket.MSG_NOSIGNAL)
                self.known = False
        self.hang()
        if os.getpid() == self.pid and self.known:
            with contextlib.suppress(RuntimeError):  # the process is ending
                threading.Thread(target=self._part, daemon=True).start()

    def _part(self) -> None:
        while True:
            try:
                with reached(self.said["socket"]) as s:
                    if not self._refused(s):
                        return
            except OSError as e:
                if e.errno not in _FULL:
                    return  # the encoder has ended
            time.sleep(_AGAIN_S)

    def _refused(self, s: socket.socket) -> bool:
        """Sends MAP and BYE on a new connection. True: try again later."""
        s.settimeout(_ANSWER_S)
        packet = b""
        # the encoder may have sent a reason and closed
        with contextlib.suppress(OSError):
            s.send(self.map(True) + wire.BYE.encode(2), socket.MSG_NOSIGNAL)
        with contextlib.suppress(OSError):
            packet = s.recv(wire.PACKET_MAX)
        for frame in wire.frames(packet):
            error = errors.error(frame.values.get("err", 0))
            return error.advice == "retry"
        return True  # no answer: the encoder hangs, or has ended


class Lender:
    def __init__(self, conn: "Connection", said: Dict[str, Any]) -> None:
        self._conn, self._number = conn, said["lender"]
        self._ends = _Ends(said)
        self._held: Optional[dropped.Held] = dropped.Held(self._ends)
        self._pools: Dict[int, Pool] = {}  # by the encoder's numbers of pools
        self._ready: Set[int] = set()  # those whose pages are mapped
        self.told: Optional[int] = None  # the pools in the last MAPPED
        self._due = 0.0  # no try to connect before this time
        self.over = False

    # --- the encoder's socket ---------------------------------------------
    def step(self, ready: Collection[int]) -> None:
        """Does what is due. ready: descriptors that are readable. Never
        blocks."""
        s = self._ends.socket
        if not s and not self.over:
            self._begin()
        elif s and s.fileno() in ready:
            while self._ends.socket and self._read(s):
                pass
        self._tell()

    def _begin(self) -> None:
        if time.monotonic() < self._due:
            self._conn._ring(self._due - time.monotonic())
            return
        try:
            self._ends.socket = s = reached(self._ends.said["socket"])
            self._conn._epoll.register(s, select.EPOLLIN)
            if not self._is_trusted(s):
                raise PermissionError("another user serves it")
            s.send(self._ends.map(), socket.MSG_NOSIGNAL)
        except OSError as e:
            if e.errno not in _FULL:
                self.leave()
                return
            self._unwatch()
            self._ends.hang()
            self._due = time.monotonic() + _AGAIN_S
            self._conn._ring(_AGAIN_S)

    def _is_trusted(self, s: socket.socket) -> bool:
        """True if the socket is served by root, or by the user who serves
        langd's."""
        assert self._conn._socket
        ours, its = (struct.unpack("3i", one.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            for one in (self._conn._socket, s))
        return its in (0, ours)

    def _read(self, s: socket.socket) -> bool:
        got = received(s)
        if got is None:
            return False
        packet, fds = got
        try:
            for frame in wire.frames(packet):
                if frame.message is wire.ANSWER and not frame.values["err"]:
                    self._ends.known = True
                elif frame.message is wire.POOL_INFO and fds:
                    self._take(frame.values, fds)
        except Exception as e:  # after any error rows are still copied
            log.warning("%s: rows are not read in place: %s",
                        self._ends.said["socket"], e)
            packet = b""
        finally:
            for fd in fds:  # those that no frame took
                os.close(fd)
        if not packet:
            self.leave()
        return bool(packet)

    def _unwatch(self) -> None:
        # Closing is not enough: a forked child's copy would stay registered.
        if self._ends.socket:
            with contextlib.suppress(OSError):
                self._conn._epoll.unregister(self._ends.socket)

    def leave(self) -> None:
        """Drops the maps, which open rooms hold until they end."""
        self._unwatch()
        if self._conn._socket:  # otherwise the end of the maps has to send BYE
            self._ends.hang()
        self.over = True
        self._conn._hold(list(self._pools.values()))
        self._pools.clear()
        self._held = None

    # --- its pools --------------------------------------------------------
    def _take(self, said: Dict[str, Any], fds: List[int]) -> None:
        """Maps a pool if this process can rely on its memory: a file that has
        all its pages and a sealed size."""
        number, both = said["pool"], fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        whole = fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & both == both and \
            os.fstat(fds[0]).st_blocks * 512 >= said["bytes"]
        if not whole or number >= POOLS or number in self._pools or \
                said["share"] not in ("", "memfd"):
            return
        pool = Pool({**said, "pool": POOLS * self._number + number,
                     "access": 0}, fds.pop(), self._conn.epoch,
                    (self._held, self._conn._held))
        self._pools[number] = self._conn._lent[pool.key] = pool
        threading.Thread(target=self._prepare, args=(number, pool),
                         daemon=True).start()

    def _prepare(self, number: int, pool: Pool) -> None:
        """On a thread, so that no step waits for gigabytes."""
        try:
            self._conn.prepare(pool)
        finally:
            self._ready.add(number)
            self._conn._ring()

    def _tell(self) -> None:
        """Sends MAPPED if the mapped pools differ from those that langd
        knows."""
        pools = 0 if self.over else sum(
            1 << i for i in list(self._ready)
            if self._conn.may_lend(self._pools[i].key))
        if pools != (self.told or 0) or self.over and self.told is None:
            self._conn.send(wire.MAPPED, lender=self._number, pools=pools)
            self.told = pools
