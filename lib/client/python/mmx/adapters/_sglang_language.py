"""The language side of the SGLang plugin: a secret for each request in the
tokenizer process, rooms for it in each scheduler rank. The scheduler never
waits for rows: a rank looks at its cells once in each of SGLang's turns."""

from __future__ import annotations

import collections
import contextlib
import importlib
import itertools
import json
import logging
import math
import os
import queue
import re
import threading
import time
import urllib.error
import urllib.request
import weakref
from array import array
from typing import (Any, Callable, Deque, Dict, Iterator, List, Optional,
                    Tuple)

import mmx
from mmx import aux, errors

from ._common import (Pooled, Rated, chosen_field, deadline, pool_name,
                      remedy)
from ._copies import Here, Rows, copies, shown
from ._sglang_common import (GRPC, GRPC_PLACE, MARK, MODE, PLACE, Metrics,
                             asked_by_grpc, encoder_of, encoders, gpu_bytes,
                             is_place, numbers, reachable, reason,
                             reference_of, session, status, unpack, words)

log = logging.getLogger("mmx.sglang")
warn = Rated(log)
RECEIVER = "sglang.srt.disaggregation.encoder.receiver"
BATCH = "sglang.srt.managers.schedule_batch"
REASONS = {e.reason: e for e in errors.BY_NUMBER.values()}
FIRST_S = 0.1
PATIENCE_S = 5  # wait for a daemon that is away
AGAIN_S = 0.1  # pause between two questions to an encoder that registers
LATER_S = 5  # the same once the encoder is late
ASKERS_MAX = 64  # threads
ASKED_MAX = 1024  # encoders; beyond this number the first one is forgotten


# --- tokenizer manager ------------------------------------------------------
PLACE_S = 60  # an encoder that has not answered after this time is late
places: Dict[str, str] = {}  # by an encoder's URL: its answer
# by an encoder's URL: the function that asks it
asked: Dict[str, Callable[[], None]] = {}
asking = threading.Lock()  # held while an encoder is put to use, or forgotten
# (when it is due, a number to break ties, the question)
questions: "queue.PriorityQueue[Tuple[float, int, Callable[[], None]]]" = \
    queue.PriorityQueue()
asked_so_far = itertools.count()
askers: List[threading.Thread] = []


def said(url: str) -> str:
    """Returns the answer of an encoder's server. FileNotFoundError: it has no
    such answer; other OSErrors: it may have one later."""
    if url.startswith(GRPC):
        return asked_by_grpc(url, GRPC_PLACE).decode()
    try:
        with urllib.request.urlopen(url + PLACE, timeout=2) as r:
            return str(json.load(r)["address"])
    except urllib.error.HTTPError as e:
        raise (FileNotFoundError if e.code == 404 else OSError)(e) from None


def put(due: float, ask: Callable[[], None]) -> None:
    questions.put((due, next(asked_so_far), ask))


def asks() -> None:
    """A thread that asks. A question that is not due goes back to the queue,
    since others may be due."""
    while True:
        due, _, ask = questions.get()
        if due > time.monotonic():
            time.sleep(AGAIN_S)
            put(due, ask)
        else:
            ask()


def registered(original: Any, self: Any, url: Any) -> bool:
    """EncoderBootstrapServer.register. An encoder registers once, and is used
    once it has said where its mmx-encoded is. It is asked until it says so,
    answers that it has none (404), or unregisters. Text that is no URL, and an
    encoder that MMX_ENCODERS leaves out, are refused at once."""
    late, pause = time.monotonic() + PLACE_S, AGAIN_S

    def ask() -> None:
        nonlocal late, pause
        if asked.get(url) is not ask:
            return
        try:
            place = reachable(said(url), url)
            with asking:
                # the URL may have been registered again
                if asked.get(url) is ask:
                    places[url] = place
                    original(self, url)
                    del asked[url]
        except FileNotFoundError:
            warn("place", "mmx: encoder %.200s is not used: it runs without "
                 "mmx", url)
            with asking:
                if asked.get(url) is ask:
                    del asked[url]
        except Exception as e:  # the thread goes on with other encoders
            if time.monotonic() > late:
                late, pause = math.inf, LATER_S
                warn("late", "mmx: encoder %.200s is not used yet: it does "
                     "not say its place: %s", url, e)
            put(time.monotonic() + pause, ask)

    forms = (GRPC,) if os.environ.get(MODE) == "grpc" else \
        ("http:", "https:")
    if not isinstance(url, str) or not url.startswith(forms):
        warn("url", "mmx: %.200r is no URL of an encoder", url)
        return False
    if encoders() and url not in encoders():
        warn("left out", "mmx: encoder %.200s is none of MMX_ENCODERS", url)
        return False
    if url in asked:
        return True
    if len(asked) >= ASKED_MAX:
        asked.pop(next(iter(asked)), None)
    asked[url] = ask
    put(time.monotonic(), ask)
    if len(askers) < min(len(asked), ASKERS_MAX):
        askers.append(threading.Thread(target=asks, daemon=True,
                                       name="mmx-place"))
        askers[-1].start()
    return True


