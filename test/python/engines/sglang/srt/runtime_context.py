import types

PLACE = types.SimpleNamespace(tp_rank=0, tp_size=1, nnodes=1)


def get_parallel():
    return PLACE
