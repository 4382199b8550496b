"""Stands in for torch where there is no GPU: tensors in the memory of the
driver's double, whose streams are threads; so copies and kernels really run
later, in the order that streams and events give them. A wait of the host
within a pass of the engine raises, and so does a copy from memory that is not
pinned, which the driver would wait for. Two of its operations are kernels as
tests need them: one writes a tensor, one reads it."""

import contextlib
import ctypes
import threading
import types

import numpy as np

from mmx import cuda

TAG = 1 << 62  # of addresses on the GPU: test/double/double.h
GATES, KEPT = [], []  # KEPT: what streams may still call, read or write
WAITS = ("cpu", "item", "tolist", "numpy", "to", "cuda", "copy_", "nonzero",
         "any", "all", "sum", "__bool__", "__array__", "__int__")


class HostWaits(AssertionError):
    """What VLLM_GPU_SYNC_CHECK=error would end."""


class Stream:
    def __init__(self):
        handle = ctypes.c_void_p()
        with DRIVER.context(0):
            DRIVER.stream(ctypes.byref(handle), 1)
        self.cuda_stream = handle.value

    def _call(self, name, *words):
        with DRIVER.context(0):
            assert getattr(DRIVER.lib, name)(*words) == 0, name

    def wait_stream(self, other):
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 2)
        self._call("cuEventRecord", event, ctypes.c_void_p(other.cuda_stream))
        self._call("cuStreamWaitEvent", ctypes.c_void_p(self.cuda_stream),
                   event, 0)

    def synchronize(self):
        with DRIVER.context(0):
            DRIVER.sync(self.cuda_stream)

    def gate(self):
        """Has what follows on this stream wait until the event is set."""
        opened = threading.Event()
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            lambda _: opened.wait() and None)
        GATES.append(opened)
        KEPT.append(call)
        self._call("cuLaunchHostFunc", ctypes.c_void_p(self.cuda_stream),
                   call, None)
        return opened


class Tensor:
    is_cuda = True

    def __init__(self, shape, dtype, stream):
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self.nbytes = shape[0] * shape[1] * 2  # bf16
        self.streams = {stream}  # that the allocator knows of
        at = ctypes.c_uint64()
        with DRIVER.context(0):
            assert not DRIVER.lib.cuMemAlloc_v2(ctypes.byref(at),
                                                ctypes.c_size_t(self.nbytes))
        self.address = at.value

    def __len__(self):
        return self.shape[0]

    def data_ptr(self):
        return self.address

    def detach(self):
        return self

    contiguous = detach

    def untyped_storage(self):
        return self

    def record_stream(self, stream):
        self.streams.add(stream)


def _waits(name):
    def wait(self, *_how, **_more):
        raise HostWaits(f"Tensor.{name}")
    return wait


for _name in WAITS:
    setattr(Tensor, _name, _waits(_name))


# --- the modules ------------------------------------------------------------
_here = threading.local()


def current_stream():
    return _here.stream


@contextlib.contextmanager
def on(stream):
    before, _here.stream = getattr(_here, "stream", None), stream
    yield
    _here.stream = before


def empty(shape, device, dtype):
    assert device == "cuda"
    return Tensor(shape, dtype, current_stream())


def modules(driver):
    """Returns what stands in for modules of torch and vLLM."""
    global DRIVER
    DRIVER = driver
    return {
        "torch": types.SimpleNamespace(
            bfloat16="torch.bfloat16", empty=empty,
            get_device_module=lambda device: types.SimpleNamespace(
                Stream=Stream, stream=on, current_stream=current_stream,
                current_device=lambda: 0)),
        "vllm.platforms": types.SimpleNamespace(
            current_platform=types.SimpleNamespace(device_type="cuda"))}


@contextlib.contextmanager
def in_a_pass(stream, pinned):
    """A pass of the engine, whose kernels go to the stream. pinned: spans of
    host memory, as (address, bytes)."""
    copies = cuda.copies

    def checked(gpu, pieces, queue):
        for piece in pieces:
            for at in piece[:2]:
                if not at & TAG and not any(
                        a <= at and at + piece[2] <= a + n
                        for a, n in pinned):
                    raise HostWaits("memory that is not pinned")
        copies(gpu, pieces, queue)

    def sync(_stream):
        raise HostWaits("cuStreamSynchronize")
    wait, DRIVER.sync, cuda.copies = DRIVER.sync, sync, checked
    try:
        with on(stream):
            yield
    finally:
        DRIVER.sync, cuda.copies = wait, copies


def open_gates():
    while GATES:
        GATES.pop().set()


# --- kernels ----------------------------------------------------------------
def written(bits):
    """Returns a tensor that the current stream will write."""
    rows = Tensor(bits.shape, "torch.bfloat16", current_stream())
    bits = np.ascontiguousarray(bits)
    KEPT.append(bits)
    with DRIVER.context(0):
        DRIVER.copy(rows.address, bits.ctypes.data, rows.nbytes,
                    current_stream().cuda_stream)
    return rows


def read(rows):
    """Returns the bits that the current stream will have read."""
    if current_stream() not in rows.streams:
        raise AssertionError("the allocator does not know of this stream")
    bits = np.zeros(rows.shape, "u2")
    KEPT.append(bits)
    with DRIVER.context(0):
        DRIVER.copy(bits.ctypes.data, rows.address, rows.nbytes,
                    current_stream().cuda_stream)
    return bits
