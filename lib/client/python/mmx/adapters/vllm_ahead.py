"""Tells a consumer's engine what a request offers as soon as its text has
arrived, while vLLM still decodes and prepares its pictures: middleware of the
API server.

    vllm serve ... --middleware mmx.adapters.vllm_ahead.AskAhead

The engine asks for the rows then (_vllm_ahead.py), and its scheduler finds them
landed. The message is only a hint.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import uuid
from typing import Any, Dict, List, Optional, Tuple

from ._vllm_ahead import address

_NAME = b'"ec_transfer_params"'
_PARAMS = re.compile(_NAME + rb"\s*:\s*(?=\{)")
_LONGEST = 1 << 17  # bytes of params at most


class AskAhead:
    def __init__(self, app: Any) -> None:
        self.app = app
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        engine = _engine(scope)
        if not engine:
            await self.app(scope, receive, send)
            return
        messages = await _whole(receive)
        params = _params(b"".join(m.get("body", b"") for m in messages))
        name = uuid.uuid4().hex
        if params:
            self._say(engine, {"request": name, "offers": params})

        async def replay() -> Any:
            return messages.pop(0) if messages else await receive()

        try:
            await self.app(scope, replay, send)
        finally:
            if params:
                self._say(engine, {"request": name})

    def _say(self, engine: str, what: Dict[str, Any]) -> None:
        with contextlib.suppress(OSError, RecursionError):
            self._socket.sendto(json.dumps(what).encode(), address(engine))


def _engine(scope: Any) -> Optional[str]:
    """Returns the engine that will get the request, if it takes rows."""
    if scope["type"] != "http" or scope.get("method") != "POST" or \
            not scope["path"].endswith("/completions"):
        return None
    config = getattr(scope["app"].state, "vllm_config", None)
    ec = getattr(config, "ec_transfer_config", None)
    if not ec or not ec.is_ec_consumer or \
            config.parallel_config.data_parallel_size > 1:
        return None
    return str(ec.engine_id)


async def _whole(receive: Any) -> List[Any]:
    """Returns all messages in which a request arrives."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and \
            messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _params(body: bytes) -> Optional[Dict[str, Any]]:
    """Returns a request's params. Routers add them at the end; they are
    searched there, without parsing the rest, which has the pictures."""
    found = _PARAMS.match(body, max(body.rfind(_NAME), 0))
    if not found:
        return None
    text = body[found.end():found.end() + _LONGEST].decode(errors="replace")
    try:
        params: Tuple[Dict[str, Any], int] = \
            json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return params[0] or None
