import types

PLACE = types.SimpleNamespace(tp_rank=0, tp_size=1, nnodes=1, pp_size=1,
                              attn_dp_enabled=False)
MM = types.SimpleNamespace(enable_prefix_mm_cache=False)


def get_parallel():
    return PLACE


def get_mm():
    return MM
