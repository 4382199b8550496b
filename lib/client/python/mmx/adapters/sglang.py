"""SGLang's encoder disaggregation over mmx: an out-of-tree plugin, found by
the entry point group sglang.srt.plugins, that adds

    --encoder-transfer-backend mmx

on both sides. SGLang's control plane stays: the tokenizer process posts
/encode, scheduler ranks wait together and agree by the MIN of their states.
Rooms take the place of the receive URL and the payload frames.

    process                    here                        mmx
    encoder, rank 0, or each   _sglang_encoder.Delivery    announce after the
    DP worker                                              preprocessor, rows
                                                           after the ViT
    tokenizer manager          marked()                    a secret per request,
                                                           so that a room id is
                                                           for use once
    scheduler, every TP rank   _sglang_language.Waiting    request (first rank
                                                           of a host) or attach
    where encoders are gRPC    _sglang_grpc
    servers, beside these

A process that has not chosen mmx gets one more choice on its command line and
nothing else. Before anything is hooked, every name is looked up and its
parameters compared: what does not fit is said in one line, and nothing is
hooked. lib/client/README.md has the variables that are read.
"""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any, Callable, Dict, Iterator

from ._common import deadline
from ._sglang_common import MODE, encoders, gpu_bytes, session

ON = "MMX_SGLANG"  # "encode" or "language"; spawned processes inherit it
RIDES_ON = "zmq_to_scheduler"  # SGLang's backend whose code paths mmx uses
TESTED = "0.5.23"

_GROUPS = "sglang.srt.arg_groups."
_ENCODER = "sglang.srt.disaggregation.encoder."
_REGISTRY = "sglang.srt.plugins.hook_registry"

Names = Dict[str, Dict[str, str]]
# Module: {name: its parameters}; the parameters behind "*" are keyword-only.
START: Names = {
    _REGISTRY: {"HookRegistry.register": "target hook hook_type * source",
                "HookRegistry.apply_hooks": ""},
    _GROUPS + "pd_disaggregation_hook": {
        "handle_encoder_disaggregation": "server_args"},
    _GROUPS + "overrides": {
        "declare_resolution": "server_args source **fields"},
    _GROUPS + "model_override_base": {"resolving_view": "server_args"},
}
_PARTS: Names = {
    _ENCODER + "receiver": {
        "EmbeddingData.__init__":
            "self req_id num_parts part_idx grid_dim modality embedding "
            "embedding_shape error_msg error_code **kwargs",
        "create_part_req_id": "original_req_id part_idx"},
}
LANGUAGE: Names = {
    "sglang.srt.runtime_context": {"get_parallel": ""},
    "sglang.srt.managers.schedule_batch": {
        "MultimodalInputs.release_features": "self"},
    _ENCODER + "receiver": {
        **_PARTS[_ENCODER + "receiver"],
        "_aggregate_embedding_part": "current recv_obj model_type",
        "MMReceiverBase._send_encode_request":
            "self obj time_stats_json on_dispatch_error",
        "MMReceiverBase._run_encode_in_thread":
            "self req_id mm_data endpoint_encode num_items_assigned "
            "encode_urls time_stats_json scheduler_dispatch_ready "
            "on_dispatch_error",
        "EncoderBootstrapServer.register": "self url",
        "EncoderBootstrapServer.unregister": "self url",
        "MMReceiverHTTP.process_waiting_requests": "self recv_reqs",
        "WaitingMMRequestBase.__init__":
            "self rid recv_req mm_processor encoder_urls model_type host_name "
            "receive_count embedding_pool zmq_context embedding_port "
            "registration_runner",
        "WaitingMMRequestBase._try_recv_mm_data": "self",
        "WaitingMMRequestBase._fail_and_release": "self error_msg error_code",
        "WaitingMMRequestBase._finish_assemble": "self recv_embedding",
        "WaitingMMRequestBase._fail_assemble": "self e",
        "WaitingMMRequestBase.release_resources": "self",
        "WaitingZmqRequest.send_encode_request": "self"},
}
ENCODE: Names = {
    **_PARTS,
    "sglang.srt.runtime_context": {"get_mm": ""},
    _ENCODER + "server": {
        "MMEncoder._compute_embedding": "self ctx * keep_on_gpu",
        "MMEncoder._publish_preprocess_metadata": "self ctx requests",
        "MMEncoder._stage_embedding_batch": "self embeddings",
        "MMEncoder.send_with_url": "self req_id",
        "MMEncoder.send_to_destination": "self state destination",
        "MMEncoder.release_request": "self req_id * preserve_metadata",
        "MMEncoder._wait_for_embedding": "self state",
        "MMError.__init__": "self message code",
        "ZmqDelivery.__init__": "self encoder * cleanup_receive_state",
        "ZmqDelivery.send": "self state destination",
        "ZmqDelivery.release": "self state"},
    _ENCODER + "runtime": {
        "launch_dp_worker": "server_args dp_rank gpu_id dispatch_path "
                            "release_path result_path"},
}


