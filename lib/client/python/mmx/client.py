"""A connection to a daemon.

Only connect(), pool(), space(), query(), wait() and close() block: other
calls send and return, step() receives, cells are read without a system call.
The blocking calls wait in poll(), so Ctrl-C works. `fd` is one epoll
descriptor for the life of the connection, over reconnects too: when it is
readable, call step(). A connection belongs to one thread, and to the process
that made it: after a fork the child opens its own.

On an asyncio loop step() is not needed: await the rooms, or `async for event
in connection` (see aio.py).
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import errno
import logging
import mmap
import os
import select
import socket
import time
import weakref
from dataclasses import dataclass
from typing import (Any, Callable, Deque, Dict, List, Optional, Sequence,
                    Tuple, Union)

from . import aio, dropped, due, errors, lend, wire
from .pool import Pool
from .rooms import Room, Shown, Source, State
from .tickets import Space, Ticket
from .wire import Reference

log = logging.getLogger("mmx")
log.addHandler(logging.NullHandler())

_RETRY_FIRST, _RETRY_LAST = 0.01, 0.5  # seconds between two tries to connect


class Reply:
    """The one answer to a message, once it has arrived."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = False
        self.error: Optional[errors.MmxError] = None
        self.values: Dict[str, Any] = {}
        self.fd = -1  # descriptor of the answer; see take_fd()
        self.epoch = 0  # of the run that answered
        self.text = b""  # the REPORTs' texts, joined
        self.then: Optional[Callable[[Reply], None]] = None

    def take_fd(self) -> int:
        """Returns the answer's descriptor, which the caller closes; -1:
        none."""
        fd, self.fd = self.fd, -1
        return fd

    def __del__(self) -> None:
        if self.fd >= 0:  # the call was given up
            os.close(self.fd)

    def result(self) -> Dict[str, Any]:
        """Returns the answer's values; raises the daemon's refusal."""
        if not self.done:
            raise RuntimeError(f"{self.what} is not answered yet")
        if self.error:
            raise self.error
        return self.values

    def _finish(self, error: Optional[errors.MmxError]) -> None:
        self.done, self.error = True, error
        if error:
            log.debug("%s: %s", self.what, error)
        if self.then:
            self.then(self)


class Link(enum.Enum):
    UP = "up"  # connected; a new run of the daemon has a new epoch
    DOWN = "down"  # every room that had not ended failed with daemon-lost


class Event:
    """A change: of a room or source, with the bits of EVENT.what; of a
    ticket, which now holds an id or is lost; or of the link."""

    def __init__(self, room: Optional[Shown], what: int,
                 link: Optional[Link] = None,
                 ticket: Optional[Ticket] = None) -> None:
        self.room, self.what, self.link = room, what, link
        self.ticket = ticket

    def __repr__(self) -> str:
        about = self.link or self.ticket or self.room
        return f"<Event {about} {self.what:#x}>"


@dataclass
class Item:
    """The arguments of one announce() of a batch."""

    room: Union[None, int, Reference]
    max_rows: int
    total: Optional[int] = None
    storage: str = "compact"
    key: bytes = wire.NO_KEY
    aux: bytes = b""
    destinations: int = 0
    open: bool = False
    deadline: float = 0
    keep: bool = False
    traceparent: str = ""


