"""A connection to a daemon: a handle of the C library (_handle.py), with the
objects of Python that its answers and events are about.

Only connect(), pool(), space(), query(), wait() and close() block: other
calls send and return, step() receives, cells are read without a system call.
The blocking calls wait in poll(), so Ctrl-C works. `fd` is one epoll
descriptor for the life of the connection, over reconnects too: when it is
readable, call step(). A connection belongs to one thread, and to the process
that made it: after a fork the child opens its own.

While the daemon does not read, calls that open rooms or spaces or ask for a
sequence id raise errors.Busy; what other calls say is sent by a later step(),
1,024 calls at most, and the next one's reply is Busy.

On an asyncio loop step() is not needed: await the rooms, or `async for event
in connection` (see aio.py).

langd may show rows in pools of encoders on this host (RULES.md 6.7), which
the C library is offered and this module maps. Such a map ends when its encoder
has ended and no room or array shows it; the encoder hears of that.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import ctypes
import enum
import logging
import os
import select
import threading
import time
import weakref
from dataclasses import dataclass
from typing import (Any, Callable, Deque, Dict, List, Optional, Sequence,
                    Tuple, Union)

from . import _handle, aio, due, errors, wire
from ._handle import c, new
from .pool import Pool
from .rooms import Room, Shown, Source
from .tickets import Space, Ticket
from .wire import Reference

log = logging.getLogger("mmx")
log.addHandler(logging.NullHandler())

_EVENTS = 64  # taken in one call
_CALLS_MAX = 1024  # that wait for a daemon which does not read
_CLOSED = "the daemon closed the connection"


class Reply(_handle.Taken):
    """The one answer to a message, once it has arrived."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = False
        self.error: Optional[errors.MmxError] = None
        self.values: Dict[str, Any] = {}
        self.epoch = 0  # of the run that answered
        self.text = b""  # of a report
        self.then: Optional[Callable[[Reply], None]] = None

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


