"""Tiny random models in llama.cpp's format, made on the spot.

    make_gguf.py FOLDER [--hf CHECKPOINT]

writes qwen.gguf and qwen-mmproj.gguf, a Qwen2-VL (M-RoPE), sound.gguf and
sound-mmproj.gguf, the same with four times the layers, and Qwen2-Audio's
projector (30 s of sound are 750 rows), and gemma.gguf and gemma-mmproj.gguf, a Llama with Gemma 3's
projector (rows that attend to each other both ways). --hf: the Qwen2-VL of a folder of transformers, whose weights
are copied, so that two engines can be compared on one checkpoint."""

import json
import os
import re
import struct
import sys

import gguf
import numpy as np

HID, FF, LAYERS, HEADS, KV, CONTEXT = 256, 512, 3, 4, 2, 32768
VIS, VIS_FF, VIS_LAYERS, PATCH, MELS = 128, 512, 4, 14, 128
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>",
           "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
           "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
           "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>"]
CHAT = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]


def alphabet():
    """Returns the characters by which byte-level tokenizers show bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return sorted([chr(b) for b in plain] +
                  [chr(256 + i) for i in range(len(other))])


def random_weights(draw, vocab):
    """Returns a Qwen2-VL by transformers' names."""
    def matrix(*shape):
        fan = int(np.prod(shape[1:]))
        return (draw.standard_normal(shape) / fan ** .5).astype("f4")

    def some(n):
        return (draw.standard_normal(n) * .02).astype("f4")

    head = HID // HEADS
    out = {"embed_tokens.weight": draw.standard_normal((vocab, HID)),
           "lm_head.weight": 3 * matrix(vocab, HID),
           "norm.weight": np.ones(HID)}
    for i in range(LAYERS):
        p = f"layers.{i}."
        for name, n in (("q", HEADS), ("k", KV), ("v", KV)):
            out[f"{p}self_attn.{name}_proj.weight"] = matrix(n * head, HID)
            out[f"{p}self_attn.{name}_proj.bias"] = some(n * head)
        out[f"{p}self_attn.o_proj.weight"] = matrix(HID, HID)
        for name in ("gate", "up"):
            out[f"{p}mlp.{name}_proj.weight"] = matrix(FF, HID)
        out[f"{p}mlp.down_proj.weight"] = matrix(HID, FF)
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{name}.weight"] = np.ones(HID)
    out["visual.patch_embed.proj.weight"] = matrix(VIS, 3, 2, PATCH, PATCH)
    for i in range(VIS_LAYERS):
        p = f"visual.blocks.{i}."
        for name, a, b in (("attn.qkv", 3 * VIS, VIS), ("attn.proj", VIS, VIS),
                           ("mlp.fc1", VIS_FF, VIS), ("mlp.fc2", VIS, VIS_FF)):
            out[f"{p}{name}.weight"], out[f"{p}{name}.bias"] = \
                matrix(a, b), some(a)
        for name in ("norm1", "norm2"):
            out[f"{p}{name}.weight"] = np.ones(VIS)
            out[f"{p}{name}.bias"] = some(VIS)
    out["visual.merger.ln_q.weight"] = np.ones(VIS)
    out["visual.merger.ln_q.bias"] = some(VIS)
    for name, a in (("0", 4 * VIS), ("2", HID)):
        out[f"visual.merger.mlp.{name}.weight"] = matrix(a, 4 * VIS)
        out[f"visual.merger.mlp.{name}.bias"] = some(a)
    return {k: np.asarray(v, "f4") for k, v in out.items()}


def hf_weights(folder):
    """Returns all tensors of a folder's safetensors as f32, by short names."""
    out = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            head = json.loads(f.read(size))
            body = f.read()
        for key, t in head.items():
            if key == "__metadata__":
                continue
            raw = body[slice(*t["data_offsets"])]
            if t["dtype"] == "BF16":
                value = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view(
                    "f4")
            else:
                value = np.frombuffer(
                    raw, {"F32": "f4", "F16": "f2"}[t["dtype"]]).astype("f4")
            key = re.sub(r"^(model\.)?(language_model\.)?(model\.)?", "", key)
            out[key] = value.reshape(t["shape"])
    return out


def vocabulary(folder):
    """Returns (tokens, ids of the special ones, merges)."""
    if folder:
        with open(os.path.join(folder, "tokenizer.json"),
                  encoding="utf-8") as f:
            t = json.load(f)
        ids = dict(t["model"]["vocab"])
        ids.update((a["content"], a["id"]) for a in t["added_tokens"])
        merges = [m if isinstance(m, str) else " ".join(m)
                  for m in t["model"]["merges"]]
        special = {a["id"] for a in t["added_tokens"]}
    else:
        words = alphabet() + ["he"] + SPECIAL
        ids = {w: i for i, w in enumerate(words)}
        merges = ["h e"]
        special = {ids[s] for s in SPECIAL}
    tokens = [f"[PAD{i}]" for i in range(512)]
    for word, i in ids.items():
        tokens[i] = word
    return tokens, special, merges


