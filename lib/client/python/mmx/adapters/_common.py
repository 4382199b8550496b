"""Shared by the adapters of all engines: rate-limited log lines, a
connection's pool, values of variables, and rows of torch as rows of a pool."""

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
# pause before a question or message that a daemon refused is repeated
AGAIN_S = 1
# how long a decline is kept at most, as an encoder keeps a room
UNWANTED_S = 60
UNWANTED_MAX = 1024  # beyond this number the oldest are dropped


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
    """Logs at most one line of each kind per second: neither a client's
    messages nor a missing daemon may fill the log."""

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
    """A connection's pool, which is asked for after each connect. A pool that
    is refused is asked for again a second later, since the daemon may have
    admitted this user meanwhile; engines call step() in each of their turns.
    settings: the variables that name the pool and the socket."""

    speaks = True  # this process logs it when no daemon answers

    def __init__(self, conn: mmx.Connection, log: Any,
                 settings: Tuple[str, str], name: str,
                 layout: str = "") -> None:
        self.conn, self._name, self._layout = conn, name, layout
        # raises if they are malformed
        mmx.wire.check("pool", name=name, layout=layout)
        self._log, self._settings = log, settings
        self.mapped: Optional[mmx.Pool] = None  # the last pool; stays readable
        self.unusable: Optional[Exception] = None  # why there is no pool
        self._said = ""  # the last reason that was logged for this run
        self._again = 0.0  # time of the next question
        self.meets: Callable[[mmx.Pool], Any] = lambda pool: None
        # Rooms to decline: reference, encoder, key, and until when.
        self._unwanted: Deque[Tuple[mmx.Reference, str, bytes, float]] = \
            collections.deque(maxlen=UNWANTED_MAX)
        self._say_at = 0.0  # no decline is sent before this time
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
            # A question to an earlier run was answered by the end of that run.
            self._asked, self.unusable, self._said = None, None, ""
        if not self._asked and time.monotonic() >= self._again:
            self._again = time.monotonic() + AGAIN_S
            self._asked = self.conn.ask_pool(self._name, self._layout)
        if self._asked and self._asked.done:
            asked, self._asked = self._asked, None
            try:
                pool = self._take(asked)
                self.meets(pool)
                self.mapped, self.unusable = pool, None
            except Exception as e:  # an engine would end on it
                self._note(e, asked)
        return self.pool

    def _note_absence(self) -> None:
        """Logs once when no daemon has answered for a second."""
        now = time.monotonic()
        if self.conn.connected:
            self._absent = math.inf
        elif self._absent == math.inf:
            self._absent = now
        elif self.speaks and 0 < self._absent < now - 1:
            self._absent = 0.0  # logged
            self._log.warning(
                "mmx-%s does not answer at %s (%s): start it, or name its "
                "socket by %s", self.conn.role, self.conn.path,
                self.conn.refused or "not connected", self._settings[1])

    def _take(self, asked: mmx.Reply) -> mmx.Pool:
        """Maps the pool in the answer; raises why it cannot be used."""
        pool = mmx.Pool(asked.result(), asked.take_fd(), self.conn.epoch)
        self._check(pool)
        return pool

    def _check(self, pool: mmx.Pool) -> None:
        """Raises an error if the engine's rows do not fit the pool."""
        raise NotImplementedError

    def decline(self, room: mmx.Reference, encoder: str,
                key: bytes = mmx.wire.NO_KEY) -> None:
        """Tells the encoder that this engine will not fetch the room, of which
        the encoder may not have heard yet. langd keeps a decline while the
        encoder is away; this object keeps it while langd is away."""
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
        """True if there is no pool, and none will come without a person's
        help."""
        return self.unusable is not None and \
            getattr(self.unusable, "advice", "") != "retry"


class Opened:
    """A connection on an asyncio loop, which is opened when its pool is first
    asked for. meets: called with each new pool."""

    def __init__(self, role: str, name: str,
                 meets: Callable[[mmx.Pool], Any] = lambda pool: None) -> None:
        self._role, self._name = role, name
        self._meets, self._met = meets, 0  # the run of the last pool
        self.conn: Optional[mmx.Connection] = None

    async def pool(self, timeout: float) -> mmx.Pool:
        """Returns the pool; after a restart of the daemon that is a new one.
        Waits for a daemon that never answered before."""
        if self.conn is None:
            # A session of its own: rooms end when their whole session is gone.
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
    """Returns the value of a variable; ValueError: it is no number of this
    form."""
    said = os.environ.get(name) or default
    if not re.fullmatch(form, said):
        raise ValueError(f"{name} is no number that it may be: {said:.200}")
    return float(said)


def deadline() -> float:
    """Returns how many seconds a room's rows may take, for both sides."""
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
    """Returns how a pool's field differs from the rows; "": it does not."""
    other = other_kind(field, dtype)
    if other:
        return f"is {field.dtype}, the rows are {other}"
    if field.elements != width:
        return f"is {field.elements} wide, the rows are {width}"
    return ""


def from_tensor(rows: Any) -> Any:
    """Returns rows for a pool as an array of numpy; a dtype that numpy lacks
    as integers of the same size."""
    if not hasattr(rows, "detach"):
        return rows
    rows = rows.detach().cpu().contiguous()
    kind = DTYPES.get(BY_TORCH.get(str(rows.dtype).split(".")[-1], ""))
    if kind is None or not kind.tagged:
        return rows.numpy()
    import torch

    bits = getattr(torch, f"int{8 * kind.bytes}")
    return rows.view(bits).numpy().view(kind.typestr)