def unregistered(original: Any, self: Any, url: Any) -> Any:
    """EncoderBootstrapServer.unregister."""
    with asking:
        asked.pop(url, None)
        return original(self, url)


def marked(original: Any, self: Any, obj: Any, *args: Any,
           **more: Any) -> Any:
    """MMReceiverBase._send_encode_request: clients choose request ids and may
    repeat one, but a room id is for one use. So the encoder gets the id with a
    secret, and the scheduler gets the secret in a word behind the encoders'
    URLs, with the encoders' answers about their place."""
    secret = mmx.secret().hex()
    if obj.rid is None:
        import uuid

        obj.rid = uuid.uuid4().hex
    rid = obj.rid
    obj.rid = f"{rid}{MARK}{secret}"
    try:
        ready = original(self, obj, *args, **more)
    finally:
        obj.rid = rid
    if ready is not None:
        said = [places.get(url) or "-" for url in obj.encoder_urls]
        obj.encoder_urls = [*obj.encoder_urls,
                            " ".join([f"mmx:{secret}", *said])]
    return ready


def dispatched(original: Any, self: Any, req_id: str, *args: Any,
               on_dispatch_error: Any = None, **more: Any) -> Any:
    """MMReceiverBase._run_encode_in_thread: gives an error the client's own
    request id."""
    args_ = list(args)
    if len(args_) > 6:
        on_dispatch_error = args_.pop(6)

    def failed(error: Any) -> None:
        error.rid = error.rid.rpartition(MARK)[0] or error.rid
        on_dispatch_error(error)

    return original(self, req_id, *args_, **more,
                    on_dispatch_error=failed if on_dispatch_error else None)


# --- scheduler ranks ----------------------------------------------------------
@contextlib.contextmanager
def warned() -> Iterator[None]:
    """Logs exceptions: they belong to no request, and would end SGLang."""
    try:
        yield
    except Exception as e:
        warn("turn", "mmx: %s", e)