# Needed in addition if encoders are gRPC servers.
GRPC: "Dict[str, Names]" = {
    "language": {_ENCODER + "receiver": {
        "_grpc_encode_request": "target encode_request",
        "EncoderBootstrapServer._probe": "self session url",
        "MMReceiverGrpc.encode":
            "self req_id mm_data embedding_port endpoint_encode "
            "num_items_assigned encode_urls",
        "MMReceiverGrpc.process_waiting_requests": "self recv_reqs",
        "WaitingZmqRequestGrpc.send_encode_request": "self"}},
    "encode": {_ENCODER + "grpc_server": {
        "add_SGLangEncoderServicer_to_server": "servicer server"}},
}


class Unfit(RuntimeError):
    """The plugin does not know this version of SGLang; nothing was hooked."""


def parameters(call: Any) -> str:
    """Returns the names of a callable's parameters, in the form of the tables
    above."""
    words, only = [], False
    for p in inspect.signature(call).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not only:
            words.append("*")
            only = True
        words.append({p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}
                     .get(p.kind, "") + p.name)
    return " ".join(words)


def _misfits(names: Names) -> Iterator[str]:
    for module, wanted in names.items():
        try:
            found: Any = importlib.import_module(module)
        except ImportError as e:
            yield f"{module} cannot be imported ({e})"
            continue
        for name, params in wanted.items():
            at = found
            for part in name.split("."):
                at = getattr(at, part, None)
            if not callable(at):
                yield f"{module} has no {name}"
            elif parameters(at) != params:
                yield f"{module}.{name} takes ({parameters(at)})"


def check(names: Names) -> None:
    """Raises Unfit, with one line, unless SGLang has all the names."""
    wrong = list(_misfits(names))
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Unfit(f"mmx does not fit this SGLang (known is {TESTED}), "
                    f"nothing was hooked: {wrong[0]}{more}")


# --- the command line ---------------------------------------------------
def _choices() -> "list[Any]":
    """Returns the choices of --encoder-transfer-backend."""
    from typing import get_args

    module = importlib.import_module("sglang.srt.server_args")
    for base in module.ServerArgs.__mro__:
        hint = getattr(base, "__annotations__", {}).get(
            "encoder_transfer_backend")
        for meta in get_args(hint)[1:]:
            choices = getattr(meta, "choices", None)
            if isinstance(choices, list) and RIDES_ON in choices:
                return choices
    raise Unfit(f"mmx does not fit this SGLang (known is {TESTED}), nothing "
                "was hooked: --encoder-transfer-backend has no list of "
                f"choices with {RIDES_ON}")


