"""One exception for each reason that a daemon gives.

`reason` is the name on the wire, `advice` the action: retry (the same call
may succeed now or later), encode-locally (ask an encoder for the rows again,
or encode here), give-up (the same call will fail again) or nothing. `a` and
`b` are the numbers of the reason; for TooLarge, the rows asked for and the
rows that fit.
"""

from __future__ import annotations

import ctypes
from typing import Dict, Type

from ._lib import call

_text, _int = ctypes.c_char_p, ctypes.c_int
_reason = call("mmx_reason", _int, ctypes.POINTER(_text),
               ctypes.POINTER(_int), returns=_text)
_advice_name = call("mmx_advice_name", _int, returns=_text)


class MmxError(Exception):
    number = -1
    reason = "unknown"
    advice = "give-up"
    sentence = "a reason of a newer version"

    def __init_subclass__(cls, number: int = -1) -> None:
        """Gives the class of a number the library's words for it."""
        if number >= 0:
            text, advice = _text(), _int()
            cls.number = number
            cls.reason = _reason(number, text, advice).decode()
            cls.sentence = (text.value or b"").decode()
            cls.advice = _advice_name(advice).decode()

    def __init__(self, text: str = "", a: int = 0, b: int = 0) -> None:
        self.text, self.a, self.b = text, a, b
        super().__init__(text or self.sentence)

    def __str__(self) -> str:
        return f"{self.reason}: {self.text or self.sentence}"


class ViewInUse(BufferError):
    """An array still shows rows that are to be released."""


class ForkedError(RuntimeError):
    """The connection belongs to the parent process: connect again in the
    child. Rows that the parent mapped must not be used."""


class SplitRows(ValueError):
    """The rows lie in several runs: use gather() or pieces()."""


class NotReady(MmxError, number=1): ...
class NoBlocks(MmxError, number=2): ...
class TooLarge(MmxError, number=3): ...
class DuplicateRoom(MmxError, number=4): ...
class UnknownRoom(MmxError, number=5): ...
class Stale(MmxError, number=6): ...
class Malformed(MmxError, number=7): ...
class IncompatibleLayout(MmxError, number=8): ...
class ItemMismatch(MmxError, number=9): ...
class DestinationsDisagree(MmxError, number=10): ...
class Version(MmxError, number=11): ...
class NotOwner(MmxError, number=12): ...
class Quota(MmxError, number=13): ...
class Busy(MmxError, number=14): ...
class PeerLost(MmxError, number=15): ...
class DaemonLost(MmxError, number=16): ...
class EngineLost(MmxError, number=17): ...
class TimedOut(MmxError, number=18): ...
class Aborted(MmxError, number=19): ...
class Declined(MmxError, number=20): ...
class Gone(MmxError, number=21): ...
class Corrupt(MmxError, number=22): ...
class Draining(MmxError, number=23): ...
class Internal(MmxError, number=24): ...
class DaemonSilent(MmxError, TimeoutError, number=25): ...


BY_NUMBER: Dict[int, Type[MmxError]] = {
    c.number: c for c in MmxError.__subclasses__()}


def error(number: int, text: str = "", a: int = 0, b: int = 0) -> MmxError:
    """Returns the exception for a reason's number."""
    return BY_NUMBER.get(number, MmxError)(text, a, b)
