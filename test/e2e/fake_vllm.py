"""Stands in for the part of vLLM that calls the adapter, hook by hook and in
vLLM's order, against real daemons. Several ranks are several connections
here."""

import functools
import os
import pickle
import types
import zlib

import numpy as np
from vllm.distributed.ec_transfer.ec_connector import base
from pair import Case, eventually

import mmx
from mmx.adapters import _vllm_engine, vllm_ec

WIDTH = 32
FIELDS = f"embedding:bf16:{WIDTH}"


def tensor(name, rows):
    """What the encoder makes of a picture: the same each time."""
    seed = np.random.default_rng(zlib.crc32(name.encode()))
    return seed.integers(0, 2**16, (rows, WIDTH), dtype="u2")


class Feature:
    """An item as vLLM's scheduler has it, "video-N" with times of N frames. A
    reference has no pixels, only what sizes its placeholder."""

    def __init__(self, identifier, offset, length, reference=False):
        self.identifier = identifier
        frames = int(identifier.partition("video-")[2] or 0)
        self.modality = "video" if frames else "image"
        self.data = {f"{self.modality}_grid_thw": types.SimpleNamespace(
            data=[[1, 2, 2 * length]])}
        if frames:
            self.data["timestamps"] = types.SimpleNamespace(
                data=[i / 2 for i in range(frames)])
        if not reference:
            self.data["pixel_values"] = types.SimpleNamespace(data=b"pixels")
        self.mm_position = types.SimpleNamespace(
            offset=offset, length=length + 2,  # a separator on each side
            get_num_embeds=lambda: length)
        self.rows = length


def room_of(request, name):
    """Returns the number of the room that is offered under the name."""
    return mmx.Reference.read(request.ec_transfer_params[name]["room"]).room


class Request:
    """A request whose prompt has these pictures (name, rows) in turn."""

    def __init__(self, request_id, *pictures, reference=False):
        self.request_id, self.mm_features = request_id, []
        self.ec_transfer_params, self.status = None, "RUNNING"
        at = 5
        for name, rows in pictures:
            self.mm_features.append(Feature(name, at, rows, reference))
            at += rows + 10


class Engine:
    """Makes vLLM's calls in vLLM's order: a scheduler and its ranks, whose
    only link is the metadata."""

    def __init__(self, daemon, role, ranks=1, dtype="torch.bfloat16",
                 width=WIDTH, wide=WIDTH, v2=False, stages=1, **extra):
        self.ranks, self.config = [], None
        for rank in range(-1, ranks):
            config = types.SimpleNamespace(
                ec_transfer_config=types.SimpleNamespace(
                    engine_id=f"{daemon.name}-{role}-{os.getpid()}",
                    is_ec_producer=role == "producer",
                    is_ec_consumer=role == "consumer",
                    mm_encoder_output_widths={"image": width}
                    if role == "producer" else {},
                    ec_connector_extra_config={
                        "mmx_socket": daemon.socket, **extra}),
                parallel_config=types.SimpleNamespace(
                    tensor_parallel_size=ranks, rank=max(rank, 0),
                    pipeline_parallel_size=stages, data_parallel_size=1),
                use_v2_model_runner=v2,
                model_config=types.SimpleNamespace(
                    model="m", revision="1", dtype=dtype,
                    get_inputs_embeds_size=lambda: width))
            self.config = self.config or config  # also the API server's
            made = vllm_ec.MmxECConnector(
                config, base.ECConnectorRole.SCHEDULER if rank < 0
                else base.ECConnectorRole.WORKER)
            if rank < 0:
                self.scheduler = made
            else:
                self.ranks.append(made)
        self.wide = wide  # elements of a row, whatever the configuration says
        self.caches = [{} for _ in self.ranks]
        self.encoded = []  # the items for which the encoder ran

    def close(self):
        for c in [self.scheduler, *self.ranks]:
            c.shutdown()

    # --- scheduler --------------------------------------------------------
    def ready(self, request, computed=0):
        return self.scheduler.ensure_cache_available(request, computed)

    def failed(self, request):
        """True if the scheduler would end the request with an error."""
        if self.ready(request):
            raise AssertionError(f"{request.request_id} is admitted")
        named = self.scheduler.take_unavailable_requests()
        assert named <= {request.request_id}, named
        return bool(named)

    def admit(self, request, computed=0):
        eventually(lambda: self.ready(request, computed),
                   f"{request.request_id} is admitted")

    def step(self, request, evict=(), computed=0):
        """Schedules the tokens beyond `computed`. Items that neither the
        connector nor the engine has are encoded here."""
        cached = self.caches[0]
        encode, seen = [], set()
        for name in evict:
            for cache in self.caches:
                del cache[name]
        for i, f in enumerate(request.mm_features):
            if f.mm_position.offset + f.mm_position.length <= computed or \
                    f.identifier in {*cached, *seen}:
                continue
            seen.add(f.identifier)
            if not self.scheduler.has_cache_item(f.identifier):
                assert "pixel_values" in f.data, "vLLM ends: no pixels"
                encode.append(f)
            self.scheduler.update_state_after_alloc(request, i)
        meta = self.scheduler.build_connector_meta(
            types.SimpleNamespace(
                free_encoder_mm_hashes=list(evict),
                num_scheduled_tokens={request.request_id: 1}))
        self.report([
            self.run(rank, cache, pickle.loads(pickle.dumps(meta)), encode)
            for rank, cache in zip(self.ranks, self.caches)])
        self.encoded += [f.identifier for f in encode]

    def run(self, rank, cache, meta, encode):
        """Runs one pass of a rank."""
        rank.bind_connector_metadata(meta)
        rank.start_save_caches(encoder_cache=cache)
        rank.start_load_caches(cache)
        for f in encode:
            rows = tensor(f.identifier, f.rows)
            cache[f.identifier] = rows[:, :self.wide]
            rank.save_caches(cache, f.identifier)
        return self.end(rank)

    def end(self, rank):
        rank.get_finished(set())
        said = rank.build_connector_worker_meta()
        rank.clear_connector_metadata()
        return said

    def report(self, said):
        """Joins the ranks' reports, as vLLM's executor does, and hands them
        on."""
        said = [pickle.loads(pickle.dumps(x)) for x in said if x]
        if said:
            self.scheduler.update_connector_output(types.SimpleNamespace(
                ec_connector_worker_meta=functools.reduce(
                    lambda a, b: a.aggregate(b), said)))

    def take(self, request):
        self.admit(request)
        self.step(request)

    def serve(self, request):
        """Serves a whole request; returns what the router gets to know."""
        self.take(request)
        return self.finish(request)

    def finish(self, request):
        later, params = self.scheduler.request_finished(request)
        assert not later
        return params


