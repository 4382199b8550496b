"""A router between encode-only and language instances of vLLM, as vLLM's
example of disaggregated encoders does it, in both of its modes.

A request's pictures go to the encoder, in one request without text; what it
returns as ec_transfer_params, by the hash of each picture, goes on the request
to the language instance. `references`: the encoder is given a name for each
picture, and the language instance gets, in the picture's place, that name with
the fields that size its placeholder. Without it pictures go to both.

    router.py ENCODER DECODER [--port N] [--references] [--langd SOCKET]

ENCODER and DECODER are URLs; answers /v1/chat/completions. With the socket of
the langd or of the encoded (--encoded) beside it, it withdraws the rows of
clients that leave between the two. For trials: one encoder, one decoder, no
streams; videos and sounds are refused."""

import argparse
import asyncio
import hashlib
import json
import uuid

import aiohttp
import aiohttp.web

import mmx

KINDS = {"image_url": "image_embeds"}


class HTTPError(Exception):
    def __init__(self, status, text):
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.status = status


def pictures(body):
    """Returns a request's pictures; HTTPError: it has what is none."""
    items = [c for m in body["messages"] if isinstance(m["content"], list)
             for c in m["content"] if c["type"] != "text"]
    for c in items:
        if c["type"] not in KINDS:
            raise HTTPError(400, f"this router takes text and pictures, no "
                            f"{c['type']}")
    return items


def flat(value):
    """Returns a field of placeholders as one row of numbers."""
    return [x for row in value for x in
            (row if isinstance(row, list) else [row])]


class Router:
    def __init__(self, encoder, decoder, references=False, apart=False,
                 again=0, daemon=None):
        """encoder, decoder: URLs. apart: one request for each picture.
        again: how often it encodes anew if the rows were lost (HTTP 500).
        daemon: an mmx connection to either daemon, to withdraw the rows of
        clients that left between encode and decode."""
        self.encoder, self.decoder = encoder, decoder
        self.references, self.apart, self.again = references, apart, again
        self.daemon = daemon
        self.params, self.sent = {}, 0  # the last request's; references

    async def post(self, session, url, body, name):
        async with session.post(url + "/v1/chat/completions", json=body,
                                headers={"x-request-id": name}) as r:
            text = await r.text()
            if r.status != 200:
                raise HTTPError(r.status, text)
            return json.loads(text)

    async def encode(self, session, body, name, params=None):
        """Returns ({place of a picture: what sizes it}, params), which
        params gets as they come."""
        params = {} if params is None else params

        async def ask(*words):
            answer = await self.post(session, self.encoder, *words)
            params.update(answer.get("ec_transfer_params") or {})
            return answer

        items = pictures(body)
        groups = [[i] for i in range(len(items))] if self.apart \
            else [list(range(len(items)))] if items else []
        names = {i: hashlib.sha256(x["image_url"]["url"].encode()).hexdigest()
                 for i, x in enumerate(items)} if self.references else {}
        asked = []
        for g in groups:
            content = [{**items[i], "uuid": names[i]} if names else items[i]
                       for i in g]
            asked.append(ask(
                {"model": body["model"], "stream": False,
                 "messages": [{"role": "user", "content": content}]},
                f"{name}:{g[0]}:{uuid.uuid4().hex[:6]}"))
        sizes = {}
        for g, answer in zip(groups, await asyncio.gather(*asked)):
            said = answer.get("ec_transfer_params") or {}
            for here, i in enumerate(g):
                hashed = next((h for h, p in said.items()
                               if here in p.get("item_indices", [])), None)
                if said and hashed is None:
                    raise HTTPError(502, "what the encoder said of picture "
                                    f"{i} cannot be told from the others'")
                if hashed and said[hashed].get("metadata"):
                    sizes[i] = {**said[hashed]["metadata"],
                                "mm_hash": names.get(i, hashed)}
        return sizes, params

    def onward(self, body, sizes, params):
        """Returns the request for the language instance."""
        body = json.loads(json.dumps(body))
        at = 0
        for m in body["messages"]:
            if not self.references or not isinstance(m["content"], list):
                continue
            for n, c in enumerate(m["content"]):
                if c["type"] not in KINDS:
                    continue
                fields = dict(sizes.get(at) or {})
                name, kind = fields.pop("mm_hash", None), KINDS[c["type"]]
                at += 1
                if fields and name:
                    m["content"][n] = {
                        "type": kind, "uuid": name,
                        kind: {k: flat(v) for k, v in fields.items()}}
                    self.sent += 1
        if params:
            body["ec_transfer_params"] = params
        return body

    async def chat(self, session, body, name=None):
        name = name or uuid.uuid4().hex
        for left in range(self.again, -1, -1):
            params = {}
            try:
                sizes, params = await self.encode(session, body, name, params)
                self.params = params
                return await self.post(session, self.decoder, self.onward(
                    body, sizes, params), name)
            except HTTPError as e:
                self.withdraw(params)
                if e.status != 500 or not left:
                    raise
            except BaseException:  # the client has left, or an instance
                self.withdraw(params)
                raise

    def withdraw(self, params):
        """Frees rows at the encoder that will not be fetched any more; the
        room's reference is the right to. langd is told of which encoder."""
        if self.daemon:
            self.daemon.step()
        for said in params.values():
            if self.daemon and "room" in said:
                self.daemon.decline(
                    mmx.Reference.read(said["room"]), said["encoder"]
                    if self.daemon.role == "langd" else "",
                    bytes.fromhex(said["key"]))


def session(limit=180):
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=limit),
        connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def answer(router, request):
    """Serves one request of a client."""
    async with session(600) as s:
        try:
            got = await router.chat(s, await request.json())
            return aiohttp.web.json_response(got)
        except HTTPError as e:
            return aiohttp.web.Response(status=e.status, text=str(e))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("encoder")
    p.add_argument("decoder")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--references", action="store_true")
    p.add_argument("--langd", metavar="SOCKET")
    p.add_argument("--encoded", metavar="SOCKET")
    a = p.parse_args()
    daemon = None
    for role in ("langd", "encoded"):
        if getattr(a, role):
            daemon = mmx.connect(role, getattr(a, role), name="router")
    router = Router(a.encoder, a.decoder, references=a.references, again=1,
                    daemon=daemon)
    app = aiohttp.web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions",
                        lambda request: answer(router, request))
    aiohttp.web.run_app(app, host="127.0.0.1", port=a.port)


if __name__ == "__main__":
    main()
