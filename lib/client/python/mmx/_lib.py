"""The C library, libmmx.so.0, which this package uses for what needs no
connection: windows, aux, references, ids of names, words for reasons, tables of
messages, maps of pools on a GPU. mmx.h says what its calls do; structs that are
passed to it are as there.

It comes with the wheel, with the packages of the system, or of a build in the
tree that this file is in; $MMX_LIBRARY is the path of another one."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Iterator

_NAME = "libmmx.so.0"


def _places() -> Iterator[str]:
    if os.environ.get("MMX_LIBRARY"):
        yield os.environ["MMX_LIBRARY"]
        return
    here = os.path.dirname(os.path.abspath(__file__))
    tree = os.path.normpath(os.path.join(here, "../../../.."))
    if os.path.exists(os.path.join(here, _NAME)):
        yield os.path.join(here, _NAME)
    elif os.path.exists(os.path.join(tree, "lib/client/mmx.map")):
        yield os.path.join(tree, "build", _NAME)
    yield _NAME  # where the system's linker looks


def _load() -> ctypes.CDLL:
    tried = []
    for place in _places():
        try:
            return ctypes.CDLL(place, use_errno=True)
        except OSError as e:
            tried.append(str(e) if _NAME in str(e) else f"{place}: {e}")
    raise ImportError(
        f"mmx needs its C library {_NAME}, of the package libmmx0 or of a "
        f"wheel of `make wheel`; tried: {'; '.join(tried)}")


LIBRARY = _load()


def call(name: str, *kinds: Any, returns: Any = ctypes.c_int) -> Any:
    """Returns a call of the library, with the types of its arguments."""
    made = getattr(LIBRARY, name, None)
    if made is None:
        raise ImportError(f"{LIBRARY._name} is of another version: it has no "
                          f"{name}")
    made.argtypes, made.restype = kinds, returns
    return made
