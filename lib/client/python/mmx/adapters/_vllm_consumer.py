"""The language side of the vLLM connector: see vllm_ec.py."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import (Any, Counter, Dict, Iterable, List, Optional, Set,
                    Tuple)

import mmx
from mmx import errors

from ._common import remedy
from ._copies import Rows
from ._vllm_ahead import Ahead, Place
from ._vllm_common import (Key, Link, Load, Loaded, Map, MmxECMetadata, Offer,
                           Pause, Settings)
from ._vllm_engine import (Counts, Described, context_of, copier, features,
                           log, rows_of, warn, watch_resets)

GRACE = 1  # seconds after a deadline in which the daemon may report it
ATTEMPTS = 3  # requests for an item before it is encoded here
PAUSE = 0.1  # seconds before the second attempt, then twice as long


def _end(feature: Any) -> int:
    position = feature.mm_position
    return int(position.offset + position.length)


@dataclass
class _Item:
    """An item of this engine's requests, under vLLM's identifier."""

    # offers that were not used yet
    offers: List[Offer] = field(default_factory=list)
    users: Set[str] = field(default_factory=set)
    # requests for which vLLM keeps the item
    holders: Set[str] = field(default_factory=set)
    room: Optional[mmx.Room] = None
    # the offer of the room, or of the last success
    used: Optional[Offer] = None
    since: float = 0.0  # when the wait for the item began; 0: no wait
    asked: float = 0.0  # when the room was requested
    attempts: int = 0
    not_before: float = 0.0
    grouped: bool = False  # the room belongs to a group
    alone: bool = False  # later rooms of the item join no group
    ahead: bool = False  # _vllm_ahead.py requested the room
    resident: bool = False  # in vLLM's own cache
    # a request has a reference for it: vLLM cannot encode it
    reference: bool = False
    given_up: bool = False
    encoded: bool = False  # encoded here, and counted
    context: str = ""  # trace context of the first request with the item


class ConsumerScheduler:
    def __init__(self, s: Settings, described: Described,
                 pause: Pause) -> None:
        self.settings = s
        self.described = described
        self.pause = pause
        self.counts = Counts()
        self.link = Link("langd", s, "scheduler")
        self.items: Dict[str, _Item] = {}
        self.unavailable: Set[str] = set()  # requests that must fail
        # request -> the number of its items and the end of the last one, once
        # all of them are computed
        self._past: Dict[str, Tuple[int, int]] = {}
        self._offers: Dict[str, Dict[str, Offer]] = {}  # by request
        # number of requests that offer a place
        self._named: Counter[Place] = Counter()
        # those of _named that were declined
        self._declined: Set[Place] = set()
        self.ahead = Ahead(s, self._unheard)
        self._loads: List[str] = []
        self._number = 0  # number of the last load
        # by load, until the workers have the rows
        self._reading: Dict[int, mmx.Room] = {}
        # by load: ranks that are still copying
        self._copying: Counter[int] = Counter()
        watch_resets(self)

    def reset(self) -> None:
        """vLLM has dropped all items, since weights have changed. Offers made
        until now are for the old weights: items that vLLM can encode are not
        fetched any more."""
        for identifier, item in list(self.items.items()):
            item.resident = False
            item.holders.clear()
            if not item.reference:
                self._leave(item)
                item.given_up, item.encoded, item.since = True, True, 0.0
                for offer in list(item.offers):
                    self._decline(identifier, offer)
            self._drop_unused(identifier, item)

    def offers(self, request: Any) -> Dict[str, Offer]:
        """Returns the request's offers, which are read once. Leaves out what
        is no offer: vLLM encodes such an item, or the request fails. An entry
        without a room is from a producer that had no rows."""
        if request.request_id in self._offers:
            return self._offers[request.request_id]
        params = getattr(request, "ec_transfer_params", None) or {}
        if not isinstance(params, dict):
            params = {"": params}
        rows = {f.identifier: rows_of(f) for f in features(request)}
        found, bad = {}, []
        for identifier, said in params.items():
            offer = Offer.read(said)
            if offer and not self.settings.allows(offer):
                self.counts.add("offers_malformed")
                warn("encoder", "request %s: encoder %s is none of "
                     "mmx_encoders", request.request_id, offer.encoder)
            elif offer and rows.get(identifier, offer.rows) == offer.rows:
                found[identifier] = offer
            elif offer:
                self.counts.add("offers_malformed")
                warn("count", "request %s: %s has %d rows here, %d were "
                     "offered: have both engines preprocess alike",
                     request.request_id, identifier, rows[identifier],
                     offer.rows)
            elif not isinstance(said, dict) or "room" in said:
                bad.append(said)
        if bad:
            self.counts.add("offers_malformed", len(bad))
            warn("malformed", "request %s: ec_transfer_params has what no mmx "
                 "producer returned for it: %.100s", request.request_id,
                 # Only the keys: a value may be a secret.
                 sorted(map(str, bad[0])) if isinstance(bad[0], dict)
                 else type(bad[0]).__name__)
        self._offers[request.request_id] = found
        self._named.update({offer[:2] for offer in found.values()})
        return found

    def ensure(self, request: Any, computed: int,
               local: Iterable[str] = ()) -> bool:
        past = self._past.get(request.request_id)
        # vLLM calls this in every step, for running requests too.
        if past and computed >= past[1] and \
                len(features(request)) == past[0]:
            return True
        self.link.step()
        wanted = {f.identifier: f for f in features(request)
                  if _end(f) > computed}
        offers = self.offers(request)
        if "PREEMPTED" in str(getattr(request, "status", "")):
            for identifier in wanted:
                if identifier in self.items:
                    self.items[identifier].holders.discard(request.request_id)
        for f in features(request):
            offer = offers.get(f.identifier)
            # An item that vLLM cannot encode is needed again after a
            # preemption.
            if offer and self._encodes(f) and (
                    f.identifier not in wanted or f.identifier in local):
                self._decline(f.identifier, offer)
        ready = self._ensure(request, {h: f for h, f in wanted.items()
                                       if h not in set(local)}, offers)
        if not wanted:
            self._past[request.request_id] = (
                len(features(request)),
                max((_end(f) for f in features(request)), default=0))
        return ready

    def _ensure(self, request: Any, wanted: Dict[str, Any],
                offers: Dict[str, Offer]) -> bool:
        ask, wait, ready = [], [], True
        for identifier in sorted(wanted):
            feature = wanted[identifier]
            item = self._item(identifier, request, offers.get(identifier))
            if item and not self._encodes(feature):
                item.reference = True
            if item and item.since and not item.given_up:
                self._lose_patience(identifier, item, feature)
            if item is None or item.given_up:
                ready &= self._without(request, feature, item)
            elif not self._sure(item, request, feature):
                if item.room is None and time.monotonic() >= item.not_before:
                    ask.append((identifier, item))
                wait.append((identifier, item))
        self._ask(ask)
        if wait:
            self.pause.wait(self.link.conn, lambda: all(
                self.has(h) or not i.room or
                i.room.state is mmx.State.FAILED
                for h, i in wait), any(i.ahead for _, i in wait))
        for identifier, item in wait:
            ready &= self._landed(identifier, item)
        return ready

    def _lose_patience(self, identifier: str, item: _Item,
                       feature: Any) -> None:
        """Leaves a room of which no row has come, if the item's picture is at
        hand: encoding it takes less time than the deadline of a dead encoder.
        Gives an item up if a daemon that hangs did not end the room by its
        deadline."""
        waited = time.monotonic() - item.since
        if waited > self.settings.deadline + GRACE and \
                not self.has(identifier):
            self._give_up(identifier, item, errors.TimedOut(
                "mmx-langd does not answer"))
            return
        if waited < self.settings.patience or \
                item.room and item.room.state >= mmx.State.TRANSFERRING or \
                not self._encodes(feature):
            return
        error = errors.TimedOut(f"no row within {self.settings.patience:g} s")
        if item.offers and self.link.pool:
            log.info("%s: %s", identifier, error)
            self._leave(item)
            item.since = 0.0
        else:
            self._give_up(identifier, item, error)

    def _encodes(self, feature: Any) -> bool:
        """True if vLLM can encode the item instead."""
        return self.settings.local_encode and \
            self.described.encodable(feature)

    def _sure(self, item: _Item, request: Any, feature: Any) -> bool:
        """True if vLLM has the item and will have it in this pass. Without a
        holder vLLM may evict the item before it comes to this request, and
        reports that only at the end of the pass. Then it encodes the item, for
        which it needs the picture."""
        return item.resident and (request.request_id in item.holders or
                                  self._encodes(feature))

    def _item(self, identifier: str, request: Any,
              offer: Optional[Offer]) -> Optional[_Item]:
        """Returns the item; None: no encoder has rows of it, so vLLM encodes
        it."""
        item = self.items.get(identifier)
        if item is None:
            if offer is None:
                return None
            item = self.items[identifier] = _Item(context=context_of(request))
        item.users.add(request.request_id)
        if offer and offer != item.used and offer not in item.offers and \
                offer[:2] not in self._declined:
            item.offers.append(offer)
            item.given_up = False
        return item

    def _ask(self, ask: List[Tuple[str, _Item]]) -> None:
        """Requests rooms. The rooms of one request are a group, since vLLM
        admits the request only with all of them: two requests, each with half
        of its rooms, must not fill the pool."""
        if not ask:
            return
        for identifier, item in ask:
            item.since = item.since or time.monotonic()
            if self.link.pool and item.offers:
                item.used = item.offers.pop(0)
            if item.used:
                own = item.used
                item.room, item.used = self.ahead.take(own, identifier)
                if item.used != own:
                    item.offers.insert(0, own)  # to be declined, or used next
            item.ahead = item.room is not None
            item.grouped = not item.alone and not item.ahead
        several = sum(item.grouped for _, item in ask)
        group_id = mmx.room_id(uuid.uuid4().hex) if several > 1 else 0
        for identifier, item in ask:
            item.grouped = item.grouped and several > 1
            try:
                pool = self.link.usable()
                if not item.used:
                    raise errors.UnknownRoom("no encoder has it")
                item.room = item.room or self.link.request(
                    identifier, item.used, pool,
                    (group_id, several) if item.grouped else None,
                    item.context)
                item.asked = time.monotonic()
                self.counts.add("rooms_requested")
                if item.ahead:
                    self.counts.add("rooms_ahead")
            except errors.IncompatibleLayout as e:
                self._give_up(identifier, item, e)
            except errors.MmxError as e:
                self._failed(identifier, item, e)

    def _unheard(self, identifier: str) -> bool:
        """True if no request has named the item yet, and vLLM does not have
        it. Called on another thread."""
        return identifier not in self.items

    def _landed(self, identifier: str, item: _Item) -> bool:
        room = item.room
        if room is None:
            return False
        if item.ahead and room.reason:  # another thread gets the room's events
            self._failed(identifier, item, room.reason)
            return False  # the next call requests it again, or gives it up
        try:
            room._failed()  # raises why the room failed
            if not self.has(identifier):
                return False
            # An aux that is not mmx's has no rest in the rows.
            rest = mmx.aux.rest_rows(room) if room.aux[:3] == b"MXA" else 0
            rows = (room.total or 0) - rest
            if item.used and rows != item.used.rows:
                raise errors.ItemMismatch(
                    f"{rows} rows, {item.used.rows} were offered")
        except errors.MmxError as e:
            self._failed(identifier, item, e)
            return False
        return True

    def _failed(self, identifier: str, item: _Item,
                error: errors.MmxError) -> None:
        # requested ahead in vain: this side requests it
        if item.ahead and item.used:
            self._leave(item)
            item.ahead = False
            item.offers.insert(0, item.used)
            self._tell(identifier, error)
            return
        if item.room:
            self.counts.add("rooms_failed")
            self._leave(item)
            if not item.offers:
                item.not_before = time.monotonic() + PAUSE * 2**item.attempts
            item.attempts += 1
        else:
            item.not_before = time.monotonic() + PAUSE
        late = time.monotonic() - item.since > self.settings.deadline
        if item.grouped and not item.alone:
            # another room of the group may be the cause
            late, item.alone = False, True
        if error.advice != "retry" and not item.offers or \
                item.attempts >= ATTEMPTS or late:
            self._give_up(identifier, item, error)
        else:
            self._tell(identifier, error)

    @staticmethod
    def _tell(identifier: str, error: errors.MmxError) -> None:
        """Logs an error after which the item is requested again."""
        warn(f"failed {type(error).__name__}", "%s: %s", identifier, error,
             level=logging.INFO)

    def _give_up(self, identifier: str, item: _Item,
                 error: errors.MmxError) -> None:
        item.given_up, item.encoded, item.since = True, False, 0.0
        self._leave(item)
        self.counts.add("items_given_up")
        used = item.used
        warn(f"given up {type(error).__name__}", "the rows of %s cannot be "
             "had: %s%s", identifier, error,
             remedy(error, used.room, used.encoder) if used else "")

    def _leave(self, item: _Item) -> None:
        """Releases a room that no worker will read. Before READY this aborts
        it."""
        if item.room:
            self._release(item.room)
            item.room = None

    def _release(self, room: mmx.Room) -> None:
        if room.conn is self.link.conn:
            room.release(force=True)
        else:
            self.ahead.release(room)

    def _without(self, request: Any, feature: Any,
                 item: Optional[_Item]) -> bool:
        """Handles an item whose rows do not come. True: vLLM encodes the item;
        otherwise the request fails."""
        here = self.described.encodable(feature) and \
            (self.settings.local_encode or item is None)
        if here and item and not item.encoded:
            item.encoded = True
            self.counts.add("items_encoded_here")
        if not here and request.request_id not in self.unavailable:
            self.unavailable.add(request.request_id)
            self.counts.add("requests_failed")
            warn("failed", "request %s fails: %s has no rows, and there is "
                 "nothing to encode", request.request_id, feature.identifier)
        return here

    def has(self, identifier: str) -> bool:
        """True if the item's rows have landed. vLLM calls this for every item
        in every step; it reads one word of shared memory."""
        item = self.items.get(identifier)
        return bool(item and item.room and item.room.complete
                    and item.room.state is mmx.State.SUCCESS)

    def _decline(self, identifier: str, offer: Offer) -> None:
        """Declines an offer, once, unless its room is being fetched."""
        place = offer[:2]
        item = self.items.get(identifier)
        early, _ = self.ahead.take(offer)
        if early:
            self.ahead.release(early)
            return
        if place in self._declined or item and item.used == offer:
            return
        if place in self._named:  # another request may offer the room again
            self._declined.add(place)
        self.counts.add("items_declined")
        if item and offer in item.offers:
            item.offers.remove(offer)
        self.link.decline(offer.room, offer.encoder,
                          self.settings.key(identifier, offer.epoch))

    def allocated(self, request: Any, index: int) -> None:
        identifier = features(request)[index].identifier
        if identifier in self.items:
            self.items[identifier].holders.add(request.request_id)
        if self.has(identifier) and identifier not in self._loads:
            self._loads.append(identifier)

    def freed(self, request: Any, index: int) -> None:
        item = self.items.get(features(request)[index].identifier)
        if item:
            item.holders.discard(request.request_id)

    def meta(self, out: MmxECMetadata, evicted: Iterable[str]) -> None:
        for identifier in evicted:
            item = self.items.get(identifier)
            if item:
                item.resident = False
                self._drop_unused(identifier, item)
        for identifier in self._loads:
            item = self.items[identifier]
            room, used = item.room, item.used
            assert room and used
            self._number += 1
            self._reading[self._number] = room
            key = room.pool.key
            out.loads.append(Load(self._number, identifier, used.rows, key,
                                  tuple(room.pieces(0, used.rows))))
            if key in self.link.maps:
                out.maps[key] = self.link.maps[key]
            self.counts.add("items_fetched")
            self.counts.add("rows_fetched", used.rows)
            self.counts.observe(
                fetch_seconds=time.monotonic() - item.asked,
                fetch_bytes=used.rows *
                self.settings.field_of(room.pool).row_bytes)
            item.room, item.resident, item.attempts = None, True, 0
            item.since = 0.0
            for offer in [] if item.reference else list(item.offers):
                self._decline(identifier, offer)
        self._loads = []
        # Workers drop the other pools too, and report when they have one again.
        self.settings.mapped = out.lent = {
            key: self.settings.mapped.get(key, set())
            for link in (self.link, self.ahead.link) if link
            for key in link.lent()}
        self.link.step()

    def loaded(self, said: Loaded) -> None:
        """Counts the workers' reports, and releases the rooms that all workers
        have copied."""
        for key, by in said.mapped.items():
            self.settings.mapped.setdefault(key, set()).update(by)
        for number, ranks in said.copying.items():
            self._copying[number] += ranks
            if not self._copying[number]:
                del self._copying[number]
                self._release(self._reading.pop(number))

    def pending(self) -> bool:
        """True if workers have yet to report the end of a copy."""
        return bool(self._copying)

    def finished(self, request: Any) -> None:
        """Declines the request's offers that no other request can use. A
        request that ended in the queue was not seen before."""
        offers = self.offers(request)
        items = {f.identifier: self.items[f.identifier]
                 for f in features(request) if f.identifier in self.items}
        for item in items.values():
            item.users.discard(request.request_id)
            item.holders.discard(request.request_id)
        places = {offer[:2] for offer in offers.values()}
        self._named.subtract(places)
        for identifier, offer in offers.items():
            item = items.get(identifier)
            if not self._named[offer[:2]] and not (
                    item and item.users and offer in item.offers):
                self._decline(identifier, offer)
        for place in places:
            if not self._named[place]:
                del self._named[place]
                self._declined.discard(place)
        for identifier, item in items.items():
            self._drop_unused(identifier, item)
        self.unavailable.discard(request.request_id)
        self._past.pop(request.request_id, None)
        del self._offers[request.request_id]

    def _drop_unused(self, identifier: str, item: _Item) -> None:
        if item.users:
            return
        for offer in list(item.offers):
            self._decline(identifier, offer)
        self._leave(item)
        if not item.resident:
            self.items.pop(identifier, None)


class ConsumerWorker:
    """Copies rows from the daemon's memory while the scheduler holds their
    rooms. A worker asks the daemon only for its map. So neither an answer nor
    the end of the daemon can fail a load, on which vLLM would end the
    engine."""

    def __init__(self, s: Settings) -> None:
        self.settings = s
        self.link = Link("langd", s, "worker")
        self.copies = copier()
        self.link.meets = self.copies.meet
        self.link.conn.prepare = self.copies.prepare
        self._copying: Counter[int] = Counter()  # since the last report
        # Pools of encoders that the scheduler has mapped, too; _new: this rank,
        # for those of which the scheduler does not know it.
        self.lent: Dict[Key, mmx.Pool] = {}
        self._new: Dict[Key, Set[int]] = {}

    def bind(self, said: MmxECMetadata) -> None:
        """Begins a pass: maps pools before they are needed."""
        # Before step(), which may drop the other references to these pools.
        self.lent = {key: pool for key, pool in self.link.lent().items()
                     if key in said.lent}
        self._new = {key: {self.settings.rank} for key in self.lent
                     if self.settings.rank not in said.lent[key]}
        self.link.step()

    def load(self, cache: Dict[str, Any], said: MmxECMetadata) -> None:
        if not said.loads:
            return
        numbers = [one.number for one in said.loads]
        self._copying.update(numbers)
        items = []
        for one in said.loads:
            pool = self._pool(one.pool, said.maps.get(one.pool))
            items.append(Rows(pool, self.settings.field_of(pool), one.rows,
                              one.runs))
        made = self.copies.load(
            items, lambda: self._copying.subtract(numbers)
            if self.settings.polled else None)
        cache.update(zip((one.identifier for one in said.loads), made))
        if not self.settings.polled:
            # There may be no next report. This one goes with the output of the
            # pass, whose kernels have waited for the copies.
            self._copying.subtract(numbers)

    def take_loaded(self) -> Optional[Loaded]:
        self.copies.step()
        if not self._copying and not self._new:
            return None
        taken, self._copying = self._copying, Counter()
        return Loaded(dict(taken), self._new)

    def _pool(self, key: Key, other: Optional[Map]) -> mmx.Pool:
        """Returns the pool of one run of the daemon. If that run has ended,
        maps it by the scheduler's process."""
        link = self.link
        for pool in (link.mapped, link.before, self.lent.get(key)):
            if pool and pool.key == key:
                return pool
        if other:
            try:
                link.before = other.open(key[0])
                return link.before
            except OSError as e:
                log.warning("the scheduler's map is not to be had: %s", e)
        pool = link.wait_pool()
        if pool.key != key:
            raise errors.DaemonLost("the rows' daemon has ended")
        return pool
