"""Rows for other libraries without a copy: DLPack, torch.

numpy exports no read-only arrays by DLPack, and has no bf16; so the capsule is
made here, in the versioned form with its read-only flag, or in the old form
for a consumer that knows no other, if the rows may be written. The capsule
keeps the array alive: releasing the rows before raises ViewInUse.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from .dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np

_CPU, _READ_ONLY = 1, 1


def native(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Returns the same rows with the types of ml_dtypes instead of tagged
    integers; needs ml_dtypes for bf16 and f8."""
    kind = (array.dtype.metadata or {}).get("mmx")
    if not kind:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, DTYPES[kind].torch))


# --- capsules, of rows in any memory ------------------------------------------
_ptr = ctypes.c_void_p


class _Tensor(ctypes.Structure):
    _fields_ = [("data", _ptr), ("device", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, _ptr)


class _Old(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", _ptr),
                ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", _ptr), ("deleter", _Deleter),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_NAMES = {_Old: b"dltensor", _Versioned: b"dltensor_versioned"}
_live: Dict[int, Any] = {}  # by address: objects that a capsule refers to

# Not ctypes.pythonapi: its functions, and the types that are set on them, are
# shared by the whole process.
_python = ctypes.PyDLL(None)
_valid, _pointer = _python.PyCapsule_IsValid, _python.PyCapsule_GetPointer
_valid.argtypes = _pointer.argtypes = [_ptr, ctypes.c_char_p]
_pointer.restype = _ptr
_new = _python.PyCapsule_New
_new.argtypes, _new.restype = [_ptr, ctypes.c_char_p, _ptr], ctypes.py_object


@_Deleter
def _delete(address: int) -> None:
    _live.pop(address, None)


@ctypes.PYFUNCTYPE(None, _ptr)
def _unused(capsule: int) -> None:
    """Frees a capsule that was not consumed: a consumer renames it."""
    for name in _NAMES.values():
        if _valid(capsule, name):
            _live.pop(_pointer(capsule, name), None)


def capsule(address: int, device: Tuple[int, int], shape: Tuple[int, ...],
            code: int, size: int, keep: Any, flags: Optional[int]) -> Any:
    """Returns a capsule of contiguous rows, which keeps `keep` alive. flags:
    of the versioned form; None: the old form."""
    made: Any = _Old() if flags is None else _Versioned(major=1, flags=flags)
    made.deleter = _delete
    sizes = (ctypes.c_int64 * 2)(*shape)
    strides = (ctypes.c_int64 * 2)(shape[1], 1)
    made.tensor = _Tensor(address, *device, 2, code, 8 * size, 1, sizes,
                          strides, 0)
    at = ctypes.addressof(made)
    _live[at] = (made, sizes, strides, keep)
    return _new(at, _NAMES[type(made)], ctypes.cast(_unused, _ptr))


# --- rows in host memory ------------------------------------------------------
class Tensor:
    """Rows of one field, [rows, elements]; made by Room.tensor()."""

    def __init__(self, array: "np.ndarray[Any, Any]", kind: str) -> None:
        self.array, self.kind = array, kind

    @property
    def read_only(self) -> bool:
        return not self.array.flags.writeable

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _CPU, 0

    def __dlpack__(self, *, stream: Any = None,
                   max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Any = None, copy: Optional[bool] = None) -> Any:
        if copy or dl_device not in (None, (_CPU, 0)):
            raise BufferError("rows are exported in place, in host memory")
        versioned = max_version and max_version[0] >= 1
        if self.read_only and not versioned:
            raise BufferError("the rows are read only, and this consumer's "
                              "DLPack version has no flag for that")
        kind = DTYPES[self.kind]
        return capsule(
            self.array.ctypes.data, (_CPU, 0), self.array.shape, kind.code,
            kind.bytes, self.array,
            (_READ_ONLY if self.read_only else 0) if versioned else None)

    def torch(self) -> Any:
        """Returns a torch tensor over the same rows. torch has no read-only
        tensors: a write to rows of a read-only pool is a fault."""
        import torch

        kind = getattr(torch, DTYPES[self.kind].torch)
        if self.array.size == 0:
            return torch.empty(self.array.shape, dtype=kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a read-only buffer
            flat = torch.frombuffer(self.array.reshape(-1).view("u1"),
                                    dtype=kind)
        return flat.view(*self.array.shape)
