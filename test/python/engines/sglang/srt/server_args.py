from __future__ import annotations

from typing import Annotated


class Arg:
    def __init__(self, choices):
        self.choices = choices


class ServerArgs:
    __annotations__ = {"encoder_transfer_backend": Annotated[
        str, Arg(["auto", "zmq_to_scheduler", "zmq_to_tokenizer",
                  "mooncake"])]}

    def __init__(self, **values):
        self.encoder_transfer_backend = "auto"
        self.encoder_only = self.language_only = False
        self.attn_dp_size = self.attn_cp_size = self.tokenizer_worker_num = 1
        self.encoder_urls = []
        self.grpc_mode = self.smg_grpc_mode = False
        self.__dict__.update(values)