def add_tokenizer(w, tokens, special, merges):
    kinds = [gguf.TokenType.CONTROL if i in special
             else gguf.TokenType.UNUSED if t.startswith("[PAD")
             else gguf.TokenType.NORMAL for i, t in enumerate(tokens)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges(merges)
    w.add_eos_token_id(tokens.index("<|im_end|>"))
    w.add_pad_token_id(tokens.index("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


TEXT = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
        "post_attention_layernorm": "ffn_norm", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down"}


def write_text(path, arch, weights, words, times=1):
    """times: how often each layer is repeated, so that a prefill takes as long
    as an encoder."""
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HID)
    w.add_block_count(times * LAYERS)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    if arch == "qwen2vl":
        w.add_rope_dimension_sections([8, 12, 12, 0])
    else:
        w.add_rope_dimension_count(HID // HEADS)
    add_tokenizer(w, *words)
    w.add_tensor("token_embd.weight", weights["embed_tokens.weight"])
    w.add_tensor("output_norm.weight", weights["norm.weight"])
    w.add_tensor("output.weight", weights["lm_head.weight"])
    for key, value in weights.items():
        m = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", key)
        if m and (arch == "qwen2vl" or m[3] == "weight"):
            for i in range(times):
                w.add_tensor(f"blk.{int(m[1]) + i * LAYERS}.{TEXT[m[2]]}.{m[3]}",
                             value)
    finish(w)


def clip_writer(path, modality, kind, *sizes):
    w = gguf.GGUFWriter(path, "clip")
    w.add_bool(f"clip.has_{modality}_encoder", True)
    w.add_string("clip.projector_type", kind)
    for key, value in (*sizes,
                       ("embedding_length", VIS), ("projection_dim", HID),
                       ("feed_forward_length", VIS_FF),
                       ("block_count", VIS_LAYERS),
                       ("attention.head_count", HEADS)):
        w.add_uint32(f"clip.{modality}.{key}", value)
    w.add_float32(f"clip.{modality}.attention.layer_norm_epsilon", 1e-6)
    return w


def vision_writer(path, kind, image_size, patch, mean, std):
    w = clip_writer(path, "vision", kind, ("image_size", image_size),
                    ("patch_size", patch))
    w.add_array("clip.vision.image_mean", mean)
    w.add_array("clip.vision.image_std", std)
    return w


VISION = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out",
          "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}


def add_blocks(w, weights, modality="v"):
    for key, value in weights.items():
        m = re.fullmatch(r"visual\.blocks\.(\d+)\.(.+)\.(weight|bias)", key)
        if m and m[2] == "attn.qkv":
            for name, part in zip("qkv", np.split(value, 3)):
                if modality == "v" or (name, m[3]) != ("k", "bias"):
                    w.add_tensor(f"{modality}.blk.{m[1]}.attn_{name}.{m[3]}",
                                 part.copy())
        elif m:
            w.add_tensor(f"{modality}.blk.{m[1]}.{VISION[m[2]]}.{m[3]}", value)
    for end in ("weight", "bias"):
        w.add_tensor(f"{modality}.post_ln.{end}",
                     weights[f"visual.merger.ln_q.{end}"])


def write_qwen(path, weights):
    w = vision_writer(path, "qwen2vl_merger", 560, PATCH, MEAN, STD)
    patch = weights["visual.patch_embed.proj.weight"]
    w.add_tensor("v.patch_embd.weight", patch[:, :, 0].copy())
    w.add_tensor("v.patch_embd.weight.1", patch[:, :, 1].copy())
    add_blocks(w, weights)
    for n in (0, 2):
        for end in ("weight", "bias"):
            w.add_tensor(f"mm.{n}.{end}",
                         weights[f"visual.merger.mlp.{n}.{end}"])
    finish(w)


def write_gemma(path, weights, draw):
    w = vision_writer(path, "gemma3", 224, PATCH, [.5] * 3, [.5] * 3)
    patch = weights["visual.patch_embed.proj.weight"]
    w.add_tensor("v.patch_embd.weight", patch[:, :, 0].copy())
    w.add_tensor("v.patch_embd.bias", np.zeros(VIS, "f4"))
    w.add_tensor("v.position_embd.weight", draw.standard_normal(
        ((224 // PATCH) ** 2, VIS)).astype("f4"))
    add_blocks(w, weights)
    w.add_tensor("mm.soft_emb_norm.weight", np.ones(VIS, "f4"))
    w.add_tensor("mm.input_projection.weight", (draw.standard_normal(
        (VIS, HID)) / VIS ** .5).astype("f4"))
    finish(w)


def write_sound(path, weights, draw):
    w = clip_writer(path, "audio", "qwen2a", ("num_mel_bins", MELS))
    for i, n in ((1, MELS), (2, VIS)):
        w.add_tensor(f"a.conv1d.{i}.weight", (draw.standard_normal(
            (VIS, n, 3)) / (3 * n) ** .5).astype("f2"))
        w.add_tensor(f"a.conv1d.{i}.bias", np.zeros((VIS, 1), "f4"))
    w.add_tensor("a.position_embd.weight", draw.standard_normal(
        (1500, VIS)).astype("f4"))
    add_blocks(w, weights, "a")
    w.add_tensor("mm.a.fc.weight", (draw.standard_normal(
        (HID, VIS)) / VIS ** .5).astype("f4"))
    w.add_tensor("mm.a.fc.bias", np.zeros(HID, "f4"))
    finish(w)


def main():
    out = sys.argv[1]
    folder = sys.argv[3] if sys.argv[2:3] == ["--hf"] else None
    draw = np.random.default_rng(7)
    words = vocabulary(folder)
    weights = hf_weights(folder) if folder else \
        random_weights(draw, len(words[0]))
    os.makedirs(out, exist_ok=True)
    write_text(f"{out}/qwen.gguf", "qwen2vl", weights, words)
    write_qwen(f"{out}/qwen-mmproj.gguf", weights)
    write_text(f"{out}/sound.gguf", "qwen2vl", weights, words, 4)
    write_text(f"{out}/gemma.gguf", "llama", weights, words)
    write_gemma(f"{out}/gemma-mmproj.gguf", weights, draw)
    write_sound(f"{out}/sound-mmproj.gguf", weights, draw)


if __name__ == "__main__":
    main()
