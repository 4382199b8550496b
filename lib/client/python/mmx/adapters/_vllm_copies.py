"""Copies of rows between a pool and vLLM's tensors.

Streams copies as vLLM's own connectors do: a step's copies are one batch on a
stream of its own, which begins after the kernels that wrote the rows; the
kernels that read them wait for it on the GPU; what is due when they are over
is called by step(), once their event has completed. Nothing here waits for
the GPU but close(). Here copies before it returns, for models on a CPU."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterator, List, NamedTuple, Tuple, Union

import numpy as np

import mmx
from mmx import cuda
from mmx.dtypes import DTYPES
from mmx.tensor import Tensor

from ._common import from_tensor
from ._vllm_engine import gpu_sync_allowed, log

Call = Callable[[], Any]


class Rows(NamedTuple):
    """All rows of an item, in runs."""

    pool: mmx.Pool
    field: mmx.pool.Field
    rows: int
    runs: Tuple[mmx.Run, ...]

    def pieces(self) -> Iterator[Tuple[int, Any]]:
        """Yields the item's rows as they lie in the pool, and which row of
        the item is the first of them."""
        for r in self.runs:
            yield r.first, self.pool.rows(self.field.name, r.place,
                                          min(r.rows, self.rows - r.first))


class Here:
    """device: of the model, where Streams has none of its driver; there and
    back a copy waits for the device."""

    later = False

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def load(self, items: List[Rows], over: Call) -> List[Any]:
        """Returns one tensor of each item's rows; over() is called when they
        are copied."""
        made = [self._loaded(item) for item in items]
        over()
        return made

    def _loaded(self, item: Rows) -> Any:
        out = np.empty((item.rows, item.field.elements),
                       mmx.pool.dtype(item.field.dtype))
        for first, part in item.pieces():
            out[first:first + len(part)] = part
        try:
            rows = Tensor(out, item.field.dtype).torch()
        except ImportError:
            return out
        if self.device is None:
            return rows
        with gpu_sync_allowed():
            return rows.to(self.device)

    def save(self, rows: Any, item: Rows, over: Call) -> None:
        """Copies a tensor into the pool; over() is called when it is."""
        with gpu_sync_allowed():
            values = from_tensor(rows)
        for first, part in item.pieces():
            part[:] = values[first:first + len(part)]
        over()

    def flush(self) -> None:
        """Begins the copies of this step's saves."""

    def step(self) -> None:
        """Calls what is due."""

    def prepare(self, pool: mmx.Pool) -> None:
        """Has a pool's pages mapped, in a thread of the caller's."""
        pool.populate()

    close = step


class Streams(Here):
    later = True

    def __init__(self, device: str) -> None:
        import torch

        super().__init__(device)
        self._torch, self._gpu = torch, torch.get_device_module(device)
        self._fences = cuda.Fences()
        self._number = self._gpu.current_device()
        self._stream = self._gpu.Stream()
        self._saves: List[Tuple[Any, Rows, Call]] = []

    def load(self, items: List[Rows], over: Call) -> List[Any]:
        kernels = self._gpu.current_stream()
        made = []
        # Memory of this stream: it is not in use by kernels that still run.
        with self._gpu.stream(self._stream):
            for item in items:
                made.append(self._torch.empty(
                    (item.rows, item.field.elements), device=self.device,
                    dtype=getattr(self._torch,
                                  DTYPES[item.field.dtype].torch)))
                made[-1].record_stream(kernels)
        self._copy([(to, there, size) for rows, item in zip(made, items)
                    for to, there, size in _pieces(rows, item)], items, over)
        kernels.wait_stream(self._stream)
        return made

    def save(self, rows: Any, item: Rows, over: Call) -> None:
        self._saves.append((rows.detach().contiguous(), item, over))

    def flush(self) -> None:
        saves, self._saves = self._saves, []
        if not saves:
            return
        self._stream.wait_stream(self._gpu.current_stream())
        self._copy([(there, at, size) for rows, item, _ in saves
                    for at, there, size in _pieces(rows, item)], saves,
                   lambda: [over() for _, _, over in saves])

    def _copy(self, pieces: List[Tuple[int, int, int]], held: Any,
              over: Call) -> None:
        """held: memory that nothing else holds until the copies are over."""
        cuda.copies(self._number, pieces, self._stream)
        self._fences.after(self._stream, self._number,
                           lambda held=held: over())

    def step(self) -> None:
        self._fences.step()

    def prepare(self, pool: mmx.Pool) -> None:
        super().prepare(pool)
        if pool.memory != "host":
            return
        try:
            unpin = cuda.pin(pool, self._number)
        except cuda.CudaError as e:
            log.warning("copies wait for the GPU: %s", e)
            return
        weakref.finalize(pool, unpin).atexit = False

    def close(self) -> None:
        """Waits: what the daemons get back must not be written any more."""
        self._stream.synchronize()
        self.step()


def _pieces(rows: Any, item: Rows) -> Iterator[Tuple[int, int, int]]:
    """Yields where the item's pieces lie in a tensor and in the pool, and
    their bytes."""
    for first, part in item.pieces():
        there = part.address if isinstance(part, cuda.Rows) \
            else part.ctypes.data
        yield (rows.data_ptr() + first * item.field.row_bytes, there,
               part.nbytes)


def copies() -> Union[Here, Streams]:
    """Returns what copies rows to and from vLLM's tensors, by the device that
    its model is on."""
    try:
        from vllm.platforms import current_platform as platform
    except ImportError:
        return Here()
    if platform.device_type == "cpu":
        return Here()
    try:
        return Streams(platform.device_type)
    except cuda.CudaError as e:
        import torch

        log.warning("copies wait for the device: %s", e)
        return Here(torch.device(platform.device_type,
                                 platform.current_device()))