class Connection:
    def __init__(self, role: str, path: str, name: str, session: str,
                 cells: int = 1024, lends: bool = False) -> None:
        self.role, self.path = role, path
        self.name, self.session = name, session or name
        # Raises now what would be raised once there is a daemon.
        wire.HELLO.encode(0, name=name, session=self.session)
        self.epoch = 0
        self.info: Dict[str, Any] = {}  # the WELCOME
        self._want_cells = cells
        self._ends = dropped.Ends()
        # referred to by this object and by each map
        self._held = dropped.Held(self._ends)
        self._out: Deque[bytes] = collections.deque()
        self._events: List[Event] = []
        self._seq = 0
        self._tag = 0
        self._replies: Dict[int, Reply] = {}
        self._rooms: Dict[Tuple[int, int], Shown] = {}
        # Rooms whose lent arrays have ended, in any thread.
        self._returned: Deque[Shown] = collections.deque()
        self._rung = False  # _ring() has made a step due
        self._free: Deque[int] = collections.deque()
        self._pools: Dict[str, Pool] = {}  # by the name in the call
        self._following = 0  # pools of a new run that are not mapped yet
        self._spaces: Dict[int, Space] = {}
        self._lends = lends and role == "langd"
        self._lenders: List[lend.Lender] = []
        # Pools of encoders on this host, by (langd's run, number in events).
        self._lent: "weakref.WeakValueDictionary[Tuple[int, int], Pool]" = \
            weakref.WeakValueDictionary()
        # Prepares such a pool for reads, on a thread of its own; may_lend:
        # whether langd may show rows there.
        self.prepare: Callable[[Pool], Any] = Pool.populate
        self.may_lend: Callable[[Tuple[int, int]], bool] = lambda key: True
        self.cells = memoryview(b"").cast("Q")
        self._retry = _RETRY_FIRST
        self._closed = False
        self._pid = os.getpid()
        self._watch: Optional[aio.Watch] = None
        # when waits check their conditions again without an event
        self._look_at = 0.0
        self._greeting: Optional[Reply] = None
        self._up = False
        # Why the daemon refused the last connection.
        self.not_taken: Optional[errors.MmxError] = None
        # Why the socket could not be reached last time.
        self.unreached: Optional[str] = None
        self._writing = False
        self._epoll = self._ends.epoll
        self._timer = self._new_timer()  # for the next try to connect
        self._dues = due.Dues(self)
        self.fd: int = self._epoll.fileno()
        self._dial()

    # --- the link ---------------------------------------------------------
    @property
    def _socket(self) -> Optional[socket.socket]:
        return self._ends.socket

    def _dial(self) -> None:
        try:
            s = lend.reached(self.path)
            self._epoll.register(s, select.EPOLLIN)
        except OSError as e:  # such as no free descriptor
            log.debug("%s: %s", self.path, e)
            self.unreached = e.strerror
            self._timer.set(self._retry)
            self._retry = min(self._retry * 2, _RETRY_LAST)
            return
        self._timer.set(0)
        self.unreached = None
        self._ends.socket = s
        self._greeting = self.send(
            wire.HELLO, magic=wire.MAGIC, version_min=wire.VERSION,
            version_max=wire.VERSION, role=wire.ROLES[self.role],
            cells=self._want_cells, name=self.name, session=self.session,
            abilities=wire.ABLE_LEND if self._lends else 0)

    def _welcome(self, values: Dict[str, Any], fds: List[int]) -> None:
        if not fds:  # at the process's limit the kernel drops the descriptor
            raise OSError("WELCOME came without its descriptor")
        self.cells = memoryview(mmap.mmap(
            fds[0], values["cells"] * 8, mmap.MAP_SHARED,
            mmap.PROT_READ)).cast("Q")
        self._free = collections.deque(range(values["cells"]))
        self.info, self.epoch = values, values["epoch"]
        self._retry = _RETRY_FIRST
        self.not_taken = None
        self._following = len(self._pools)
        for name in list(self._pools):
            self._follow(name)
        if self._following == 0:
            self._is_up()

    def _is_up(self) -> None:
        self._up = True
        self._events.append(Event(None, 0, Link.UP))

    def _follow(self, name: str) -> None:
        """Asks a new run of the daemon for a pool. The link is up when all
        pools have been answered."""
        def followed(reply: Reply) -> None:
            if not self._socket:
                return  # the connection is lost again
            try:
                self._map(name, reply)
            except Exception as e:  # a GPU raises its own errors
                log.warning("%s: pool %s: %s", self.path, name, e)
                del self._pools[name]
            self._following -= 1
            if self._following == 0:
                self._is_up()

        self.send(wire.POOL, name=name,
                  layout=self._pools[name].layout).then = followed

    def _new_timer(self) -> due.Timer:
        timer = due.Timer()
        self._ends.timers.append(timer.fd)
        self._epoll.register(timer.fd, select.EPOLLIN)
        return timer

    def _lost(self, why: str) -> None:
        if not self._socket:
            return
        self._dues.clear()
        self._epoll.unregister(self._socket)
        self._socket.close()
        self._ends.socket = None
        for lender in self._lenders:
            lender.leave()
        self._lenders.clear()
        self._out.clear()
        error = errors.DaemonLost(f"{self.path}: {why}")
        was_up, self._up, self._writing = self._up, False, False
        rooms = self._shown()
        maps = {id(p): copy.copy(p) for p in self._pools.values()}
        for room in rooms:  # rows that have landed stay readable
            room._pool = maps.get(id(room._pool), room._pool)
            room._may_show.clear()
        for reply in list(self._replies.values()):
            reply._finish(error)
        self._replies.clear()
        self._rooms.clear()
        self._free.clear()
        spaces, self._spaces = list(self._spaces.values()), {}
        for space in spaces:
            space._lost(error)
        for room in rooms:
            # Rooms that have ended keep their state and rows.
            if room.state not in (State.FAILED, State.SUCCESS):
                self._fail(room, error)
        if was_up:
            self._events.append(Event(None, 0, Link.DOWN))
        if not self._closed:
            self._timer.set(self._retry)
            self._retry = min(self._retry * 2, _RETRY_LAST)

    def _fail(self, room: Shown, error: errors.MmxError) -> None:
        room._fail(error)
        self._events.append(Event(room, wire.FAILED))

    def _shown(self) -> List[Shown]:
        return list(self._rooms.values())

    @property
    def connected(self) -> bool:
        return self._up

    @property
    def closed(self) -> bool:
        """True after close(): the descriptor is closed."""
        return self._epoll.closed

    def _here(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkedError(f"{self.path}: the connection belongs to "
                                     f"process {self._pid}; open another")

    @property
    def refused(self) -> Optional[errors.MmxError]:
        """The daemon's refusal of HELLO, or None."""
        error = self._greeting.error if self._greeting else None
        return None if isinstance(error, errors.DaemonLost) else error

    # --- sending ----------------------------------------------------------
    def send(self, message: wire.Message, stale: bool = False,
             **values: Any) -> Reply:
        """Sends one message; the reply is done at a later step(), or at once
        with daemon-lost if no daemon is connected or the message is about a
        room of an earlier connection (stale)."""
        self._here()
        reply = Reply(message.name)
        if stale or not self._socket:
            reply._finish(errors.DaemonLost(
                f"{self.path}: " + ("reconnected" if stale else
                               "no daemon is connected")))
            return reply
        self._seq = self._seq % 0xFFFFFFFF + 1
        packet = message.encode(self._seq, **values)
        self._replies[self._seq] = reply
        self._out.append(packet)
        self._flush()
        return reply

    def _flush(self) -> None:
        """Sends until the socket is full; then `fd` also waits for space,
        which the daemon may make only after this side has received."""
        full = False
        while self._out and self._socket and not full:
            try:
                self._socket.send(self._out[0], socket.MSG_NOSIGNAL)
                self._out.popleft()
            except OSError as e:
                full = e.errno in (errno.EAGAIN, errno.ENOBUFS)
                # If that was no lack of space, the daemon's last messages are
                # still to be read; _read ends the connection after them.
                if not full:
                    self._out.clear()
        if self._socket and full != self._writing:
            self._writing = full
            self._epoll.modify(self._socket, select.EPOLLIN
                               | (select.EPOLLOUT if full else 0))

    # --- receiving --------------------------------------------------------
    def step(self) -> List[Event]:
        """Sends, receives, reconnects when due, and returns the events.
        Never blocks."""
        self._here()
        # from now on another thread may set the timer again
        rung, self._rung = self._rung, False
        if (rung or not self._socket) and not self._closed:
            due = self._timer_due()
            if rung and not due:
                self._rung = True
            if due and not self._socket:
                self._dial()
        while self._returned:
            self._returned.popleft()._returned()
        self._flush()
        ready = {fd for fd, _ in self._epoll.poll(0)} if self._socket else {}
        while self._socket and self._socket.fileno() in ready and self._read():
            pass
        for lender in list(self._lenders):
            lender.step(ready)
        self._lenders = [x for x in self._lenders if not x.over]
        if self._socket:
            self._dues.look()
        events, self._events = self._events, []
        if self._watch:
            self._watch.look()
        return events

    def _timer_due(self) -> bool:
        try:
            os.read(self._timer.fd, 8)
        except BlockingIOError:
            return False
        return True

    def _read(self) -> bool:
        assert self._socket
        got = lend.received(self._socket)
        if got is None:
            return False
        packet, fds = got
        if not packet:
            self._lost("the daemon closed the connection")
            return False
        try:
            for frame in wire.frames(packet):
                self._frame(frame, fds)
        except (ValueError, OSError) as e:  # a broken frame, or no cells
            self._lost(str(e))
        finally:
            for fd in fds:  # those that no frame took
                os.close(fd)
        return True

    def _frame(self, frame: wire.Frame, fds: "List[int]") -> None:
        message, values = frame.message, frame.values
        if message is wire.EVENT:
            room = self._rooms.get((values["cell"], values["tag"]))
            # If the daemon was silent for too long, its later events do not
            # count.
            if room and not isinstance(room.error, errors.DaemonSilent):
                room._event(values)
                self._events.append(Event(room, values["what"]))
            return
        if message is wire.LENDER:
            self._lenders.append(lend.Lender(self, values))
            return
        if message is wire.TICKET_EVENT:
            space = self._spaces.get(values["space"])
            if space:
                space._event(values)
            return
        if frame.seq == 0 and message is wire.ANSWER and not self._up:
            self.not_taken = errors.error(values["err"], _text(values))
        reply = self._replies.get(frame.seq)
        if not reply:
            return
        if message is wire.REPORT:
            reply.text += values["text"]
            if values["more"]:
                return
        del self._replies[frame.seq]
        reply.values = values
        number = values.get("err", 0)
        if message is wire.WELCOME:
            self._welcome(values, fds)
        # a GPU's pool may come with a handle only
        elif message is wire.POOL_INFO:
            reply.fd, reply.epoch = fds.pop() if fds else -1, self.epoch
        reply._finish(errors.error(number, _text(values), values.get("a", 0),
                                   values.get("b", 0)) if number else None)

    def wait(self, until: Union[Reply, Callable[[], Any]],
             timeout: Optional[float] = None,
             every: Optional[float] = None,
             lacks: Optional[Callable[[], str]] = None) -> Any:
        """Steps until a reply is done (its error is raised) or a condition
        holds; TimeoutError after `timeout` seconds (DaemonSilent, which is
        one, if the daemon answers nothing). Events that arrive during the
        wait are not lost: the next step() returns them. every: seconds
        between two checks of a condition without an event.
        lacks: tells for the error what was waited for."""
        condition = (lambda: until.done) if isinstance(until, Reply) else until
        patience = due.Patience(self, timeout)
        kept: List[Event] = []
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        try:
            while True:
                kept += self.step()
                got = condition()
                if got:
                    break
                if patience.over():
                    raise patience.error(lacks or _lacking(until))
                left = patience.left()
                again = self._look_at - time.monotonic()
                limits = [s for s in (left, every, again if again > 0 else
                                      None) if s is not None]
                poll.poll(min(limits) * 1000 + 1 if limits else None)
        finally:
            self._events[:0] = kept
            if kept and self._watch:
                self._watch.soon()
        return until.result() if isinstance(until, Reply) else got

    def _look_again(self, seconds: float) -> None:
        """Has waits check their conditions after this time, even without an
        event."""
        self._look_at = time.monotonic() + seconds
        if self._watch:
            self._watch.loop.call_later(seconds, self._watch.look)

    async def until(self, until: Union[Reply, Callable[[], Any]],
                    timeout: Optional[float] = None,
                    lacks: Optional[Callable[[], str]] = None) -> Any:
        """Awaits a reply, or a condition that changes with an event; as
        wait()."""
        condition = (lambda: until.done) if isinstance(until, Reply) else until
        got = await aio.watch(self).until(condition, timeout,
                                          lacks or _lacking(until))
        return until.result() if isinstance(until, Reply) else got

    def __aiter__(self) -> Connection:
        aio.watch(self)
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; pending changes of one room are one event.
        Ends when the connection is closed."""
        watch = aio.watch(self)
        await watch.until(lambda: watch.events() or self.closed, None, str)
        event = watch.take()
        if not event:
            raise StopAsyncIteration
        return event

    # --- pools and questions ----------------------------------------------
    def pool(self, name: str = "", layout: str = "",
             timeout: Optional[float] = 10) -> Pool:
        """Maps a pool. With a layout ("embedding:bf16:8192,fill_ids:i32:1")
        the call fails unless the pool has exactly these fields. It follows
        its name: when the daemon is started again it is mapped anew, before
        Link.UP, and what pins its memory looks at epoch. Rows of rooms from
        before stay readable."""
        known = self._known(name, layout)
        if known:
            return known
        reply = self.send(wire.POOL, name=name, layout=layout)
        self.wait(reply, timeout)
        return self._map(name, reply)

    async def apool(self, name: str = "", layout: str = "",
                    timeout: Optional[float] = 10) -> Pool:
        """Maps a pool, as pool(), without blocking the loop."""
        known = self._known(name, layout)
        if known:
            return known
        reply = self.send(wire.POOL, name=name, layout=layout)
        await self.until(reply, timeout)
        return self._map(name, reply)

    def _known(self, name: str, layout: str) -> Optional[Pool]:
        known = self._pools.get(name)
        if known and known.epoch == self.epoch and self._up \
                and layout in ("", known.layout):
            return known
        return None

    def _map(self, name: str, reply: Reply) -> Pool:
        values = reply.result()
        if reply.epoch != self.epoch:  # another run than the one asked
            raise errors.DaemonLost(f"{self.path}: reconnected")
        known = self._pools.get(name)
        if known and known.epoch == self.epoch:
            return known  # the answer to another caller came first
        pool = Pool(values, reply.take_fd(), self.epoch, self._held)
        if known and known.layout == pool.layout:
            known._become(pool)
        else:
            self._pools[name] = pool
        return self._pools[name]

    def _pool_numbered(self, number: int) -> Pool:
        """Returns the pool of a number from an event."""
        for pool in [*self._pools.values(), *self._lent.values()]:
            if pool.number == number and pool.epoch == self.epoch:
                return pool
        for row in self.query("pools"):
            if self.pool(row["pool"]).number == number:
                return self.pool(row["pool"])
        raise errors.Stale(f"the daemon has no pool {number}")

    def query(self, what: str, timeout: Optional[float] = 10) -> Any:
        """Returns the rows of a report, as PROTOCOL.md lists them; mmxctl
        adds columns of its own to some."""
        reply = self.send(wire.QUERY, what=what)
        self.wait(reply, timeout)
        return wire.rows(reply.text)

    # --- sequence ids -----------------------------------------------------
    def space(self, name: str, n_seq_max: int,
              timeout: Optional[float] = 10) -> Space:
        """Opens a space of sequence ids (langd), or finds it: the processes
        of a session share it."""
        got = self.wait(self.send(wire.SPACE, name=name,
                                  n_seq_max=n_seq_max), timeout)
        known = self._spaces.get(got["a"])
        if not known:
            known = self._spaces[got["a"]] = Space(self, name, got["a"],
                                                   n_seq_max)
        return known

    def _ticket_event(self, ticket: Ticket) -> None:
        self._events.append(Event(None, 0, ticket=ticket))

    def _ticket_heard(self, ticket: Ticket) -> None:
        self._events = [e for e in self._events if e.ticket is not ticket]

    # --- rooms ------------------------------------------------------------
    def announce(self, room: Union[None, int, Reference], pool: Pool,
                 max_rows: int,
                 total: Optional[int] = None, *, storage: str = "compact",
                 key: bytes = wire.NO_KEY, aux: bytes = b"",
                 destinations: int = 0, open: bool = False,
                 deadline: float = 0, keep: bool = False,
                 traceparent: str = "") -> Source:
        """Opens a room for an item of up to max_rows rows; total: its length,
        if known. room: None, and the other side passes source.reference; or
        the reference that it has drawn; or an id that both sides know
        already, for a room without a secret. destinations 0: as in the first request. key: 32 bytes that
        name the content; if its rows exist already, source.have becomes true
        instead of a grant, and nothing is written. keep: the rows stay after
        the room's end, until their space is needed. traceparent: W3C's
        trace context of 55 characters, for logs and traces of both daemons."""
        return self.announce_batch(pool, [Item(
            room, max_rows, total, storage, key, aux, destinations, open,
            deadline, keep, traceparent)])[0]

    def announce_batch(self, pool: Pool,
                       items: Sequence[Item]) -> List[Source]:
        """Announces rooms that get their blocks all together."""
        self._linked()
        if len(items) > len(self._free):
            raise errors.Quota(f"{len(items)} announces, {len(self._free)} "
                               "cells are free")
        pool = self._ours(pool)
        values, sources = [], []
        named = [self._named(i.room) for i in items]
        for at, i in enumerate(items):
            flags = (wire.KEEP if i.keep else 0) | (wire.OPEN if i.open else 0)
            values.append(dict(
                **named[at], pool=pool.number, flags=flags,
                storage=wire.STORAGE[i.storage], max_rows=i.max_rows,
                total=_rows(i.total), required_dst=i.destinations,
                batch=len(items) - 1 - at, deadline_ms=due.ms(i.deadline),
                key=_key(i.key), aux=i.aux,
                traceparent=wire.traceparent(i.traceparent)))
            # raises before any message is sent
            wire.ANNOUNCE.encode(0, **values[-1])
        for v in values:
            source = Source(self, v["room"], pool, wire.WRITE)
            self._open(source, wire.ANNOUNCE, v)
            sources.append(source)
        return sources

    def request(self, room: Union[None, int, Reference], pool: Pool,
                encoder: str, *,
                mode: str = "whole", rows: int = 0, storage: str = "any",
                key: bytes = wire.NO_KEY, readers: int = 0,
                destinations: int = 0,
                group: Optional[Tuple[int, int]] = None,
                deadline: float = 0, keep: bool = False,
                announced: bool = False,
                traceparent: str = "") -> Room:
        """Asks an encoder's daemon for a room. room: as in announce; with
        another secret this is another room, which never comes. rows 0: not known, the pool's
        default grant is taken. key: as announced, or refused with
        item-mismatch. readers: further connections of the session that will
        attach to read. group: (id, number of rooms): they get their blocks
        all together. announced: the id came from the room's announce, so an
        encoder that does not have it says unknown-room at once. traceparent: as in announce."""
        flags = wire.KEEP if keep else 0
        if announced:
            flags |= wire.ANNOUNCED
        pool = self._ours(pool)
        group_id, group_size = group or (0, 0)
        values = dict(
            **self._named(room), pool=pool.number, mode=wire.MODES[mode],
            storage=wire.STORAGE[storage], flags=flags,
            rows=rows, readers=readers, required_dst=destinations,
            group=group_id, group_size=group_size, deadline_ms=due.ms(deadline),
            key=_key(key), encoder=encoder,
            traceparent=wire.traceparent(traceparent))
        wire.REQUEST.encode(0, **values)
        got = Room(self, values["room"], pool, encoder, mode == "stream")
        self._open(got, wire.REQUEST, values)
        return got

    def attach(self, room: Union[int, Reference], encoder: str = "",
               rights: int = wire.READ, *, deadline: float = 0,
               pool: Optional[Pool] = None) -> Union[Room, Source]:
        """Attaches to a room that another connection of the session has
        opened or will open: returns a Room at langd (encoder is required), a
        Source at encoded. Events name the room's pool; pass it to have it
        mapped before."""
        values = dict(**self._named(room), rights=rights,
                      deadline_ms=due.ms(deadline), encoder=encoder)
        room = values["room"]
        wire.ATTACH.encode(0, **values)
        got: Union[Room, Source]
        ours = self._ours(pool) if pool else None
        if self.role == "langd":
            got = Room(self, room, ours, encoder)
        else:
            got = Source(self, room, ours, rights)
        got.shows_rows = bool(rights & (wire.READ | wire.WRITE))
        self._open(got, wire.ATTACH, values)
        return got

    def decline(self, room: Union[int, Reference], encoder: str,
                key: bytes = wire.NO_KEY) -> Reply:
        """Declares that this engine will not fetch the room, so that its
        encoder can free the rows. At encoded, with encoder "" and the room's
        reference: no engine will, the room ends for all, also one that is
        announced later."""
        return self.send(wire.DECLINE, **self._named(room), key=_key(key),
                         encoder=encoder)

    def _named(self, room: Union[None, int, Reference]) -> Dict[str, Any]:
        """Returns id and secret of a room, drawn for None."""
        if room is None:
            room = Reference.draw()
        if not isinstance(room, Reference):
            return dict(room=room, secret=wire.NO_SECRET)
        if len(room.secret) != len(wire.NO_SECRET):
            raise ValueError(f"a secret has 16 bytes, not {len(room.secret)}")
        return dict(room=room.room, secret=bytes(room.secret))

    def _ours(self, pool: Pool) -> Pool:
        self._linked()
        if pool.epoch != self.epoch:
            raise errors.Stale(f"pool {pool.name} is of an earlier run of the "
                               "daemon: call pool() again")
        return pool

    def _linked(self) -> None:
        if not self._up:
            raise errors.NotReady(f"{self.path}: no daemon is connected")

    def _cell(self) -> Tuple[int, int]:
        """Takes a free cell, with a new tag for this use."""
        self._linked()
        if not self._free:
            raise errors.Quota(f"all {len(self.cells)} cells are in use")
        self._tag = self._tag % wire.TAG_MAX + 1
        return self._free.popleft(), self._tag

    def _open(self, room: Shown, message: wire.Message,
              values: Dict[str, Any]) -> None:
        room.reference = Reference(values["room"], values["secret"])
        reply = self.send(message, cell=room.cell, tag=room.tag, **values)
        self._rooms[room.cell, room.tag] = room

        def opened(answer: Reply) -> None:
            room._answered(answer)
            place = (room.cell, room.tag)
            if answer.error and self._rooms.pop(place, None):
                self._free.append(room.cell)
                self._events.append(Event(room, wire.FAILED))

        reply.then = opened
        room.opened = reply
        if reply.done:  # not connected
            opened(reply)
        else:
            self._dues.add(room, values["deadline_ms"] / 1000)

    def _unbind(self, room: Shown) -> None:
        """Frees the room's cell: its last RELEASE was answered."""
        self._forget(room)
        if self._rooms.pop((room.cell, room.tag), None):
            self._free.append(room.cell)

    def _is_returned(self, room: Shown) -> None:
        """Notes that a lent array has ended, for the next step(), which is
        made due. Not in a forked child: its timer is the parent's."""
        if os.getpid() != self._pid:
            return
        self._returned.append(room)
        self._ring()

    def _ring(self, seconds: float = 1e-9) -> None:
        """Sets the timer, so that step() is due. Any thread."""
        if not self._closed:
            self._timer.set(seconds)
        # set first: a step() meanwhile may read it too early
        self._rung = True

    def _hold(self, pools: List[Pool]) -> None:
        """Makes rooms hold the pools of a lender in which they may come to
        show rows; without a link no room can."""
        for room in self._shown() if self._socket else ():
            if not room._has_ended:
                room._may_show += pools

    def _forget(self, room: Shown) -> None:
        if self._watch:
            self._watch.forget(room)

    # --- the end ----------------------------------------------------------
    def close(self, timeout: float = 5) -> None:
        """Sends BYE: open rooms end as if released. In a forked child: closes
        the child's copy only."""
        if self._closed:
            return
        self._closed = True
        try:
            # A connection that is not up has nothing to end.
            if os.getpid() == self._pid and self._up:
                with contextlib.suppress(errors.MmxError, TimeoutError):
                    self.wait(self.send(wire.BYE), timeout)
        finally:
            self._end()

    async def aclose(self, timeout: float = 5) -> None:
        """Closes the connection, as close(), without blocking the loop."""
        if self._closed:
            return
        self._here()
        self._closed = True
        try:
            if self._up:
                with contextlib.suppress(errors.MmxError, TimeoutError):
                    await self.until(self.send(wire.BYE), timeout)
        finally:
            self._end()

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._lost("closed")
            if self._watch:
                self._watch.close()
            self._timer.set(0)
        self._held.finalizer.detach()
        self._ends.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()


def _text(values: Dict[str, Any]) -> str:
    text = values.get("text", "")
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _rows(rows: Optional[int]) -> int:
    return wire.UNKNOWN if rows is None else rows


def _lacking(until: Union[Reply, Callable[[], Any]]) -> Callable[[], str]:
    what = f"answer to {until.what}" if isinstance(until, Reply) else "not so"
    return lambda: what


def _key(key: bytes) -> bytes:
    if len(key) not in (0, len(wire.NO_KEY)):
        raise ValueError(f"a key has {len(wire.NO_KEY)} bytes, not {len(key)}")
    return bytes(key) or wire.NO_KEY
