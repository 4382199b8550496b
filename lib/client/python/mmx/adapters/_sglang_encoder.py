"""The encode side of the SGLang plugin: a room per (request, part), announced
by rank 0 when the preprocessor has counted its rows and the ViT has not run."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any, Callable, Dict, Union

import mmx
from mmx import aux, errors

from ._common import (Opened, Rated, chosen_field, deadline, misfit,
                      remedy)
from ._copies import Rows, copies, whole
from ._sglang_common import (PLACE, Metrics, mrope, pack, reference_of,
                             status, words)

log = logging.getLogger("mmx.sglang")
warn = Rated(log)
SERVER = "sglang.srt.disaggregation.encoder.server"
HTTP = "sglang.srt.disaggregation.encoder.http_server"
CONNECT_S = 1  # each request waits this long for a daemon that is away
LATER_S = 2  # wait for ranks that ask after the encoder has failed
# CUDA raises RuntimeError, as torch does if a GPU is full.
FAULTS = (errors.MmxError, OSError, TimeoutError, ValueError, RuntimeError)
LOOK_S = 0.25  # interval of looks whether SGLang has given a request up


class Rooms(Opened):
    """The rooms of one encoder. The connection belongs to the encoder's
    loop."""

    def __init__(self, meets: Callable[[mmx.Pool], Any]) -> None:
        super().__init__("encoded", "sglang", meets)
        self.sources: Dict[str, mmx.Source] = {}
        self.says: Dict[str, aux.Split] = {}  # aux of each room
        # why a part was not announced
        self.refused: Dict[str, BaseException] = {}

    async def pool_or_why(self) -> "Union[mmx.Pool, BaseException]":
        """Returns the pool for a batch, or why there is none: the batch waits
        once for a daemon that is away or hangs, not once per request."""
        try:
            return await self.pool(CONNECT_S)
        except FAULTS as e:
            return e

    def announce(self, data: Any, beside: Dict[str, Any], flags: int,
                 pool: "Union[mmx.Pool, BaseException]") -> None:
        """Announces a part. An error is kept for the part's send(), so that
        other requests of the batch go on."""
        req_id = data.req_id
        try:
            if isinstance(pool, BaseException):
                raise pool
            why = misfit(chosen_field(pool), data.shape[1], data.dtype)
            if why:
                raise errors.IncompatibleLayout(f"pool {pool.name} {why}")
            says = self.says[req_id] = aux.split(pack(data, beside, flags))
            self.sources[req_id] = self._announced(
                req_id, pool, data.shape[0] + says.rows(pool), says.aux)
        except FAULTS as e:
            self.refused[req_id] = e

    def _announced(self, req_id: str, pool: mmx.Pool, rows: int,
                   says: bytes) -> mmx.Source:
        assert self.conn
        return self.conn.announce(reference_of(req_id), pool, rows, rows,
                                  aux=says, deadline=deadline())

    async def fail(self, req_id: str, text: str) -> None:
        """Sends the text of SGLang's error to every rank that waits. A room's
        failure reaches only ranks that have asked, so this waits a little for
        late ones."""
        source = self.sources.get(req_id)
        if source is None:
            source = self.sources[req_id] = self._announced(
                req_id, await self.pool(CONNECT_S), 1, b"")
        assert self.conn
        try:
            await self.conn.until(lambda: source.wanted or source.ended,
                                  LATER_S)
        except TimeoutError:
            pass  # SGLang's own answer has the text
        source.abort("internal", text)

    def release(self, req_id: str) -> None:
        self.refused.pop(req_id, None)
        self.says.pop(req_id, None)
        source = self.sources.pop(req_id, None)
        if source is None:
            return
        if not source.ended:
            source.abort(text="the encoder gave the request up")
        source.release(force=True)


def make_delivery(server: Any) -> type:
    class Delivery(server.ZmqDelivery):  # type: ignore[misc]
        """What SGLang calls to send a part, and to release it."""

        def __init__(self, encoder: Any, **more: Any) -> None:
            super().__init__(encoder, **more)
            self.metrics = Metrics("encode")
            self.copies = copies(getattr(encoder, "device", "cpu"), log)
            self.rooms = Rooms(self.copies.meet if self.copies.later
                               else lambda pool: None)

        async def send(self, state: Any, destination: Any) -> None:
            data = await self.encoder._wait_for_embedding(state)
            rooms, req_id = self.rooms, state.req_id
            if data.error_msg is not None or data.embedding is None:
                self.metrics.failed(errors.Internal())
                await rooms.fail(req_id, str(data.error_msg or "no rows"))
                return
            if req_id in rooms.refused:
                raise rooms.refused[req_id]
            source = rooms.sources.get(req_id)
            if source is None:
                raise errors.UnknownRoom("it was never announced")
            try:
                loop = asyncio.get_running_loop()
                began = loop.time()
                await self._write(source, data.embedding, state)
                self.metrics.moved(loop.time() - began, data.embedding.nbytes)
            except TimeoutError as e:
                # The ranks that read the room are told what it waited for.
                source.abort("timeout", str(e))
                raise
            except (ValueError, RuntimeError) as e:
                await rooms.fail(req_id, str(e))
                raise

        async def _write(self, source: mmx.Source, embedding: Any,
                         state: Any) -> None:
            end = asyncio.get_running_loop().time() + min(
                deadline(), self.encoder.send_timeout)
            await self._until(source.granted, state, end)
            says, pool = self.rooms.says[state.req_id], source.pool
            item = Rows.written(source, chosen_field(pool), embedding,
                                says.rows(pool))
            await self.copies.saved(embedding, item)
            if says.rest:
                await whole(asyncio.to_thread(says.write, source, item.rows))
            source.commit(0, source.total, final=True)
            await self._until(source.done, state, end)

        async def _until(self, what: Any, state: Any, end: float) -> None:
            """Waits until `end` of the loop's time. One wait, so that it
            notices a daemon that hangs; it also ends when SGLang has given the
            request up."""
            left = max(end - asyncio.get_running_loop().time(), 0)
            waits = asyncio.ensure_future(what(timeout=left))
            try:
                while not state.release_requested:
                    if (await asyncio.wait({waits}, timeout=LOOK_S))[0]:
                        waits.result()
                        return
            finally:
                waits.cancel()
            raise errors.Aborted("the encoder gave the request up")

        async def release(self, state: Any) -> None:
            self.rooms.release(state.req_id)
            await super().release(state)

    return Delivery


async def published(original: Any, self: Any, ctx: Any,
                    requests: Any) -> None:
    """MMEncoder._publish_preprocess_metadata: sizes and grids are known
    now."""
    await original(self, ctx, requests)
    if self.rank != 0 or ctx.is_health_check:
        return
    first = 0
    rooms = self.delivery.rooms
    pool = await rooms.pool_or_why()
    self.delivery.metrics.used(not isinstance(pool, BaseException))
    flags = aux.MROPE if mrope(self.model_config.hf_config) else 0
    for request, items in zip(requests, ctx.items_per_req):
        beside = dict(ctx.aux_data)
        sizes = beside.get("original_image_sizes")
        if sizes is not None:  # has those of all requests of the batch
            beside["original_image_sizes"] = sizes[first:first + items]
        first += items
        state = self.req_states.get(request["req_id"])
        if state is not None and state.embedding_data is not None:
            rooms.announce(state.embedding_data, beside, flags, pool)


async def computed(original: Any, self: Any, ctx: Any, *,
                   keep_on_gpu: bool) -> Any:
    """MMEncoder._compute_embedding: rows stay on the GPU, since a copy to the
    host would block SGLang's loop, unless some part of SGLang reads them
    there."""
    from sglang.srt.runtime_context import get_mm  # type: ignore

    stay = self.rank == 0 and self.delivery.copies.later and not (
        ctx.is_health_check or ctx.use_global_cache or
        get_mm().enable_prefix_mm_cache or
        ctx.preprocess_result.mm_inputs.get("video_audio_features"))
    return await original(self, ctx, keep_on_gpu=keep_on_gpu or stay)


def staged(original: Any, self: Any, embeddings: Any) -> None:
    """MMEncoder._stage_embedding_batch: the requests of a batch have views of
    one tensor, which would stay on the GPU until the last one is sent. So each
    request gets a copy."""
    for data in embeddings if len(embeddings) > 1 else ():
        if getattr(data.embedding, "is_cuda", False) and \
                self.delivery.copies.later:
            data.embedding = data.embedding.clone()
    original(self, embeddings)


def tell(req_id: str, why: BaseException) -> None:
    """Logs why rows were not delivered, unless the other side ended the
    request. The log must not have the request's secret."""
    if isinstance(why, (errors.Aborted, errors.Declined)):
        return
    try:
        todo = remedy(why, reference_of(req_id))
    except errors.Malformed:
        todo = ""
    warn(f"failed {type(why).__name__}", "mmx: request %.100s: its rows are "
         "not delivered: %s%s", req_id.split("~")[0], words(why), todo)


