"""The SGLang plugin where encoders are gRPC servers. SGLang 0.5.23's own
language side never makes a call there: it passes encode() arguments that
encode() does not take, gives all parts one id, and evicts each encoder whose
HTTP server does not answer. Its gRPC servers take only pictures.

The messages are SGLang's. Beside them a server has one method more, with the
address of its mmx-encoded, as the HTTP server has a page."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Dict

from ._sglang_common import GRPC, GRPC_PLACE, asked_by_grpc

ENCODER = "sglang.srt.disaggregation.encoder."
RECEIVER, SERVER = ENCODER + "receiver", ENCODER + "grpc_server"
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"  # status: 1


# --- language side ------------------------------------------------------------
async def encoded(original: Any, self: Any, *args: Any,
                  time_stats_json: Any = None, **more: Any) -> Any:
    """MMReceiverGrpc.encode, without the arguments that only the HTTP one
    takes."""
    return await original(self, *args, **more)


def called(original: Any, target: str, encode_request: Any) -> Any:
    """_grpc_encode_request: each part has a room, and so an id. The client
    gets an encoder's error as one line, without gRPC's call state."""
    grpc = importlib.import_module("grpc")
    part = importlib.import_module(RECEIVER).create_part_req_id(
        encode_request["req_id"], encode_request["part_idx"])
    try:
        return original(target, {**encode_request, "req_id": part})
    except grpc.RpcError as e:
        raise RuntimeError(f"encoder {target}: {e.code().name}: "
                           f"{e.details()}") from None


async def probed(original: Any, self: Any, session: Any, url: str) -> bool:
    """EncoderBootstrapServer._probe: gRPC servers have a health check of their
    own instead of the page /health."""
    if not url.startswith(GRPC):
        return bool(await original(self, session, url))
    try:
        return SERVING == await asyncio.to_thread(asked_by_grpc, url, HEALTH)
    except OSError:
        return False


# --- encoder ------------------------------------------------------------------
def added(original: Any, servicer: Any, server: Any) -> None:
    """add_SGLangEncoderServicer_to_server: SGLang calls it last before the
    server starts."""
    grpc = importlib.import_module("grpc")
    from ._sglang_encoder import FAULTS, place

    async def answer(request: bytes, context: Any) -> bytes:
        try:
            return (await place()).encode()
        except FAULTS as e:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
            raise
    original(servicer, server)
    service, method = GRPC_PLACE[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        service, {method: grpc.unary_unary_rpc_method_handler(answer)}),))


def hooks(side: str) -> Dict[str, Any]:
    if side == "encode":
        return {SERVER + ".add_SGLangEncoderServicer_to_server": added}
    from ._sglang_language import make_waiting, turned

    receiver = importlib.import_module(RECEIVER)
    return {
        RECEIVER + ".WaitingZmqRequestGrpc": make_waiting(receiver),
        RECEIVER + ".MMReceiverGrpc.process_waiting_requests": turned,
        RECEIVER + ".MMReceiverGrpc.encode": encoded,
        RECEIVER + "._grpc_encode_request": called,
        RECEIVER + ".EncoderBootstrapServer._probe": probed}
