"""Copies of rows between a pool and an engine's tensors.

Streams copies as vLLM's own connectors do: a step's copies are one batch on a
stream of its own, which begins after the kernels that wrote the rows; the
kernels that read them wait for it on the GPU, or are begun later; what is due
when they are over is called by step(), once their event has completed. Nothing
here waits for the GPU but close(). Here copies before it returns, for models
on a CPU."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import weakref
from typing import (Any, Awaitable, Callable, Iterable, Iterator, List,
                    Sequence, Tuple, Union)

import numpy as np

import mmx
from mmx import cuda
from mmx.dtypes import DTYPES
from mmx.tensor import Tensor

from ._common import from_tensor, misfit

Call = Callable[[], Any]
# up to this size the loop copies: waking a thread takes longer
HERE_BYTES = 1 << 20
POLL_S = 0.0005  # interval of looks at copies on a GPU


class Rows:
    """All rows of an item, in runs, as they lie in the pool. The arrays are
    made now: a pool that follows its name may belong to another run when they
    are copied, perhaps by another thread."""

    def __init__(self, pool: mmx.Pool, field: mmx.pool.Field, rows: int = 0,
                 runs: Iterable[mmx.Run] = ()) -> None:
        self.pool, self.field, self.rows = pool, field, 0
        # For each piece the item's row at which it begins.
        self.pieces: List[Tuple[int, Any]] = []
        self.add(pool, rows, runs)

    def add(self, pool: mmx.Pool, rows: int, runs: Iterable[mmx.Run]) -> None:
        """Appends rows, perhaps of another pool with this field."""
        self.pieces += [
            (self.rows + r.first, pool.rows(self.field.name, r.place,
                                            min(r.rows, rows - r.first)))
            for r in runs]
        self.rows += rows

    @classmethod
    def written(cls, source: mmx.Source, field: mmx.pool.Field,
                rows: Any, more: int = 0) -> "Rows":
        """Returns the places for a tensor's rows; ValueError: the tensor does
        not fit the source. more: rows of the source behind the tensor's."""
        count = (source.total or 0) - more
        if len(rows) != count:
            raise ValueError(f"{len(rows)} rows, {count} were announced")
        why = misfit(field, rows.shape[-1], rows.dtype)
        if why or rows.ndim != 2:
            raise ValueError(f"pool {source.pool.name} {why or 'holds rows'}")
        return cls(source.pool, field, count, source.pieces(0, count))


def shown(array: Any, kind: str) -> Any:
    """Returns a tensor over an array; without torch, the array."""
    try:
        return Tensor(array, kind).torch()
    except ImportError:
        return array


async def whole(call: Awaitable[Any]) -> Any:
    """Awaits the call and defers cancellation to its end, since the blocks
    that it writes to may belong to another room afterwards."""
    doing = asyncio.ensure_future(call)
    cancelled = None
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError as e:
            cancelled = e
    if cancelled:
        raise cancelled
    return doing.result()


async def here(item: Rows, copy: Call) -> Any:
    """Returns what copy() returns; it copies the item's rows and waits."""
    if item.rows * item.field.row_bytes <= HERE_BYTES:
        return copy()
    return await whole(asyncio.to_thread(copy))


class Here:
    """Copies that wait. device: the model's, if Streams has no driver for it.
    waits: returns a context that allows such waits."""

    later = False

    def __init__(self, device: Any = None,
                 waits: Call = contextlib.nullcontext) -> None:
        self.device, self.waits = device, waits

    def load(self, items: List[Rows], over: Call,
             readers: Sequence[Any] = ()) -> List[Any]:
        """Returns a tensor of the rows of each item; over() is called when
        they are copied. readers: streams of the kernels that will read the
        rows, which begin after over(). Without readers the current stream's
        kernels read them, and that stream waits for the copies."""
        made = [self._loaded(item) for item in items]
        over()
        return made

    def _loaded(self, item: Rows) -> Any:
        out = np.empty((item.rows, item.field.elements),
                       mmx.pool.dtype(item.field.dtype))
        for first, part in item.pieces:
            out[first:first + len(part)] = part
        rows = shown(out, item.field.dtype)
        if self.device is None:
            return rows
        with self.waits():
            return rows.to(self.device)

    def save(self, rows: Any, item: Rows, over: Call) -> None:
        """Copies a tensor into the pool; over() is called at the end."""
        with self.waits():
            values = from_tensor(rows)
        for first, part in item.pieces:
            part[:] = values[first:first + len(part)]
        over()

    async def saved(self, rows: Any, item: Rows) -> None:
        """Copies a tensor into the pool, for an asyncio loop."""
        await here(item, lambda: Here.save(self, rows, item, lambda: None))

    def flush(self) -> None:
        """Begins the copies of this step's saves."""

    def step(self) -> None:
        """Calls over() for copies that have ended."""

    def meet(self, pool: mmx.Pool) -> None:
        """Has a thread prepare a new pool."""
        # A copy: a pool that follows its name may belong to another run by
        # then.
        threading.Thread(target=self.prepare, args=(copy.copy(pool),),
                         daemon=True).start()

    def prepare(self, pool: mmx.Pool) -> None:
        """Maps the pool's pages now, and pins them for a GPU."""
        pool.populate()

    close = step


