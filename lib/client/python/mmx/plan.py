"""Windows of a prompt: which rows of which rooms one prefill step takes.

    items = [Placeholder(2, 4819, room=0), Placeholder(5000, 64, room=1)]
    step = plan(computed, 2048, items)
    for room, need in zip(refs, step.needs):
        if need.state == SKIP:
            room.decline()         # a prefix-cache hit: not needed
    step.check(rooms, "embedding") # NotReady, Gone: try this step later
    step.run(rooms, "embedding", out[:step.positions])

Gives the same results as mmx_plan() of the C library; needs numpy only. A plan
describes one step and is never changed; its mask is a copy, so it stays valid
while the next step is planned and a device still copies it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import (TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional,
                    Sequence, Tuple, Union)

import numpy as np

from . import errors, wire
from .dtypes import BY_TORCH, DTYPES
from .pool import dtype as numpy_dtype
from .pool import from_bf16

if TYPE_CHECKING:
    from .rooms import Room

    Array = np.ndarray[Any, Any]

COMPACT, PADDED, PROMPT = (wire.STORAGE[s]
                           for s in ("compact", "padded", "prompt"))
_LIMIT = 2**32 - 1


class State(enum.IntEnum):
    SKIP = 0  # no position from computed on needs it: decline it
    LATER = 1  # needed after this window; it may land later
    NOW = 2  # needed for this window


SKIP, LATER, NOW = State


@dataclass(frozen=True)
class Placeholder:
    """The span of a prompt that one item fills, in positions. Several
    placeholders may show one room."""

    offset: int
    length: int
    embed: Any = field(default=None, compare=False)  # mask of positions that
    # take a row; None: all. Anything numpy reads as booleans; copied
    room: int = 0  # index into the rooms of a run
    row_base: int = 0  # the room's row for the span's first one; with PROMPT,
    # for position 0
    elements: int = 0  # elements of a row; 0: not checked
    storage: Union[str, int] = "compact"  # "padded", "prompt", Room.storage
    indivisible: bool = False  # never cut by a window
    absent: bool = False  # the rows are missing

    def __post_init__(self) -> None:
        if self.embed is not None:
            mask = np.array(self.embed, dtype=bool)
            mask.setflags(write=False)
            object.__setattr__(self, "embed", mask)
        if isinstance(self.storage, str):
            object.__setattr__(self, "storage",
                               wire.STORAGE.get(self.storage, -1))

    @property
    def end(self) -> int:
        return self.offset + self.length

    def row_at(self, i: int) -> int:
        """Returns the room's row for position i of the span, or for the next
        position that takes a row."""
        if self.storage == PROMPT:
            return self.row_base + self.offset + i
        if self.storage == COMPACT and self.embed is not None:
            return self.row_base + int(np.count_nonzero(self.embed[:i]))
        return self.row_base + i


class Segment(NamedTuple):
    """Rows [row, row + rows) of a room go to [at, at + rows) of the window."""

    room: int
    row: int
    rows: int
    at: int


class Need(NamedTuple):
    """The rows of one room that a window and later windows need."""

    state: State
    first: int  # this window's rows lie in [first, end)
    end: int
    keep: Optional[int]  # rows below are not used after this window; None:
    # no row is used


@dataclass(frozen=True)
class Rows:
    """Rows in an array of [rows, elements], as from a local encode, in place
    of a Room. dtype: "bf16" and the like for an untagged array."""

    array: Any
    dtype: str = ""
    released: int = 0
    readable: Optional[int] = None
    total: Optional[int] = None


Source = Union["Room", Rows, Any, None]


@dataclass(frozen=True, eq=False)
class Plan:
    computed: int
    shift: int
    positions: int  # as asked, or less where an indivisible span would be cut
    rows: int  # rows of all segments; number of ones in mask
    segments: Tuple[Segment, ...]  # ascending by place, disjoint
    mask: "Array"  # bool for each position of the window; read-only
    needs: Tuple[Need, ...]  # one for each room

    @property
    def needed(self) -> List[int]:
        """Rooms whose rows must have landed for this window."""
        return [i for i, n in enumerate(self.needs) if n.state == NOW]

    @property
    def skipped(self) -> List[int]:
        """Rooms that no position from computed on needs: decline them."""
        return [i for i, n in enumerate(self.needs) if n.state == SKIP]

    def check(self, rooms: Sequence[Source], field: str = "embedding") -> None:
        """Raises NotReady or Gone, which name the first rows that are
        missing (.a: first row, .b: number of rows)."""
        for s in self.segments:
            _View(rooms, s.room, field).check(s)

    def run(self, rooms: Sequence[Source], field: str, out: Any, *,
            packed: bool = False) -> None:
        """Copies one field of the rows into out, [places, elements] of numpy
        or of a torch tensor on the CPU, of any strides, of the field's dtype
        or float32 from bf16 and f16. packed: rows without the positions
        between, as a masked scatter takes them. Everything is checked before
        the first byte is written."""
        to, kind = _writable(out)
        if (int(np.count_nonzero(self.mask)) != self.rows
                or sum(s.rows for s in self.segments) != self.rows):
            raise errors.Malformed("the plan's mask and segments disagree")
        places = self.rows if packed else self.positions
        if to.ndim != 2 or to.shape[0] < places:
            raise errors.Malformed(f"out is {to.shape}, the window has "
                                   f"{places} places")
        views = {r: _View(rooms, r, field)
                 for r in dict.fromkeys(s.room for s in self.segments)}
        for view in views.values():
            view.fits(to, kind)
        for s in self.segments:
            views[s.room].check(s)
        done = 0
        for s in self.segments:
            at = done if packed else s.at
            for first, rows in views[s.room].pieces(s.row, s.row + s.rows):
                a = at + first - s.row
                views[s.room].copy(to[a:a + len(rows)], rows)
            done += s.rows


class _View:
    """One field of one room, in its present state."""

    def __init__(self, rooms: Sequence[Source], index: int, field: str):
        source = rooms[index]
        self.index = index
        self.room: Any = None
        if source is None:
            raise errors.Stale(f"room {index} of the plan is missing")
        if hasattr(source, "pieces"):
            f = source.pool.fields[field]
            self.room, self.field = source, field
            self.dtype, self.elements = f.dtype, f.elements
            self.released, self.readable = source.released, source.readable
            self.total = source.total
            if source._runs:  # by the others, before this reader came
                self.released = max(self.released, source._runs[0].first)
            return
        if not isinstance(source, Rows):
            source = Rows(source)
        self.array, self.dtype = _bits(source.array)
        self.dtype = source.dtype or self.dtype
        self.elements = self.array.shape[1]
        self.released = source.released
        self.readable = len(self.array) if source.readable is None \
            else source.readable
        self.total = len(self.array) if source.total is None else source.total

    def check(self, s: Segment) -> None:
        end = s.row + s.rows
        if self.total is not None and end > self.total:
            self._raise(errors.Malformed, "lie beyond its end",
                        max(s.row, self.total), end)
        if s.row < self.released:
            self._raise(errors.Gone, "were released", s.row,
                        min(end, self.released))
        if end > self.readable:
            self._raise(errors.NotReady, "have not landed",
                        max(s.row, self.readable), end)

    def _raise(self, kind: Any, what: str, first: int, end: int) -> None:
        raise kind(f"room {self.index}: rows {first}..{end} {what}",
                   first, end - first)

    def fits(self, to: "Array", kind: str) -> None:
        if to.shape[1] != self.elements:
            raise errors.IncompatibleLayout(
                f"room {self.index}: rows of {self.elements} elements, out "
                f"has {to.shape[1]}")
        if kind == self.dtype or (kind == "f32" and
                                  self.dtype in ("bf16", "f16")):
            return
        # Untagged bits are taken for the field's dtype.
        if kind not in ("uint16", "u8") or \
                numpy_dtype(self.dtype) != to.dtype:
            raise errors.IncompatibleLayout(
                f"room {self.index}: {self.dtype} does not become {kind}")

    def pieces(self, first: int, end: int) -> "Iterator[Tuple[int, Array]]":
        if self.room is None:
            yield first, self.array[first:end]
            return
        for run in self.room.pieces(first, end):
            yield run.first, self.room.pool.rows(self.field, run.place,
                                                 run.rows)

    def copy(self, to: "Array", rows: "Array") -> None:
        if self.dtype == "bf16" and to.dtype == np.float32:
            rows = from_bf16(rows)
        to[:] = rows


def _is_torch(values: Any) -> bool:
    return type(values).__module__.split(".")[0] == "torch"


def _bits(values: Any) -> "Tuple[Array, str]":
    """Returns the same memory as an array that numpy can copy, and the name
    of its dtype."""
    if _is_torch(values):
        import torch

        name = str(values.dtype).split(".")[-1]
        name = BY_TORCH.get(name, name)
        kind = DTYPES.get(name)
        if kind is None or not kind.tagged:
            return values.detach().numpy(), name
        # numpy lacks the dtype: pass it as integers of the same size.
        bits = values.detach().view(
            torch.int16 if kind.bytes == 2 else torch.uint8).numpy()
        return bits.view(kind.typestr), name
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    name = (array.dtype.metadata or {}).get("mmx") or \
        BY_TORCH.get(array.dtype.name, array.dtype.name)
    if name in DTYPES and DTYPES[name].tagged:
        array = array.view(numpy_dtype(name))
    return array, name


def _writable(out: Any) -> "Tuple[Array, str]":
    if not isinstance(out, np.ndarray) and not _is_torch(out):
        raise TypeError("out must be an array of numpy or a torch tensor")
    array, kind = _bits(out)
    if not array.flags.writeable:
        raise errors.Malformed("out cannot be written")
    return array, kind


def _check(p: Placeholder, computed: int, rooms: int, elements: int) -> None:
    rows = p.row_base + p.length + (p.offset if p.storage == PROMPT else 0)
    if min(p.offset, p.length, p.row_base, p.room) < 0 or p.room >= rooms \
            or p.end >= _LIMIT or rows >= _LIMIT \
            or p.storage not in (COMPACT, PADDED, PROMPT):
        raise errors.Malformed(f"{p}: a number is out of range")
    if p.embed is not None and p.embed.shape != (p.length,):
        raise errors.Malformed(f"{p}: a mask of {p.embed.shape}")
    if p.indivisible and p.offset < computed < p.end:
        raise errors.Malformed(f"computed {computed} lies inside {p}, which "
                               "is indivisible: begin at its offset")
    if elements and p.elements and elements != p.elements:
        raise errors.IncompatibleLayout(
            f"{p}: the window's rows have {elements} elements")


def _fit(computed: int, length: int, items: Sequence[Placeholder]) -> int:
    """Returns the window's end, moved back until it cuts no indivisible
    span."""
    end = computed + length
    moved = True
    while moved:
        moved = False
        for p in items:
            if not p.indivisible or not p.offset < end < p.end or \
                    p.end <= computed:
                continue
            if p.offset <= computed:
                raise errors.TooLarge(
                    f"{p} is indivisible and longer than the window",
                    p.length, length)
            end = p.offset
            moved = True
    return end


def _segments(p: Placeholder, s: int, e: int, first: int) \
        -> Iterator[Segment]:
    """Yields segments of positions [s, e) of a span, in a window that begins
    at `first`."""
    at = p.offset - first
    if p.embed is None:
        yield Segment(p.room, p.row_at(s), e - s, at + s)
        return
    edges = np.flatnonzero(np.diff(p.embed[s:e].astype(np.int8),
                                   prepend=0, append=0)).tolist()
    row = p.row_at(s)
    for a, b in zip(edges[::2], edges[1::2]):
        if p.storage == COMPACT:
            yield Segment(p.room, row, b - a, at + s + a)
            row += b - a
        else:
            yield Segment(p.room, p.row_at(s + a), b - a, at + s + a)


def plan(computed: int, length: int, items: Sequence[Placeholder], *,
         shift: int = 0, rooms: Optional[int] = None,
         elements: int = 0) -> Plan:
    """Plans positions [computed + shift, computed + shift + length): shift
    is 1 for a draft model. rooms: number of rooms of the placeholders.

    Raises Malformed (a number is out of range; two spans claim one position;
    computed lies inside an indivisible span), IncompatibleLayout (widths
    differ), TooLarge (an indivisible span begins the window and is longer),
    NotReady (an absent item has rows in the window; it is left out where only
    the shift reaches it)."""
    if rooms is None:
        rooms = max((p.room for p in items), default=-1) + 1
    if min(computed, length, shift) < 0 or \
            computed + shift + length >= _LIMIT:
        raise errors.Malformed(f"a window of {computed}+{length} positions")
    for p in items:
        _check(p, computed, rooms, elements)
    real_end = _fit(computed, length, items)
    first, end = computed + shift, real_end + shift
    mask = np.zeros(end - first, dtype=bool)
    states = [SKIP] * rooms
    used: List[Tuple[int, int]] = [(0, 0)] * rooms
    keep: List[Optional[int]] = [None] * rooms
    segments: List[Segment] = []
    for p in items:
        if p.end <= computed:
            continue
        states[p.room] = max(states[p.room], LATER)
        if real_end < p.end:
            below = p.row_at(max(real_end - p.offset, 0))
            old = keep[p.room]
            keep[p.room] = below if old is None else min(old, below)
        s = min(max(first - p.offset, 0), p.length)
        e = min(max(end - p.offset, 0), p.length)
        ahead = p.offset >= real_end  # reached by the shift only
        if s >= e or (ahead and (p.absent or (p.indivisible
                                              and e < p.length))):
            continue
        here = mask[p.offset + s - first:p.offset + e - first]
        ones = True if p.embed is None else p.embed[s:e]
        if (here & ones).any():
            raise errors.Malformed(f"{p} claims positions of another span")
        here |= ones
        new = list(_segments(p, s, e, first))
        if not new:
            continue
        if p.absent:
            raise errors.NotReady(f"{p} has rows in the window")
        lo, hi = new[0].row, new[-1].row + new[-1].rows
        if states[p.room] == NOW:
            lo, hi = min(lo, used[p.room][0]), max(hi, used[p.room][1])
        used[p.room] = lo, hi
        states[p.room] = NOW
        segments += new
    segments.sort(key=lambda g: g.at)
    mask.setflags(write=False)
    needs = tuple(Need(a, *b, c) for a, b, c in zip(states, used, keep))
    return Plan(computed, shift, end - first, sum(g.rows for g in segments),
                tuple(segments), mask, needs)
