"""Pools that lie in the memory of a GPU.

The daemon owns the memory; the C library maps it through the CUDA driver,
which is loaded with the first such pool. Room.view() and Source[field][a:b]
then return Rows: an address on the GPU with a shape, which torch and others
take without a copy (torch(), __dlpack__, __cuda_array_interface__), and numpy
as a copy in host memory.

Order with kernels: readable rows have landed, no wait is needed. Before rows
are committed or released, the kernels that write or read them must finish;
Fences ensures that without waiting for a whole GPU.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ._lib import call
from .dtypes import DTYPES
from .tensor import capsule

if TYPE_CHECKING:
    import numpy as np

_u64, _int, _size = ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t
_ptr = ctypes.c_void_p

_map = call("mmx_gpu_map", ctypes.c_char_p, _int, ctypes.c_char_p, _size, _u64,
            _int, ctypes.POINTER(_int), ctypes.POINTER(_ptr),
            returns=ctypes.c_char_p)
_unmap = call("mmx_gpu_unmap", _int, _ptr, _u64, returns=None)

_NOT_READY = 600  # CUDA_ERROR_NOT_READY: the event has not completed
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_READ_ONLY_ATTRIBUTE = 113  # ..._READ_ONLY_HOST_REGISTER_SUPPORTED
_PORTABLE, _READ_ONLY = 1, 8  # CU_MEMHOSTREGISTER_*


class CudaError(RuntimeError):
    """The driver is missing or refused a call."""


class Driver:
    """libcuda's functions as methods that raise; one per process."""

    _the: Optional["Driver"] = None

    # Function: its name in the library and the types of its arguments.
    _CALLS: Dict[str, Tuple[str, List[Any]]] = {
        "init": ("cuInit", [ctypes.c_uint]),
        "attribute": ("cuDeviceGetAttribute", [_ptr, _int, _int]),
        "retain": ("cuDevicePrimaryCtxRetain", [_ptr, _int]),
        "push": ("cuCtxPushCurrent_v2", [_ptr]),
        "pop": ("cuCtxPopCurrent_v2", [_ptr]),
        "copy": ("cuMemcpyAsync", [_u64, _u64, _size, _ptr]),
        "batch": ("cuMemcpyBatchAsync_v2",
                  [_ptr, _ptr, _ptr, _size, _ptr, _ptr, _size, _ptr]),
        "stream": ("cuStreamCreate", [_ptr, ctypes.c_uint]),
        "sync": ("cuStreamSynchronize", [_ptr]),
        "event": ("cuEventCreate", [_ptr, ctypes.c_uint]),
        "record": ("cuEventRecord", [_ptr, _ptr]),
        "event_drop": ("cuEventDestroy_v2", [_ptr]),
        "pin": ("cuMemHostRegister_v2", [_ptr, _size, ctypes.c_uint]),
        "unpin": ("cuMemHostUnregister", [_ptr]),
    }

    def __init__(self, path: str) -> None:
        try:
            self.lib = ctypes.CDLL(path)
        except OSError as e:
            raise CudaError(f"no NVIDIA driver: {e}") from None
        self.contexts: Dict[int, int] = {}
        self.streams: Dict[int, int] = {}
        self.init(0)

    @classmethod
    def get(cls, path: str = "libcuda.so.1") -> "Driver":
        """Returns the driver, loaded at the first call. path: for tests."""
        if not cls._the:
            cls._the = cls(path)
        return cls._the

    def __getattr__(self, name: str) -> Callable[..., None]:
        symbol, types = self._CALLS[name]
        function = getattr(self.lib, symbol)
        function.argtypes, function.restype = types, _int

        def call(*args: Any) -> None:
            result = function(*args)
            if result:
                raise CudaError(f"{symbol}: {self.text(result)}")
        setattr(self, name, call)
        return call

    def text(self, result: int) -> str:
        name = ctypes.c_char_p()
        self.lib.cuGetErrorName(_int(result), ctypes.byref(name))
        return (name.value or b"unknown error").decode()

    def is_over(self, event: int) -> bool:
        result = self.lib.cuEventQuery(_ptr(event))
        if result in (0, _NOT_READY):
            return bool(result == 0)
        raise CudaError(f"cuEventQuery: {self.text(result)}")

    def context(self, gpu: int) -> "_Inside":
        """Returns the primary context, which torch uses as well."""
        if gpu not in self.contexts:
            context = _ptr()
            self.retain(ctypes.byref(context), gpu)
            self.contexts[gpu] = context.value or 0
        return _Inside(self, self.contexts[gpu])

    def own_stream(self, gpu: int) -> int:
        if gpu not in self.streams:
            stream = _ptr()
            self.stream(ctypes.byref(stream), _NON_BLOCKING)
            self.streams[gpu] = stream.value or 0
        return self.streams[gpu]


