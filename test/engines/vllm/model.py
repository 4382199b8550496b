#!/usr/bin/env python3
"""A tiny Qwen2-VL with random weights, made on the spot: config, weights,
byte-level tokenizer, processor. Nothing is downloaded.

    model.py DIR [--vision-seed N]

Two models with the same --seed and different --vision-seed share the language
model and differ in the encoder: a consumer that has the wrong encoder can only
answer right if the rows came from the producer."""

import argparse
import os
import shutil

import torch
from transformers import (AutoProcessor, AutoTokenizer, Qwen2VLConfig,
                          Qwen2VLForConditionalGeneration,
                          Qwen2VLImageProcessor, Qwen2VLProcessor)

try:
    from transformers import Qwen2VLVideoProcessor
except ImportError:
    Qwen2VLVideoProcessor = None
try:
    from transformers import Qwen2Tokenizer as Tok
except ImportError:
    from transformers import Qwen2TokenizerFast as Tok

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>",
           "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
           "<|video_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}"
    "{% if c['type'] in ('image', 'image_url') or 'image' in c "
    "or 'image_url' in c %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] in ('video', 'video_url') %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def tokenizer(folder):
    from tokenizers import pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    tok = Tok(vocab=vocab, merges=[], unk_token=None,
              eos_token="<|endoftext|>", pad_token="<|endoftext|>",
              additional_special_tokens=SPECIAL[1:])
    tok.add_special_tokens({"additional_special_tokens": SPECIAL[1:],
                            "eos_token": SPECIAL[0], "pad_token": SPECIAL[0]})
    tok.chat_template = TEMPLATE
    return tok


def fill(module, seed, std):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(module.named_parameters()):
        with torch.no_grad():
            if "norm" in name or "ln_" in name:
                p.copy_(1 + 0.05 * torch.randn(p.shape, generator=g)
                        if name.endswith("weight") else
                        0.05 * torch.randn(p.shape, generator=g))
            else:
                p.copy_(std * torch.randn(p.shape, generator=g))


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("dir")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--vision-seed", type=int, default=1)
    ask.add_argument("--hidden", type=int, default=128)
    ask.add_argument("--layers", type=int, default=2)
    ask.add_argument("--dtype", default="bfloat16")
    a = ask.parse_args()
    shutil.rmtree(a.dir, ignore_errors=True)
    os.makedirs(a.dir)

    tok = tokenizer(a.dir)
    ids = {s: tok.convert_tokens_to_ids(s) for s in SPECIAL}
    print("tokens:", len(tok), ids)
    size = (len(tok) + 63) // 64 * 64
    heads = a.hidden // 64
    config = Qwen2VLConfig(
        text_config={
            "model_type": "qwen2_vl_text", "vocab_size": size,
            "hidden_size": a.hidden,
            "intermediate_size": min(2 * a.hidden, 512),
            "num_hidden_layers": a.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "rope_parameters": {"rope_type": "default",
                                "rope_theta": 10000.0,
                                "mrope_section": [8, 12, 12]},
            "tie_word_embeddings": False, "use_sliding_window": False,
            "bos_token_id": None, "eos_token_id": ids["<|endoftext|>"]},
        vision_config={
            "depth": 2, "embed_dim": 64, "hidden_size": a.hidden,
            "mlp_ratio": 2, "num_heads": 2, "in_channels": 3,
            "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 2},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        vision_token_id=ids["<|vision_pad|>"], tie_word_embeddings=False)
    config.dtype = getattr(torch, a.dtype)
    model = Qwen2VLForConditionalGeneration(config)
    vision = model.model.visual
    fill(model, a.seed, 0.12)
    fill(vision, 1000 + a.vision_seed, 0.12)
    model = model.to(getattr(torch, a.dtype))
    model.generation_config.eos_token_id = ids["<|endoftext|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.generation_config.do_sample = False
    for k in ("temperature", "top_p", "top_k"):
        setattr(model.generation_config, k, None)
    model.save_pretrained(a.dir, safe_serialization=True)

    image = Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=1400 * 1400,
                                  patch_size=14, merge_size=2,
                                  temporal_patch_size=2)
    parts = {"image_processor": image, "tokenizer": tok,
             "chat_template": TEMPLATE}
    if Qwen2VLVideoProcessor:
        parts["video_processor"] = Qwen2VLVideoProcessor(
            min_pixels=56 * 56, max_pixels=448 * 448)
    Qwen2VLProcessor(**parts).save_pretrained(a.dir)
    tok.save_pretrained(a.dir)
    AutoTokenizer.from_pretrained(a.dir)
    AutoProcessor.from_pretrained(a.dir)
    total = sum(os.path.getsize(os.path.join(a.dir, f))
                for f in os.listdir(a.dir))
    print(a.dir, f"{total / 1e6:.1f} MB", sorted(os.listdir(a.dir)))


if __name__ == "__main__":
    main()
