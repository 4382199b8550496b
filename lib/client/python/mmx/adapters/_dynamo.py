"""Dynamo's embedding transfer over mmx: the sender of an encode worker and the
receiver of a prefill worker. Each tensor is a room, whose reference and encoder
are the serialized request; the daemons have the rows.

A daemon that is away or starts again is waited for, within MMX_DEADLINE_S. Rows
that were lost with it are written again under the same reference, as long as
Dynamo keeps their tensor for that, at most HOLD_S."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from typing import Any, Awaitable, Optional, Set, Tuple

from dynamo.common.multimodal.embedding_transfer import (  # type: ignore
    AbstractEmbeddingSender, LocalEmbeddingReceiver, TransferRequest)

import mmx
from mmx import errors

from ._common import (Opened, Rated, chosen_field, deadline, misfit,
                      other_kind, remedy)
from ._copies import Here, Rows, copies, here

log = logging.getLogger("mmx.dynamo")
warn = Rated(log)
HOLD_S = 5  # a tensor is held at most this long after its rows were written
LOOK_S = 1  # wait for a daemon that is away, before the next look
PAUSE_S = 0.1  # pause before a failed step is repeated
# After these another announce of the room may succeed.
LOST = (errors.DaemonLost, errors.PeerLost, errors.NoBlocks)
# The other engine has ended the room.
OVER = (errors.Aborted, errors.Declined, errors.EngineLost)


class Patience:
    """The time that is left for one transfer, all its attempts together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.end = self._loop.time() + deadline()

    def left(self) -> float:
        return max(self.end - self._loop.time(), 0.001)

    def look(self) -> float:
        return min(self.left(), LOOK_S)

    def at_most(self, seconds: float) -> None:
        self.end = min(self.end, self._loop.time() + seconds)

    async def again(self, error: Exception) -> None:
        """Raises the error unless an attempt may succeed now; waits before
        that."""
        if getattr(error, "advice", "retry") != "retry" or \
                self.left() <= PAUSE_S:
            raise error
        await asyncio.sleep(PAUSE_S)


def kind_of(tensor: Any) -> str:
    return str(tensor.dtype).split(".")[-1]


