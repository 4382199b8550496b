"""Stands in for SGLang 0.5.23's module of this name where it is not installed:
hooks are put around what they name, or in its place."""

from __future__ import annotations

import functools
import pkgutil
from enum import Enum
from typing import Any


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    hooks: "dict[str, list[Any]]" = {}
    patched: "list[tuple[Any, str, Any]]" = []
    done: "set[str]" = set()

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls.hooks.setdefault(target, []).append((hook_type, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hooks in cls.hooks.items():
            if target in cls.done:
                continue
            cls.done.add(target)
            path, name = target.rsplit(".", 1)
            at = pkgutil.resolve_name(path)
            new = original = getattr(at, name)
            for kind, hook in hooks:
                new = hook if kind is HookType.REPLACE else _around(new, hook)
            cls.patched.append((at, name, original))
            setattr(at, name, new)

    @classmethod
    def reset(cls):
        """Also undoes the patches: other tests follow."""
        for at, name, original in reversed(cls.patched):
            setattr(at, name, original)
        cls.hooks, cls.patched, cls.done = {}, [], set()


def _around(original, hook):
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return hook(original, *args, **kwargs)
    return wrapper
