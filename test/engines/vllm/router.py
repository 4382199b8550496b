"""A router between encode-only and language instances of vLLM, the recipe for a
real one. Like vLLM's example of disaggregated encoders it has two modes.

A request's pictures, videos and sounds go to encoders; items of one kind for
one encoder go in one request without text. The ec_transfer_params that come
back, by the hash of each item, are put into the request to the language
instance. With `references`, the encoder is given a name for each item, and the
language instance gets, in the item's place, that name with the fields that size
its placeholder. In the other mode, items go to both.

    router.py ENCODER... DECODER [--host ADDRESS] [--port N] [--references]
              [--again N] [--langd SOCKET | --encoded SOCKET]

DECODER is a URL, each ENCODER one too, with a comma and the URL of the
mmx-exporter beside it ("http://a:8001,http://a:9464") if its load is to count.
An item goes to its owner (mmx.place) among the encoders whose mmx-encoded is
ready (mmxctl health): the owner has the item's rows if they were asked for
before. While the owner has a queue, the item goes to the next encoder. The
queue is the items that wait for blocks (waiting_items of mmxctl pools), and the
items that this router has sent there, except one. An encoder that fails rests
for a while, and the next one is asked; rows that were lost are encoded again.

With the socket of the langd or of the encoded on its host, it declines rows
that nothing will fetch: those of clients that leave between the two requests,
and of requests that fail. It answers /v1/chat/completions, without streams."""

import argparse
import asyncio
import collections
import contextlib
import hashlib
import json
import re
import time
import uuid

import aiohttp
import aiohttp.web

import mmx

KINDS = {"image_url": "image", "video_url": "video", "audio_url": "audio",
         "input_audio": "audio"}
# Fields by which the language instance reads an item: the encoder must use the
# same.
SAME = ("mm_processor_kwargs", "media_io_kwargs")
LOAD = re.compile(
    r'^mmx_(ready|pool_waiting_items)\{daemon="encoded".*\} (.+)$', re.M)
LOOK_S, REST_S, PAUSE_S = 1, 5, 0.1  # PAUSE_S doubles each time


class HTTPError(Exception):
    def __init__(self, status, text):
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.status = status


def media(body):
    """Returns a request's pictures, videos and sounds in order; HTTPError: it
    has something that this router does not know."""
    items = [c for m in body["messages"] if isinstance(m["content"], list)
             for c in m["content"] if c["type"] != "text"]
    for c in items:
        if c["type"] not in KINDS:
            raise HTTPError(400, "this router takes text, pictures, videos "
                            f"and sounds, no {c['type']}")
    if body.get("stream"):
        raise HTTPError(400, "this router has no streams")
    return items


def key_of(item):
    """Returns a key of the item's content, as the client gave it."""
    return hashlib.sha256(json.dumps(item[item["type"]]).encode()).digest()


def name_of(item):
    """Returns a name for the item's content; a name for one use if a URL
    stands for it."""
    said = item[item["type"]]
    if "data" in said or said.get("url", "").startswith("data:"):
        return key_of(item).hex()
    return uuid.uuid4().hex


def flat(value):
    """Returns a field of placeholders as one flat list of numbers."""
    return [x for row in value for x in
            (row if isinstance(row, list) else [row])]


class Encoder:
    """An encode-only instance, and its load."""

    def __init__(self, text):
        """text: its URL, and its exporter's; without an exporter it counts as
        ready."""
        self.url, _, self.exporter = text.partition(",")
        # not used before `rests`
        self.ready, self.waiting, self.rests = True, 0, 0.0
        # counts of the keys that this router has asked it for
        self.open = collections.Counter()

    async def look(self, session_):
        """Asks the exporter what mmxctl health and mmxctl pools show. Any
        failure means not ready: an exception would end the watch of all
        encoders."""
        try:
            async with session_.get(self.exporter + "/metrics") as r:
                said = [(what, float(n))
                        for what, n in LOAD.findall(await r.text())]
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError):
            said = []
        self.ready = any(n for what, n in said if what == "ready")
        self.waiting = sum(n for what, n in said if what != "ready")

    def load(self, key):
        """Returns the load for an item; an item that is already asked for
        costs nothing more."""
        return 0 if key in self.open else \
            int(self.waiting) + max(0, len(self.open) - 1)


