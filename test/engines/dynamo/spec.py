"""What mmx.adapters.dynamo needs of Dynamo, by file of its wheel."""

TESTED = ("ai-dynamo==1.6.0", "ai-dynamo==1.6.1")
MAIN = "ai-dynamo/dynamo/main/components/src/"
WHEEL_BYTES = 100 * 10**6

_MM = "dynamo/common/multimodal/"
NAMES = {
    "dynamo/common/constants.py": ["EmbeddingTransferMode.*"],
    _MM + "__init__.py": [
        "EMBEDDING_SENDER_FACTORIES", "EMBEDDING_RECEIVER_FACTORIES"],
    _MM + "embedding_transfer.py": [
        "TransferRequest.*", "AbstractEmbeddingSender.*",
        "AbstractEmbeddingReceiver.*", "LocalEmbeddingSender.__init__",
        "LocalEmbeddingReceiver.__init__"],
    "dynamo/vllm/handlers.py": ["BaseWorkerHandler.init_embedding_loader"],
    "dynamo/vllm/multimodal_utils/prefill_worker_utils.py": [
        "MultiModalEmbeddingLoader.__init__",
        "MultiModalEmbeddingLoader.self._receiver"],
    "dynamo/vllm/multimodal_handlers/encode_worker_handler.py": [
        "EncodeWorkerHandler.__init__", "EncodeWorkerHandler.check_complete",
        "EncodeWorkerHandler.self.embedding_sender"],
    "dynamo/vllm/backend_args.py": [
        "DynamoVllmConfig.embedding_transfer_mode"],
    "dynamo/sglang/backend_args.py": [
        "DynamoSGLangConfig.embedding_transfer_mode"],
}