class _Pin:
    """Belongs to a map and is freed with it: its finalizer then unpins the
    map's memory."""


class Streams(Here):
    later = True

    def __init__(self, device: str, log: Any) -> None:
        import torch

        super().__init__(device)
        self._log = log
        self._torch, self._gpu = torch, torch.get_device_module(device)
        self._fences = cuda.Fences()
        self._number = self._gpu.current_device()
        self._stream = self._gpu.Stream()
        self._saves: List[Tuple[Any, Rows, Call]] = []

    def load(self, items: List[Rows], over: Call,
             readers: Sequence[Any] = ()) -> List[Any]:
        kernels = self._gpu.current_stream()
        made = []
        # Memory of this stream: it is not in use by kernels that still run.
        with self._gpu.stream(self._stream):
            for item in items:
                made.append(self._torch.empty(
                    (item.rows, item.field.elements), device=self.device,
                    dtype=getattr(self._torch,
                                  DTYPES[item.field.dtype].torch)))
                for stream in (kernels, *readers):
                    made[-1].record_stream(stream)
        self._copy([(to, there, size) for rows, item in zip(made, items)
                    for to, there, size in _pieces(rows, item)], items, [over])
        if not readers:
            kernels.wait_stream(self._stream)
        return made

    def save(self, rows: Any, item: Rows, over: Call) -> None:
        self._saves.append((rows.detach().contiguous(), item, over))

    async def saved(self, rows: Any, item: Rows) -> None:
        if not getattr(rows, "is_cuda", False):
            return await super().saved(rows, item)
        over: List[bool] = []

        async def copied() -> None:
            while not over:
                await asyncio.sleep(POLL_S)
                self.step()

        self.save(rows, item, lambda: over.append(True))
        self.flush()
        await whole(copied())

    def flush(self) -> None:
        saves, self._saves = self._saves, []
        if not saves:
            return
        self._stream.wait_stream(self._gpu.current_stream())
        self._copy([(there, at, size) for rows, item, _ in saves
                    for at, there, size in _pieces(rows, item)], saves,
                   [over for _, _, over in saves])

    def _copy(self, pieces: List[Tuple[int, int, int]], held: Any,
              calls: List[Call]) -> None:
        """held: memory that nothing else holds until the copies are over."""
        cuda.copies(self._number, pieces, self._stream)
        for call in calls:
            self._fences.after(self._stream, self._number,
                               lambda held=held, call=call: call())

    def step(self) -> None:
        self._fences.step()

    def prepare(self, pool: mmx.Pool) -> None:
        super().prepare(pool)
        if pool.memory != "host":
            return
        try:
            unpin = cuda.pin(pool, self._number)
        except cuda.CudaError as e:
            self._log.warning("copies wait for the GPU: %s", e)
            return
        pool._map.pinned = pin = _Pin()
        weakref.finalize(pin, unpin).atexit = False

    def close(self) -> None:
        """Waits for all copies: blocks that go back must not be written to."""
        self._stream.synchronize()
        self.step()


def _pieces(rows: Any, item: Rows) -> Iterator[Tuple[int, int, int]]:
    """Yields for each piece of the item its address in the tensor, its address
    in the pool, and its bytes."""
    for first, part in item.pieces:
        there = part.address if isinstance(part, cuda.Rows) \
            else part.ctypes.data
        yield (rows.data_ptr() + first * item.field.row_bytes, there,
               part.nbytes)


def copies(device: str, log: Any,
           waits: Call = contextlib.nullcontext) -> Union[Here, Streams]:
    """Returns an object that copies rows to and from an engine's tensors.
    device: the model's, as torch names it."""
    if device == "cpu":
        return Here()
    try:
        return Streams(device, log)
    except cuda.CudaError as e:
        import torch

        log.warning("copies wait for the device: %s", e)
        number = torch.get_device_module(device).current_device()
        return Here(torch.device(device, number), waits)
