"""Shared by the adapters of all engines: lines of a log that are rated, a
connection's pool, what variables say, rows of torch as rows of a pool."""

from __future__ import annotations

import collections
import logging
import math
import os
import re
import time
from typing import Any, Callable, Deque, Dict, Optional, Tuple

import mmx
from mmx import errors
from mmx.dtypes import BY_TORCH, DTYPES

# Upper bounds of histograms: 1 ms to 65 s, 4 KiB to 4 GiB.
SECONDS = [0.001 * 2**n for n in range(17)]
BYTES = [4096.0 * 4**n for n in range(11)]
AGAIN_S = 1  # before what a daemon has refused is asked or said again
UNWANTED_S = 60  # that long at most, as an encoder's room lives
UNWANTED_MAX = 1024  # of more the oldest are forgotten


# What an operator can do, beyond what the error says.
REMEDIES = {
    "incompatible-layout": "give both pools the layout of the model's rows",
    "item-mismatch": "give both engines one model and mmx_scope, and encoders "
                     "of the same weights one mmx_epoch",
}


def remedy(error: BaseException, room: mmx.Reference,
           other: str = "") -> str:
    """Returns what to do about a room that failed. other: the name or address
    of the daemon at its other end, if that is known."""
    todo = REMEDIES.get(getattr(error, "reason", ""), "")
    return f"; {todo}{', ' * bool(todo)}mmxctl trace " \
        f"..{room.room & 0xffffffff:08x}" + \
        (f", here and at {other}, says more" if other else " says more")


class Rated:
    """Logs lines, of each kind at most one a second: what a client sends, or
    a daemon that is away, must not fill the log."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.last: Dict[str, float] = {}  # kind -> time of its last line

    def __call__(self, kind: str, text: str, *words: Any,
                 level: int = logging.WARNING) -> None:
        now = time.monotonic()
        if now - self.last.get(kind, -1e9) >= 1:
            self.last[kind] = now
            self._log.log(level, text, *words)


class Pooled:
    """A connection's pool, which is asked for after each connect. One that
    cannot be had is asked for again a second later: its daemon may have been
    told of this user meanwhile, and engines look in each of their turns.
    settings: where the names of pool and socket are from."""

    speaks = True  # of the processes of an engine, if no daemon answers

    def __init__(self, conn: mmx.Connection, log: Any,
                 settings: Tuple[str, str], name: str,
                 layout: str = "") -> None:
        self.conn, self._name, self._layout = conn, name, layout
        mmx.wire.POOL.encode(0, name=name, layout=layout)  # raises
        self._log, self._settings = log, settings
        self.mapped: Optional[mmx.Pool] = None  # the last; stays readable
        self.unusable: Optional[Exception] = None  # why there is no pool
        self._said = ""  # of this run: why
        self._again = 0.0  # time of the next question
        self.meets: Callable[[mmx.Pool], Any] = lambda pool: None
        # Rooms to decline: reference, encoder, key, and until when.
        self._unwanted: Deque[Tuple[mmx.Reference, str, bytes, float]] = \
            collections.deque(maxlen=UNWANTED_MAX)
        self._say_at = 0.0  # not before
        self._absent = math.inf  # since when no daemon is connected
        self._asked: Optional[mmx.Reply] = None
        self._asked_of = 0  # the daemon's run

    @property
    def pool(self) -> Optional[mmx.Pool]:
        """The pool; None: no daemon is connected, or it is not mapped yet."""
        if self.conn.connected and self.mapped and \
                self.mapped.epoch == self.conn.epoch:
            return self.mapped
        return None

    def step(self) -> Optional[mmx.Pool]:
        """Steps the connection, asks for the pool. Never waits."""
        self.conn.step()
        self._note_absence()
        self._say()
        if self.pool or not self.conn.connected:
            return self.pool
        if self._asked_of != self.conn.epoch:
            self._asked_of, self._again = self.conn.epoch, 0.0
            # The answer of an earlier run came with its end.
            self._asked, self.unusable, self._said = None, None, ""
        if not self._asked and time.monotonic() >= self._again:
            self._again = time.monotonic() + AGAIN_S
            self._asked = self.conn.send(
                mmx.wire.POOL, name=self._name, layout=self._layout)
        if self._asked and self._asked.done:
            asked, self._asked = self._asked, None
            try:
                pool = self._take(asked)
                self.meets(pool)
                self.mapped, self.unusable = pool, None
            except Exception as e:  # of which an engine would end
                self._note(e, asked)
        return self.pool

    def _note_absence(self) -> None:
        """Logs once that no daemon answers, after a second without."""
        now = time.monotonic()
        if self.conn.connected:
            self._absent = math.inf
        elif self._absent == math.inf:
            self._absent = now
        elif self.speaks and 0 < self._absent < now - 1:
            self._absent = 0.0  # said
            self._log.warning(
                "mmx-%s does not answer at %s (%s): start it, or name its "
                "socket by %s", self.conn.role, self.conn.path,
                self.conn.refused or "not connected", self._settings[1])

    def _take(self, asked: mmx.Reply) -> mmx.Pool:
        """Maps the pool that is the answer; raises why it cannot be used."""
        pool = mmx.Pool(asked.result(), asked.take_fd(), self.conn.epoch)
        self._check(pool)
        return pool

    def _check(self, pool: mmx.Pool) -> None:
        """Raises why the engine's rows do not fit the pool."""
        raise NotImplementedError

    def decline(self, room: mmx.Reference, encoder: str,
                key: bytes = mmx.wire.NO_KEY) -> None:
        """Tells the encoder, which may not have heard of the room yet, that
        this engine will not fetch it. langd keeps what an encoder cannot hear;
        this side what langd cannot."""
        self._unwanted.append((room, encoder, key,
                               time.monotonic() + UNWANTED_S))
        self._say()

    def _say(self) -> None:
        while self._unwanted and self.conn.connected and \
                time.monotonic() >= self._say_at:
            one = self._unwanted.popleft()

            def answered(reply: mmx.Reply, one: Any = one) -> None:
                now = time.monotonic()
                if reply.error and reply.error.advice == "retry" and \
                        now < one[-1]:
                    self._unwanted.append(one)
                    self._say_at = now + AGAIN_S
            reply = self.conn.decline(*one[:-1])
            reply.then = answered
            if reply.done:
                answered(reply)

    def _note(self, why: Exception, asked: mmx.Reply) -> None:
        self.unusable = why
        if not self.is_refused or self._said == str(why):
            return
        self._said = str(why)
        if isinstance(why, errors.IncompatibleLayout):
            remedy = "set the pool's layout in the daemon's configuration"
        elif asked.error:
            remedy = f"name a pool by {self._settings[0]}, or let this user " \
                "have it (pools[].uids)"
        else:
            remedy = "the pool cannot be mapped, mmxctl doctor says more"
        self._log.error("mmx is not used: %s; %s", why, remedy)

    @property
    def is_refused(self) -> bool:
        """True if there is no pool, and will be none by itself."""
        return self.unusable is not None and \
            getattr(self.unusable, "advice", "") != "retry"


