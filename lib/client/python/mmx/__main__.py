"""Prints the status of this host's daemons, with `layout config.json` the pool
that a model needs, as YAML, or with `library` the path of the C library that
came with this package; `demo` moves a picture between daemons that it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import List, Optional

import mmx

from . import demo, layout


def size(text: str) -> int:
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)):
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * factor)
    return int(text)


def arguments(words: Optional[List[str]]) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m mmx",
                                description=__doc__)
    p.add_argument("--encoded", metavar="SOCKET",
                   help="default: $MMX_ENCODED_SOCKET, then "
                        "/run/mmx/encoded.sock")
    p.add_argument("--langd", metavar="SOCKET",
                   help="default: $MMX_LANGD_SOCKET, then "
                        "/run/mmx/langd.sock")
    p.add_argument("--version", action="version", version=mmx.__version__)
    what = p.add_subparsers(dest="what")
    what.add_parser("status", help="print the daemons' status as JSON (the "
                                   "default)")
    m = what.add_parser("layout", help="print a pool for a model as YAML")
    m.add_argument("config", help="the model's config.json")
    m.add_argument("--pool", default="vit", help="name of the pool")
    m.add_argument("--bytes", type=size, default=2**30,
                   help="size of the pool, such as 16GiB (default 1GiB)")
    m.add_argument("--block-rows", type=int, default=128)
    m.add_argument("--dtype", choices=layout.FLOATS,
                   help="default: the config's")
    m.add_argument("--hidden-size", type=int, default=0,
                   help="for configs that leave it out")
    m.add_argument("--deepstack", choices=("row", "fields"), default="row",
                   help="Qwen3-VL: one wide row (vLLM), or a field of its own")
    what.add_parser("library", help="print the path of the C library of this "
                                    "package")
    demo.add_arguments(what.add_parser(
        "demo", help="start both daemons and move a picture through them"))
    return p.parse_args(words)


def status(args: argparse.Namespace) -> int:
    found = 0
    for role in ("encoded", "langd"):
        try:
            with mmx.connect(role, getattr(args, role), name="python -m mmx",
                             cells=16, timeout=1) as conn:
                print(f"mmx-{role}:", json.dumps(conn.query("status")))
                found += 1
        except (mmx.MmxError, OSError) as e:
            print(f"mmx-{role}: {e}")
    return 0 if found else 1


def show_layout(args: argparse.Namespace) -> int:
    try:
        with open(args.config, encoding="utf-8") as f:
            config = json.load(f)
        if not isinstance(config, dict):
            raise layout.UnknownModel("not a JSON object")
        made = layout.layout(config, args.dtype or "", args.hidden_size,
                             args.deepstack)
    except (OSError, ValueError) as e:
        print(f"{args.config}: {e}", file=sys.stderr)
        return 1
    print(layout.yaml(made, args.pool, args.block_rows, args.bytes), end="")
    return 0


def library() -> int:
    path = os.path.join(os.path.dirname(mmx.__file__), "libmmx.so.0")
    if not os.path.exists(path):
        print("this package has no C library: a wheel of `make wheel` has one",
              file=sys.stderr)
        return 1
    print(path)
    return 0


def main(words: Optional[List[str]] = None) -> int:
    args = arguments(words)
    if args.what == "library":
        return library()
    if args.what == "demo":
        return demo.main(args)
    return show_layout(args) if args.what == "layout" else status(args)


if __name__ == "__main__":
    sys.exit(main())
