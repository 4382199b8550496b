"""Stands in for vLLM's module of this name where vLLM is not installed."""

from contextlib import nullcontext as gpu_sync_allowed

__all__ = ["gpu_sync_allowed"]