async def delivered(original: Any, self: Any, req_id: str) -> None:
    """MMEncoder.send_with_url, without the wait for a URL: none is
    registered."""
    server = importlib.import_module(SERVER)
    state = self.req_states.get(req_id)
    if state is None:
        return
    try:
        await self.send_to_destination(state, None)
    except (*FAULTS, TypeError) as e:
        self.delivery.metrics.failed(e)
        if not state.release_requested:
            tell(req_id, e)
            raise server.MMError(
                f"[{req_id.split('~')[0]}] embedding delivery failed: "
                f"{words(e)}", code=status(e)) from None
    finally:
        await self.release_request(req_id)


async def place() -> str:
    """Returns the address at which other daemons reach mmx-encoded; a language
    server asks for it when the encoder registers."""
    conn = await mmx.aconnect("encoded", name="sglang-place",
                              timeout=CONNECT_S)
    try:
        return str(conn.info["advertise"])
    finally:
        await conn.aclose()


def say_place() -> None:
    """Adds a page with the address to the encoder's HTTP server. The page
    answers 503 while there is none, so that a probe can see whether rows could
    be sent."""
    async def page():  # type: ignore[no-untyped-def]  # FastAPI would read it
        try:
            return {"address": await place()}
        except FAULTS as e:
            raise importlib.import_module("fastapi").HTTPException(
                503, str(e)) from None
    importlib.import_module(HTTP).app.get(PLACE)(page)


def hooks() -> Dict[str, Any]:
    server = importlib.import_module(SERVER)
    return {SERVER + ".ZmqDelivery": make_delivery(server),
            SERVER + ".MMEncoder._publish_preprocess_metadata": published,
            SERVER + ".MMEncoder._compute_embedding": computed,
            SERVER + ".MMEncoder._stage_embedding_batch": staged,
            SERVER + ".MMEncoder.send_with_url": delivered}
