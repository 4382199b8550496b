"""The rooms of a connection: Source on the encode side, Room on the language
side. Both read their state from the daemon's cell, without a system call;
data that does not fit into a cell arrives with events, at Connection.step().

wait_ready() and its like block; ready() and its like are for `await`.
Cancelling either does not affect the room.
"""

from __future__ import annotations

import ctypes
import enum
import time
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Iterator, List, Mapping,
                    NamedTuple, Optional, Tuple)

from . import _handle, errors, wire
from ._handle import c, new
from .pool import Pool

if TYPE_CHECKING:
    import numpy as np

    from .client import Connection, Reply
    from .tensor import Tensor


# How long after its cell the event with the reason may come.
AHEAD_S = 1.0
# numbers of pools from here on are of encoders
LENDER_POOLS = 16


class State(enum.IntEnum):
    """The least of several ranks' states is one that all of them have
    reached."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING = 2
    TRANSFERRING = 3
    SUCCESS = 4


class Run(NamedTuple):
    """Rows of a room that are contiguous in the pool."""

    first: int  # row of the room
    rows: int
    place: int  # row of the pool


class Shown:
    """The common part of both sides: a cell, its word, runs of rows."""

    def __init__(self, conn: "Connection", named: wire.Reference,
                 pool: Optional[Pool]) -> None:
        self.conn, self.room, self._pool = conn, named.room, pool
        self.reference = named  # for the other side
        self.opened: "Reply"  # reply to ANNOUNCE, REQUEST or ATTACH
        self.total: Optional[int] = None
        self.storage = 0
        self.released = 0  # rows [0, released) were released
        self.error: Optional[errors.MmxError] = None
        # the cell says failed, and the event is awaited until then; 0: no
        self._ahead_until = 0.0
        # instead of the connection's cells
        self._cells: Optional[Mapping[int, int]] = None
        self._link = conn._links
        self.shows_rows = True  # False: attached with WATCH only
        self._where = -1 if pool is None else pool.number
        # first row, blocks from there on
        self._reported: Tuple[int, List[Tuple[int, int]]] = 0, []
        # _reported as runs; None: its pool is not mapped yet
        self._laid: Optional[List[Run]] = []
        # its pool is not mapped yet
        self._views: "List[Tuple[int, weakref.ref[Any]]]" = []
        # lent arrays; the end of the last one releases the room
        self._lent = 0

    def _bind(self, cell: Any) -> None:
        """Takes the cell that shows the room."""
        self.named, self.place = cell, (cell.cell, cell.tag)
        self.cell, self.tag = self.place

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self.room:#x} {self.state.name} "
                f"{self.rows} rows>")

    # --- state, from the cell ---------------------------------------------
    @property
    def _word(self) -> int:
        if not self.conn._it:  # in a finalizer, after the handle's
            self.conn._here()
            return 0
        word: int = (self._cells or self.conn.cells)[self.cell]
        if word >> 10 & wire.TAG_MAX == self.tag:
            return word
        self.conn._here()
        # The daemon has not read the room's opening yet, or has ended.
        now = new.state()
        c.poll(self.conn._it, self.named, 1, now)
        return now.rows << 32 | now.reason << 4 | now.state

    def _freeze(self) -> None:
        """Keeps the word as it is: the cell will be another room's."""
        other = wire.TAG_MAX << 10
        self._cells = {self.cell: self._word & ~other | self.tag << 10}

    @property
    def state(self) -> State:
        return State.FAILED if self.error else State(self._word & 15)

    @property
    def rows(self) -> int:
        """Rows committed (Source), or rows that may be read (Room)."""
        return self._word >> 32

    @property
    def reason(self) -> Optional[errors.MmxError]:
        """Why the room failed; None if it has not."""
        if not self.error and self._word & 15 == State.FAILED:
            self.error = errors.error(self._word >> 4 & 63)
        return self.error

    def _lacks(self) -> str:
        """Returns what a wait for the room lacks, for people."""
        what = "the daemon has not answered its " + self.opened.what \
            if not self.opened.done else self._stands()
        return f"room {self.room:#x} is {self.state.name.lower()}: {what}"

    def _stands(self) -> str:
        raise NotImplementedError

    # --- the daemon's answers and events ----------------------------------
    def _answered(self, answer: "Reply") -> None:
        if answer.error:
            self._fail(answer.error)

    def _fail(self, error: errors.MmxError) -> None:
        # An event has a text and a cell has none, so an error with a text
        # stays.
        if not self.error or (error.text and not self.error.text):
            self.error = error

    def _event(self, e: Any) -> None:
        if e.total != wire.UNKNOWN:
            self.total = e.total
        self.storage = e.storage or self.storage
        if e.what & wire.FAILED:
            text = e.text.decode("utf-8", "replace")
            if e.reason == errors.DaemonSilent.number:
                text = (f"{self.conn.path}: no answer, and the deadline of "
                        f"room {self.room:#x} has passed")
            self._fail(self.conn._error(e.reason, text, e.a, e.b))
        if e.what & (wire.GRANTED | wire.LANDED | wire.READY) and \
                self.shows_rows:
            self._take_runs()

    def _take_runs(self) -> None:
        number, first = ctypes.c_int(), ctypes.c_uint32()
        blocks = self.conn._blocks
        n = c.blocks(self.conn._it, self.named, number, first, blocks,
                     _handle.RUNS_MAX)
        if n > 0:
            self._shows(number.value, first.value,
                        [(b.block, b.blocks) for b in blocks[:n]])

    def _shows(self, number: int, first: int,
               blocks: List[Tuple[int, int]]) -> None:
        """Notes all runs of the room; earlier rows were released by all."""
        self._where, self._reported = number, (first, blocks)
        pool = self._pool = self.conn._lent.get(
            (self.conn.epoch, self._where), self._pool)
        known = pool and pool.number == self._where
        self._laid = self._lay(pool) if known else None

    @property
    def pool(self) -> Pool:
        """The pool of the rows. If it is not mapped (an attach without a
        pool), the first use maps it, for which it asks the daemon and
        waits."""
        if self._pool is None or self._pool.number != self._where:
            if self._where < 0:
                raise errors.NotReady(f"room {self.room:#x}: no event has "
                                      "named its pool yet")
            if self._link != self.conn._links:
                raise errors.Stale(f"room {self.room:#x} is of an earlier run "
                                   "of the daemon, and shows no pool here")
            pool = self.conn._pool_numbered(self._where)
            if self.released == wire.ALL:
                return pool
            self._pool = pool
        return self._pool

    @property
    def _runs(self) -> List[Run]:
        if self._laid is None:
            self._laid = self._lay(self.pool)
        return self._laid

    def _lay(self, pool: Pool) -> List[Run]:
        size, (at, reported) = pool.block_rows, self._reported
        runs: List[Run] = []
        for block, blocks in reported:
            if block + blocks > pool.blocks:
                break  # the daemon is at fault: pieces() raises
            runs.append(Run(at, blocks * size, block * size))
            at += blocks * size
        return runs

    def pieces(self, first: int, end: int) -> Iterator[Run]:
        """Yields the runs of rows [first, end), in order; raises IndexError
        at a row that no run has."""
        for run in self._runs:
            b = min(end, run.first + run.rows)
            if run.first <= first < b:
                yield Run(first, b - first, run.place + first - run.first)
                first = b
        if first < end:
            raise IndexError(f"room {self.room:#x}: no event has reported rows "
                             f"{first}..{end} yet")

    def _show(self, field: str, run: Run) -> "np.ndarray[Any, Any]":
        view = self.pool.rows(field, run.place, run.rows)
        # Slices of the view keep its base alive: watch the base.
        self._views = [v for v in self._views if v[1]() is not None]
        self._views.append((run.first, weakref.ref(view.base)))
        return view

    # --- release ----------------------------------------------------------
    def _lend(self, base: Any) -> None:
        self._lent += 1
        weakref.finalize(base, self.conn._is_returned, self).atexit = False

    def _returned(self) -> None:
        """Called at the end of a lent array. After the last one the room is
        released, unless another array shows its rows."""
        self._lent -= 1
        if self._lent or self.released == wire.ALL:
            return
        for _, view in self._views:
            base = view()
            if base is not None:
                self._lend(base)
        if not self._lent:
            self.release()

    def release(self, rows: int = wire.ALL, *, force: bool = False,
                keep: bool = False, no_readers: bool = False) -> "Reply":
        """Releases rows [0, rows), all by default. Raises ViewInUse while an
        array shows one of them, unless force: released rows will hold those of
        another room. keep: they may be requested again. no_readers, on the
        connection that requested the room: its blocks are freed without
        waiting for announced readers that have not attached."""
        if not force and any(first < rows and view() is not None
                             for first, view in self._views):
            raise errors.ViewInUse(
                f"room {self.room:#x}: an array still shows released rows")
        wire.check("release", rows=rows)
        before, self.released = self.released, max(self.released, rows)
        if rows == wire.ALL and self._where >= LENDER_POOLS and self._pool:
            # The encoder of an ended langd waits for the end of all maps.
            self._laid, self._pool = self._runs, None
        if self.opened.done and self.opened.error:
            self.conn._forget(self)
            return self.opened  # the daemon refused to open the room
        flags = _handle.KEEP if keep else 0
        if no_readers:
            flags |= _handle.NO_READERS
        reply = self.conn._release(self, rows, flags)

        def answered(answer: "Reply") -> None:
            if answer.error:
                self.released = before

        reply.then = answered
        if reply.done and not isinstance(reply.error, errors.DaemonLost):
            answered(reply)
        return reply

    def abort(self, reason: str = "aborted", text: str = "") -> "Reply":
        """Fails the room for both engines. It must still be released. text:
        of any length; 256 bytes of it go, which may be to another host:
        without the path of our socket, which errors of ours begin with."""
        text = text.replace(f"{self.conn.path}: ", "")
        number = next(kind.number for kind in errors.BY_NUMBER.values()
                      if kind.reason == reason)
        some = text.encode(errors="replace")[:256].decode(errors="ignore")
        return self._send("abort", c.abort, number, some.encode())

    def _send(self, what: str, call: Callable[..., int], *values: Any) \
            -> "Reply":
        return self.conn._call(what, call, self.named, *values,
                               stale=self._link != self.conn._links)

    def __enter__(self: Any) -> Any:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # In an exception the traceback's frames may hold views.
        if self._lent and kind is None:
            return  # the end of the last array releases the room
        if self.released != wire.ALL:
            self.release(force=kind is not None)

    def _wait(self, until: Callable[[], bool],
              timeout: Optional[float]) -> Any:
        self.conn.wait(until, timeout, lacks=self._lacks)
        return self

    async def _until(self, until: Callable[[], bool],
                     timeout: Optional[float]) -> Any:
        await self.conn.until(until, timeout, self._lacks)
        return self

    def _failed(self) -> bool:
        """Raises why the room failed, if it did: the cell has a reason; the
        event that follows has the text, too."""
        if self.state != State.FAILED:
            return False
        if not self.error and not self._ahead_until:
            self._ahead_until = time.monotonic() + AHEAD_S
            self.conn._look_again(AHEAD_S)
        if not self.error and time.monotonic() < self._ahead_until:
            return False
        raise self.reason or errors.Internal()


