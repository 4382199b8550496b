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


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Old(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p),
                ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", _Deleter),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_NAMES = {_Old: b"dltensor", _Versioned: b"dltensor_versioned"}
_live: Dict[int, Any] = {}  # by address: objects that a capsule refers to


def _deleted(address: int) -> None:
    _live.pop(address, None)


_delete = _Deleter(_deleted)

_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_New.restype = ctypes.py_object


def _dropped(capsule: int) -> None:
    """Frees a capsule that was not consumed: a consumer renames it."""
    for name in _NAMES.values():
        if _api.PyCapsule_IsValid(capsule, name):
            _live.pop(_api.PyCapsule_GetPointer(capsule, name), None)


_unused = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_dropped)
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p,
                               type(_unused)]


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
        made: Any
        if max_version and max_version[0] >= 1:
            made = _Versioned(1, 0, None, _delete,
                              _READ_ONLY if self.read_only else 0)
        elif self.read_only:
            raise BufferError("the rows are read only, and this consumer's "
                              "DLPack version has no flag for that")
        else:
            made = _Old()
            made.deleter = _delete
        shape = (ctypes.c_int64 * 2)(*self.array.shape)
        strides = (ctypes.c_int64 * 2)(self.array.shape[1], 1)
        kind = DTYPES[self.kind]
        made.tensor = _Tensor(
            self.array.ctypes.data, _CPU, 0, 2, kind.code, 8 * kind.bytes, 1,
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)), 0)
        address = ctypes.addressof(made)
        _live[address] = (made, shape, strides, self.array)
        return _api.PyCapsule_New(address, _NAMES[type(made)], _unused)

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
