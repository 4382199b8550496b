"""A worker of Dynamo's as `python -m mmx.adapters.dynamo` starts it, whose
calls of the encoder take turns: Dynamo encodes in several threads, and vLLM's
encoder on a CPU is not for more than one.

With MMX_TIMES it notes, of mmx and of Dynamo's mode local, when a tensor is
given to its sender and has left it, when it is asked for, and when each page
of what came has been read once; of one request at a time."""

import functools
import os
import threading

import torch
from marks import note

from mmx.adapters import dynamo


def in_turns(call):
    lock = threading.Lock()

    @functools.wraps(call)
    def locked(*words, **named):
        with lock:
            return call(*words, **named)
    return locked


def timed(sender, receiver):
    send, receive = sender.send_embeddings, receiver.receive_embeddings

    async def send_embeddings(self, *words, **named):
        note("encoded", "tensor")
        got = await send(self, *words, **named)
        note("sent", "tensor")
        return got

    async def receive_embeddings(self, request):
        note("asked", "tensor")
        number, tensor = await receive(self, request)
        int(tensor.flatten().view(torch.uint8)[::4096].sum())
        note("usable", "tensor")
        return number, tensor

    sender.send_embeddings = send_embeddings
    receiver.receive_embeddings = receive_embeddings


def normalized_once(load):
    """Dynamo's encode worker normalizes pictures, and vLLM 0.31's encoder does
    so once more."""
    from vllm.model_executor.layers.fusion.mm_input_norm import \
        IdentityInputNorm

    @functools.wraps(load)
    def loaded(*words, **named):
        encoder = load(*words, **named)
        encoder.input_norm = IdentityInputNorm()
        return encoder
    return loaded


def register(backend, made=dynamo.register):
    # with a patch of Dynamo's its tables are enough for vLLM's workers, too
    made("sglang" if "MMX_TABLES_ALONE" in os.environ else backend)
    from dynamo.common.multimodal import embedding_transfer as local
    from dynamo.vllm.multimodal_handlers import encode_worker_handler as theirs

    from mmx.adapters import _dynamo
    theirs.load_vision_model = normalized_once(theirs.load_vision_model)
    theirs.encode_image_embeddings = in_turns(theirs.encode_image_embeddings)
    if "MMX_TIMES" in os.environ:
        timed(local.LocalEmbeddingSender, local.LocalEmbeddingReceiver)
        timed(_dynamo.MmxEmbeddingSender, _dynamo.MmxEmbeddingReceiver)


dynamo.register = register
if __name__ == "__main__":
    dynamo.main()