class _Rows:
    """One field of a source: source["embedding"][a:b] = rows."""

    def __init__(self, source: "Source", field: str) -> None:
        self._source, self._field = source, field

    def _range(self, rows: slice) -> Tuple[int, int]:
        if self._source.have:
            raise errors.NotOwner("the rows exist already (have): they must "
                                  "not be written again")
        if rows.step not in (None, 1):
            raise IndexError("the step of a slice of rows must be 1")
        end = self._source.may_write if rows.stop is None else rows.stop
        return rows.start or 0, end

    def __setitem__(self, rows: slice, values: Any) -> None:
        import numpy as np

        a, b = self._range(rows)
        kind = self._source.pool.fields[self._field].dtype
        values = np.asarray(values)
        if kind in ("bf16", "f8e4m3", "f8e5m2") and values.dtype.kind != "u":
            raise TypeError(f"{self._field} is {kind}: pass its bits as "
                            "unsigned integers (see mmx.bf16)")
        if values.ndim and values.shape[0] != b - a:
            raise ValueError(f"{values.shape[0]} rows do not fill {a}..{b}")
        for run in self._source.pieces(a, b):
            view = self._source._show(self._field, run)
            view[:] = values[run.first - a:run.first - a + run.rows] \
                if values.ndim else values

    def __getitem__(self, rows: slice) -> "np.ndarray[Any, Any]":
        """Returns the rows in place, to write into; raises SplitRows if they
        lie in several runs."""
        a, b = self._range(rows)
        runs = list(self._source.pieces(a, b))
        if len(runs) != 1:
            raise errors.SplitRows(f"rows {a}..{b} lie in {len(runs)} runs")
        return self._source._show(self._field, runs[0])


