"""Requests rows ahead of the scheduler, on a thread and a connection of its
own, as soon as the API server's middleware (vllm_ahead.py) reports a request.
The scheduler takes the rooms; rooms that it has not taken are released when
the request ends."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import select
import socket
import struct
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Optional, Tuple

import mmx
from mmx import errors

from ._vllm_common import Link, Offer, Settings, session_of
from ._vllm_engine import log

__all__ = ["Ahead", "address"]

SHARE = 2  # rooms that are not taken hold at most 1/2 of the pool's blocks
LONGEST = 1 << 18
_CREDENTIALS = struct.Struct("3i")

Place = Tuple[str, mmx.Reference]  # encoder, room


def address(engine_id: str) -> str:
    """Returns the socket address at which an engine of this host hears of
    requests."""
    said = f"{os.getuid()}|{session_of(engine_id)}"
    name = hashlib.sha256(said.encode()).hexdigest()
    return "\0mmx-vllm-" + name[:32]


@dataclass
class _Early:
    room: mmx.Room
    identifier: str
    offer: Offer
    request: str  # the API server's id of the request
    blocks: int
    until: float


class Ahead:
    """needed(identifier): True if the scheduler does not handle the item yet;
    called on this thread."""

    def __init__(self, s: Settings, needed: Callable[[str], bool]) -> None:
        self.settings, self.needed = s, needed
        self.link: Optional[Link] = None  # from the first request on
        self._rooms: Dict[Place, _Early] = {}
        self._lock = threading.Lock()  # guards _rooms
        self._done: Deque[mmx.Room] = collections.deque()  # to be released
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ends = False
        self._thread: Optional[threading.Thread] = None
        if s.several:  # the middleware reports nothing to such engines
            return
        try:
            self._socket.bind(address(s.session))
        except OSError as e:  # another engine has this name
            log.info("rows are not asked for ahead: %s", e)
            return
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="mmx-ahead")
        self._thread.start()

    # --- for the scheduler's thread ---------------------------------------
    def take(self, offer: Offer, identifier: Optional[str] = None) \
            -> Tuple[Optional[mmx.Room], Offer]:
        """Returns the offer's room if one was requested ahead, or another room
        of the item, with the offer that the room is for. The caller must
        release() it."""
        with self._lock:
            early = self._rooms.get(offer[:2]) or next(
                (e for e in self._rooms.values() if
                 e.identifier == identifier and
                 e.offer[2:] == offer[2:]), None)
            if not early:
                return None, offer
            del self._rooms[early.offer[:2]]
        return early.room, early.offer

    def release(self, room: mmx.Room) -> None:
        if self._ends:
            return  # the room ends with the connection
        self._done.append(room)
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"1")

    def close(self) -> None:
        if self._ends:
            return
        self._ends = True
        if self._thread:
            with contextlib.suppress(BlockingIOError):
                os.write(self._waker, b"1")
            self._thread.join()
        self._socket.close()
        os.close(self._wake)
        os.close(self._waker)

    # --- the thread -------------------------------------------------------
    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        watched = False
        while not self._ends:
            poll.poll(1000 if self._rooms else None)
            # A byte wakes the thread; after that the loop checks `_ends`.
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            try:
                self._turn()
            except (errors.MmxError, OSError) as e:
                log.info("not asked ahead: %s", e)
            # the thread must live on: it also releases the scheduler's rooms
            except Exception:
                log.exception("not asked ahead")
            if self.link and not watched:
                watched = True
                poll.register(self.link.conn.fd, select.POLLIN)
        if self.link:
            self.link.close()

    def _turn(self) -> None:
        if self.link:
            self.link.step()
        while self._done:
            self._done.popleft().release(force=True)
        heard = self._hear()
        while heard is not None:
            self._heard(heard)
            heard = self._hear()
        now = time.monotonic()
        self._end(lambda early: early.until < now)

    def _hear(self) -> Any:
        """Returns the next message of the API server; None: there is none."""
        while True:
            try:
                text, control, _, _ = self._socket.recvmsg(
                    LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return None
            users = {_CREDENTIALS.unpack(data)[1] for level, kind, data in
                     control if kind == socket.SCM_CREDENTIALS}
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(text)
                if users == {os.getuid()} and isinstance(said, dict):
                    return said

    def _heard(self, said: Dict[str, Any]) -> None:
        name = str(said.get("request"))
        if isinstance(said.get("offers"), dict):
            self._ask(name, said["offers"])
        else:
            self._end(lambda early: early.request == name)

    def _ask(self, name: str, said: Dict[str, Any]) -> None:
        if not self.link:
            self.link = Link("langd", self.settings, "ahead")
            self.link.step()
        pool = self.link.pool
        if not pool:
            return
        read = {h: Offer.read(x) for h, x in said.items()}
        with self._lock:  # the scheduler looks here before it requests
            # Requests each room and each item once, whatever names a client
            # gives.
            asked = {early.identifier for early in self._rooms.values()}
            offers = {o[:2]: (h, o) for h, o in read.items()
                      if o and self.settings.allows(o) and self.needed(h)
                      and h not in asked and o[:2] not in self._rooms}
            blocks = {place: -(-o.rows // pool.block_rows)
                      for place, (_, o) in offers.items()}
            held = sum(early.blocks for early in self._rooms.values())
            if (held + sum(blocks.values())) * SHARE > pool.blocks:
                return
            group = (mmx.room_id(uuid.uuid4().hex), len(offers)) \
                if len(offers) > 1 else None
            until = time.monotonic() + self.settings.deadline
            for place, (identifier, o) in offers.items():
                room = self.link.request(identifier, o, pool, group)
                self._rooms[place] = _Early(room, identifier, o, name,
                                            blocks[place], until)

    def _end(self, which: Callable[[_Early], bool]) -> None:
        """Releases rooms that the scheduler has not taken."""
        with self._lock:
            gone = [p for p, early in self._rooms.items() if which(early)]
            rooms = [self._rooms.pop(p).room for p in gone]
        for room in rooms:
            room.release(force=True)
