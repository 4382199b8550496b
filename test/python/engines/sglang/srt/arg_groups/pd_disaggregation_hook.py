from typing import Any


def handle_encoder_disaggregation(server_args: Any):
    return server_args.encoder_transfer_backend