class Source(Shown):
    """A room of the encode side, made by Connection.announce()."""

    def __init__(self, conn: "Connection", named: wire.Reference,
                 pool: Optional[Pool], rights: int) -> None:
        super().__init__(conn, named, pool)
        self.rights = rights
        self.may_write = -1  # rows granted; -1: not yet
        self.have = False  # rows of its key exist: nothing to write
        self.wanted = 0  # destinations that asked
        self.ended = False  # DONE or FAILED was received
        self.served = self.failed = 0  # destinations, once ended

    def _event(self, e: Any) -> None:
        super()._event(e)
        if e.what & wire.GRANTED:
            self.may_write = e.rows
        if e.what & wire.HAVE:
            self.have = True
        if e.what & (wire.DONE | wire.FAILED):
            self.ended = True
            self.served, self.failed = e.a, e.b
        elif e.what & wire.WANTED:
            self.wanted = e.a
        self.wanted = max(self.wanted, self.served + self.failed)

    def wait_granted(self, timeout: Optional[float] = None) -> "Source":
        """Blocks until rows may be written, or exist already (have)."""
        return self._wait(self._open, timeout)

    async def granted(self, timeout: Optional[float] = None) -> "Source":
        """Awaits that rows may be written, or exist already (have)."""
        return await self._until(self._open, timeout)

    def wait_done(self, timeout: Optional[float] = None) -> "Source":
        """Blocks until every destination has received the rows."""
        return self._wait(self._over, timeout)

    async def done(self, timeout: Optional[float] = None) -> "Source":
        """Awaits that every destination has received the rows."""
        return await self._until(self._over, timeout)

    def _open(self) -> bool:
        return self.may_write >= 0 or self.have or self._failed()

    def _over(self) -> bool:
        return not self._failed() and self.state is State.SUCCESS and \
            self.ended

    def _stands(self) -> str:
        if self.may_write < 0 and not self.have:
            return "it waits for blocks"
        rows = "?" if self.total is None else self.total
        return (f"{self.rows} of {rows} rows are committed, {self.wanted} "
                "destinations have asked")

    def __getitem__(self, field: str) -> _Rows:
        return _Rows(self, field)

    def commit(self, first: int, end: int, *, final: bool = False,
               total: Optional[int] = None, aux: bytes = b"") -> "Reply":
        """Declares rows [first, end) written; they must not change. final:
        no process of the session writes after this; total: the length, `end`
        by default."""
        rows = end - first
        if not final and (aux or total is not None):
            raise ValueError("total and aux come with the last rows (final)")
        total = end if total is None else total
        wire.check("commit", first=first, rows=rows, total=total, aux=aux)
        if not final:
            return self._send("commit", c.commit, first, rows)
        return self._send("commit", c.commit_final, first, rows, total,
                          bytes(aux), len(aux))


