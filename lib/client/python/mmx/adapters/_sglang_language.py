"""The language side of the SGLang plugin: a secret for each request in the
tokenizer process, rooms for it in each scheduler rank. The scheduler never
waits for rows: a rank looks at its cells once in each of SGLang's turns."""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.request
import weakref
from array import array
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

import mmx
from mmx import errors

from ._common import Rated
from ._sglang_common import (MARK, PLACE, deadline, encoder_of, encoders,
                             field_of, is_place, numbers, pool_name, reachable,
                             reason, reference_of, status, to_tensor, unpack)

warn = Rated(logging.getLogger("mmx.sglang"))
RECEIVER = "sglang.srt.disaggregation.encoder.receiver"
BATCH = "sglang.srt.managers.schedule_batch"
FIRST_S = 0.1
PATIENCE_S = 5  # for a daemon that is away
TEXT_S = 0.1  # for the event behind a cell
AGAIN_S = 0.1  # between two questions to an encoder that registers
ASKED_MAX = 64  # encoders that register at a time
UNWANTED_MAX = 1024  # rooms to decline once the daemon is back


# --- tokenizer manager ------------------------------------------------------
PLACE_S = 60  # for an encoder that registers before it serves
places: Dict[str, str] = {}  # by the URL of an encoder: what it said
asked: Set[str] = set()  # URLs of encoders that are asked for it


def place_of(url: str) -> str:
    """Returns where the encoder's mmx-encoded is; OSError: it does not say."""
    end = time.monotonic() + PLACE_S
    while True:
        try:
            with urllib.request.urlopen(url + PLACE, timeout=2) as r:
                return reachable(str(json.load(r)["address"]), url)
        except (OSError, ValueError, KeyError, TypeError) as e:
            gone = isinstance(e, urllib.error.HTTPError) and e.code == 404
            if gone or time.monotonic() > end:
                raise OSError("it runs without mmx" if gone
                              else f"it does not say its place: {e}") from e
        time.sleep(AGAIN_S)


def registered(original: Any, self: Any, url: Any) -> bool:
    """EncoderBootstrapServer.register: an encoder is used once it has said
    where its mmx-encoded is. What is no URL would fail every request; an
    encoder that MMX_ENCODERS leaves out would get clients' pictures."""
    def ask() -> None:
        try:
            places[url] = place_of(url)
            original(self, url)
        except OSError as e:
            warn("place", "mmx: encoder %.200s is not used: %s", url, e)
        finally:
            asked.discard(url)

    if not isinstance(url, str) or not url.startswith(("http:", "https:")):
        warn("url", "mmx: %.200r is no URL of an encoder", url)
        return False
    if encoders() and url not in encoders():
        warn("left out", "mmx: encoder %.200s is none of MMX_ENCODERS", url)
        return False
    if url in asked or len(asked) >= ASKED_MAX:
        return url in asked
    asked.add(url)
    threading.Thread(target=ask, daemon=True, name="mmx-place").start()
    return True


def marked(original: Any, self: Any, obj: Any, *args: Any,
           **more: Any) -> Any:
    """MMReceiverBase._send_encode_request: clients choose request ids, and
    may choose one twice; a room id is for use once. The encoder gets the id
    with a secret; the scheduler the secret behind the encoders' URLs, and what
    these said about their place."""
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
    """MMReceiverBase._run_encode_in_thread: an error is the client's
    request's."""
    args_ = list(args)
    if len(args_) > 6:
        on_dispatch_error = args_.pop(6)

    def failed(error: Any) -> None:
        error.rid = error.rid.rpartition(MARK)[0] or error.rid
        on_dispatch_error(error)

    return original(self, req_id, *args_, **more,
                    on_dispatch_error=failed if on_dispatch_error else None)


# --- scheduler ranks ----------------------------------------------------------
def unwanted() -> "Deque[Tuple[mmx.Reference, str]]":
    """Makes a queue of rooms to decline; of too many the oldest go, which
    their encoders have given up by then."""
    return collections.deque(maxlen=UNWANTED_MAX)