class Router:
    def __init__(self, encoders, decoder, references=False, again=0,
                 daemon=None):
        """encoders: texts, as Encoder takes them. again: how often items are
        encoded anew if the encoder fails or the rows are lost (HTTP 500).
        daemon: a connection to either daemon."""
        self.encoders = [Encoder(x) for x in encoders.split()]
        self.decoder, self.daemon = decoder, daemon
        self.references, self.again = references, again
        self.params, self.sent = {}, 0  # the last request's; references

    async def watch(self):
        """Updates the encoders' load for ever."""
        async with session(LOOK_S) as s:
            while True:
                await asyncio.gather(*(e.look(s) for e in self.encoders
                                       if e.exporter))
                await asyncio.sleep(LOOK_S)

    async def watched(self, _):
        task = asyncio.create_task(self.watch())
        yield
        task.cancel()

    def owner(self, key, now=None):
        """Returns the encoder for an item: of the ready ones, or of all if
        none is ready."""
        now = time.monotonic() if now is None else now
        able = [e for e in self.encoders if e.ready and now >= e.rests]
        there = {e.url: e for e in able or self.encoders}
        return there[mmx.place(key, list(there),
                               [e.load(key) for e in there.values()])[0]]

    @contextlib.contextmanager
    def chosen(self, keys):
        """Yields encoders for items of one owner; an encoder that fails
        rests."""
        one = self.owner(keys[0])
        one.open.update(keys)
        try:
            yield one
        except HTTPError as e:
            if e.status >= 500:
                one.rests = time.monotonic() + REST_S
            raise
        finally:
            one.open -= collections.Counter(keys)

    async def post(self, session_, url, body, name):
        try:
            async with session_.post(url + "/v1/chat/completions", json=body,
                                     headers={"x-request-id": name}) as r:
                text = await r.text()
                if r.status != 200:
                    raise HTTPError(r.status, text)
                return json.loads(text)
        except (aiohttp.ClientError, asyncio.TimeoutError) as e:
            raise HTTPError(502, f"{url}: {type(e).__name__} {e}") from e

    async def ask(self, session_, body, keys, name, params):
        """Has the items of a body encoded, by another encoder if one fails.
        The results are in params as soon as they are known."""
        for n in range(self.again + 1):
            try:
                with self.chosen(keys) as encoder:
                    answer = await self.post(session_, encoder.url, body, name)
            except HTTPError as e:
                if e.status < 500 or n == self.again:
                    raise
                await asyncio.sleep(PAUSE_S * 2 ** n)
                continue
            said = answer.get("ec_transfer_params") or {}
            params.update(said)
            return said

    async def encode(self, session_, body, name, params=None):
        """Encodes items; returns ({place of an item: the fields that size it},
        params) and adds to params as results come."""
        params = {} if params is None else params
        items, groups = media(body), collections.defaultdict(list)
        keys = [key_of(x) for x in items]
        for i, x in enumerate(items):
            groups[KINDS[x["type"]], self.owner(keys[i])].append(i)
        names = {i: name_of(x) for i, x in enumerate(items)} \
            if self.references else {}
        asked = [self.ask(
            session_, {"model": body["model"], "stream": False, "messages": [
                {"role": "user", "content": [
                    {**items[i], "uuid": names[i]} if names else items[i]
                    for i in g]}], **{k: body[k] for k in SAME if k in body}},
            [keys[i] for i in g], f"{name}:{g[0]}:{uuid.uuid4().hex[:6]}", params)
            for g in groups.values()]
        # Waits for all before it raises an error: params must have all rows,
        # so that they can be declined.
        got = await asyncio.gather(*asked, return_exceptions=True)
        for error in (x for x in got if isinstance(x, BaseException)):
            raise error
        sizes = {}
        for g, said in zip(groups.values(), got):
            for here, i in enumerate(g):
                hashed = next((h for h, p in said.items()
                               if here in p.get("item_indices", [])), None)
                if said and hashed is None:
                    raise HTTPError(502, "what the encoder said of item "
                                    f"{i} cannot be told from the others'")
                if hashed:
                    sizes[i] = {**said[hashed].get("metadata", {}),
                                "mm_hash": names.get(i, hashed)}
        return sizes, params

    def onward(self, body, sizes, params):
        """Returns the request for the language instance, which refuses to have
        items of a kind and references to others of it in one request."""
        body = json.loads(json.dumps(body))
        body.pop("ec_transfer_params", None)  # no client may offer rows
        places = [(m["content"], n) for m in body["messages"]
                  if isinstance(m["content"], list)
                  for n, c in enumerate(m["content"]) if c["type"] in KINDS]
        mixed = {KINDS[c[n]["type"]] for i, (c, n) in enumerate(places)
                 if len(sizes.get(i, ())) < 2}  # with a name and sizes
        for i, (content, n) in enumerate(places) if self.references else ():
            kind, fields = KINDS[content[n]["type"]], dict(sizes.get(i, ()))
            name = {"uuid": fields.pop("mm_hash")} if fields else {}
            if kind in mixed:
                content[n] = {**content[n], **name}
            else:
                kind += "_embeds"
                content[n] = {"type": kind, **name, kind: {
                    k: flat(v) for k, v in fields.items()}}
                self.sent += 1
        if params:
            body["ec_transfer_params"] = params
        return body

    async def chat(self, session_, body, name=None):
        name = name or uuid.uuid4().hex
        for left in range(self.again, -1, -1):
            params = {}  # rows that may have to be declined
            try:
                sizes, params = await self.encode(session_, body, name, params)
                self.params = params
                return await self.post(session_, self.decoder, self.onward(
                    body, sizes, params), name)
            except BaseException as e:  # among others: the client has left
                self.withdraw(params)
                if getattr(e, "status", 0) != 500 or not left:
                    raise

    def withdraw(self, params):
        """Frees rows at the encoder that nobody will fetch; the room's
        reference gives the right to do so. langd must be told the encoder."""
        for said in params.values() if self.daemon else ():
            with contextlib.suppress(mmx.MmxError, KeyError, ValueError):
                self.daemon.step()
                self.daemon.decline(
                    mmx.Reference.read(said["room"]), said["encoder"]
                    if self.daemon.role == "langd" else "",
                    bytes.fromhex(said["key"]))