class Opened:
    """A connection on an asyncio loop, which is opened when its pool is asked
    for first. meets: called with a new pool."""

    def __init__(self, role: str, name: str,
                 meets: Callable[[mmx.Pool], Any] = lambda pool: None) -> None:
        self._role, self._name = role, name
        self._meets, self._met = meets, 0  # the run of the pool
        self.conn: Optional[mmx.Connection] = None

    async def pool(self, timeout: float) -> mmx.Pool:
        """Returns the pool, which is another one after a restart. A daemon
        that was never there is waited for."""
        if self.conn is None:
            # A session ends its rooms when all of it is gone: each its own.
            self.conn = mmx.connect(
                self._role, name=self._name, timeout=0,
                session=f"{self._name}-{mmx.secret().hex()}")
        if not self.conn.epoch:
            await self._opened(self.conn, timeout)
        pool = await self.conn.apool(pool_name(), timeout=timeout)
        if self._met != pool.epoch:
            self._met = pool.epoch
            self._meets(pool)
        return pool

    async def _opened(self, conn: mmx.Connection, timeout: float) -> None:
        try:
            await conn.until(lambda: conn.connected or conn.refused, timeout)
        except errors.DaemonSilent:
            raise
        except TimeoutError as e:
            raise conn.not_taken or errors.DaemonLost(
                f"{conn.path}: {conn.unreached or e}") from None
        if conn.refused:
            self.conn = None
            conn.close()
            raise conn.refused


def number(name: str, default: str, form: str) -> float:
    """Returns a variable; ValueError: it is no number of this form."""
    said = os.environ.get(name) or default
    if not re.fullmatch(form, said):
        raise ValueError(f"{name} is no number that it may be: {said:.200}")
    return float(said)


def deadline() -> float:
    """Returns the longest wait for a room's rows in seconds, at both sides."""
    return number("MMX_DEADLINE_S", "60", r"(?=.*[1-9])\d{1,4}(\.\d+)?")


def pool_name() -> str:
    return os.environ.get("MMX_POOL", "")


def chosen_field(pool: mmx.Pool) -> mmx.pool.Field:
    """Returns the field with the embeddings that a variable names."""
    return field_of(pool, os.environ.get("MMX_FIELD"))


def field_of(pool: mmx.Pool, name: Optional[str]) -> mmx.pool.Field:
    """Returns the field with the embeddings: of this name, or the first."""
    name = name or next(iter(pool.fields))
    if name not in pool.fields:
        raise errors.IncompatibleLayout(f"pool {pool.name} has no field "
                                        f"{name}")
    return pool.fields[name]


def other_kind(field: Any, dtype: Any) -> str:
    """Returns our name of a dtype, or its own, if it is not the field's; "":
    it is. dtype: torch's, or numpy's of the same bits; None: not known."""
    name = str(dtype).split(".")[-1]
    ours = DTYPES[field.dtype].torch, mmx.pool.dtype(field.dtype).name
    return "" if dtype is None or name in ours else BY_TORCH.get(name, name)


def misfit(field: Any, width: int, dtype: Any) -> str:
    """Returns in what a pool's field differs from rows; "": in nothing."""
    other = other_kind(field, dtype)
    if other:
        return f"is {field.dtype}, the rows are {other}"
    if field.elements != width:
        return f"is {field.elements} wide, the rows are {width}"
    return ""


def from_tensor(rows: Any) -> Any:
    """Returns rows for a pool: of numpy, of what it lacks the bits."""
    if not hasattr(rows, "detach"):
        return rows
    rows = rows.detach().cpu().contiguous()
    kind = DTYPES.get(BY_TORCH.get(str(rows.dtype).split(".")[-1], ""))
    if kind is None or not kind.tagged:
        return rows.numpy()
    import torch

    bits = getattr(torch, f"int{8 * kind.bytes}")
    return rows.view(bits).numpy().view(kind.typestr)
