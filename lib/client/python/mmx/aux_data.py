"""What engines say beside the rows of a room: packed and unpacked.

    data = aux.pack(modality="image", grid=[(1, 16, 48)], merge=2)
    aux.unpack(data)["grid"]      # [(1, 16, 48)]

An encoder of one engine can so feed a language host of another. The bytes and
the names are in lib/client/README.md; mmx_aux.h is the same in C. Nothing in
an aux is ever executed: numbers, bytes, and JSON in `extra`."""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, List, NamedTuple, Tuple

from . import errors

MAX = 32768  # bytes
VERSION = 1
BOTH_WAYS, MROPE = 1, 2  # bits of flags
MODALITIES = {"image": 1, "video": 2, "audio": 3}

_HEAD = struct.Struct("<3sBI")
_RECORD = struct.Struct("<HHI")
_MUST = 0x8000


class _Row(NamedTuple):
    name: str
    kind: str  # of struct; "": bytes
    per: int
    one: bool = False  # one entry: a number, or a tuple of `per`


# As in aux_data.def.
_ROWS: Dict[int, _Row] = {
    1: _Row("modality", "I", 1, True), 2: _Row("flags", "I", 1, True),
    3: _Row("part", "I", 2, True), 4: _Row("rows", "I", 1),
    5: _Row("grid", "I", 3), 6: _Row("merge", "I", 1, True),
    7: _Row("sizes", "I", 2), 8: _Row("span", "I", 1),
    9: _Row("mrope_delta", "i", 1, True), 10: _Row("times", "d", 1),
    11: _Row("seconds", "d", 1), 12: _Row("chunk", "", 1),
    13: _Row("extra", "", 1),
}
NAMES = tuple(row.name for row in _ROWS.values())


def pack(**values: Any) -> bytes:
    """Returns the bytes of an aux. modality: a name of MODALITIES or a number.
    grid, sizes: a sequence with one tuple for each item; rows, span, times,
    seconds: of numbers; part: (index, number); flags, merge, mrope_delta: a
    number; chunk: bytes; extra: a dict that json can write. None and an empty
    sequence say nothing. ValueError: not such a value, or an unknown name;
    errors.TooLarge: more than 32 KiB."""
    unknown = set(values) - set(NAMES)
    if unknown:
        raise ValueError(f"no such name in an aux: {min(unknown)}; "
                         f"known are {', '.join(NAMES)}")
    body = b"".join(_record(tag, row, values.get(row.name))
                    for tag, row in _ROWS.items())
    size = _HEAD.size + len(body)
    if size > MAX:
        raise errors.TooLarge(f"an aux of {size} bytes, {MAX} are the limit")
    return _HEAD.pack(b"MXA", VERSION, size) + body


def _record(tag: int, row: _Row, value: Any) -> bytes:
    if value is None:
        return b""
    try:
        data = _data(row, value)
    except (struct.error, TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"aux, {row.name}: {e}") from None
    if not data:
        return b""
    return _RECORD.pack(tag, 0, len(data)) + data + bytes(-len(data) % 8)


def _data(row: _Row, value: Any) -> bytes:
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
    return struct.pack(f"<{len(flat)}{row.kind}", *map(as_is, flat))


def _whole(value: Any) -> int:
    """Of numpy and torch too, but never cut to a whole number."""
    number = int(value)
    if number != value:
        raise ValueError(f"{value} is not a whole number")
    return number


def unpack(data: Any) -> Dict[str, Any]:
    """Returns what is there, by the names of pack(). An unknown tag is left
    out. errors.Malformed: no aux of this kind, or broken; errors.Version: of
    another version, or with a record that must be understood and is not."""
    view = memoryview(data).cast("B")
    if len(view) < _HEAD.size or view[:3] != b"MXA":
        raise errors.Malformed("not an aux that engines share")
    _, version, size = _HEAD.unpack_from(view)
    if version != VERSION:
        raise errors.Version(f"an aux of version {version}, not {VERSION}")
    if size != len(view) or size > MAX:
        raise errors.Malformed(f"{len(view)} bytes, the aux says {size}")
    out: Dict[str, Any] = {}
    at, last = _HEAD.size, 0
    while at < size:
        tag, values, at = _next(view, at)
        if tag <= last:
            raise errors.Malformed(f"tag {tag} after {last}")
        last = tag
        row = _ROWS.get(tag)
        if row is None and tag & _MUST:
            raise errors.Version(f"tag {tag} must be understood")
        if row is not None:
            out[row.name] = _value(row, values)
    return out


def _next(view: memoryview, at: int) -> "Tuple[int, memoryview, int]":
    """The record at `at`: its tag, its values, and where it ends."""
    if len(view) - at < _RECORD.size:
        raise errors.Malformed("a record is cut")
    tag, zero, size = _RECORD.unpack_from(view, at)
    at += _RECORD.size
    end = at + size + -size % 8
    if zero or not size or end > len(view) or any(view[at + size:end]):
        raise errors.Malformed(f"a record of tag {tag} and {size} bytes")
    return tag, view[at:at + size], end


def _value(row: _Row, values: memoryview) -> Any:
    if row.name == "extra":
        return _extra(values)
    if not row.kind:
        return bytes(values)
    width = struct.calcsize(f"<{row.kind}")
    if len(values) % (width * row.per):
        raise errors.Malformed(f"{row.name} of {len(values)} bytes")
    if row.one and len(values) != width * row.per:
        raise errors.Malformed(f"{row.name} has more than one entry")
    flat = struct.unpack(f"<{len(values) // width}{row.kind}", values)
    if row.per > 1:
        pairs = [flat[i:i + row.per] for i in range(0, len(flat), row.per)]
        return pairs[0] if row.one else pairs
    if not row.one:
        return list(flat)
    if row.name == "modality":
        return {v: k for k, v in MODALITIES.items()}.get(flat[0], flat[0])
    return flat[0]


def _extra(values: memoryview) -> Dict[str, Any]:
    try:
        out = json.loads(bytes(values).decode())
    except (ValueError, RecursionError) as e:
        raise errors.Malformed(f"extra is no JSON: {e}") from None
    if not isinstance(out, dict):
        raise errors.Malformed("extra is no JSON object")
    return out
