"""Windows of a prompt: which rows of which rooms one prefill step takes.

    items = [Placeholder(2, 4819, room=0), Placeholder(5000, 64, room=1)]
    step = plan(computed, 2048, items)
    for room, need in zip(refs, step.needs):
        if need.state == SKIP:
            room.decline()         # a prefix-cache hit: not needed
    step.check(rooms, "embedding") # NotReady, Gone: try this step later
    step.run(rooms, "embedding", out[:step.positions])

The C library plans (mmx_plan); the rows are copied here, by numpy. A plan
describes one step and is never changed; its mask is a copy, so it stays valid
while the next step is planned and a device still copies it. Any thread.
"""

from __future__ import annotations

import ctypes
import enum
import struct
from dataclasses import dataclass, field
from typing import (TYPE_CHECKING, Any, Iterator, NamedTuple, Optional,
                    Sequence, Tuple, Union)

import numpy as np

from . import errors, wire
from ._lib import call
from .dtypes import BY_TORCH, DTYPES
from .pool import dtype as numpy_dtype
from .pool import from_bf16

if TYPE_CHECKING:
    from .rooms import Room

    Array = np.ndarray[Any, Any]

COMPACT, PADDED, PROMPT = (wire.STORAGE[s]
                           for s in ("compact", "padded", "prompt"))
_ALL = 2**32 - 1


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

    _words: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.embed is not None:
            mask = np.array(self.embed, dtype=bool)
            mask.setflags(write=False)
            object.__setattr__(self, "embed", mask)
            words = np.zeros(mask.size // 64 + 1, np.uint64)
            words.view(np.uint8)[:(mask.size + 7) // 8] = np.packbits(
                mask, bitorder="little")
            object.__setattr__(self, "_words", words)
        if isinstance(self.storage, str):
            object.__setattr__(self, "storage",
                               wire.STORAGE.get(self.storage, -1))

    @property
    def end(self) -> int:
        return self.offset + self.length

    def _packed(self) -> bytes:
        """Returns the placeholder as struct mmx_placeholder, which refers to
        this object's mask."""
        if self.embed is not None and self.embed.shape != (self.length,):
            raise errors.Malformed(f"{self}: a mask of {self.embed.shape}")
        mask = 0 if self._words is None else self._words.ctypes.data
        try:
            return _PLACEHOLDER.pack(
                self.offset, self.length, mask, self.room, self.row_base,
                self.elements, self.storage or -1,
                bool(self.indivisible) | 2 * bool(self.absent))
        except struct.error as e:
            raise errors.Malformed(f"{self}: {e}") from None


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


Rooms = Sequence["Optional[Room]"]


@dataclass(frozen=True, eq=False)
class Plan:
    computed: int
    shift: int
    positions: int  # as asked, or less where an indivisible span would be cut
    rows: int  # rows of all segments; number of ones in mask
    segments: Tuple[Segment, ...]  # ascending by place, disjoint
    mask: "Array"  # bool for each position of the window; read-only
    needs: Tuple[Need, ...]  # one for each room

    def check(self, rooms: Rooms, field: str = "embedding") -> None:
        """Raises NotReady or Gone, which name the first rows that are
        missing (.a: first row, .b: number of rows)."""
        for s in self.segments:
            _View(rooms, s.room, field).check(s)

    def run(self, rooms: Rooms, field: str, out: Any, *,
            packed: bool = False) -> None:
        """Copies one field of the rows into out, [places, elements] of numpy
        or of a torch tensor on the CPU, of any strides, of the field's dtype
        or float32 from bf16 and f16. packed: rows without the positions
        between, as a masked scatter takes them. Everything is checked before
        the first byte is written."""
        to, kind = _writable(out)
        if to.ndim != 2:
            raise errors.Malformed(f"out is {to.shape}")
        if (int(np.count_nonzero(self.mask)) != self.rows
                or sum(s.rows for s in self.segments) != self.rows):
            raise errors.Malformed("the plan's mask and segments disagree")
        places = self.rows if packed else self.positions
        if len(to) < places:
            raise errors.Malformed(f"out is {to.shape}, the window has "
                                   f"{places} places")
        views = {r: _View(rooms, r, field)
                 for r in dict.fromkeys(s.room for s in self.segments)}
        for view in views.values():
            view.fits(to, kind)
        for s in self.segments:
            views[s.room].check(s)
        at = 0
        for s in self.segments:
            at = at if packed else s.at
            for rows in views[s.room].pieces(s.row, s.row + s.rows):
                views[s.room].copy(to[at:at + len(rows)], rows)
                at += len(rows)


class _View:
    """One field of one room, in its present state."""

    def __init__(self, rooms: Rooms, index: int, field: str):
        room, self.index = rooms[index], index
        if room is None:
            raise errors.Stale(f"room {index} of the plan is missing")
        self.room, self.field = room, field
        self.dtype = room.pool.fields[field].dtype
        self.elements = room.pool.fields[field].elements
        self.released, self.readable = room.released, room.readable
        self.total = room.total
        if room._runs:  # others released these before this reader came
            self.released = max(self.released, room._runs[0].first)

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
        if kind not in ("uint16", "u8") or numpy_dtype(self.dtype) != to.dtype:
            raise errors.IncompatibleLayout(
                f"room {self.index}: {self.dtype} does not become {kind}")

    def pieces(self, first: int, end: int) -> "Iterator[Array]":
        for run in self.room.pieces(first, end):
            yield self.room.pool.rows(self.field, run.place, run.rows)

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
    name = (values.dtype.metadata or {}).get("mmx") or \
        BY_TORCH.get(values.dtype.name, values.dtype.name)
    if name in DTYPES and DTYPES[name].tagged:
        values = values.view(numpy_dtype(name))
    return values, name


def _writable(out: Any) -> "Tuple[Array, str]":
    if not isinstance(out, np.ndarray) and not _is_torch(out):
        raise TypeError("out must be an array of numpy or a torch tensor")
    array, kind = _bits(out)
    if not array.flags.writeable:
        raise errors.Malformed("out cannot be written")
    return array, kind


class _Plan(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t)] + [
        (name, ctypes.c_uint32)
        for name in ("computed", "shift", "positions", "rows", "count",
                     "rooms")] + [
        (name, ctypes.c_void_p) for name in ("segments", "mask", "needs")]


