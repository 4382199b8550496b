"""Two connectors that write down when they did what: mmx's, and vLLM's example,
which passes one file for each picture. "encoded": the encoder's output is in
the producer's cache; "usable": each page of the rows in the consumer's cache
has been read once, since a file that is only mapped has yet to be. For mmx also
"loads": a worker begins to load the item."""

import torch
from vllm.distributed.ec_transfer.ec_connector.example_connector import \
    ECExampleConnector

from mmx.adapters.vllm_ec import MmxECConnector
from marks import note


class _Timed:
    _asked: frozenset = frozenset()

    def ensure_cache_available(self, request, *more):
        for f in request.mm_features:
            if self.is_consumer and f.identifier not in self._asked:
                self._asked |= {f.identifier}
                note("asked", f.identifier)
        return super().ensure_cache_available(request, *more)

    def save_caches(self, encoder_cache, mm_hash, **kwargs):
        note("encoded", mm_hash)
        super().save_caches(encoder_cache, mm_hash, **kwargs)
        note("saved", mm_hash)

    def start_load_caches(self, encoder_cache, **kwargs):
        had = set(encoder_cache)
        super().start_load_caches(encoder_cache, **kwargs)
        for identifier in set(encoder_cache) - had:
            rows = encoder_cache[identifier].flatten().view(torch.uint8)
            int(rows[::4096].sum())
            note("usable", identifier)


class TimedMmx(_Timed, MmxECConnector):
    def start_load_caches(self, encoder_cache, **kwargs):
        for one in self._get_connector_metadata().loads:
            note("loads", one.identifier)
        super().start_load_caches(encoder_cache, **kwargs)


class TimedExample(_Timed, ECExampleConnector):
    pass
