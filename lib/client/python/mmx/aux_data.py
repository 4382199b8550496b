"""What engines say beside the rows of a room: packed and unpacked.

    data = aux.pack(modality="image", grid=[(1, 16, 48)], merge=2)
    aux.unpack(data)["grid"]      # [(1, 16, 48)]

So an encoder of one engine can feed a language host of another. The bytes and
the names are in lib/wire/EMBEDDING.md; the C library (mmx_aux.h) writes and
checks them. Nothing in an aux is ever executed: numbers, bytes, and JSON in
`extra`.

More than 32 KiB goes on in rows of the room, behind the item's:

    says = aux.split(data)
    more = says.rows(pool)
    src = enc.announce(None, pool, rows + more, rows + more, aux=says.aux)
    ...
    says.write(src, rows)         # then commit rows + more
    ...
    rows = room.total - aux.rest_rows(room)
    aux.unpack(aux.whole(room))

Any thread."""

from __future__ import annotations

import ctypes
import json
import struct
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple

from . import errors
from ._lib import call

if TYPE_CHECKING:
    from .pool import Field, Pool
    from .rooms import Room, Source

MAX = 32768  # bytes of an aux at most
WHOLE = 16 << 20  # bytes of an aux with its rest at most
VERSION = 1
BOTH_WAYS, MROPE = 1, 2  # bits of flags
MODALITIES = {"image": 1, "video": 2, "audio": 3}


class _Aux(ctypes.Structure):
    _fields_ = [("mem", ctypes.c_void_p), ("size", ctypes.c_size_t),
                ("used", ctypes.c_size_t), ("last", ctypes.c_uint32),
                ("failed", ctypes.c_int)]


_aux, _bytes = ctypes.POINTER(_Aux), ctypes.c_char_p
_begin = call("mmx_aux_begin", _aux, _bytes, ctypes.c_size_t, returns=None)
_put = call("mmx_aux_put", _aux, ctypes.c_int, _bytes, ctypes.c_size_t)
_end = call("mmx_aux_end", _aux)
_check = call("mmx_aux_check", _bytes, ctypes.c_size_t)
_at = call("mmx_aux_at", _bytes, ctypes.c_size_t, ctypes.c_int,
           ctypes.POINTER(ctypes.c_void_p))
_split = call("mmx_aux_split", _bytes, ctypes.c_size_t, _bytes,
              ctypes.POINTER(ctypes.c_size_t))
_rest = call("mmx_aux_rest", _bytes, ctypes.c_size_t, ctypes.c_uint32,
             ctypes.c_uint32)
_join = call("mmx_aux_join", _bytes, ctypes.c_size_t, ctypes.c_void_p,
             ctypes.c_size_t, _bytes, ctypes.c_size_t)


class _Row(NamedTuple):
    name: str
    kind: str  # format for struct; "": bytes
    per: int
    one: bool = False  # a single entry: a number, or a tuple of `per`

    @property
    def width(self) -> int:
        return struct.calcsize(self.kind) if self.kind else 1


# As in aux_data.def.
_ROWS: Dict[int, _Row] = {
    1: _Row("modality", "I", 1, True), 2: _Row("flags", "I", 1, True),
    3: _Row("part", "I", 2, True), 4: _Row("rows", "I", 1),
    5: _Row("grid", "I", 3), 6: _Row("merge", "I", 1, True),
    7: _Row("sizes", "I", 2), 8: _Row("span", "I", 1),
    9: _Row("mrope_delta", "i", 1, True), 10: _Row("times", "d", 1),
    11: _Row("seconds", "d", 1), 12: _Row("chunk", "", 1),
    13: _Row("extra", "", 1), 65535: _Row("rest", "I", 1, True),
}
NAMES = tuple(row.name for row in _ROWS.values() if row.name != "rest")


