"""One exception for each reason that a daemon gives.

`reason` is the name on the wire, `advice` the action: retry (the same call
may succeed now or later), encode-locally (ask an encoder for the rows again,
or encode here), give-up (the same call will fail again) or nothing. `a` and
`b` are the numbers of the reason; for TooLarge, the rows asked for and the
rows that fit.
"""

from __future__ import annotations

from typing import Dict, Type


class MmxError(Exception):
    number = -1
    reason = "unknown"
    advice = "give-up"
    sentence = "a reason of a newer version"

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


class NotReady(MmxError):
    number, reason = 1, "not-ready"
    advice = "retry"
    sentence = "the daemon or its peer is not ready yet"


class NoBlocks(MmxError):
    number, reason = 2, "no-blocks"
    advice = "retry"
    sentence = "no blocks, aux space or table slots are free"


class TooLarge(MmxError):
    number, reason = 3, "too-large"
    advice = "give-up"
    sentence = "the item is larger than the pool can ever hold"


class DuplicateRoom(MmxError):
    number, reason = 4, "duplicate-room"
    advice = "give-up"
    sentence = "the room id is already open here"


class UnknownRoom(MmxError):
    number, reason = 5, "unknown-room"
    advice = "encode-locally"
    sentence = "no such room, or its source is gone: encode again"


class Stale(MmxError):
    number, reason = 6, "stale"
    advice = "retry"
    sentence = ("the message names an epoch, generation or attempt that has "
                "ended")


class Malformed(MmxError):
    number, reason = 7, "malformed"
    advice = "give-up"
    sentence = "the message or argument breaks the protocol"


class IncompatibleLayout(MmxError):
    number, reason = 8, "incompatible-layout"
    advice = "give-up"
    sentence = "the two pools do not have the same fields"


class ItemMismatch(MmxError):
    number, reason = 9, "item-mismatch"
    advice = "encode-locally"
    sentence = "the two engines name different items or storage for one room"


class DestinationsDisagree(MmxError):
    number, reason = 10, "destinations-disagree"
    advice = "give-up"
    sentence = "the number of destinations differs from the first one given"


class Version(MmxError):
    number, reason = 11, "version"
    advice = "give-up"
    sentence = "no protocol version in common"


class NotOwner(MmxError):
    number, reason = 12, "not-owner"
    advice = "give-up"
    sentence = "this connection has no right to this operation"


class Quota(MmxError):
    number, reason = 13, "quota"
    advice = "retry"
    sentence = "a configured limit of this engine is reached"


class Busy(MmxError):
    number, reason = 14, "busy"
    advice = "retry"
    sentence = "a queue is full for the moment"


class PeerLost(MmxError):
    number, reason = 15, "peer-lost"
    advice = "retry"
    sentence = "the other daemon is gone; to an encode engine: outcome unknown"


class DaemonLost(MmxError):
    number, reason = 16, "daemon-lost"
    advice = "retry"
    sentence = "the engine's own daemon is gone; the handle is stale"


class EngineLost(MmxError):
    number, reason = 17, "engine-lost"
    advice = "encode-locally"
    sentence = "the engine that owned the room is gone"


class TimedOut(MmxError):
    number, reason = 18, "timeout"
    advice = "retry"
    sentence = "a deadline has passed"


class Aborted(MmxError):
    number, reason = 19, "aborted"
    advice = "give-up"
    sentence = "an engine, or an order, aborted the room"


class Declined(MmxError):
    number, reason = 20, "declined"
    advice = "nothing"
    sentence = "the language engine does not want the rows"


class Gone(MmxError):
    number, reason = 21, "gone"
    advice = "encode-locally"
    sentence = "the rows were here and have been freed"


class Corrupt(MmxError):
    number, reason = 22, "corrupt"
    advice = "retry"
    sentence = ("a check of the bytes failed, or an engine removed their "
                "pages from the pool")


class Draining(MmxError):
    number, reason = 23, "draining"
    advice = "retry"
    sentence = "the daemon takes no new rooms: it drains, or ends"


class Internal(MmxError):
    number, reason = 24, "internal"
    advice = "retry"
    sentence = "a fault of this daemon or its machine; see its log"


class DaemonSilent(MmxError, TimeoutError):
    number, reason = 25, "daemon-silent"
    advice = "retry"
    sentence = ("the engine's own daemon is there and does not answer: "
                "stopped, or stuck")


BY_NUMBER: Dict[int, Type[MmxError]] = {
    c.number: c for c in MmxError.__subclasses__()}


def error(number: int, text: str = "", a: int = 0, b: int = 0) -> MmxError:
    """Returns the exception for a reason's number."""
    return BY_NUMBER.get(number, MmxError)(text, a, b)