class VllmCase(Case):
    RANKS, FIELDS = 2, FIELDS

    def setUp(self):
        super().setUp()
        _vllm_engine.warn.last.clear()

    def start(self, blocks=32, ranks=RANKS, encoded=None, langd=None,
              **extra):
        self.e = self.world.encoded(fields=FIELDS, blocks=blocks,
                                    **(encoded or {}))
        self.d = self.world.langd(
            [], fields=FIELDS, **{"blocks": 32, **(langd or {})},
            control={"allow": ["tcp://127.0.0.1:*"]})
        # The machine may be slow.
        patient = {"mmx_patience_s": 60}
        self.producer = self.engine_of(self.e, "producer", ranks, **patient)
        self.consumer = self.engine_of(self.d, "consumer", ranks,
                                       **{**patient, **extra})

    def engine_of(self, *how, **extra):
        engine = Engine(*how, **extra)
        self.world.engines.append(engine)
        return engine

    def tearDown(self):
        if not self.broken and hasattr(self, "e") and self.e.alive():
            self.reclaim()
        super().tearDown()

    def reclaim(self, daemon=None, producer=None):
        """Takes all blocks for another engine, so that kept rows are
        evicted."""
        daemon = daemon or self.e
        other = self.world.engine(daemon)
        (producer or self.producer).scheduler.has_pending_push_work()
        blocks = daemon.free()[1]
        other.announce(99, blocks * 128)
        other.granted(99)
        other.release(99)

    def connect(self):
        """Connects langd to encoded: langd sends a DECLINE only to encoders
        that it knows."""
        r = self.hand_over("before", ("first", 3))
        self.consumer.serve(r)

    def declined(self, said):
        """Declines an offer for which its engine has no use any more."""
        lm = self.world.engine(self.d).conn
        lm.wait(lm.decline(mmx.Reference.read(said["room"]),
                           said["encoder"]), 10)

    def check(self, engine, request):
        for cache in engine.caches:
            for f in request.mm_features:
                np.testing.assert_array_equal(
                    cache[f.identifier], tensor(f.identifier, f.rows))

    def fetch(self, request):
        """Serves a request at the consumer, and checks its pictures' rows."""
        self.consumer.take(request)
        self.check(self.consumer, request)
        self.consumer.finish(request)

    def opened(self):
        return self.d.stats()["rooms_opened"]

    def hand_over(self, name, *pictures, reference=False):
        """Encodes a request at the producer; returns it with the offers, as
        the language side gets it."""
        request = Request(name, *pictures)
        there = Request(name, *pictures, reference=reference)
        there.ec_transfer_params = self.producer.serve(request)
        return there
