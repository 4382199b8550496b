"""The encode side of the vLLM connector: see vllm_ec.py."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import (Any, Dict, Iterable, List, NamedTuple, Optional, Set,
                    Tuple)

import mmx
from mmx import errors

from ._copies import Rows
from ._vllm_common import (Link, MmxECMetadata, Pause, Save,
                           Settings)
from ._vllm_engine import (Counts, Described, context_of, copier, features,
                           rows_of, warn, watch_resets)


class _Drawn(NamedTuple):
    """Values that a room was announced with and mmx.Source does not keep."""

    epoch: bytes
    rows: int  # rows of the item
    # the part of its aux behind the item's rows; None: the workers have it
    rest: Optional[bytes]


class ProducerScheduler:
    def __init__(self, s: Settings, described: Described,
                 pause: Pause) -> None:
        self.settings = s
        self.described = described
        self.pause = pause
        self.counts = Counts()
        self.link = Link("encoded", s, "scheduler")
        # rooms: request -> identifier -> room. left: rooms of ended requests.
        self.rooms: Dict[str, Dict[str, mmx.Source]] = {}
        self.left: List[Tuple[str, mmx.Source]] = []
        self._drawn: Dict[int, _Drawn] = {}
        # The epoch of the weights: other weights give other keys.
        self.epoch = s.epoch or secrets.token_bytes(16)
        watch_resets(self)
        # those of `left` that were aborted, and share rows with other rooms
        self._orphans: Set[int] = set()
        self._since: Dict[str, float] = {}

    def reset(self) -> None:
        """Begins another epoch, since weights have changed. With a configured
        epoch all engines that have it compute the same next one."""
        self.epoch = hashlib.sha256(self.epoch).digest()[:16]

    def step(self) -> None:
        """Releases rooms of ended requests once the rooms have ended, too."""
        self.link.step()
        still = []
        for identifier, source in self.left:
            if source.room in self._orphans and not self._unwritten(source):
                self._orphans.discard(source.room)
                source.abort(text="the request was aborted")
            if source.ended or source.state is mmx.State.FAILED:
                source.release(force=True)
                self._drawn.pop(source.room, None)
            else:
                still.append((identifier, source))
        self.left = still

    def ensure(self, request: Any) -> bool:
        self.step()
        known = self.rooms.get(request.request_id)
        # None: all items. Otherwise those whose rows another room was to write
        # and that room failed.
        lacks = [None] if known is None else [
            h for h, source in known.items() if source.reason and
            source.have and source.reason.advice != "give-up"]
        pool = self.link.pool
        if lacks and not pool:
            return self._patience(request.request_id)
        for identifier in lacks:
            made = self._announce(request, pool, identifier)
            if made is None:  # refused now, not for good
                return self._patience(request.request_id)
            rooms = self.rooms.setdefault(request.request_id, {})
            if identifier:
                old = rooms.pop(identifier)
                old.release()
                self._drawn.pop(old.room, None)
            rooms.update(made)
        rooms = self.rooms[request.request_id]
        self.pause.wait(self.link.conn, lambda: self._settled(rooms))
        if not self._settled(rooms):
            if not self._patience(request.request_id):
                return False
            self._drop_pending(request.request_id, rooms)
        return True

    def _drop_pending(self, request: str,
                      rooms: Dict[str, mmx.Source]) -> None:
        """Releases rooms that have no blocks: the pool is full, or the daemon
        hangs."""
        warn("blocks", "%s: no blocks within %g s: items run unsaved", request,
             self._limit)
        for identifier, source in list(rooms.items()):
            if not self._is_settled(source):
                source.release(force=True)
                self._drawn.pop(source.room, None)
                del rooms[identifier]

    def _settled(self, rooms: Dict[str, mmx.Source]) -> bool:
        return all(map(self._is_settled, rooms.values()))

    def _is_settled(self, source: mmx.Source) -> bool:
        return source.have or source.may_write >= 0 or \
            source.state is mmx.State.FAILED

    @property
    def _limit(self) -> float:
        return min(self.settings.deadline, self.settings.patience)

    def _patience(self, request: str) -> bool:
        """True once a request has waited long enough for a daemon or for
        blocks; it then runs without saving its items. At once if the pool does
        not fit."""
        if self.link.is_refused:
            return True
        now = time.monotonic()
        return now - self._since.setdefault(request, now) > self._limit

    def _announce(self, request: Any, pool: mmx.Pool,
                  only: Optional[str]) -> Optional[Dict[str, mmx.Source]]:
        """Announces all rooms of a request together: two requests with half of
        their blocks each would wait for each other. None: they may be taken
        later."""
        lengths = {f.identifier: rows_of(f) for f in features(request)
                   if rows_of(f) > 0 and only in (None, f.identifier)}
        says = {h: mmx.aux.split(self.aux(request, h)) for h in lengths}
        all_rows = {h: rows + says[h].rows(pool)
                    for h, rows in lengths.items()}
        items = [mmx.Item(None, rows, rows, keep=True,
                          key=self.settings.key(h, self.epoch),
                          aux=says[h].aux, traceparent=context_of(request))
                 for h, rows in all_rows.items()]
        try:
            made = self.link.conn.announce_batch(pool, items)
        except (errors.MmxError, ValueError) as e:
            warn("announce", "%s: not announced: %s", request.request_id, e)
            return None if getattr(e, "advice", "") == "retry" else {}
        self.counts.add("rooms_announced", len(made))
        self._drawn.update(
            (source.room, _Drawn(self.epoch, rows, says[h].rest))
            for source, (h, rows) in zip(made, lengths.items()))
        return dict(zip(lengths, made))

    def aux(self, request: Any, identifier: str) -> bytes:
        """Returns data for the language side beside the rows. vLLM's own
        language side computes it; a host of another engine reads it here."""
        return self.described.aux(next(
            f for f in features(request) if f.identifier == identifier))

    def _unwritten(self, source: mmx.Source) -> bool:
        return source.may_write >= 0 and not source.have and \
            source.state is not mmx.State.FAILED and \
            source.rows < (source.total or 0)

    def _all(self) -> Iterable[Tuple[str, mmx.Source]]:
        for rooms in self.rooms.values():
            yield from rooms.items()
        yield from self.left

    def meta(self, out: MmxECMetadata, computes: bool) -> None:
        """Adds every room that may be written, whether the encoder runs for it
        in this step or vLLM has its output already. computes: the step has
        tokens. A step without tokens may not reach the workers, so rests are
        sent again later."""
        for identifier, source in self._all():
            if not self._unwritten(source):
                continue
            drawn = self._drawn[source.room]
            out.saves.append(Save(identifier, source.reference, drawn.rest))
            if computes and drawn.rest:
                self._drawn[source.room] = drawn._replace(rest=None)

    def finished(self, request: Any) -> Optional[Dict[str, Any]]:
        """Returns what the router gets for the request: for each identifier
        the fields of vLLM's own connectors, and the room."""
        self.step()  # so that a room that has failed is not offered
        self._since.pop(request.request_id, None)
        rooms = self.rooms.pop(request.request_id, {})
        status = str(getattr(request, "status", ""))
        unserved = "ABORTED" in status or "ERROR" in status
        shared = {h for h, _ in self._all()}
        params = {} if unserved else self.described(request)
        for identifier, source in rooms.items():
            if unserved and identifier not in shared:
                # Now, because an idle vLLM does not call this side again.
                source.abort(text="the request was aborted")
                source.release(force=True)
                self._drawn.pop(source.room, None)
                continue
            self.left.append((identifier, source))
            if unserved:
                self._orphans.add(source.room)  # other rooms share the rows
            elif source.state is not mmx.State.FAILED:
                if source.have:
                    self.counts.add("items_had")
                drawn = self._drawn[source.room]
                params.setdefault(identifier, {}).update(
                    encoder=self.link.conn.info["advertise"],
                    room=str(source.reference), rows=drawn.rows,
                    key=self.settings.key(identifier, drawn.epoch).hex(),
                    epoch=drawn.epoch.hex())
        lost = sum("room" not in said for said in params.values())
        for said in params.values():
            # A router must not send a reference in place of only some
            # pictures: vLLM refuses a request that has both.
            said["metadata"] = {} if lost else said.get("metadata", {})
        if lost:
            self.counts.add("items_not_announced", lost)
        return params or None

    def pending(self) -> bool:
        self.step()
        return any(self._unwritten(s) for _, s in self._all())


