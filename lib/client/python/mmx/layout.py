"""The pool layout that a model needs, from its HF config.json.

mmx moves the rows that the language model merges, as wide as its hidden size.
Qwen3-VL adds deepstack: N more vectors per row, which vLLM keeps in one wide
row, other engines in a field of their own.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

from .dtypes import BY_TORCH, DTYPES

QWEN = ("qwen2_vl", "qwen2_5_vl")
DEEPSTACK = ("qwen3_vl", "qwen3_vl_moe")
# Models whose rows have the text model's width, without deepstack.
LLAVA = ("llava", "llava_next", "llava_next_video", "llava_onevision",
         "vipllava", "video_llava", "llava_llama", "llava_qwen", "mistral3",
         "paligemma", "gemma3", "internvl", "internvl_chat", "idefics3",
         "smolvlm", "aya_vision")
FLOATS = ("bf16", "f16", "f32")


class UnknownModel(ValueError):
    """The config lacks a value; the text names it."""


class Layout(NamedTuple):
    model: str
    fields: str  # "name:dtype:elements,..."
    row_bytes: int


def layout(config: Dict[str, Any], dtype: str = "", hidden_size: int = 0,
           deepstack: str = "row") -> Layout:
    """Computes a model's layout. deepstack: "row" for one field of
    H x (1 + N), "fields" for one of H and one of H x N."""
    kind = str(config.get("model_type", ""))
    if kind not in QWEN + DEEPSTACK + LLAVA:
        raise UnknownModel(
            f"model_type {kind!r} is unknown; known types: "
            + ", ".join(sorted(QWEN + DEEPSTACK + LLAVA)))
    text = _text(config)
    width = hidden_size or _number(kind, text, "hidden_size")
    name = dtype or _dtype(config, text)
    vision = config.get("vision_config") or {}
    levels = 0
    if kind in DEEPSTACK:
        indexes = vision.get("deepstack_visual_indexes")
        if not isinstance(indexes, list):
            raise UnknownModel(f"{kind}: vision_config has no list of "
                               "deepstack_visual_indexes")
        levels = len(indexes)
    out = vision.get("out_hidden_size")
    if kind in QWEN[1:] + DEEPSTACK and out not in (None, width):
        raise UnknownModel(f"{kind}: the encoder's rows have {out} elements, "
                           f"the text model takes {width}")
    fields = [("embedding", width * (1 + levels))]
    if levels and deepstack == "fields":
        fields = [("embedding", width), ("deepstack", width * levels)]
    return Layout(kind, ",".join(f"{f}:{name}:{n}" for f, n in fields),
                  width * (1 + levels) * DTYPES[name].bytes)


def _text(config: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the language model's part; newer configs nest it."""
    for key in ("text_config", "llm_config"):
        if isinstance(config.get(key), dict):
            return dict(config[key])
    return config


def _number(kind: str, text: Dict[str, Any], key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or not 0 < value <= 2**20:
        raise UnknownModel(
            f"{kind}: this config leaves the text model's {key} at its "
            "default: pass --hidden-size")
    return value


def _dtype(config: Dict[str, Any], text: Dict[str, Any]) -> str:
    for part in (config, text):
        for key in ("dtype", "torch_dtype"):
            if part.get(key):
                name = str(part[key]).replace("torch.", "")
                if BY_TORCH.get(name) not in FLOATS:
                    known = ", ".join(DTYPES[f].torch for f in FLOATS)
                    raise UnknownModel(f"{key} {name!r} is not one of "
                                       f"{known}: pass --dtype")
                return BY_TORCH[name]
    raise UnknownModel("the config has neither dtype nor torch_dtype: pass "
                       "--dtype")


def yaml(made: Layout, pool: str = "vit", block_rows: int = 128,
         total_bytes: int = 2**30) -> str:
    """Returns the `pools` section for either daemon's configuration."""
    block = made.row_bytes * block_rows
    lines: List[str] = [
        f"# {made.model}: {made.row_bytes} bytes a row, {block} a block",
        "pools:",
        f"  - name: {pool}",
        f"    block_rows: {block_rows}",
        f"    blocks: {max(1, total_bytes // block)}",
        f'    layout: "{made.fields}"',
    ]
    return "\n".join(lines) + "\n"
