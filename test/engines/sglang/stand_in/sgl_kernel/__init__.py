"""Stands in for SGLang's kernel library where there is no GPU: the package
that PyPI has is for CUDA, and with SGLANG_USE_CPU_ENGINE=1 SGLang imports the
names of a build for CPUs. What a request meets is here in plain torch; the
kernel by which SGLang knows a build for AMX is not, so that it takes torch's
own attention and matrices."""

import ctypes

import torch

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(requests, table, first, end, places, _):
    at = 0
    for r, a, b in zip(requests.tolist(), first.tolist(), end.tolist()):
        table[r, a:b] = places[at:at + b - a].to(table.dtype)
        at += b - a


def copy_all_layer_kv_cache_cpu(buffers, strides, to, source):
    to, source = to.tolist(), source.tolist()
    for base, stride in zip(buffers.tolist(), strides.tolist()):
        rows = [ctypes.string_at(base + i * stride, stride) for i in source]
        for i, row in zip(to, rows):
            ctypes.memmove(base + i * stride, row, stride)


def _op(schema, call):
    _lib.define(schema)
    _lib.impl(schema[:schema.index("(")], call, "CompositeExplicitAutograd")


_lib = torch.library.Library("sgl_kernel", "FRAGMENT")
_op("init_cpu_threads_env(str ids) -> ()", lambda ids: None)
_op("initialize(int size, int rank) -> ()", lambda size, rank: None)


def __getattr__(name):
    """Returns a stand-in for any other kernel, which can be imported but not
    called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} is not for CPUs")
    return missing


# Names that models import and Qwen2-VL does not call.
for _name in ("fused_sigmoid_mul", "fused_qk_gemma_rmsnorm",
              "fused_qk_gemma_rmsnorm_with_gate",
              "fused_qkvzba_split_reshape_cat_contiguous"):
    _op(f"{_name}_cpu(Tensor x) -> Tensor", __getattr__(_name))
