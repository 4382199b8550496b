"""Plans of windows, run on a GPU: copies rows of GPU pools to their positions
in inputs_embeds, by one launch for up to 64 pieces.

    mover = Mover(gpu=0)
    step = plan(computed, 2048, items)
    mover.run(step, rooms, "embedding", inputs_embeds, stream)

Copies the same rows as Plan.run() on a CPU, after the same checks. The launch
returns at once: the rooms' rows are in use until the stream has passed it
(cuda.Fences, before release)."""

from __future__ import annotations

import ctypes
import os
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import errors
from .cuda import CudaError, Driver, Rows, stream_of
from .dtypes import BY_TORCH
from .plan import Plan

PIECES_MAX = 64
_THREADS = 256
_BLOCKS = 2048  # thread blocks of one launch: fill every GPU
_FUNCTIONS = {"same": "mmx_rows", "bf16": "mmx_rows_bf16_f32",
              "f16": "mmx_rows_f16_f32"}


class _Piece(ctypes.Structure):
    _fields_ = [("from_", ctypes.c_uint64), ("to", ctypes.c_uint64),
                ("from_stride", ctypes.c_uint64),
                ("to_stride", ctypes.c_uint64), ("rows", ctypes.c_uint32),
                ("elements", ctypes.c_uint32)]


class _Pieces(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint32), ("row_bytes", ctypes.c_uint32),
                ("of", _Piece * PIECES_MAX)]


class Tensor(NamedTuple):
    """Destination of rows on the GPU; tensor_of() makes it of a torch
    tensor."""

    address: int
    places: int
    elements: int
    stride: int  # bytes from place to place
    dtype: str


def tensor_of(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out
    if not out.is_cuda or out.dim() != 2 or out.stride(1) != 1:
        raise errors.Malformed("out must be a [places, elements] tensor on a "
                               "GPU whose rows are contiguous")
    name = str(out.dtype).split(".")[-1]
    return Tensor(out.data_ptr(), out.shape[0], out.shape[1],
                  out.stride(0) * out.element_size(), BY_TORCH.get(name, name))


def _file() -> str:
    """Returns the path of the kernels that `make kernels` or `make install`
    has written."""
    here = os.path.dirname(os.path.abspath(__file__))
    tree = os.path.normpath(os.path.join(here, "../../../.."))
    if "MMX_KERNELS" in os.environ:
        return os.environ["MMX_KERNELS"]
    places = [os.path.join(here, "rows.fatbin"),
              os.path.join(tree, os.environ.get("B", "build"),
                           "kernels/rows.fatbin"),
              "/usr/lib/mmx/rows.fatbin", "/usr/local/lib/mmx/rows.fatbin"]
    for place in places:
        if os.path.exists(place):
            return place
    raise CudaError("no kernels: `make kernels` builds rows.fatbin; not found "
                    "in " + ", ".join(places))


class Mover:
    def __init__(self, gpu: int = 0, path: Optional[str] = None) -> None:
        self.gpu, self.driver = gpu, Driver.get()
        with open(path or _file(), "rb") as f:
            self._image = f.read()
        self._functions = {}
        with self.driver.context(gpu):
            module = ctypes.c_void_p()
            self.driver.module(ctypes.byref(module), self._image)
            for how, name in _FUNCTIONS.items():
                function = ctypes.c_void_p()
                self.driver.function(ctypes.byref(function), module,
                                     name.encode())
                self._functions[how] = function

    def run(self, plan: Plan, rooms: Sequence[Any], field: str, out: Any,
            stream: Any, *, packed: bool = False) -> None:
        """Copies one field of the plan's rows into out; see Plan.run. Raises
        before the first launch."""
        to = tensor_of(out)
        how, row_bytes, pieces = self._pieces(plan, rooms, field, to, packed)
        for first in range(0, len(pieces), PIECES_MAX):
            self._launch(how, row_bytes, pieces[first:first + PIECES_MAX],
                         stream_of(stream))

    def _pieces(self, plan: Plan, rooms: Sequence[Any], field: str,
                to: Tensor, packed: bool) -> Tuple[str, int, List[_Piece]]:
        how, row_bytes, pieces = "", 0, []
        for view, at, rows in plan._pieces(rooms, field, packed, to[1:3],
                                           to.dtype):
            as_is = "same" if view.dtype == to.dtype else view.dtype
            if how not in ("", as_is):
                raise errors.IncompatibleLayout(
                    f"room {view.index}: {view.dtype}, beside others")
            pieces.append(self._piece(rows, to, at))
            how, row_bytes = as_is, rows.row_bytes
        return how, row_bytes, pieces

    def _piece(self, rows: Any, to: Tensor, at: int) -> _Piece:
        if not isinstance(rows, Rows) or rows.gpu != self.gpu:
            raise errors.Malformed(f"rows are not on cuda:{self.gpu}")
        return _Piece(rows.address, to.address + at * to.stride,
                      rows.row_bytes, to.stride, len(rows), to.elements)

    def _launch(self, how: str, row_bytes: int, pieces: List[_Piece],
                stream: int) -> None:
        given = _Pieces(len(pieces), row_bytes,
                        (_Piece * PIECES_MAX)(*pieces))
        most = max(p.rows for p in pieces)
        wide = max(1, min(most, _BLOCKS // len(pieces)))
        params = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        with self.driver.context(self.gpu):
            self.driver.launch(self._functions[how], wide, len(pieces), 1,
                               _THREADS, 1, 1, 0, stream, params, None)
