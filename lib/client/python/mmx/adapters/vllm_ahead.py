"""Asks for the rows of a request as soon as it arrives, while vLLM still
decodes and prepares its pictures: middleware of the API server of a consumer.

    vllm serve ... --middleware mmx.adapters.vllm_ahead.AskAhead

The scheduler then attaches to rooms that are on their way or have landed. It
is only ever ahead of it: what it does not ask for, or in vain, the scheduler
asks for itself. A room is released with the answer's first bytes, or when the
request ends, whatever becomes of it.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any, Dict, List, Optional, Tuple

import mmx
from mmx import errors

from ._vllm_common import Link, Offer, Settings
from ._vllm_engine import log

_NAME = b'"ec_transfer_params"'
_PARAMS = re.compile(_NAME + rb"\s*:\s*(?=\{)")
_LONGEST = 1 << 18  # bytes of params that are read
_SEEN = 4096  # pictures that the engine may have
_SHARE = 4  # 1/4 of the pool's blocks at most

Part = Tuple[int, int, Dict[str, Any]]
Asked = List[Tuple[mmx.Room, int]]  # with its blocks


class AskAhead:
    def __init__(self, app: Any) -> None:
        self.app = app
        self.link: Optional[Link] = None
        self._settings: Optional[Settings] = None
        self._linking: "Optional[asyncio.Task[None]]" = None
        self._seen: Dict[str, None] = {}
        self._blocks = 0  # of rooms that are open

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope.get("method") != "POST" or \
                not scope["path"].endswith("/completions"):
            await self.app(scope, receive, send)
            return
        body, messages = await _whole(receive)
        rooms: Asked = []
        try:
            body = self._ask(scope, body, rooms)
        except (errors.MmxError, ValueError, OSError) as e:
            self._release(rooms)
            log.info("not asked ahead: %s", e)
        if messages[-1]["type"] == "http.request":
            messages = [{**messages[-1], "body": body}]

        async def replay() -> Any:
            return messages.pop(0) if messages else await receive()

        async def answer(message: Any) -> None:
            if message.get("body"):
                self._release(rooms)
            await send(message)

        try:
            await self.app(scope, replay, answer)
        finally:
            self._release(rooms)

    def _ask(self, scope: Any, body: bytes, rooms: Asked) -> bytes:
        """Asks for what the request offers, into rooms; returns its body,
        which tells the scheduler."""
        found = _params(body)
        if not found or not self._linked(scope):
            return body
        assert self.link and self.link.pool and self._settings
        begin, end, params = found
        pool = self.link.pool
        offers = {h: offer for h, offer in
                  ((h, Offer.read(said)) for h, said in params.items()
                   if h not in self._seen) if offer}
        blocks = sum(-(-o.rows // pool.block_rows) for o in offers.values())
        if not offers or (self._blocks + blocks) * _SHARE > pool.blocks:
            return body
        group = (mmx.room_id(uuid.uuid4().hex), len(offers)) \
            if len(offers) > 1 else None
        for identifier, offer in offers.items():
            room = self.link.conn.request(
                offer.room, pool, offer.encoder, rows=offer.rows,
                storage="compact", key=self._settings.key(identifier),
                announced=True, group=group, secret=offer.secret,
                deadline=self._settings.deadline)
            rooms.append((room, -(-offer.rows // pool.block_rows)))
            self._blocks += rooms[-1][1]
            params[identifier]["asked"] = True
            self._seen[identifier] = None
        while len(self._seen) > _SEEN:
            del self._seen[next(iter(self._seen))]
        return body[:begin] + json.dumps(params).encode() + body[end:]

    def _release(self, rooms: Asked) -> None:
        while rooms:
            room, blocks = rooms.pop()
            self._blocks -= blocks
            room.release(force=True)

    def _linked(self, scope: Any) -> bool:
        """True if langd's pool is mapped; else that is begun."""
        if self.link:
            self.link.step()
            if self.link.pool:
                return True
        if not self._linking or self._linking.done():
            self._linking = asyncio.ensure_future(self._connect(scope))
        return False

    async def _connect(self, scope: Any) -> None:
        if not self.link:
            config = getattr(scope["app"].state, "vllm_config", None)
            ec = getattr(config, "ec_transfer_config", None)
            if not ec or not ec.is_ec_consumer or \
                    config.parallel_config.data_parallel_size > 1:
                return  # which engine will have it is not known
            self._settings = Settings(config)
            self.link = Link("langd", self._settings, "ahead")
        for _ in range(100):
            if self.link.step():
                return
            await asyncio.sleep(0.02)


async def _whole(receive: Any) -> Tuple[bytes, List[Any]]:
    """Returns a request's body and the messages that it came in."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and \
            messages[-1].get("more_body"):
        messages.append(await receive())
    return b"".join(m.get("body", b"") for m in messages), messages


def _params(body: bytes) -> Optional[Part]:
    """Returns where in a request's text its params are, and what they are.
    They are looked for without reading the rest, which has pictures in it."""
    found = _PARAMS.match(body, max(body.rfind(_NAME), 0))
    if not found:
        return None
    text = body[found.end():found.end() + _LONGEST]
    try:
        params, length = json.JSONDecoder().raw_decode(
            text.decode("ascii", "replace"))
    except ValueError:
        return None
    if not text[:length].isascii() or not all(
            isinstance(x, dict) for x in params.values()):
        return None
    return found.end(), found.end() + length, params