class Lang(Pooled):
    """The connection of one scheduler process, its number among the ranks on
    this host that serve the same requests, and its copies. scheduler:
    SGLang's."""

    one: "Optional[Lang]" = None
    metrics: Optional[Metrics] = None  # of the first rank

    def __init__(self, scheduler: Any = None) -> None:
        from sglang.srt.runtime_context import get_parallel  # type: ignore

        here = get_parallel()
        size, rank = (here.attn_tp_size, here.attn_tp_rank) \
            if here.attn_dp_enabled else (here.tp_size, here.tp_rank)
        # A host has all ranks of its pipeline stages, or shares one stage with
        # other hosts.
        hosts = max(1, here.nnodes // here.pp_size)
        self.ranks = max(1, min(size, here.tp_size // hosts))
        self.hosts = max(1, size // self.ranks)
        self.rank = rank % self.ranks
        super().__init__(mmx.connect(
            "langd", name=f"sglang-{here.tp_rank}", timeout=0,
            session=session()), log,
            ("MMX_POOL", "MMX_LANGD_SOCKET"), pool_name())
        self.speaks = self.rank == 0
        if self.rank == 0:
            self.metrics = Metrics("language")
        self.copies = copies(getattr(scheduler, "device", "cpu"), log)
        if self.copies.later:
            self.meets = self.copies.meet
            self.conn.prepare = self.copies.prepare
        # SGLang's kernels run on a stream of their own.
        self._readers = [s for s in (getattr(
            scheduler, "forward_stream", None),) if s is not None]
        # Requests whose rows other ranks may not have copied yet.
        self.begun: "List[Any]" = []
        self._limit = self._left = gpu_bytes()  # for rows on the GPU
        self._freed: Deque[int] = collections.deque()
        try:  # once per process, so that the first request finds the daemon
            self.conn.wait(self.step, FIRST_S)
        except TimeoutError:
            pass

    @classmethod
    def get(cls, scheduler: Any = None) -> "Lang":
        if cls.one is None:
            cls.one = cls(scheduler)
        return cls.one

    def step(self) -> Optional[mmx.Pool]:
        """Returns the pool once it is mapped. An exception here fails the
        waiting request; no other code may call this unguarded, since SGLang's
        scheduler would end."""
        pool = super().step()
        if self.metrics:
            self.metrics.used(pool is not None)
        self.copies.step()
        return pool

    def _check(self, pool: mmx.Pool) -> None:
        chosen_field(pool)

    def let_go(self, waiting: List[Any]) -> None:
        """Releases the rooms of requests for which SGLang does not wait any
        more: all ranks have their rows, so all have attached."""
        for one in [b for b in self.begun if b not in waiting]:
            self.begun.remove(one)
            for room in one.rooms.values():
                if room.released != mmx.wire.ALL:
                    room.release(force=True)

    def load(self, one: Any,
             groups: List[List[mmx.Room]]) -> Optional[List[Any]]:
        """Returns a tensor of each group's rows, those of one room after the
        other's; None: the GPU has no space yet. one.over() is called when
        they are there, and returns True if the request has failed. Shown in
        place, a room goes back with the last tensor over it, else when it is
        copied, of the first rank when all ranks have theirs. SGLang 0.5.23's
        own EmbeddingPool is no place for them: it frees its slots with the
        processor's output, which is gone before the prefill."""
        field = chosen_field(groups[0][0].pool)
        if not self.copies.later and \
                os.environ.get("MMX_SGLANG_COPY") != "1" and \
                all(len(g) == 1 == len(g[0].runs) and
                    g[0].pool.memory == "host" for g in groups):
            made = [shown(room.view(field.name, 0, item_rows(room),
                                    release=True), field.dtype)
                    for room, in groups]
            one.over()
            return made

        def copied() -> None:
            lost = one.over()
            for room in itertools.chain(*groups) if lost or self.rank else ():
                room.release(force=True, no_readers=self.rank == 0)
        size = field.row_bytes * sum(map(item_rows,
                                         itertools.chain(*groups)))
        while self._freed:
            self._left += self._freed.popleft()
        # SGLang hashes a tensor on the host differently, so all ranks of a
        # group must choose alike, though each frees GPU memory in its own
        # time.
        here = not self.copies.later or size > self._limit
        # A later request may hold space here that another rank gave to this
        # one: the two would wait for each other for ever.
        passed = any(b.since > one.since for b in self.begun)
        if not here and size > self._left and not passed:
            warn("space", "mmx: rows wait for space on the GPU, of which "
                 "MMX_SGLANG_GPU_MB has more")
            return None
        self.begun.append(one)
        items = [rows_of(field, g) for g in groups]
        if here:
            # Never in place beside a GPU: SGLang may copy from pinned memory
            # after it has dropped the tensor, when the blocks hold other rows.
            return Here().load(items, copied)
        made = self.copies.load(items, copied, self._readers)
        for rows, item in zip(made, items):
            self._left -= item.rows * field.row_bytes
            # SGLang makes views of the tensor, so their storage counts.
            weakref.finalize(rows.untyped_storage(), self._freed.append,
                             item.rows * field.row_bytes).atexit = False
        return made


def item_rows(room: mmx.Room) -> int:
    """Returns how many rows of a complete room are embeddings; the rest are
    the aux's."""
    return room.readable - aux.rest_rows(room)


def rows_of(field: mmx.pool.Field, rooms: List[mmx.Room]) -> Rows:
    made = Rows(rooms[0].pool, field)
    for room in rooms:
        rows = item_rows(room)
        made.add(room.pool, rows, room.pieces(0, rows))
    return made


def turned(original: Any, self: Any, recv_reqs: Any) -> Any:
    """MMReceiverHTTP.process_waiting_requests: runs in each turn of the
    scheduler, even if no request waits. With attention data parallelism each
    rank has requests of its own, but SGLang 0.5.23 has all ranks wait for each
    other here, without an end."""
    from sglang.srt.runtime_context import get_parallel

    here = get_parallel()
    if here.attn_dp_enabled:
        self.tp_rank, self.tp_size, self.tp_group = \
            here.attn_tp_rank, here.attn_tp_size, here.attn_tp_group
    with warned():
        Lang.get(getattr(self, "scheduler", None)).step()
    try:
        return original(self, recv_reqs)
    finally:
        with warned():
            Lang.get().let_go(self.waiting_list)


def emptied(original: Any, self: Any) -> Any:
    """MultimodalInputs.release_features: SGLang calls it when a request, or
    its session, has ended. It drops pictures, but not the rows in their place,
    which would stay as long as anything refers to the request."""
    try:
        return original(self)
    finally:
        for item in self.mm_items:
            item.precomputed_embeddings = None


def make_waiting(receiver: Any) -> type:
    class Waiting(receiver.WaitingZmqRequest):  # type: ignore[misc]
        """A request in one scheduler rank."""

        def send_encode_request(self) -> None:
            self.rooms: Dict[int, mmx.Room] = {}
            # the tensors of the request
            self._made: Optional[Dict[Any, Any]] = None
            # _copied: the rows are in them; _lost: all ranks fail
            self._copied = self._lost = False
            self._had = False  # SGLang has taken the rows
            # why it failed in this rank
            self._why: Optional[BaseException] = None
            self._groups: Dict[Any, List[mmx.Room]] = {}  # by modality
            self.since = time.monotonic()  # all ranks have the same order
            self._secret, *said = next(
                (u[4:] for u in self.encoder_urls if u.startswith("mmx:")),
                "").split(" ")
            if not re.fullmatch("[0-9a-f]{32}", self._secret):
                raise errors.Malformed("the request has no secret")
            self._places: List[Tuple[int, str]] = []
            for counts in self.num_items_assigned.values():
                for at, count in enumerate(counts):
                    if count:
                        word = said[at] if at < len(said) else "-"
                        self._places.append((len(self._places), encoder_of(
                            self.encoder_urls[at], word.strip("-"))))
            if not self._places:  # a client may send such a word itself
                raise errors.Malformed("the request has no parts")
            odd = [e for _, e in self._places if not is_place(e)]
            try:
                if odd:
                    raise errors.Malformed(f"no address: {odd[0]!r:.200}")
                self._open()
            except Exception as e:
                self._why = e
                raise

        def _rid(self) -> str:
            return f"{self.recv_req.rid}{MARK}{self._secret}"

        def _room(self, part: int) -> mmx.Reference:
            return reference_of(
                receiver.create_part_req_id(self._rid(), part))

        def _open(self) -> bool:
            """Requests the rooms, or attaches to them, once there is a
            pool."""
            lang = Lang.get()
            pool = lang.step()
            if self.rooms:
                return True
            if pool is None:
                return False
            # A group is for rooms with one destination.
            group = (mmx.room_id(self._rid()), len(self._places)) \
                if len(self._places) > 1 and lang.hosts == 1 else None
            for part, encoder in self._places:
                room = self._room(part)
                if lang.rank == 0:
                    self.rooms[part] = lang.conn.request(
                        room, pool, encoder, storage="compact",
                        readers=lang.ranks - 1, destinations=lang.hosts,
                        group=group, deadline=deadline())
                else:
                    self.rooms[part] = lang.conn.attach(  # type: ignore
                        room, encoder, pool=pool, deadline=deadline())
            return True

        def _lose_patience(self) -> None:
            """Raises why there is no pool: at once if none will come,
            otherwise after PATIENCE_S."""
            lang, late = Lang.get(), time.monotonic() - self.since > PATIENCE_S
            why = lang.unusable if lang.conn.connected else None
            if why and lang.is_refused or late:
                raise why or errors.NotReady("no mmx-langd is connected")

        def _try_recv_mm_data(self) -> None:
            if self.status != receiver.WaitingMMRequestStatus.PENDING:
                return
            try:
                if not self._open():
                    self._lose_patience()
                    return
                if not self._landed():
                    return
            except Exception as e:  # fails this request, not the scheduler
                self._why = e
                self._fail_and_release(f"mmx: {words(e)}", status(e))
                return
            try:
                self._assemble()
            except Exception as e:
                self._why = e
                self._fail_assemble(e)

        def _landed(self) -> bool:
            for room in self.rooms.values():
                room._failed()  # raises why the room failed
            return all(r.complete for r in self.rooms.values())

        def _assemble(self) -> None:
            if self._made is None:
                self._begin()
            if not self._copied:
                return
            made, self._made = self._made, {}
            size = sum(r.nbytes for r in made.values())
            self._finish_assemble(made)
            self._had, metrics = True, Lang.get().metrics
            if metrics:
                metrics.moved(time.monotonic() - self.since, size)
            for item in self.recv_req.mm_inputs.mm_items:
                # On a GPU the rows stay there until the request has ended.
                item.keep_device_embedding = True
            self.recv_embedding_data = None

        def _begin(self) -> None:
            for part, room in sorted(self.rooms.items()) \
                    if not self._groups else ():
                data = self._part(part, room)
                self.recv_embedding_data = \
                    receiver._aggregate_embedding_part(
                        self.recv_embedding_data, data, self.model_type)
                self._groups.setdefault(data.modality, []).append(room)
            made = Lang.get().load(self, list(self._groups.values()))
            if made is not None:
                self._made = dict(zip(self._groups, made))

        def over(self) -> bool:
            self._copied = True
            return self._lost

        def _part(self, part: int, room: mmx.Room) -> Any:
            said, beside = unpack(aux.whole(room))
            if said["part"] != (part, len(self.rooms)):
                raise errors.Malformed(f"part {said['part']} in the room of "
                                       f"{part} of {len(self.rooms)}")
            modality = receiver.Modality[said["modality"].upper()]
            field = chosen_field(room.pool)
            return receiver.EmbeddingData(
                self.recv_req.rid, len(self.rooms), part,
                numbers(said["grid"]), modality,
                embedding_shape=[item_rows(room), field.elements], **beside)

        def _fail_and_release(self, error_msg: Any,
                              error_code: Any = None) -> None:
            # SGLang 0.5.23 takes len() of the prompt of a request that failed
            # before its embeddings came; without a prompt the scheduler ends.
            if self.recv_req.input_ids is None:
                self.recv_req.input_ids = array("q", [0])
            super()._fail_and_release(error_msg, error_code)

        def release_resources(self) -> None:
            """Releases the rooms of a request that failed, perhaps in another
            rank, which may not know the rooms: so none waits for its readers.
            Before READY a release is an abort. A room that is being copied is
            released after the copy."""
            rooms, lang, self._lost = getattr(self, "rooms", {}), \
                Lang.one, True
            late = self.status == receiver.WaitingMMRequestStatus.TIMEOUT
            why = getattr(self, "_why", None) or next(
                filter(None, (self._shared(), *(  # the one with a text first
                    r.reason for r in rooms.values()))),
                errors.TimedOut() if late else errors.Aborted())
            for part, encoder in getattr(self, "_places", ()) if lang else ():
                room = rooms.get(part)
                if room and room.released != mmx.wire.ALL and (
                        self._made is None or self._copied):
                    room.release(force=True, no_readers=lang.rank == 0)
                if lang.rank == 0 and not (room and room.complete):
                    lang.decline(self._room(part), encoder)
            if lang and lang.rank == 0 and getattr(self, "_places", ()) and \
                    not self._had:
                self._tell(why, rooms)
                if lang.metrics:
                    lang.metrics.failed(why)
            self._places = []  # SGLang calls this more than once
            rooms.clear()
            self.recv_embedding_data = None
            super().release_resources()

        def _shared(self) -> "Optional[errors.MmxError]":
            """Returns the error of another rank, which SGLang passes on."""
            got = re.match("(?:mmx|Failed to assemble multimodal inputs): "
                           "(?:([a-z-]+): )?(.*)", self.error_msg or "", re.S)
            return got and REASONS.get(got[1], errors.Internal)(got[2])

        def _tell(self, why: BaseException, rooms: Dict[int, Any]) -> None:
            """Logs why the rows did not come, and from where; not if the
            client or SGLang ended the request."""
            if isinstance(why, errors.Aborted):
                return
            part, encoder = min(self._places, key=lambda p: (
                rooms.get(p[0]) is None or rooms[p[0]].reason is None))
            warn(f"failed {reason(why)}", "mmx: request %.100s: its rows "
                 "cannot be had: %s%s", self.recv_req.rid, words(why),
                 remedy(why, self._room(part), encoder))

    return Waiting


def hooks() -> Dict[str, Any]:
    receiver = importlib.import_module(RECEIVER)
    return {
        RECEIVER + ".WaitingZmqRequest": make_waiting(receiver),
        RECEIVER + ".MMReceiverHTTP.process_waiting_requests": turned,
        RECEIVER + ".EncoderBootstrapServer.register": registered,
        RECEIVER + ".EncoderBootstrapServer.unregister": unregistered,
        RECEIVER + ".MMReceiverBase._send_encode_request": marked,
        RECEIVER + ".MMReceiverBase._run_encode_in_thread": dispatched,
        BATCH + ".MultimodalInputs.release_features": emptied}