class _Lent:
    """A pool of an encoder on this host that this process has mapped."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.ready = False  # it is prepared
        self.told = False  # langd may show rows there


class Connection:
    def __init__(self, role: str, path: str, name: str, session: str,
                 cells: int = 1024, lends: bool = False) -> None:
        self.role, self.path = role, path
        self.name, self.session = name, session or name
        # Raises now what would be raised once there is a daemon.
        wire.check("hello", name=name, session=self.session, cells=cells)
        self.epoch = 0
        self.info: Dict[str, Any] = {}  # the WELCOME
        self._events: List[Event] = []
        # Taken from the C library, and not handled yet.
        self._news: Deque[Any] = collections.deque()
        # Calls whose messages had no place yet, in their order.
        self._calls: Deque[Tuple[Reply, Callable[..., int], Any]] = \
            collections.deque()
        self._replies: Dict[int, Reply] = {}
        self._rooms: Dict[Tuple[int, int], Shown] = {}
        # Rooms whose lent arrays have ended, in any thread.
        self._returned: Deque[Shown] = collections.deque()
        self._pools: Dict[str, Pool] = {}  # by the name in the call
        self._following = 0  # pools of a new run that are not mapped yet
        self._spaces: Dict[int, Space] = {}
        self._lenders: Dict[int, _Lent] = {}  # by the C library's number
        # Pools of encoders on this host, by (langd's run, number in events).
        self._lent: "weakref.WeakValueDictionary[Tuple[int, int], Pool]" = \
            weakref.WeakValueDictionary()
        # Prepares such a pool for reads, on a thread of its own; may_lend:
        # whether langd may show rows there.
        self.prepare: Callable[[Pool], Any] = Pool.populate
        self.may_lend: Callable[[Tuple[int, int]], bool] = lambda key: True
        self._closed = self._ended = False
        self._pid = os.getpid()
        self._watch: Optional[aio.Watch] = None
        # when waits check their conditions again without an event
        self._look_at = 0.0
        self._up = False
        self._links = 0  # connections that have ended
        # Why the daemon refused HELLO, and the last connection before that.
        self.refused: Optional[errors.MmxError] = None
        self.not_taken: Optional[errors.MmxError] = None
        self._why = _CLOSED  # the end of the last link
        self._greeting = Reply("hello")
        self._past = 0  # the last message on connections that have ended
        self._doubt: Optional[Reply] = None
        self._handle = _handle.Handle(wire.ROLES[role], path, name,
                                      self.session, cells,
                                      lends and role == "langd")
        self._it = self._handle.it
        self._taken = (new.event * _EVENTS)()
        self._blocks = (new.blocks * _handle.RUNS_MAX)()
        self.cells: Any = (ctypes.c_uint64 * (cells or 1024)).from_address(
            c.cell(self._it, new.room()))
        self.fd: int = c.fd(self._it)

    # --- the link ---------------------------------------------------------
    def _said(self) -> Any:
        said = new.info()
        self._ok(c.info(self._it, said))
        return said

    @property
    def unreached(self) -> Optional[str]:
        """Why the socket could not be reached last time."""
        number = 0 if self._up else self._said().system
        return os.strerror(number) if number else None

    def _welcome(self) -> None:
        said = self._said()
        self.epoch = said.epoch
        self.info = {n: v.decode("utf-8", "replace") if isinstance(v, bytes)
                     else v for n, v in ((n, getattr(said, n))
                                         for n, _ in said._fields_)}
        self.not_taken = self.refused = None
        self._greeting._finish(None)
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
        links = self._links

        def followed(reply: Reply) -> None:
            if links != self._links or not self._following:
                return  # the connection is lost again
            try:
                self._map(name, reply)
            except Exception as e:  # a GPU raises its own errors
                log.warning("%s: pool %s: %s", self.path, name, e)
                del self._pools[name]
            self._following -= 1
            if self._following == 0:
                self._is_up()

        self.ask_pool(name, self._pools[name].layout).then = followed

    def _lost(self) -> None:
        """Takes the end of the link; rooms and tickets have their events."""
        was_up, self._up, self._following = self._up, False, 0
        self._greeting, self._past = Reply("hello"), c.sent(self._it)
        self._links += 1
        maps = {id(p): copy.copy(p) for p in self._pools.values()}
        rooms, self._rooms = list(self._rooms.values()), {}
        for room in rooms:  # rows that have landed stay readable
            room._pool = maps.get(id(room._pool), room._pool)
            room._freeze()
            c.release(self._it, room.named, wire.ALL, 0)
        spaces, self._spaces = list(self._spaces.values()), {}
        for space in spaces:
            space._lost(errors.DaemonLost(f"{self.path}: {self._why}"))
        if was_up:
            self._events.append(Event(None, 0, Link.DOWN))

    @property
    def connected(self) -> bool:
        return self._up

    @property
    def closed(self) -> bool:
        """True after close(): the connection has ended."""
        return self._ended

    def _here(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkedError(f"{self.path}: the connection belongs to "
                                     f"process {self._pid}; open another")

    # --- sending ----------------------------------------------------------
    def _error(self, number: int, text: str = "", a: int = 0, b: int = 0) \
            -> errors.MmxError:
        """Returns the error of a reason; those that the C library gives have
        no text."""
        if number == errors.DaemonLost.number and not text:
            text = f"{self.path}: {self._why}"
        return errors.error(number, text, a, b)

    def _ok(self, result: int) -> int:
        """Returns the result of a call; raises its error."""
        if result == -_handle.FORKED:
            self._here()
        if result == -errors.NotReady.number:
            raise errors.NotReady(f"{self.path}: no daemon is connected")
        if result < 0:
            raise self._error(-result)
        return result

    def _sent(self, reply: Reply, before: int, result: int) -> Reply:
        """Takes the result of the call that sends a reply's message. before:
        the message before it."""
        number = c.sent(self._it)
        if result == -errors.NotReady.number:
            self._unsent(reply, "no daemon is connected")
        elif result < 0:
            reply._finish(self._error(-result))
        elif number == before:  # no daemon has to hear it
            self._unsent(reply, "reconnected")
        else:
            self._replies[number] = reply
        return reply

    def _unsent(self, reply: Reply, why: str) -> None:
        reply._finish(errors.DaemonLost(f"{self.path}: {why}"))

    def _call(self, what: str, call: Callable[..., int], *values: Any,
              stale: bool = False) -> Reply:
        """Makes a call that sends one message; step() does if the C library
        has no place for it. stale: it is about an earlier connection."""
        self._here()
        reply = Reply(what)
        if stale:
            self._unsent(reply, "reconnected")
        elif len(self._calls) >= _CALLS_MAX:
            reply._finish(errors.Busy(f"{_CALLS_MAX} messages wait"))
        else:
            self._calls.append((reply, call, values))
            self._catch_up()
        return reply

    def _in_turn(self) -> None:
        """Raises Busy for a call that would overtake those that wait."""
        if self._calls:
            raise errors.Busy("earlier messages wait for the daemon")

    def _catch_up(self) -> None:
        """Makes the calls that are due, in their order, while there is place
        for their messages."""
        while self._calls:
            first = reply, call, values = self._calls.popleft()
            before = c.sent(self._it)
            result = call(self._it, *values)
            if result == -errors.Busy.number:
                self._calls.appendleft(first)
                break
            self._sent(reply, before, result)

    def ask_pool(self, name: str = "", layout: str = "") -> Reply:
        """Asks for a pool, without a wait; mmx.Pool makes one of the
        answer."""
        wire.check("pool", name=name, layout=layout)
        return self._call("pool", c.ask_pool, name.encode(),
                          layout.encode())

    def _sign_of_life(self) -> Reply:
        """Asks the daemon for a sign of life, unless such a question is
        unanswered: it asks for a pool of an impossible name, which any daemon
        answers and no counter counts. Before WELCOME, that is the answer to
        HELLO, if one was sent."""
        if not self._greeting.done and c.sent(self._it) != self._past:
            return self._greeting
        if not self._doubt or self._doubt.done:
            self._doubt = self._call("pool", c.ask_pool, b"?", b"")
        return self._doubt

    # --- receiving --------------------------------------------------------
    def step(self) -> List[Event]:
        """Sends, receives, reconnects when due, and returns the events.
        Never blocks."""
        self._here()
        while self._take():
            pass
        self._catch_up()
        # Afterwards: mmx_step silences the bell of arrays that have ended.
        while self._returned:
            self._returned.popleft()._returned()
        if self._lenders:
            self._lend()
        events, self._events = self._events, []
        if self._watch:
            self._watch.look()
        return events

    def _take(self) -> bool:
        """Takes answers and events; True: there may be more. First come those
        that an exception has left."""
        more = bool(self._news)
        if not more:
            n = self._ok(c.step(self._it, self._taken, _EVENTS))
            self._news.extend(map(new.event.from_buffer_copy, self._taken[:n]))
            more = n == _EVENTS
        while True:
            answer = self._handle.answer()
            if not answer:
                break
            self._answered(answer)
        while self._news:
            self._happened(self._news.popleft())
        return more

    def _answered(self, a: _handle.Answer) -> None:
        if a.offer and not a.number:
            self._offered(a.offer)
            return
        text = a.text.decode("utf-8", "replace")
        if a.reason == errors.DaemonLost.number:
            text = ""  # the C library's words
        reply = self._replies.get(a.number)
        if not reply:
            error = self._error(a.reason, text, a.a, a.b)
            if a.reason and not a.number:
                self.not_taken = error
            elif a.reason and not self._greeting.done:  # it is of HELLO
                if a.reason != errors.DaemonLost.number:
                    self.refused = error
                said, self._greeting = self._greeting, Reply("hello")
                self._past = a.number
                said._finish(error)
            return
        reply.text += a.text
        if a.more:
            return
        del self._replies[a.number]
        reply.values, reply.epoch = dict(a=a.a, b=a.b), self.epoch
        if a.offer:
            reply.values, reply.fd = a.offer.values, a.offer.take_fd()
        reply._finish(self._error(a.reason, text, a.a, a.b)
                      if a.reason else None)

    def _happened(self, e: Any) -> None:
        if e.what == _handle.UP:
            self._welcome()
        elif e.what == _handle.DOWN:
            self._lost()
        elif e.what in (_handle.TICKET, _handle.TICKET_LOST):
            space = self._spaces.get(e.space)
            if space:
                space._event(e)
        else:
            room = self._rooms.get((e.room.cell, e.room.tag))
            what = e.what & 0xff
            if room and what:
                room._event(e)
                self._events.append(Event(room, what))

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
        reply = self.ask_pool(name, layout)
        self.wait(reply, timeout)
        return self._map(name, reply)

    async def apool(self, name: str = "", layout: str = "",
                    timeout: Optional[float] = 10) -> Pool:
        """Maps a pool, as pool(), without blocking the loop."""
        known = self._known(name, layout)
        if known:
            return known
        reply = self.ask_pool(name, layout)
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
        pool = Pool(values, reply.take_fd(), self.epoch, self._handle)
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
        wire.check("query", what=what)
        reply = self._call("query", c.query, what.encode())
        self.wait(reply, timeout)
        return wire.rows(reply.text)

    # --- pools of encoders on this host ------------------------------------
    def _offered(self, offer: _handle.Offer) -> None:
        number = offer.values["id"]
        if offer.gone:
            self._lenders.pop(number, None)
            return
        try:
            pool = Pool({**offer.values, "access": 0}, offer.take_fd(),
                        self.epoch, self._handle)
        except Exception as e:  # rows are copied
            log.warning("%s: rows are not read in place: %s", self.path, e)
            c.lend(self._it, number, -1)
            return
        # It keeps the handle, and is called before the memory is unmapped.
        weakref.finalize(pool._map, _unmapped, self._handle,
                         number).atexit = False
        lent = self._lenders[number] = _Lent(pool)
        self._lent[pool.key] = pool
        try:
            threading.Thread(target=self._prepare, args=(lent,),
                             daemon=True).start()
        except RuntimeError:  # no more threads: its pages are mapped by reads
            lent.ready = True

    def _prepare(self, lent: _Lent) -> None:
        """On a thread, so that no step waits for gigabytes."""
        try:
            self.prepare(lent.pool)
        finally:
            lent.ready = True
            c.wake(self._it)

    def _lend(self) -> None:
        """Tells langd of the pools in which it may show rows."""
        for number, lent in list(self._lenders.items()):
            may = lent.ready and self.may_lend(lent.pool.key)
            if may != lent.told:
                lent.told = may
                c.lend(self._it, number, may)

    # --- sequence ids -----------------------------------------------------
    def space(self, name: str, n_seq_max: int,
              timeout: Optional[float] = 10) -> Space:
        """Opens a space of sequence ids (langd), or finds it: the processes
        of a session share it. DaemonLost: no daemon is connected."""
        wire.check("space", name=name, n_seq_max=n_seq_max)
        self._here()
        self._in_turn()
        before = c.sent(self._it)
        number = c.ask_space(self._it, name.encode(), n_seq_max)
        self.wait(self._sent(Reply("space"), before, number), timeout)
        known = self._spaces.get(number)
        if not known:
            known = self._spaces[number] = Space(self, name, number,
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
        trace context of 55 characters, for logs and traces of both daemons.
        Busy: the daemon does not read; nothing was announced."""
        return self.announce_batch(pool, [Item(
            room, max_rows, total, storage, key, aux, destinations, open,
            deadline, keep, traceparent)])[0]

    def announce_batch(self, pool: Pool,
                       items: Sequence[Item]) -> List[Source]:
        """Announces rooms that get their blocks all together. After an
        exception none of them is open."""
        self._linked()
        free = self.info["cells"] - len(self._rooms)
        if len(items) > free:
            raise errors.Quota(f"{len(items)} announces, {free} cells are "
                               "free")
        pool = self._ours(pool)
        named = [self._named(i.room) for i in items]
        for one in named:
            wire.check("announce", room=one.room)
        for i in items:  # raises before any message is sent
            if not i.max_rows and i.total is None:
                raise ValueError("announce: neither max_rows nor total")
            wire.check("announce", max_rows=i.max_rows,
                       total=i.total or 0, required_dst=i.destinations,
                       batch=len(items) - 1, aux=i.aux)
            wire.traceparent(i.traceparent)
        more = [(due.ms(i.deadline), _key(i.key)) for i in items]
        made: List[Source] = []
        self._ok(c.cork(self._it))
        try:
            for one in zip(items, named, more):
                made.append(self._announce(
                    pool, len(items) - 1 - len(made), *one))
        except BaseException:
            for source in made:
                source.release()
            raise
        finally:
            c.uncork(self._it)
        return made

    def _announce(self, pool: Pool, follow: int, i: Item, named: Reference,
                  more: Tuple[int, bytes]) -> Source:
        source = Source(self, named, pool, wire.WRITE)
        self._open(source, "announce", c.announce, new.announce(
            pool=pool.id, storage=wire.STORAGE[i.storage],
            flags=(_handle.KEEP if i.keep else 0)
            | (_handle.OPEN if i.open else 0),
            max_rows=0 if i.total == 0 else i.max_rows, rows=i.total or 0,
            required_dst=i.destinations, batch=follow, deadline_ms=more[0],
            key=more[1], aux=bytes(i.aux),
            aux_len=len(i.aux), traceparent=i.traceparent.encode() or None,
            reference=named.packed()))
        return source

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
        pool, named = self._ours(pool), self._named(room)
        group_id, group_size = group or (0, 0)
        key, ms = _key(key), due.ms(deadline)
        wire.check(
            "request", room=named.room, rows=rows, readers=readers,
            required_dst=destinations, group=group_id, group_size=group_size,
            encoder=encoder)
        wire.traceparent(traceparent)
        got = Room(self, named, pool, encoder, mode == "stream")
        self._open(got, "request", c.request, new.request(
            pool=pool.id, mode=wire.MODES[mode], storage=wire.STORAGE[storage],
            flags=(_handle.KEEP if keep else 0)
            | (_handle.ANNOUNCED if announced else 0),
            rows=rows, readers=readers, required_dst=destinations,
            group=group_id, group_size=group_size, deadline_ms=ms, key=key,
            encoder=encoder.encode(), traceparent=traceparent.encode() or None,
            reference=named.packed()))
        return got

    def attach(self, room: Union[int, Reference], encoder: str = "",
               rights: int = wire.READ, *, deadline: float = 0,
               pool: Optional[Pool] = None) -> Union[Room, Source]:
        """Attaches to a room that another connection of the session has
        opened or will open: returns a Room at langd (encoder is required), a
        Source at encoded. Events name the room's pool; pass it to have it
        mapped before."""
        named, ms = self._named(room), due.ms(deadline)
        wire.check("attach", room=named.room, rights=rights, encoder=encoder)
        got: Union[Room, Source]
        ours = self._ours(pool) if pool else None
        self._linked()
        if self.role == "langd":
            got = Room(self, named, ours, encoder)
        else:
            got = Source(self, named, ours, rights)
        got.shows_rows = bool(rights & (wire.READ | wire.WRITE))
        self._open(got, "attach", c.attach, new.attach(
            rights=rights, deadline_ms=ms, encoder=encoder.encode(),
            reference=named.packed()))
        return got

    def decline(self, room: Union[int, Reference], encoder: str,
                key: bytes = wire.NO_KEY) -> Reply:
        """Declares that this engine will not fetch the room, so that its
        encoder can free the rows. At encoded, with encoder "" and the room's
        reference: no engine will, the room ends for all, also one that is
        announced later."""
        named = self._named(room)
        wire.check("decline", room=named.room, encoder=encoder)
        return self._call("decline", c.decline, encoder.encode(),
                          named.packed(), _key(key))

    def _named(self, room: Union[None, int, Reference]) -> Reference:
        """Returns the reference of a room, drawn for None."""
        if room is None:
            return Reference.draw()
        if not isinstance(room, Reference):
            return Reference(room)
        if len(room.secret) != len(wire.NO_SECRET):
            raise ValueError(f"a secret has 16 bytes, not {len(room.secret)}")
        return Reference(room.room, bytes(room.secret))

    def _ours(self, pool: Pool) -> Pool:
        self._linked()
        if pool.epoch != self.epoch:
            raise errors.Stale(f"pool {pool.name} is of an earlier run of the "
                               "daemon: call pool() again")
        return pool

    def _linked(self) -> None:
        if not self._up:
            self._ok(-errors.NotReady.number)

    def _open(self, room: Shown, what: str, call: Any, said: Any) -> None:
        """Opens a room with a free cell."""
        self._here()
        self._in_turn()
        cell, before = new.room(), c.sent(self._it)
        result = call(self._it, said, cell)
        if result == -errors.Quota.number:
            raise errors.Quota(f"all {self.info['cells']} cells are in use")
        if result != -errors.DaemonLost.number:
            self._ok(result)
        room._bind(cell)
        reply = room.opened = self._sent(Reply(what), before, result)

        def opened(answer: Reply) -> None:
            room._answered(answer)
            if answer.error and self._rooms.pop(room.place, None):
                c.release(self._it, room.named, wire.ALL, 0)
                self._events.append(Event(room, wire.FAILED))

        reply.then = opened
        if reply.done:  # the link has just ended
            room._answered(reply)
            self._events.append(Event(room, wire.FAILED))
        else:
            self._rooms[room.place] = room

    def _release(self, room: Shown, rows: int, flags: int) -> Reply:
        if rows < room.released:  # nothing new
            reply = Reply("release")
            reply._finish(None)
            return reply
        reply = self._call("release", c.release, room.named, rows, flags,
                           stale=room._link != self._links)
        # otherwise it was refused here, and the room is as it was
        if rows == wire.ALL and isinstance(
                reply.error, (type(None), errors.DaemonLost)):
            self._forget(room)
            self._rooms.pop(room.place, None)
        return reply

    def _is_returned(self, room: Shown) -> None:
        """Notes that a lent array has ended, for the next step(), which is
        made due. Not in a forked child: its bell is the parent's."""
        if os.getpid() != self._pid:
            return
        self._returned.append(room)
        c.wake(self._it)

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
                    self.wait(self._call("bye", c.bye), timeout)
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
                    await self.until(self._call("bye", c.bye),
                                     timeout)
        finally:
            self._end()

    def _end(self) -> None:
        if os.getpid() != self._pid:
            # close unmaps the cells
            self._ended, self.cells = True, [0] * len(self.cells)
            c.close(self._it)
            return
        self._why = "closed"
        if self._watch:
            self._watch.leave()
        c.end(self._it)
        while self._take():  # what the end of the link fails
            pass
        self._catch_up()
        self._lenders.clear()
        self._ended = True
        if self._watch:
            self._watch.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()


def _unmapped(handle: _handle.Handle, number: int) -> None:
    c.lend(handle.it, number, -1)


def _lacking(until: Union[Reply, Callable[[], Any]]) -> Callable[[], str]:
    what = f"answer to {until.what}" if isinstance(until, Reply) else "not so"
    return lambda: what


def _key(key: bytes) -> bytes:
    if len(key) not in (0, len(wire.NO_KEY)):
        raise ValueError(f"a key has {len(wire.NO_KEY)} bytes, not {len(key)}")
    return bytes(key) or wire.NO_KEY
