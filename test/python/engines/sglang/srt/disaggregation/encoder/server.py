"""Stands in for SGLang 0.5.23's module of this name where it is not installed:
names, signatures and what the methods promise. Arrays stand in for tensors."""

from __future__ import annotations

import asyncio
import types
from http import HTTPStatus

from sglang.srt.disaggregation.encoder.receiver import EmbeddingData


class MMError(Exception):
    def __init__(self, message, code=HTTPStatus.INTERNAL_SERVER_ERROR):
        self.message, self.code = message, code
        super().__init__(message)


class ReqState:
    def __init__(self, req_id):
        self.req_id, self.embedding_data = req_id, None
        self.active_sends, self.release_requested = 0, False
        self.embedding_ready = asyncio.Event()
        self.lifecycle_condition = asyncio.Condition()


class ZmqDelivery:
    def __init__(self, encoder: "MMEncoder", *,
                 cleanup_receive_state: bool) -> None:
        self.encoder = encoder

    async def send(self, state, destination) -> None:
        raise NotImplementedError("frames")

    async def release(self, state) -> None:
        pass


class MMEncoder:
    def __init__(self, rank=0, send_timeout=20):
        self.rank, self.send_timeout = rank, send_timeout
        self.req_states, self.device = {}, "cpu"
        self.model_config = types.SimpleNamespace(
            hf_config=types.SimpleNamespace(rope_scaling={
                "mrope_section": [16, 24, 24]}))
        self.delivery = ZmqDelivery(self, cleanup_receive_state=True)

    async def _wait_for_embedding(self, state) -> EmbeddingData:
        await state.embedding_ready.wait()
        return state.embedding_data

    async def send_to_destination(self, state, destination) -> None:
        state.active_sends += 1
        try:
            await self.delivery.send(state, destination)
        finally:
            async with state.lifecycle_condition:
                state.active_sends -= 1
                state.lifecycle_condition.notify_all()

    async def release_request(self, req_id: str, *,
                              preserve_metadata: bool = False) -> None:
        state = self.req_states.get(req_id)
        if state is None:
            return
        state.release_requested = True
        async with state.lifecycle_condition:
            await state.lifecycle_condition.wait_for(
                lambda: state.active_sends == 0)
            if self.req_states.pop(req_id, None) is not state:
                return
        await self.delivery.release(state)

    async def _publish_preprocess_metadata(self, ctx, requests) -> None:
        first = 0
        for request, items in zip(requests, ctx.items_per_req):
            rows = sum(ctx.token_counts[first:first + items])
            state = self.req_states[request["req_id"]]
            state.embedding_data = EmbeddingData(
                request["req_id"], request["num_parts"], request["part_idx"],
                ctx.grid_thw[first:first + items], ctx.modality,
                embedding_shape=[rows, ctx.width], dtype=ctx.dtype)
            first += items

    def _stage_embedding_batch(self, embeddings) -> None:
        for data in embeddings:
            state = self.req_states[data.req_id]
            state.embedding_data = data
            state.embedding_ready.set()

    async def _compute_embedding(self, ctx, *, keep_on_gpu):
        return keep_on_gpu

    async def send_with_url(self, req_id):
        raise NotImplementedError("a receive URL")