def pack(**values: Any) -> bytes:
    """Returns the bytes of an aux. modality: a name of MODALITIES or a number.
    grid, sizes: a sequence with one tuple for each item; rows, span, times,
    seconds: of numbers; part: (index, number); flags, merge, mrope_delta: a
    number; chunk: bytes; extra: a dict that json can write. None and an empty
    sequence say nothing. ValueError: not such a value, or an unknown name;
    errors.TooLarge: more than 16 MiB. More than 32 KiB is to be split."""
    unknown = set(values) - set(NAMES)
    if unknown:
        raise ValueError(f"no such name in an aux: {min(unknown)}; "
                         f"known are {', '.join(NAMES)}")
    says = {tag: _data(row, values.get(row.name))
            for tag, row in _ROWS.items()}
    limit = min(WHOLE, 8 + sum(16 + len(data) for data in says.values()))
    made, memory = _Aux(), ctypes.create_string_buffer(limit)
    _begin(made, memory, limit)
    for tag, data in says.items():
        if data:
            _put(made, tag, data, len(data) // _ROWS[tag].width)
    size = _end(made)
    if size < 0:
        raise errors.error(-size, f"an aux has at most {WHOLE} bytes with its "
                           "rest")
    return memory.raw[:size]


def _data(row: _Row, value: Any) -> bytes:
    if value is None:
        return b""
    try:
        return _packed(row, value)
    except (struct.error, TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"aux, {row.name}: {e}") from None


def _packed(row: _Row, value: Any) -> bytes:
    if row.name == "extra":
        if not isinstance(value, dict):
            raise ValueError("not a dict")
        return json.dumps(value, separators=(",", ":"),
                          ensure_ascii=False, allow_nan=False).encode()
    if not row.kind:
        return bytes(memoryview(value))
    if row.name == "modality":
        value = MODALITIES.get(value, value)
    entries = [value] if row.one else list(value)
    flat: List[Any] = []
    for entry in entries:
        numbers = list(entry) if row.per > 1 else [entry]
        if len(numbers) != row.per:
            raise ValueError(f"{len(numbers)} numbers, not {row.per}")
        flat += numbers
    as_is = float if row.kind == "d" else _whole
    return struct.pack(f"{len(flat)}{row.kind}", *map(as_is, flat))


def _whole(value: Any) -> int:
    """Converts numbers of numpy and torch, too, but never cuts to an
    integer."""
    number = int(value)
    if number != value:
        raise ValueError(f"{value} is not a whole number")
    return number


def unpack(data: Any) -> Dict[str, Any]:
    """Returns what is there, by the names of pack(). An unknown tag is left
    out. errors.Malformed: no aux of this kind, or broken; errors.Version: of
    another version, or with a record that must be understood and is not."""
    data = bytes(memoryview(data))
    error = _check(data, len(data))
    if error:
        raise errors.error(-error, f"no aux that this version reads, of "
                           f"{len(data)} bytes")
    out: Dict[str, Any] = {}
    at = ctypes.c_void_p()
    for tag, row in _ROWS.items():
        count = _at(data, len(data), tag, at)
        if count:
            out[row.name] = _value(row, ctypes.string_at(
                at, count * row.width))
    return out


class Split(NamedTuple):
    """An aux for a room, and the rest that goes into the room's last rows."""

    aux: bytes
    rest: bytes

    def rows(self, pool: "Pool") -> int:
        """Returns how many rows of the pool the rest takes."""
        return -(-len(self.rest) // _field(pool).row_bytes)

    def write(self, source: "Source", first: int) -> None:
        """Writes the rest to the rows from `first` on, behind the item's rows.
        The caller commits them together."""
        import numpy as np

        from .pool import dtype

        pool, count = source.pool, self.rows(source.pool)
        field = _field(pool)
        rows = np.frombuffer(
            self.rest.ljust(count * field.row_bytes, b"\0"),
            dtype(field.dtype)).reshape(count, field.elements)
        for run in source.pieces(first, first + count):
            at = run.first - first
            for name in pool.fields:
                pool.rows(name, run.place, run.rows)[:] = \
                    rows[at:at + run.rows] if name == field.name else 0


def _field(pool: "Pool") -> "Field":
    return next(iter(pool.fields.values()))


def split(whole: bytes) -> Split:
    """Splits what pack() has made, or nothing. errors.Malformed: it is no
    aux."""
    if not whole:
        return Split(b"", b"")
    aux, cut = ctypes.create_string_buffer(MAX), ctypes.c_size_t()
    size = _split(whole, len(whole), aux, cut)
    if size < 0:
        raise errors.error(-size, f"no aux to split, of {len(whole)} bytes")
    return Split(aux.raw[:size], whole[cut.value:])


def rest_rows(room: "Room") -> int:
    """Returns how many of a room's last rows are the rest of its aux. The
    room's length must be known. errors.TooLarge: the aux claims more rows than
    there are; errors.Malformed, errors.Version: as unpack()."""
    data, size = room.aux, _field(room.pool).row_bytes
    rows: int = _rest(data, len(data), room.total or 0, size)
    if rows == -errors.TooLarge.number:
        raise errors.TooLarge(
            f"room {room.room:#x}: its aux has a rest of "
            f"{unpack(data)['rest']} bytes; {room.total or 0} rows of {size} "
            f"bytes came, and an aux has at most {WHOLE}")
    if rows < 0:
        raise errors.error(-rows, f"room {room.room:#x}: no aux that this "
                           f"version reads, of {len(data)} bytes")
    return rows


def whole(room: "Room") -> bytes:
    """Returns the aux that the encoder has split, joined again. The room must
    be complete, with no row released. errors.Malformed: the last rows are not
    its rest; other errors as rest_rows()."""
    rows, data = rest_rows(room), room.aux
    if not rows:
        return data
    assert room.total
    rest = room.gather(_field(room.pool).name, room.total - rows, room.total)
    made = ctypes.create_string_buffer(len(data) + rest.nbytes)
    size = _join(data, len(data), rest.ctypes.data, rest.nbytes, made,
                 len(made))
    if size < 0:
        raise errors.error(-size, f"room {room.room:#x}: rows {room.total - rows}"
                           f"..{room.total} are not the rest of its aux")
    return made.raw[:size]


def _value(row: _Row, values: bytes) -> Any:
    if row.name == "extra":
        return _extra(values)
    if not row.kind:
        return values
    flat = struct.unpack(f"{len(values) // row.width}{row.kind}", values)
    if row.per > 1:
        pairs = [flat[i:i + row.per] for i in range(0, len(flat), row.per)]
        return pairs[0] if row.one else pairs
    if not row.one:
        return list(flat)
    if row.name == "modality":
        return {v: k for k, v in MODALITIES.items()}.get(flat[0], flat[0])
    return flat[0]


def _extra(values: bytes) -> Dict[str, Any]:
    try:
        out = json.loads(values.decode())
    except (ValueError, RecursionError) as e:
        raise errors.Malformed(f"extra is no JSON: {e}") from None
    if not isinstance(out, dict):
        raise errors.Malformed("extra is no JSON object")
    return out