_WINDOW = struct.Struct("@N5I4x")
_PLACEHOLDER = struct.Struct("@IIPIIIBBxx")
_int_at = ctypes.POINTER(ctypes.c_int)
_plan_bytes = call("mmx_plan_bytes", ctypes.c_char_p, ctypes.c_char_p,
                   ctypes.c_int, _int_at, returns=ctypes.c_int64)
_plan = call("mmx_plan", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int,
             ctypes.c_void_p, ctypes.c_size_t,
             ctypes.POINTER(ctypes.POINTER(_Plan)), _int_at)


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
    try:
        window = _WINDOW.pack(_WINDOW.size, computed, length, shift, rooms,
                              elements)
    except struct.error as e:
        raise errors.Malformed(f"a window of {computed}+{length} positions: "
                               f"{e}") from None
    places = b"".join(p._packed() for p in items)
    at, out = ctypes.c_int(), ctypes.POINTER(_Plan)()
    size = _plan_bytes(window, places, len(items), at)
    memory = (ctypes.c_uint64 * (max(size, 0) // 8 + 1))()
    error = size if size < 0 else _plan(window, places, len(items), memory,
                                        size, out, at)
    if not error:
        return _read(out.contents)
    if at.value >= len(items):
        raise errors.error(-error, f"a window of {computed}+{length} "
                           "positions")
    wrong = items[at.value]
    raise errors.error(-error, f"{wrong}: {_WRONG[-error]} (computed "
                       f"{computed}, {elements} elements)", wrong.length,
                       length)


_WRONG = {
    errors.Malformed.number:
        "a number is out of range, another span claims its positions, or it is "
        "indivisible and the window begins inside it",
    errors.IncompatibleLayout.number: "the window's rows are of another width",
    errors.TooLarge.number: "is indivisible and longer than the window",
    errors.NotReady.number: "has rows in the window",
}


def _read(p: "_Plan") -> Plan:
    """Copies a plan out of the library's memory."""
    def rows(at: int, count: int) -> Iterator[Tuple[int, ...]]:
        return struct.iter_unpack("=4I", ctypes.string_at(at, 16 * count))

    words = ctypes.string_at(p.mask, (p.positions + 63) // 64 * 8)
    mask = np.unpackbits(np.frombuffer(words, np.uint8), count=p.positions,
                         bitorder="little").view(bool)
    mask.setflags(write=False)
    return Plan(p.computed, p.shift, p.positions, p.rows,
                tuple(Segment(*s) for s in rows(p.segments, p.count)), mask,
                tuple(Need(State(state), first, end,
                           None if keep == _ALL else keep)
                      for state, first, end, keep in rows(p.needs, p.rooms)))