class _Inside:
    def __init__(self, driver: Driver, context: int) -> None:
        self.driver, self.it = driver, context

    def __enter__(self) -> None:
        self.driver.push(self.it)

    def __exit__(self, *_: Any) -> None:
        self.driver.pop(ctypes.byref(_ptr()))


# --- mapping a pool ---------------------------------------------------------
class Memory:
    """A pool's memory, mapped in this process; unmapped with the last Rows
    of it."""

    held: Any = None  # keeps the connection open as long as this exists

    def __init__(self, name: str, share: str, handle: bytes, fd: int,
                 size: int, writable: bool) -> None:
        self.driver = Driver.get()
        self.size, self.writable = size, writable
        gpu, base = _int(), _ptr()
        why = _map(share.encode(), fd, handle, len(handle), size, writable,
                   gpu, base)
        if why:
            raise CudaError(f"pool {name}: {why.decode()}")
        self.gpu, self.address = gpu.value, base.value or 0
        weakref.finalize(self, _unmap, gpu, base, size)

    def rows(self, offset: int, rows: int, elements: int, dtype: str) -> Rows:
        return Rows(_Shown(self), self.address + offset, rows, elements,
                    dtype)

    # --- synchronous copies, on a stream of their own -----------------------
    def _copy(self, to: int, source: int, size: int) -> None:
        if not size:
            return
        with self.driver.context(self.gpu):
            stream = self.driver.own_stream(self.gpu)
            self.driver.copy(to, source, size, stream)
            self.driver.sync(stream)

    def write(self, address: int, array: "np.ndarray[Any, Any]") -> None:
        self._copy(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: "np.ndarray[Any, Any]") -> None:
        self._copy(array.ctypes.data, address, array.nbytes)


