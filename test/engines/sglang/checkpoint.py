"""The Qwen2-VL of ../llama/make_gguf.py as transformers and SGLang read it,
so that two engines have one checkpoint.

    checkpoint.py DIR"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "llama")]

import make_gguf as gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import (Qwen2Tokenizer, Qwen2VLConfig,  # noqa: E402
                          Qwen2VLForConditionalGeneration,
                          Qwen2VLImageProcessor, Qwen2VLProcessor,
                          Qwen2VLVideoProcessor)


def tokenizer():
    words = gguf.alphabet() + ["he"]
    tok = Qwen2Tokenizer(
        vocab={w: i for i, w in enumerate(words)}, merges=[("h", "e")],
        unk_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=gguf.SPECIAL)
    tok.add_special_tokens({"additional_special_tokens": gguf.SPECIAL})
    tok.chat_template = gguf.CHAT
    return tok


def config(ids):
    heads = {"num_attention_heads": gguf.HEADS, "num_key_value_heads": gguf.KV}
    return Qwen2VLConfig(
        text_config={
            "vocab_size": 512, "hidden_size": gguf.HID,
            "intermediate_size": gguf.FF, "num_hidden_layers": gguf.LAYERS,
            **heads, "max_position_embeddings": gguf.CONTEXT,
            "rms_norm_eps": 1e-6, "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
                                "mrope_section": [8, 12, 12]},
            "bos_token_id": None, "eos_token_id": ids["<|im_end|>"]},
        vision_config={
            "depth": gguf.VIS_LAYERS, "embed_dim": gguf.VIS,
            "num_heads": gguf.HEADS, "mlp_ratio": gguf.VIS_FF // gguf.VIS,
            "hidden_size": gguf.HID, "patch_size": gguf.PATCH,
            "in_channels": 3, "spatial_merge_size": 2,
            "temporal_patch_size": 2},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False, dtype="bfloat16")


def main():
    folder = sys.argv[1]
    tok = tokenizer()
    made = config({s: tok.convert_tokens_to_ids(s) for s in gguf.SPECIAL})
    model = Qwen2VLForConditionalGeneration(made)
    short = {k: re.sub(r"^(model\.)?(language_model\.)?", "", k)
             for k in model.state_dict()}
    weights = gguf.random_weights(np.random.default_rng(7), 512)
    model.load_state_dict({k: torch.from_numpy(weights[s])
                           for k, s in short.items()})
    model.to(torch.bfloat16).save_pretrained(folder)
    size = {"min_pixels": 56 * 56, "max_pixels": 1400 * 1400}
    Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**size), tokenizer=tok,
        video_processor=Qwen2VLVideoProcessor(**size),
        chat_template=gguf.CHAT).save_pretrained(folder)
    tok.save_pretrained(folder)


if __name__ == "__main__":
    main()