class MmxEmbeddingSender(AbstractEmbeddingSender):  # type: ignore[misc]
    def __init__(self) -> None:
        self._daemon = Opened("encoded", "dynamo", self._meets)
        self._copies: Any = None  # made for the device of the first tensor
        self._tasks: "Set[asyncio.Task[None]]" = set()

    def _meets(self, pool: mmx.Pool) -> None:
        self._copies.meet(pool)

    async def send_embeddings(
            self, embeddings: Any, stage_embeddings: bool = False
    ) -> Tuple[Any, Awaitable[None]]:
        """Returns once the daemon has the rows. The awaitable raises nothing
        and waits for no reader longer than HOLD_S: Dynamo awaits one after
        another, and holds all tensors behind it."""
        rows = embeddings.reshape(-1, embeddings.shape[-1])
        if self._copies is None:
            self._copies = copies(str(getattr(rows, "device", "cpu")), log)
        reference = mmx.Reference.draw()
        try:
            source = await self._written(reference, rows)
        except Exception as e:
            self._tell(e, reference)
            raise
        loop = asyncio.get_running_loop()
        held = loop.create_future()
        # the caller may reuse the tensor's memory now
        if not stage_embeddings:
            held.set_result(None)
        task = loop.create_task(self._deliver(
            source, reference, rows if stage_embeddings else None, held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return TransferRequest(
            embeddings_shape=list(embeddings.shape),
            embedding_dtype_str=kind_of(embeddings),
            serialized_request={
                "mmx": 1, "reference": str(reference),
                "encoder": source.conn.info["advertise"]}), held

    async def _written(self, reference: mmx.Reference, rows: Any,
                       limit: float = math.inf,
                       held: float = math.inf) -> mmx.Source:
        """Returns the announced room, with all rows in it. limit: seconds in
        which a reader must ask for the room. held: seconds for which the
        tensor is held."""
        patience = Patience()
        patience.at_most(held)
        while True:
            try:
                pool = await self._daemon.pool(patience.look())
                field = chosen_field(pool)
                why = misfit(field, rows.shape[1], rows.dtype)
                if why:
                    raise errors.IncompatibleLayout(f"pool {pool.name} {why}")
                assert self._daemon.conn
                source = self._daemon.conn.announce(
                    reference, pool, len(rows), len(rows),
                    deadline=min(deadline(), limit))
                try:
                    await source.granted(patience.left())
                    await self._copies.saved(
                        rows, Rows.written(source, field, rows))
                    source.commit(0, len(rows), final=True)
                    return source
                except BaseException:  # cancelled requests raise one, too
                    source.release(force=True)
                    raise
            except (errors.MmxError, OSError, TimeoutError) as e:
                await patience.again(e)

    async def _deliver(self, source: mmx.Source, reference: mmx.Reference,
                       rows: Any, held: "asyncio.Future[None]") -> None:
        """Watches the room until it has ended. If this worker ends before, the
        daemon still delivers the rows."""
        clock = asyncio.get_running_loop().time
        end = clock() + HOLD_S
        try:
            while True:
                why: Optional[Exception] = None
                try:
                    await source.done(None if rows is None
                                      else max(end - clock(), 0))
                except (errors.MmxError, TimeoutError) as e:
                    if not source.reason:  # only the wait has ended
                        rows = None
                        settle(held)
                        continue
                    why = e
                source.release(force=True)
                if rows is None or not isinstance(why, LOST):
                    break
                # A reader that lost its daemon may have received the rows
                # already.
                source = await self._written(
                    reference, rows, math.inf if isinstance(
                        why, errors.DaemonLost) else HOLD_S, end - clock())
            if why:
                raise why
        except Exception as e:
            self._tell(e, reference)
        finally:
            settle(held)

    def _tell(self, why: Exception, reference: mmx.Reference) -> None:
        if not isinstance(why, OVER):
            warn(type(why).__name__, "mmx: rows are not delivered: %s%s",
                 why, remedy(why, reference))


def settle(held: "asyncio.Future[None]") -> None:
    if not held.done():  # neither done nor cancelled
        held.set_result(None)


class MmxEmbeddingReceiver(LocalEmbeddingReceiver):  # type: ignore[misc]
    """Copies rows out of the pool when all have landed: a request that waits
    for another of its pictures holds no blocks for this one. So a tensor
    belongs to the caller, as one read from a file; Dynamo's prefill worker
    knows that by the class and does not copy it again."""

    def __init__(self) -> None:
        super().__init__()
        self._daemon = Opened("langd", "dynamo", Here().meet)
        self._ids = itertools.count()

    async def receive_embeddings(self, request: Any) -> Tuple[int, Any]:
        said = request.serialized_request
        try:
            reference = mmx.Reference.read(said["reference"])
            encoder = str(said["encoder"])
        except (KeyError, TypeError, ValueError):
            raise errors.Malformed("no reference of mmx: have encode workers "
                                   "the transfer mode mmx, too?") from None
        try:
            tensor = await self._fetched(reference, encoder, request)
        except Exception as e:
            warn(type(e).__name__, "mmx: rows are not received: %s%s", e,
                 remedy(e, reference, encoder))
            raise
        return next(self._ids), tensor.reshape(request.embeddings_shape)

    async def _fetched(self, reference: mmx.Reference, encoder: str,
                       request: Any) -> Any:
        patience = Patience()
        # why the encoder's daemon does not have the room any more
        lost: Optional[Exception] = None
        while True:
            try:
                pool = await self._daemon.pool(patience.look())
                assert self._daemon.conn
                with self._daemon.conn.request(
                        reference, pool, encoder, announced=not lost,
                        deadline=patience.left()) as room:
                    await room.ready(patience.left())
                    return await self._copied(room, request)
            except (errors.MmxError, OSError, TimeoutError) as e:
                if isinstance(e, errors.UnknownRoom) and not lost:
                    # The encode worker announces the room again if it still
                    # has the rows.
                    lost = e
                    patience.at_most(HOLD_S)
                else:
                    await patience.again(lost or e)

    async def _copied(self, room: mmx.Room, request: Any) -> Any:
        rows, field = room.total or 0, chosen_field(room.pool)
        *shape, width = request.embeddings_shape
        other = other_kind(field, request.embedding_dtype_str)
        if other or (math.prod(shape), width) != (rows, field.elements):
            raise errors.ItemMismatch(
                f"{rows} rows of {field.elements} {field.dtype} came, "
                f"{request.embeddings_shape} of "
                f"{request.embedding_dtype_str} are due")
        item = Rows(room.pool, field, rows, room.pieces(0, rows))
        return await here(item, lambda: Here().load([item], lambda: None)[0])

    def release_tensor(self, tensor_id: int) -> None:
        """Does nothing: the tensor belongs to the caller."""
