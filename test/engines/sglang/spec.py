"""The names that mmx.adapters.sglang needs of SGLang, by file of its wheel:
those that it checks before it hooks anything, and those that it reads
besides."""

TESTED = ("sglang==0.5.23",)
MAIN = "sgl-project/sglang/main/python/"
WHEEL_BYTES = 100 * 10**6

_ENCODER = "sglang/srt/disaggregation/encoder/"
NAMES = {
    "sglang/srt/plugins/__init__.py": ["load_plugins"],
    "sglang/srt/plugins/hook_registry.py": [
        "HookRegistry.register", "HookRegistry.apply_hooks", "HookType.*"],
    "sglang/srt/arg_groups/pd_disaggregation_hook.py": [
        "handle_encoder_disaggregation"],
    "sglang/srt/arg_groups/overrides.py": ["declare_resolution"],
    "sglang/srt/arg_groups/model_override_base.py": ["resolving_view"],
    "sglang/srt/runtime_context.py": ["get_mm", "get_parallel"],
    "sglang/srt/arg_groups/fields/parallel.py": [
        "Parallel.attn_cp_size", "Parallel.attn_dp_enabled",
        "Parallel.attn_dp_size", "Parallel.attn_tp_group",
        "Parallel.attn_tp_rank", "Parallel.attn_tp_size",
        "Parallel.nnodes", "Parallel.pp_size"],
    "sglang/srt/arg_groups/fields/serving.py": [
        "Serving.grpc_mode", "Serving.smg_grpc_mode"],
    "sglang/srt/managers/schedule_batch.py": [
        "MultimodalDataItem.keep_device_embedding",
        "MultimodalDataItem.precomputed_embeddings",
        "MultimodalInputs.mm_items", "MultimodalInputs.release_features"],
    _ENCODER + "receiver.py": [
        "EmbeddingData.__init__", "create_part_req_id",
        "_aggregate_embedding_part", "MMReceiverBase._send_encode_request",
        "MMReceiverBase._run_encode_in_thread",
        "EncoderBootstrapServer._probe", "EncoderBootstrapServer.register",
        "EncoderBootstrapServer.unregister",
        "MMReceiverGrpc.encode", "MMReceiverGrpc.process_waiting_requests",
        "WaitingZmqRequestGrpc.send_encode_request", "_grpc_encode_request",
        "MMReceiverBase.self.scheduler", "MMReceiverBase.self.tp_group",
        "MMReceiverBase.self.tp_rank", "MMReceiverBase.self.tp_size",
        "MMReceiverBase.self.waiting_list",
        "MMReceiverHTTP.process_waiting_requests",
        "WaitingMMRequestBase.__init__",
        "WaitingMMRequestBase.self.recv_req",
        "WaitingMMRequestBase.self.encoder_urls",
        "WaitingMMRequestBase.self.model_type",
        "WaitingMMRequestBase.self.num_items_assigned",
        "WaitingMMRequestBase.self.recv_embedding_data",
        "WaitingMMRequestBase.self.status",
        "WaitingMMRequestBase._try_recv_mm_data",
        "WaitingMMRequestBase._fail_and_release",
        "WaitingMMRequestBase._finish_assemble",
        "WaitingMMRequestBase._fail_assemble",
        "WaitingMMRequestBase.release_resources",
        "WaitingMMRequestStatus.*",
        "WaitingZmqRequest.send_encode_request"],
    _ENCODER + "server.py": [
        "EncodeContext.modality", "EncodeContext.items_per_req",
        "EncodeContext.aux_data", "EncodeContext.is_health_check",
        "EncodeContext.use_global_cache", "MMEncoder._compute_embedding",
        "MMEncoder._publish_preprocess_metadata",
        "MMEncoder._stage_embedding_batch", "MMEncoder.send_with_url",
        "MMEncoder.send_to_destination", "MMEncoder.release_request",
        "MMEncoder._wait_for_embedding", "MMEncoder.self.delivery",
        "MMEncoder.self.device",
        "MMEncoder.self.model_config", "MMEncoder.self.rank", "MMEncoder.self.req_states",
        "MMEncoder.self.send_timeout", "MMError.__init__",
        "ReqState.release_requested", "ReqState.embedding_data",
        "ReqState.req_id",
        "ZmqDelivery.__init__", "ZmqDelivery.send", "ZmqDelivery.release"],
    _ENCODER + "runtime.py": ["launch_dp_worker"],
    _ENCODER + "grpc_server.py": ["add_SGLangEncoderServicer_to_server"],
}
