"""Connectors that write down when they did what, to MMX_TIMES: mmx's and
vLLM's example, which passes one file for each picture. Monotonic time is the
same for all processes of a host."""

import os
import time

from vllm.distributed.ec_transfer.ec_connector.example_connector import \
    ECExampleConnector

from mmx.adapters.vllm_ec import MmxECConnector


def note(what, identifier):
    line = f"{what} {identifier} {time.monotonic_ns()} {os.getpid()}\n"
    fd = os.open(os.environ["MMX_TIMES"],
                 os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


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
            note("usable", identifier)


class TimedMmx(_Timed, MmxECConnector):
    pass


class TimedExample(_Timed, ECExampleConnector):
    pass
