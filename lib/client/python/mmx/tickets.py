"""Sequence ids: a space leases ids 0 to n_seq_max - 1 of an engine context
to requests, so that no two requests share one.

    space = lm.space("ctx-0", n_seq_max=8)
    with space.acquire("request-17", timeout=60) as ticket:
        decode(seq_id=ticket.seq)

ask() does not wait: the ticket is pending until a step() returns the event of
its id (or its loss).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional

from . import _handle, due, errors, wire
from ._handle import c, new

if TYPE_CHECKING:
    from .client import Connection, Reply
    from .rooms import Room

_NONE = 0xFFFFFFFF
_GRACE = 1  # seconds to wait for the daemon's timeout after a deadline


class Holding(NamedTuple):
    """The id of a request; seq is None while it waits."""

    seq: Optional[int]
    generation: int


class Ticket:
    """One request for an id. seq is None unless it holds one; never use an id
    after the event of its loss."""

    def __init__(self, space: "Space", request: str) -> None:
        self.space, self.request = space, request
        self.seq: Optional[int] = None
        self.generation = 0
        self.error: Optional[errors.MmxError] = None  # why it is lost
        self.released = False
        self._refusal: Optional[errors.MmxError] = None  # with its text

    def __repr__(self) -> str:
        state = f"seq {self.seq}" if self.seq is not None else \
            "pending" if self.pending else str(self.error or "released")
        return f"<Ticket {self.request!r} {state}>"

    @property
    def pending(self) -> bool:
        return self.seq is None and not self.error and not self.released

    def wait(self, timeout: Optional[float] = None) -> Ticket:
        """Blocks until the request holds an id, and consumes its event. Raises
        the reason of its loss; after `timeout` seconds TimeoutError, and the
        request still waits for its id."""
        self.space.conn.wait(lambda: not self.pending, timeout,
                             lacks=self._lacks)
        self.space.conn._ticket_heard(self)
        if self.error:
            raise self.error
        if self.released:
            raise errors.Stale(f"{self.request} was released")
        return self

    def _lacks(self) -> str:
        return (f"{self.request!r} waits for one of the {self.space.n_seq_max} "
                f"ids of {self.space.name!r}")

    def release(self) -> None:
        """Releases the id, or leaves the queue. May be called in any state
        and more than once."""
        if self.released:
            return
        generation = _NONE if self.seq is None else self.generation
        lost = self.error is not None
        self.seq, self.released = None, True
        self.space._forget(self)
        self.space.conn._ticket_heard(self)
        if not lost:
            self.space.release(self.request, generation)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    # --- the daemon's answers and events ----------------------------------
    def _hold(self, seq: int, generation: int) -> None:
        self.seq, self.generation = seq, generation
        self.space.conn._ticket_event(self)

    def _lose(self, error: Optional[errors.MmxError]) -> None:
        self.seq, self.error = None, error
        self.space._forget(self)
        self.space.conn._ticket_event(self)


class Space:
    """Ids of one engine context, shared by the processes of a session. Made
    by Connection.space(); call it again after a reconnect."""

    def __init__(self, conn: "Connection", name: str, number: int,
                 n_seq_max: int) -> None:
        self.conn, self.name, self.number = conn, name, number
        self.n_seq_max = n_seq_max
        self.gone = False  # its connection has ended
        self._tickets: Dict[str, Ticket] = {}

    def __repr__(self) -> str:
        return f"<Space {self.name!r} of {self.n_seq_max} ids>"

    def ask(self, request: str, *, wait: float = 0, hold: float = 0,
            room: "Optional[Room]" = None) -> Ticket:
        """Asks for an id and returns at once. wait: seconds in the queue, 0 as
        configured; hold: seconds of the lease, 0 until released; room: its
        failure frees the id. A second call for the same request changes
        nothing and returns the same ticket."""
        wait_ms, hold_ms = due.ms(wait), due.ms(hold)
        wire.check("ticket", request=request)
        self.conn._in_turn()
        fresh = request not in self._tickets
        ticket = self._tickets.setdefault(request, Ticket(self, request))
        reply = self.conn._call("ticket", c.ticket, new.ticket(
            space=self.number, request=request.encode(), wait_ms=wait_ms,
            hold_ms=hold_ms, room=room.named if room else new.room()),
            stale=self.gone)

        def answered(reply: "Reply") -> None:
            ticket._refusal = reply.error  # its loss is an event
            if fresh and not reply.epoch and ticket.pending:  # not even sent
                ticket._lose(reply.error)

        reply.then = answered
        if reply.done:
            answered(reply)
        return ticket

    def acquire(self, request: str, timeout: Optional[float] = None, *,
                hold: float = 0, room: "Optional[Room]" = None) -> Ticket:
        """Asks and waits; the ticket is a context manager. After `timeout`
        seconds (None: as configured) raises errors.TimedOut and leaves the
        queue."""
        ticket = self.ask(request, wait=max(timeout or 0, 0), hold=hold,
                          room=room)
        try:
            return ticket.wait(None if timeout is None else timeout + _GRACE)
        except BaseException:
            ticket.release()
            raise

    def release(self, request: str, generation: int) -> "Reply":
        """Releases an id by the request's name, without its ticket. An older
        generation has no effect."""
        wire.check("ticket_release", request=request)
        ticket = self._tickets.get(request)
        if ticket and ticket.seq is not None \
                and ticket.generation == generation:
            ticket.seq, ticket.released = None, True
            self._forget(ticket)
        return self.conn._call("ticket_release", c.ticket_release, self.number,
                               request.encode(), generation, stale=self.gone)

    def query(self, request: str,
              timeout: Optional[float] = 10) -> Optional[Holding]:
        """Asks the daemon what a request of this session holds, also one of
        another process; None: it neither holds nor awaits an id."""
        wire.check("ticket_query", request=request)
        reply = self.conn._call("ticket_query", c.ask_ticket, self.number,
                                request.encode(), stale=self.gone)
        try:
            got = self.conn.wait(reply, timeout)
        except errors.UnknownRoom:
            return None
        return Holding(None, 0) if got["a"] == _NONE \
            else Holding(got["a"], got["b"])

    def _forget(self, ticket: Ticket) -> None:
        if self._tickets.get(ticket.request) is ticket:
            del self._tickets[ticket.request]

    def _event(self, e: Any) -> None:
        ticket = self._tickets.get(e.request.decode())
        if not ticket or self.gone:
            return
        if e.what == _handle.TICKET:
            ticket._hold(e.a, e.generation)
        else:
            said = ticket._refusal
            ticket._lose(said if said and said.number == e.reason
                         else self.conn._error(e.reason))

    def _lost(self, error: errors.MmxError) -> None:
        self.gone = True
        for ticket in list(self._tickets.values()):
            ticket._lose(error)
