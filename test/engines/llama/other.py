"""An encoder of another engine: Qwen2-VL's vision tower in transformers. It
announces a picture's rows with an aux that has no saved chunk, and prints the
tokens that transformers itself answers.

    other.py CHECKPOINT PICTURE SOCKET REFERENCE STEPS TOKENS_BEFORE TOKENS_BEHIND

The tokens around the picture are those of the encode host's line. Run by a
Python with torch, transformers and pillow."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../lib/client/python"))

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import (Qwen2VLForConditionalGeneration,  # noqa: E402
                          Qwen2VLImageProcessor)

import mmx  # noqa: E402
from mmx import aux  # noqa: E402


def rows_of(model, seen):
    got = model.model.get_image_features(seen["pixel_values"],
                                         seen["image_grid_thw"])
    got = getattr(got, "pooler_output", got)
    return torch.cat(list(got)) if isinstance(got, (list, tuple)) else got


def main():
    folder, picture, socket, reference, steps, before, behind = sys.argv[1:8]
    torch.set_num_threads(1)
    model = Qwen2VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32).eval()
    seen = Qwen2VLImageProcessor.from_pretrained(folder)(
        images=[Image.open(picture)], return_tensors="pt")
    grid = [tuple(map(int, g)) for g in seen["image_grid_thw"]]
    merge = model.config.vision_config.spatial_merge_size
    with torch.no_grad():
        rows = rows_of(model, seen)
        with mmx.connect("encoded", socket, name="transformers") as enc:
            source = enc.announce(
                mmx.Reference.read(reference), enc.pool("vit"), len(rows),
                len(rows), aux=aux.pack(
                    modality="image", flags=aux.MROPE, grid=grid, merge=merge,
                    sizes=[Image.open(picture).size[::-1]]))
            source.wait_granted(timeout=60)
            source["embedding"][0:len(rows)] = rows.numpy()
            source.commit(0, len(rows), final=True)
            ids = [*map(int, before.split(",")),
                   *[model.config.image_token_id] * len(rows),
                   *map(int, behind.split(","))]
            kinds = [[int(i == model.config.image_token_id) for i in ids]]
            out = model.generate(
                input_ids=torch.tensor([ids]), do_sample=False,
                mm_token_type_ids=torch.tensor(kinds),
                max_new_tokens=int(steps), min_new_tokens=int(steps), **seen)
            print("tokens", *out[0][len(ids):].tolist(), flush=True)
            source.wait_done(timeout=60)
            source.release()


if __name__ == "__main__":
    main()