def session(limit=180, headers=None):
    return aiohttp.ClientSession(
        headers=headers, timeout=aiohttp.ClientTimeout(total=limit),
        connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def answer(router, request):
    """Serves one request of a client."""
    async with session(600, {k: v for k, v in request.headers.items()
                             if k.lower() == "traceparent"}) as s:
        try:
            got = await router.chat(s, await request.json())
            return aiohttp.web.json_response(got)
        except HTTPError as e:
            return aiohttp.web.Response(status=e.status, text=str(e))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("encoder", nargs="+")
    p.add_argument("decoder")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--references", action="store_true")
    p.add_argument("--again", type=int, default=2)
    p.add_argument("--langd", metavar="SOCKET")
    p.add_argument("--encoded", metavar="SOCKET")
    a = p.parse_args()
    role = "langd" if a.langd else "encoded" if a.encoded else None
    router = Router(
        " ".join(a.encoder), a.decoder, references=a.references, again=a.again,
        daemon=role and mmx.connect(role, getattr(a, role), name="router"))
    app = aiohttp.web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions",
                        lambda request: answer(router, request))
    app.cleanup_ctx.append(router.watched)
    # Without cancellation a router notices only at the end that a client has
    # left.
    aiohttp.web.run_app(app, host=a.host, port=a.port,
                        handler_cancellation=True)


if __name__ == "__main__":
    main()