class Room(Shown):
    """A room of the language side, made by Connection.request()."""

    def __init__(self, conn: "Connection", named: wire.Reference,
                 pool: Optional[Pool], encoder: str,
                 stream: bool = False) -> None:
        super().__init__(conn, named, pool)
        self.encoder, self.stream = encoder, stream
        self.aux = b""
        self.complete = False  # READY was received: rows, runs and aux
        self.generation = 0
        self.stream_rows = 0  # rows that can always be resident at once

    def _answered(self, answer: "Reply") -> None:
        super()._answered(answer)
        if not answer.error:
            self.stream_rows = answer.values["a"]

    def _event(self, e: Any) -> None:
        super()._event(e)
        self.generation = e.generation or self.generation
        if e.aux_len:
            self.aux = ctypes.string_at(e.aux, e.aux_len)
        if e.what & wire.READY:
            self.complete = True

    def _stands(self) -> str:
        if self.total is None and not self.rows:
            return f"{self.encoder} has not announced it"
        rows = "?" if self.total is None else self.total
        return f"{self.rows} of {rows} rows have come from {self.encoder}"

    @property
    def readable(self) -> int:
        """Rows [0, readable) may be read and their runs are known."""
        runs = self._runs
        known = runs[-1].first + runs[-1].rows if runs else 0
        return min(self.rows, known)

    @property
    def runs(self) -> List[Run]:
        """Runs of the readable rows that are not released."""
        return list(self.pieces(self._held(), self.readable))

    def _held(self) -> int:
        """Returns the first row that was not released, here or by others
        before this reader came."""
        shown = self._runs[0].first if self._runs else 0
        return max(min(self.released, self.readable), shown)

    def wait_ready(self, timeout: Optional[float] = None) -> "Room":
        """Blocks until every row may be read."""
        return self._wait(lambda: self.complete or self._failed(), timeout)

    async def ready(self, timeout: Optional[float] = None) -> "Room":
        """Awaits that every row may be read."""
        return await self._until(
            lambda: self.complete or self._failed(), timeout)

    def wait_rows(self, rows: int, timeout: Optional[float] = None) -> "Room":
        """Blocks until rows [0, rows) may be read (stream mode), at most
        stream_rows of them from the first that is not released on."""
        return self._wait(lambda: self._have_rows(rows), timeout)

    async def landed(self, rows: int,
                     timeout: Optional[float] = None) -> "Room":
        """Awaits that rows [0, rows) may be read (stream mode)."""
        return await self._until(lambda: self._have_rows(rows), timeout)

    def _have_rows(self, rows: int) -> bool:
        if self.readable >= rows or self.complete or self._failed():
            return True
        last = rows if self.total is None else min(rows, self.total)
        if self.stream and 0 < self.stream_rows < last - self.released:
            raise ValueError(
                f"room {self.room:#x}: rows {self.released}..{last} may never "
                f"be there at once: at most {self.stream_rows} (stream_rows) "
                "from the first that is not released")
        return False

    def view(self, field: str, first: int = 0, end: Optional[int] = None, *,
             release: bool = False) -> "np.ndarray[Any, Any]":
        """Returns the rows in place, [rows, elements], read-only unless the
        pool is writable; raises SplitRows if they lie in several runs.
        release: the room is released, at the step() that follows, when the
        last array of it, and all that was made over it, is gone."""
        end = self._limit(first, end)
        runs = list(self.pieces(first, end))
        if len(runs) > 1:
            raise errors.SplitRows(f"rows {first}..{end} lie in {len(runs)} "
                                   "runs")
        shown = self._show(field, runs[0] if runs else Run(first, 0, 0))
        if release:
            self._lend(shown.base)
        return shown

    def tensor(self, field: str, first: int = 0, end: Optional[int] = None, *,
               release: bool = False) -> "Tensor":
        """Returns the view for other libraries: torch.from_dlpack(
        room.tensor(f)). A write to a read-only pool's rows is a fault.
        release: as in view()."""
        from .tensor import Tensor

        return Tensor(self.view(field, first, end, release=release),
                      self.pool.fields[field].dtype)

    def gather(self, field: str, first: int = 0, end: Optional[int] = None,
               out: Optional["np.ndarray[Any, Any]"] = None) \
            -> "np.ndarray[Any, Any]":
        """Copies the rows into one array, also from several runs."""
        import numpy as np

        from .pool import dtype

        end = self._limit(first, end)
        f = self.pool.fields[field]
        if out is None:
            out = np.empty((end - first, f.elements), dtype(f.dtype))
        if out.shape != (end - first, f.elements):
            raise ValueError(f"out is {out.shape}, the rows are "
                             f"{(end - first, f.elements)}")
        for run in self.pieces(first, end):
            at = run.first - first
            out[at:at + run.rows] = self.pool.rows(field, run.place, run.rows)
        return out

    def windows(self, rows: int, timeout: Optional[float] = None) \
            -> Iterator[Tuple[int, int]]:
        """Yields (first, end) of up to `rows` rows each, as they land; a
        window is released when the next one is taken, so an item larger than
        the pool passes through it. In stream mode rows is at most
        stream_rows."""
        first = 0
        while self.total is None or first < self.total:
            self.wait_rows(first + rows, timeout)
            end = min(first + rows, self.readable)
            if end == first:
                break
            self._limit(first, end)
            yield first, end
            first = end
            if not self.complete or first != self.total:
                self.release(first)

    def _limit(self, first: int, end: Optional[int]) -> int:
        end = self.readable if end is None else end
        if first < self._held():
            raise errors.Gone(f"rows below {self._held()} were released")
        if end > self.readable:
            raise IndexError(f"row {end} of room {self.room:#x} has not "
                             f"landed: {self.readable} may be read")
        return end
