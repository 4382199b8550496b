"""A tiny Qwen3-VL with random weights, whose attention can be data parallel.

    qwen3.py DIR [--vision-seed N]"""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "llama"), HERE]

import make_gguf as gguf  # noqa: E402
import torch  # noqa: E402
from checkpoint import tokenizer  # noqa: E402
from transformers import (Qwen2VLImageProcessor,  # noqa: E402
                          Qwen3VLConfig, Qwen3VLForConditionalGeneration,
                          Qwen3VLProcessor, Qwen3VLVideoProcessor)


def config(ids):
    return Qwen3VLConfig(
        text_config={
            "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
            "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 64,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
                                "mrope_section": [12, 10, 10],
                                "mrope_interleaved": True},
            "bos_token_id": None, "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"]},
        vision_config={
            "depth": 2, "hidden_size": 64, "intermediate_size": 128,
            "num_heads": 4, "patch_size": 14, "in_channels": 3,
            "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": 128, "deepstack_visual_indexes": [0],
            "num_position_embeddings": 256},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False, dtype="bfloat16")


def seed(module, number):
    """Draws weights that make a difference; norms stay."""
    torch.manual_seed(number)
    for one in module.parameters():
        if one.dim() > 1:
            torch.nn.init.normal_(one, std=0.15)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder")
    p.add_argument("--vision-seed", type=int, default=1)
    args = p.parse_args()
    tok = tokenizer()
    model = Qwen3VLForConditionalGeneration(config(
        {s: tok.convert_tokens_to_ids(s) for s in gguf.SPECIAL}))
    seed(model, 7)
    seed(model.model.visual, args.vision_seed)
    model.to(torch.bfloat16).save_pretrained(args.folder)
    size = {"min_pixels": 56 * 56, "max_pixels": 1400 * 1400}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**size), tokenizer=tok,
        video_processor=Qwen3VLVideoProcessor(**size),
        chat_template=gguf.CHAT).save_pretrained(args.folder)
    tok.save_pretrained(args.folder)


if __name__ == "__main__":
    main()
