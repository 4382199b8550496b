"""A pool: blocks that a daemon owns and this process has mapped, in host
memory or (cuda.py) on a GPU.

numpy has no bf16 and no f8: such fields are arrays of uint16 and uint8 whose
dtype carries the name (`array.dtype.metadata["mmx"] == "bf16"`). bf16() and
from_bf16() convert.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Tuple

from .dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise()
_SLICE = 4 << 20  # bytes of a map that are freed at once


def dtype(name: str) -> "np.dtype[Any]":
    """Returns numpy's dtype for a field's dtype; tagged where numpy has
    none."""
    import numpy as np

    kind = DTYPES[name]
    if kind.tagged:
        return np.dtype(kind.typestr, metadata={"mmx": name})
    return np.dtype(kind.typestr)


def bf16(values: Any) -> "np.ndarray[Any, Any]":
    """Converts float32 to bf16 in uint16, rounded to nearest even; the bits
    are mmx_scatter_f32's. NaN stays NaN."""
    import numpy as np

    f32 = np.ascontiguousarray(values, dtype=np.float32)
    bits = f32.view(np.uint32)
    odd = (bits >> 16) & 1
    return np.where(np.isnan(f32), bits >> 16 | 0x40,
                    (bits + np.uint32(0x7FFF) + odd) >> 16).astype(np.uint16)


def from_bf16(bits: Any) -> "np.ndarray[Any, Any]":
    """Converts bf16 in uint16 to float32; exact."""
    import numpy as np

    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


class Field(NamedTuple):
    name: str
    dtype: str
    elements: int
    offset: int  # of the field's region in the map
    row_bytes: int


class _Buffer(ctypes.Structure):
    """The Py_buffer of Python's C API."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p),
                ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("more", ctypes.c_void_p * 5)]


class _Map(mmap.mmap):
    """Memory of a pool. `held` keeps its connection open as long as arrays
    show rows of it. `pinned` ends before the memory is unmapped, whereas a
    weakref to this object would notice only afterwards."""

    held: Any = None
    pinned: Any = None

    def advise(self, advice: int, first: int, size: int) -> None:
        """Calls madvise() without the GIL; mmap.madvise() holds it."""
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(_span(self)[0] + first), ctypes.c_size_t(size),
            advice)

    def __del__(self, ends: Any = sys.is_finalizing) -> None:
        # The release of all pages takes long, and an engine's step may be what
        # drops the last array: a thread does it.
        if not ends() and len(self) > _SLICE:
            with contextlib.suppress(RuntimeError):  # no more threads
                _thread.start_new_thread(self._empty, ())

    def _empty(self) -> None:
        self.pinned = None
        for first in range(0, len(self), _SLICE):
            self.advise(mmap.MADV_DONTNEED, first,
                        min(_SLICE, len(self) - first))


def _span(memory: mmap.mmap) -> Tuple[int, int]:
    """Returns address and size of a map."""
    view, api = _Buffer(), ctypes.pythonapi
    api.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(view), 0)
    try:
        return view.buf, view.len
    finally:
        api.PyBuffer_Release(ctypes.byref(view))


class Pool:
    """Made by Connection.pool(). After a restart of the daemon the pool is
    mapped anew; the old map is unmapped with the last room or array that shows
    it."""

    def __init__(self, info: Dict[str, Any], fd: int, epoch: int,
                 held: Any = None) -> None:
        self.epoch = epoch  # of the run that the map belongs to
        self.number: int = info["pool"]
        self.id: int = info["id"]  # the C library's number
        self.key = epoch, self.number
        self.name: str = info["name"]
        self.block_rows: int = info["block_rows"]
        self.blocks: int = info["blocks"]
        self.memory: str = info["memory"]
        self.layout: str = info["layout"]
        self.writable: bool = info["access"] == 1
        self.fields: Dict[str, Field] = {}
        try:
            for field in map(Field._make, info["fields"]):
                self.fields[field.name] = field
            if info["share"] not in ("", "memfd"):
                from . import cuda

                self._map = cuda.Memory(self.name, info["share"],
                                        info["handle"], fd, info["bytes"],
                                        self.writable)
                self._map.held = held
                return
            if fd < 0:  # mmap would make anonymous memory, full of zeros
                raise OSError(f"pool {self.name} came without a descriptor")
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
            self._map: Any = _Map(fd, info["bytes"], mmap.MAP_SHARED, prot)
            self._map.held = held
        finally:
            if fd >= 0:
                os.close(fd)
        # Core dumps must not contain users' data.
        if hasattr(mmap, "MADV_DONTDUMP"):
            self._map.madvise(mmap.MADV_DONTDUMP)

    def _become(self, other: "Pool") -> None:
        """Takes over the map of a new run's pool of this name. Arrays that
        show rows keep the old map."""
        self.__dict__.update(vars(other))

    def rows(self, field: str, first: int, rows: int) \
            -> "np.ndarray[Any, Any]":
        """Returns rows of a field, counted from the pool's first row, as an
        array of [rows, elements], or as cuda.Rows for a pool on a GPU. Room
        and Source know which rows are valid."""
        import numpy as np

        f = self.fields[field]
        if not isinstance(self._map, mmap.mmap):
            return self._map.rows(f.offset + first * f.row_bytes, rows,
                                  f.elements, f.dtype)
        flat = np.frombuffer(self._map, dtype(f.dtype), rows * f.elements,
                             f.offset + first * f.row_bytes)
        return flat.reshape(rows, f.elements)

    def populate(self) -> None:
        """Maps all pages of a host pool now, so that the first use of a row
        causes no page faults. Other threads run meanwhile."""
        advice = _POPULATE_WRITE if self.writable else _POPULATE_READ
        if isinstance(self._map, mmap.mmap):
            self._map.advise(advice, 0, len(self._map))

    def span(self) -> Tuple[int, int]:
        """Returns address and size of the map of a host pool, to pin it."""
        return _span(self._map)

    def __repr__(self) -> str:
        return (f"<Pool {self.name} {self.blocks} x {self.block_rows} rows "
                f"{self.layout}>")