class _Shown:
    """All Rows of one view and their slices refer to this; a room watches
    it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory


_KDL_CUDA = 2  # DLPack's device


class Rows:
    """Rows of one field on a GPU: [rows, elements], C order. This object, or
    a tensor made of it, keeps the memory mapped; the rows are valid until
    the room releases them."""

    def __init__(self, shown: _Shown, address: int, rows: int, elements: int,
                 dtype: str) -> None:
        self.base = shown
        self.address, self.dtype = address, dtype
        self.shape = (rows, elements)
        self.row_bytes = elements * DTYPES[dtype].bytes

    @property
    def gpu(self) -> int:
        """Number of the GPU in this process."""
        return self.base.memory.gpu

    @property
    def writable(self) -> bool:
        return self.base.memory.writable

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Rows {self.shape} {self.dtype} cuda:{self.gpu}>"

    def __getitem__(self, rows: slice) -> "Rows":
        if not isinstance(rows, slice):
            raise TypeError("rows are indexed by slices")
        first, end, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("the step of a slice of rows must be 1")
        return Rows(self.base, self.address + first * self.row_bytes,
                    max(end - first, 0), self.shape[1], self.dtype)

    def __setitem__(self, rows: slice, values: Any) -> None:
        """Copies values in host memory into the rows, and waits for the copy.
        For values on a GPU use torch()[...].copy_(values), or any kernel."""
        import numpy as np

        to = self[rows]
        if not self.writable:
            raise ValueError("the pool is read-only here")
        kind = np.dtype(DTYPES[self.dtype].plain[0])
        array = np.ascontiguousarray(
            np.broadcast_to(np.asarray(values, dtype=kind), to.shape))
        self.base.memory.write(to.address, array)

    def __array__(self, dtype: Any = None, copy: Any = None) \
            -> "np.ndarray[Any, Any]":
        """Copies the rows into host memory."""
        import numpy as np

        from .pool import dtype as numpy_dtype

        array = np.empty(self.shape, numpy_dtype(self.dtype))
        self.base.memory.read(self.address, array)
        return array if dtype is None else array.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {"shape": self.shape, "typestr": DTYPES[self.dtype].plain[0],
                "data": (self.address if self.nbytes else 0,
                         not self.writable),
                "version": 3, "strides": None, "stream": None}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _KDL_CUDA, self.gpu

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """Exports the rows; stream is ignored, because readable rows have
        landed. This version of DLPack has no read-only tensors: a write to
        rows of a read-only pool is an error of the GPU."""
        kind = DTYPES[self.dtype]
        return capsule(self.address, (_KDL_CUDA, self.gpu), self.shape,
                       kind.plain[1], kind.bytes, self, None)

    def torch(self) -> Any:
        """Returns a torch tensor of the same memory."""
        import torch

        tensor = torch.from_dlpack(self)
        kind = DTYPES[self.dtype]
        if kind.plain[1] != kind.code:
            tensor = tensor.view(getattr(torch, kind.torch))
        return tensor


# --- order with kernels -----------------------------------------------------
def stream_of(stream: Any) -> int:
    """Returns the handle of a torch stream, or of a number."""
    return int(getattr(stream, "cuda_stream", stream))


def copies(gpu: int, pieces: List[Tuple[int, int, int]], stream: Any) -> None:
    """Queues copies on a stream, each as (to, from, bytes) with addresses: in
    one call if the driver has one (CUDA 13). A copy from or to unpinned host
    memory waits."""
    driver, queue, n = Driver.get(), stream_of(stream), len(pieces)
    words = [(_u64 * n)(*column) for column in zip(*pieces)]
    how, first = (ctypes.c_uint * 6)(_STREAM_ORDER), _size()
    with driver.context(gpu):
        try:
            if n > 1:
                driver.batch(*words, n, how, ctypes.byref(first), 1, queue)
                return
        except (AttributeError, CudaError):
            pass  # singly, to find out which copy is wrong
        for piece in pieces:
            driver.copy(*piece, queue)


class Fences:
    """Calls that are due after kernels, in the connection's thread:

        fences.after(torch.cuda.current_stream(), gpu,
                     lambda: source.commit(0, rows, final=True))
        ...
        fences.step()       # in the loop, beside Connection.step()

    after() records an event on the stream; step() makes the calls whose event
    has completed. Neither waits for the GPU."""

    def __init__(self) -> None:
        self._driver = Driver.get()
        self._waiting: List[Tuple[int, int, Callable[[], Any]]] = []

    def after(self, stream: Any, gpu: int, call: Callable[[], Any]) -> None:
        event = _ptr()
        with self._driver.context(gpu):
            self._driver.event(ctypes.byref(event), _NO_TIMING)
            self._driver.record(event, stream_of(stream))
        self._waiting.append((gpu, event.value or 0, call))

    def step(self) -> int:
        """Makes the calls that are due; returns their number. If one raises,
        the next step() makes the others."""
        made = 0
        for gpu, event, call in list(self._waiting):
            with self._driver.context(gpu):
                if not self._driver.is_over(event):
                    continue
                self._waiting.remove((gpu, event, call))
                self._driver.event_drop(event)
            made += 1
            call()
        return made

    def __len__(self) -> int:
        return len(self._waiting)


# --- host pools under a GPU -------------------------------------------------
def pin(pool: Any, gpu: int = 0) -> Callable[[], None]:
    """Pins a host pool, so that copies from it to a GPU are asynchronous and
    fast. Returns a function that unpins it; call it before the pool is asked
    for again. Only some GPUs and drivers pin read-only maps: the others raise
    CudaError, which names the setting `engine_access: write`."""
    driver = Driver.get()
    flags, can = _PORTABLE, _int()
    if not pool.writable:
        flags |= _READ_ONLY
        driver.attribute(ctypes.byref(can), _READ_ONLY_ATTRIBUTE, gpu)
    address, size = pool.span()
    with driver.context(gpu):
        try:
            driver.pin(address, size, flags)
        except CudaError as e:
            if pool.writable:
                raise
            raise CudaError(
                f"pool {pool.name}: a read-only map cannot be pinned on this "
                f"GPU ({e}; the driver {'claims' if can.value else 'lacks'} "
                "the ability): set engine_access: write") from None

    def unpin() -> None:
        with driver.context(gpu):
            driver.unpin(address)
    return unpin