def _chosen(original: Callable[[Any], Any], server_args: Any) -> Any:
    """handle_encoder_disaggregation(): mmx uses the code paths of RIDES_ON."""
    from sglang.srt.arg_groups.model_override_base import (  # type: ignore
        resolving_view)
    from sglang.srt.arg_groups.overrides import (  # type: ignore
        declare_resolution)

    asked = resolving_view(server_args)
    if asked.encoder_transfer_backend == "mmx":
        if asked.attn_dp_size > 1 and asked.attn_cp_size > 1:
            raise ValueError("--encoder-transfer-backend mmx takes one of "
                             "--attn-dp-size and --attn-cp-size")
        if asked.tokenizer_worker_num > 1:  # tokenizer workers load no plugins
            raise ValueError("--encoder-transfer-backend mmx takes "
                             "--tokenizer-worker-num 1 alone")
        # Raises if a value is malformed.
        known, *_ = encoders(), deadline(), gpu_bytes(), session()
        for url in asked.encoder_urls if known else ():
            if url not in known:
                raise ValueError(f"MMX_ENCODERS leaves out {url:.200}, which "
                                 "--encoder-urls has")
        side = "encode" if asked.encoder_only else "language"
        grpc = asked.encoder_only and (asked.smg_grpc_mode or asked.grpc_mode)
        install(side, grpc)
        if side == "encode" and not grpc:
            from ._sglang_encoder import say_place

            say_place()
        elif getattr(asked, "disaggregation_mode", "null") == "prefill":
            # Such a server does not release the rows of a request that decodes
            # on another server.
            os.environ.setdefault("MMX_SGLANG_COPY", "1")
        os.environ[ON] = side
        declare_resolution(server_args, "mmx",
                           encoder_transfer_backend=RIDES_ON)
    return original(server_args)


# --- hooks --------------------------------------------------------------
def install(side: str, grpc: bool = False) -> None:
    """Hooks one side into this process; Unfit: nothing was hooked. grpc: the
    encoder is a gRPC server; the language side reads that from SGLang's
    variable, which its processes inherit."""
    grpc = grpc or side == "language" and os.environ.get(MODE) == "grpc"
    check(ENCODE if side == "encode" else LANGUAGE)
    if grpc:
        check(GRPC[side])
    from sglang.srt.plugins.hook_registry import (  # type: ignore
        HookRegistry, HookType)

    if side == "encode":
        from . import _sglang_encoder as ours

        runtime = importlib.import_module(_ENCODER + "runtime")
        if runtime.launch_dp_worker is not launch_dp_worker:
            runtime._mmx_launch_dp_worker = runtime.launch_dp_worker
            runtime.launch_dp_worker = launch_dp_worker
    else:
        from . import _sglang_language as ours  # type: ignore
    more = importlib.import_module(f"{__package__}._sglang_grpc").hooks(
        side) if grpc else {}
    for target, hook in {**ours.hooks(), **more}.items():
        kind = HookType.REPLACE if isinstance(hook, type) else HookType.AROUND
        HookRegistry.register(target, hook, kind)
    HookRegistry.apply_hooks()


def launch_dp_worker(server_args: Any, dp_rank: int, gpu_id: int,
                     dispatch_path: str, release_path: str,
                     result_path: str) -> None:
    """Loads plugins in an encoder's DP worker, which SGLang spawns without
    them."""
    from sglang.srt.plugins import load_plugins  # type: ignore

    load_plugins()
    runtime = importlib.import_module(_ENCODER + "runtime")
    runtime._mmx_launch_dp_worker(server_args, dp_rank, gpu_id,
                                  dispatch_path, release_path, result_path)


def register() -> None:
    """The entry point: SGLang calls this in each of its processes."""
    check(START)
    choices = _choices()
    if "mmx" not in choices:
        choices.append("mmx")
    if os.environ.get(ON):
        install(os.environ[ON])
        return
    from sglang.srt.plugins.hook_registry import (
        HookRegistry, HookType)

    HookRegistry.register(
        _GROUPS + "pd_disaggregation_hook.handle_encoder_disaggregation",
        _chosen, HookType.AROUND)