class Lang:
    """The connection of one scheduler process, and its place on the host."""

    one: "Optional[Lang]" = None
    def __init__(self) -> None:
        from sglang.srt.runtime_context import get_parallel  # type: ignore

        here = get_parallel()
        self.hosts = max(1, here.nnodes)
        self.ranks = max(1, here.tp_size // self.hosts)
        self.rank = here.tp_rank % self.ranks
        self.conn = mmx.connect(
            "langd", name=f"sglang-{here.tp_rank}", timeout=0,
            session=os.environ.get("MMX_SESSION", "sglang"))
        self.mapped: Optional[mmx.Pool] = None
        self.unusable: Optional[Exception] = None  # why there is no pool
        self._asked: Optional[mmx.Reply] = None
        self._asked_of = 0  # the daemon's run
        self._left: Deque[mmx.Room] = collections.deque()
        self._unwanted = unwanted()
        try:  # once in a process: the first request finds the daemon
            self.conn.wait(self.step, FIRST_S)
        except TimeoutError:
            pass

    @classmethod
    def get(cls) -> "Lang":
        if cls.one is None:
            cls.one = cls()
        return cls.one

    def step(self) -> Optional[mmx.Pool]:
        """Steps the connection; returns the pool once it is mapped. What it
        raises fails the request that waits, and nothing else may raise it:
        SGLang's scheduler would end."""
        self.conn.step()
        while self._left:
            self._left.popleft().release(force=True)
        if not self.conn.connected:
            return None
        while self._unwanted:  # langd keeps what its encoder cannot hear yet
            self.conn.decline(*self._unwanted.popleft())
        if self.mapped and self.mapped.epoch == self.conn.epoch:
            return self.mapped
        if self._asked_of != self.conn.epoch:
            # An answer of an earlier run came with its end.
            self._asked_of, self._asked = self.conn.epoch, None
            self.unusable = None
        if not self._asked:
            self._asked = self.conn.send(mmx.wire.POOL, name=pool_name(),
                                         layout="")
        if self._asked.done:
            asked, self._asked = self._asked, None
            return self._map(asked)
        return None

    def _map(self, asked: mmx.Reply) -> Optional[mmx.Pool]:
        """Maps the pool; why it cannot be had is for the requests."""
        try:
            self.mapped = mmx.Pool(asked.result(), asked.take_fd(),
                                   self.conn.epoch)
            field_of(self.mapped)
            self.unusable = None
            return self.mapped
        except Exception as e:
            self.mapped, self.unusable = None, e
            return None

    def tidy(self) -> None:
        """Does what is to be done while no request waits."""
        if not self._left and not self._unwanted:
            return
        try:
            self.step()
        except Exception as e:
            warn("turn", "mmx: %s", e)

    def decline(self, room: mmx.Reference, encoder: str) -> None:
        """Tells the encoder, which may not have heard of the request yet,
        that this host will not fetch the room."""
        if self.rank == 0:
            self._unwanted.append((room, encoder))
            self.tidy()

    def give_back(self, room: mmx.Room) -> None:
        """Releases, in the next turn, a room whose last tensor went: that is
        in whatever thread, and in whatever call if Python looks for cycles,
        one that sends among them."""
        self._left.append(room)


def turned(original: Any, self: Any, recv_reqs: Any) -> Any:
    """MMReceiverHTTP.process_waiting_requests: each turn of the scheduler,
    also of one that waits for nothing."""
    if Lang.one:
        Lang.one.tidy()
    return original(self, recv_reqs)


def emptied(original: Any, self: Any) -> Any:
    """MultimodalInputs.release_features: SGLang calls it once a request, or its
    session, has ended, and drops pictures, but not rows that came in their
    place. Those would stay as long as anything refers to the request."""
    try:
        return original(self)
    finally:
        for item in self.mm_items:
            item.precomputed_embeddings = None


def make_waiting(receiver: Any) -> type:
    class Waiting(receiver.WaitingZmqRequest):  # type: ignore[misc]
        """A request in one scheduler rank: its rooms are a group."""

        def send_encode_request(self) -> None:
            self.rooms: Dict[int, mmx.Room] = {}
            self._taken: List[int] = []
            self._since = time.monotonic()
            self._failed = 0.0
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
            if not self._places:  # a client may say what the tokenizer says
                raise errors.Malformed("the request has no parts")
            odd = [e for _, e in self._places if not is_place(e)]
            if odd:
                raise errors.Malformed(f"no address: {odd[0]!r:.200}")
            self._open()

        def _rid(self) -> str:
            return f"{self.recv_req.rid}{MARK}{self._secret}"

        def _room(self, part: int) -> mmx.Reference:
            return reference_of(
                receiver.create_part_req_id(self._rid(), part))

        def _open(self) -> bool:
            """Asks for the rooms as soon as there is a pool."""
            lang = Lang.get()
            pool = lang.step()
            if self.rooms:
                return True
            if pool is None:
                return False
            group = (mmx.room_id(self._rid()), len(self._places)) \
                if len(self._places) > 1 else None
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
            """Raises why there is no pool: at once if that will not change."""
            why = Lang.get().unusable if Lang.get().conn.connected else None
            if why and getattr(why, "advice", "") != "retry":
                raise why
            if time.monotonic() - self._since > PATIENCE_S:
                raise why or errors.NotReady("no mmx-langd is connected")

        def _text_may_follow(self) -> bool:
            """A cell says that a room failed, then its event says why."""
            now = time.monotonic()
            self._failed = self._failed or now
            return now - self._failed < TEXT_S

        def _try_recv_mm_data(self) -> None:
            if self.status != receiver.WaitingMMRequestStatus.PENDING:
                return
            try:
                if not self._open():
                    self._lose_patience()
                    return
                for room in self.rooms.values():
                    if room.state is not mmx.State.FAILED:
                        continue
                    why = room.reason or errors.Internal()
                    if not why.text and self._text_may_follow():
                        return
                    raise why
            except Exception as e:  # this request's, not the scheduler's
                self._fail_and_release(f"mmx: {reason(e)}: {e}", status(e))
                return
            if all(r.complete for r in self.rooms.values()):
                self._assemble()

        def _assemble(self) -> None:
            try:
                by_modality: Dict[Any, List[Any]] = {}
                for part, room in sorted(self.rooms.items()):
                    data = self._part(part, room)
                    self.recv_embedding_data = \
                        receiver._aggregate_embedding_part(
                            self.recv_embedding_data, data, self.model_type)
                    by_modality.setdefault(data.modality, []).append(
                        data.embedding)
                self._finish_assemble({m: joined(t)
                                       for m, t in by_modality.items()})
                self.recv_embedding_data = None
            except Exception as e:  # this request's, not the scheduler's
                self._fail_assemble(e)

        def _part(self, part: int, room: mmx.Room) -> Any:
            said, beside = unpack(room.aux)
            if said["part"] != (part, len(self.rooms)):
                raise errors.Malformed(f"part {said['part']} in the room of "
                                       f"{part} of {len(self.rooms)}")
            modality = receiver.Modality[said["modality"].upper()]
            return receiver.EmbeddingData(
                self.recv_req.rid, len(self.rooms), part,
                numbers(said["grid"]), modality, self._rows(part, room),
                **beside)

        def _rows(self, part: int, room: mmx.Room) -> Any:
            """Returns the rows in place, which go back with the last tensor
            over them. Copied, if MMX_SGLANG_COPY is 1, in several runs or on a
            GPU, whose kernels no tensor's end waits for: they go back now."""
            name, lang = field_of(room.pool), Lang.get()
            kind = room.pool.fields[name].dtype
            rows = None
            if room.pool.memory == "host" and \
                    os.environ.get("MMX_SGLANG_COPY") != "1":
                with contextlib.suppress(mmx.SplitRows):
                    rows = room.view(name)
            copied = rows is None
            if copied:
                rows = room.gather(name)
            rows = rows.view("i2") if kind == "bf16" else rows[:]
            self._taken.append(part)
            if copied:
                lang.give_back(room)
            else:
                weakref.finalize(rows, lang.give_back, room).atexit = False
            return to_tensor(rows, kind)

        def _fail_and_release(self, error_msg: Any,
                              error_code: Any = None) -> None:
            # 0.5.23 takes len() of the prompt of a request that failed before
            # its embeddings were there, and the scheduler ends.
            if self.recv_req.input_ids is None:
                self.recv_req.input_ids = array("q", [0])
            super()._fail_and_release(error_msg, error_code)

        def release_resources(self) -> None:
            """Releases what no tensor shows; before READY that is an abort."""
            rooms, lang = getattr(self, "rooms", {}), Lang.get()
            for part, encoder in getattr(self, "_places", ()):
                if part in self._taken:
                    continue
                room = rooms.get(part)
                if room:
                    room.release(force=True, no_readers=lang.rank == 0)
                if not (room and room.complete):
                    lang.decline(self._room(part), encoder)
            self._places = []  # this is called more than once
            rooms.clear()
            self.recv_embedding_data = None
            super().release_resources()

    return Waiting


def joined(parts: List[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    try:
        import torch
    except ImportError:
        import numpy as np

        return np.concatenate(parts)
    return torch.cat(parts)


def hooks() -> Dict[str, Any]:
    receiver = importlib.import_module(RECEIVER)
    return {
        RECEIVER + ".WaitingZmqRequest": make_waiting(receiver),
        RECEIVER + ".MMReceiverHTTP.process_waiting_requests": turned,
        RECEIVER + ".EncoderBootstrapServer.register": registered,
        RECEIVER + ".MMReceiverBase._send_encode_request": marked,
        RECEIVER + ".MMReceiverBase._run_encode_in_thread": dispatched,
        BATCH + ".MultimodalInputs.release_features": emptied}