class ProducerWorker:
    """Writes the rows on rank 0: all ranks have the same rows."""

    def __init__(self, s: Settings) -> None:
        self.settings = s
        self.link = Link("encoded", s, "worker") if s.rank == 0 else None
        self.todo: Dict[str, Dict[mmx.Reference, mmx.Source]] = {}
        # by room that is to be written
        self._rests: Dict[mmx.Reference, bytes] = {}
        self._written: Set[mmx.Reference] = set()
        self._over: List[mmx.Source] = []  # released at the end of the pass
        self.copies = copier()
        if self.link:
            self.link.meets = self.copies.meet
        self._cache: Dict[str, Any] = {}
        # items that wait for blocks: vLLM may drop them
        self._late: Dict[str, Any] = {}
        self._silent = False  # the daemon did not answer in this step

    def bind(self, saves: List[Save]) -> None:
        if not self.link:
            return
        self.copies.step()
        self.link.step()
        self._forget({s.room for s in saves})
        self._rests.update((s.room, s.rest) for s in saves
                           if s.rest is not None)
        if self.copies.later and not self.link.pool:
            return  # with a GPU no pass waits for a daemon
        for save in saves:
            rooms = self.todo.setdefault(save.identifier, {})
            if save.room in rooms or save.room in self._written:
                continue
            try:
                source = self.link.conn.attach(
                    save.room, rights=mmx.WRITE, pool=self.link.wait_pool())
                assert isinstance(source, mmx.Source)
                rooms[save.room] = source
            except (errors.MmxError, TimeoutError) as e:
                warn("attach", "%s: %s", save.identifier, e)
                if isinstance(e, TimeoutError):
                    break  # waits for the pool once per step

    def _forget(self, named: Set[mmx.Reference]) -> None:
        """Drops rooms that the scheduler does not name any more: they were
        written, or their request has ended."""
        self._written &= named
        for room in self._rests.keys() - named:
            del self._rests[room]
        for identifier, rooms in list(self.todo.items()):
            for room in rooms.keys() - named:
                rooms.pop(room).release(force=True)
            if not rooms:
                del self.todo[identifier]
                self._late.pop(identifier, None)

    def seen(self, cache: Dict[str, Any]) -> None:
        """Keeps vLLM's cache, which has items of earlier steps."""
        self._cache = cache

    def save(self, cache: Dict[str, Any], identifier: str) -> None:
        self._cache = cache
        self._save(identifier, cache[identifier])

    def _save(self, identifier: str, rows: Any) -> None:
        for room, source in list(self.todo.get(identifier, {}).items()):
            try:
                # Waits once per step, because all of the engine's requests
                # wait.
                source.wait_granted(0 if self._silent or self.copies.later
                                    else self.settings.worker_wait)
                self._write(source, rows, self._rests.get(room))
            except (errors.MmxError, TimeoutError, ValueError, TypeError,
                    # RuntimeError: a GPU has no memory left
                    RuntimeError) as e:
                if self.copies.later and isinstance(e, TimeoutError):
                    self._late[identifier] = rows
                    continue  # saved in the next step
                self._silent |= isinstance(e, TimeoutError)
                warn("save", "%s: not saved: %s", identifier, e)
                source.abort("internal", str(e))
                self._over.append(source)
            self._written.add(room)
            self._rests.pop(room, None)
            del self.todo[identifier][room]

    def save_rest(self) -> None:
        """Saves items that vLLM did not encode in this step, for which it does
        not call save_caches()."""
        for identifier in self.todo:
            rows = self._cache.get(identifier, self._late.get(identifier))
            if rows is not None:
                self._save(identifier, rows)
        self.copies.flush()
        self.copies.step()
        while self._over:
            self._over.pop().release(force=True)
        self._silent = False

    def _write(self, source: mmx.Source, rows: Any,
               rest: Optional[bytes]) -> None:
        if rest is None:
            raise ValueError("its metadata has not come")
        says = mmx.aux.Split(b"", rest)
        item = Rows.written(source, self.settings.field_of(source.pool), rows,
                            says.rows(source.pool))
        says.write(source, item.rows)
        self.copies.save(rows, item, lambda: self._copied(source))

    def _copied(self, source: mmx.Source) -> None:
        try:
            source.commit(0, source.total or 0, final=True)
        except errors.MmxError as e:  # the daemon has ended
            warn("save", "not saved: %s", e)
        self._over.append(source)
