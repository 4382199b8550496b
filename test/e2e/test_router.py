"""vLLM's trial router over stand-ins of the instances: which encoder it
chooses, what it retries, what it passes on in each mode, and which rows it
declines."""

import asyncio
import contextlib
import http.client
import http.server
import json
import os
import runpy
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

from engine import LIMIT
from pair import ROOT, Case, eventually, free_port
from test_exporter import Scraped

import mmx

PATH = os.path.join(ROOT, "test/engines/vllm/router.py")


class Gone(Exception):
    """Stands in for aiohttp's ClientError."""


def loaded():
    """Returns the router's names, without aiohttp."""
    there = {"aiohttp": types.SimpleNamespace(ClientError=Gone),
             "aiohttp.web": types.SimpleNamespace()}
    with mock.patch.dict(sys.modules, there):
        return runpy.run_path(PATH)


ROUTER = loaded()
HTTPError = ROUTER["HTTPError"]


class Reply:
    def __init__(self, status, text):
        self.status, self.said = status, text

    async def text(self):
        return self.said.decode() if isinstance(self.said, bytes) \
            else self.said


class Session:
    """Stands in for aiohttp's session. Instances are functions of a request;
    they return an answer, or a status and a text."""

    def __init__(self, **hosts):
        self.hosts, self.asked = hosts, []  # (host, body)

    @contextlib.asynccontextmanager
    async def post(self, url, json, headers):  # aiohttp's signature
        host = url.split("/")[2]
        self.asked.append((host, json))
        got = self.hosts[host](json)
        if asyncio.iscoroutine(got):
            got = await got
        yield Reply(*got) if isinstance(got, tuple) else \
            Reply(200, dumps(got))

    @contextlib.asynccontextmanager
    async def get(self, url):
        got = self.hosts[url.split("/")[2]]()
        if got is None:
            raise Gone()
        yield Reply(200, got)

    def count(self, host):
        return sum(h == host for h, _ in self.asked)


dumps = json.dumps


def item(kind, text):
    """Returns a part of a message; its content is inline unless text is a
    URL."""
    return {"type": kind, kind: {"data": text, "format": "wav"}
            if kind == "input_audio" else {
                "url": text if ":" in text else f"data:x;base64,{text}"}}


def request(*items, **more):
    return {"model": "m", "messages": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "look"},
                                     *items]}], **more}


def content(body):
    return body["messages"][-1]["content"]


def encodes(fields=None, **said):
    """Returns an encoder, which names items by their uuid or their content."""
    def answer(body):
        params = {}
        for i, x in enumerate(content(body)):
            name = x.get("uuid") or dumps(x[x["type"]])
            one = params.setdefault(name, {
                "item_indices": [], "metadata": fields or {}, **said})
            one["item_indices"].append(i)
        return {"ec_transfer_params": params}
    return answer


def tells(body):
    """A language instance: answers with the request that it got."""
    return {"asked": body}


def load(ready, *waiting):
    lines = [f'mmx_ready{{daemon="encoded"}} {ready}',
             'mmx_ready{daemon="langd"} 1',
             'mmx_pool_waiting_items{daemon="langd",pool="vit"} 90']
    return "\n".join(lines + [
        f'mmx_pool_waiting_items{{daemon="encoded",pool="p{i}"}} {n}'
        for i, n in enumerate(waiting)])


def router(encoders="http://a http://b", **how):
    return ROUTER["Router"](encoders, "http://d", **how)


def chat(r, session, body):
    return asyncio.run(r.chat(session, body))


class Choice(unittest.TestCase):
    def chosen(self, r, *items):
        """Returns the hosts that concurrent requests go to."""
        with contextlib.ExitStack() as stack:
            return "".join(stack.enter_context(r.chosen([x])).url[-1]
                           for x in items)

    def looked(self, **hosts):
        r = router(" ".join(f"http://{x},http://{x}{x}" for x in hosts))
        s = Session(**{x * 2: lambda text=text: text
                       for x, text in hosts.items()})

        async def look():
            for e in r.encoders:
                await e.look(s)
        asyncio.run(look())
        return r

    OF_A, OF_B = ([x for x in map(bytes, ((n,) for n in range(20)))
                   if mmx.place(x, ("http://a", "http://b"), (0, 0))[0] == e]
                  for e in ("http://a", "http://b"))

    def test_an_item_has_an_owner(self):
        r = router()
        for x in self.OF_A:
            self.assertEqual(self.chosen(r, x, x, x), "aaa")
        self.assertEqual(self.chosen(router("http://b http://a"),
                                     self.OF_A[0], self.OF_B[0]), "ab")
        self.assertEqual([len(e.open) for e in r.encoders], [0, 0])

    def test_an_owner_with_a_queue_is_not_asked(self):
        r = self.looked(a=load(1, 2, 1), b=load(1, 0))
        self.assertEqual([e.waiting for e in r.encoders], [3, 0])
        self.assertEqual(self.chosen(r, *self.OF_A[:2]), "bb")
        # One is encoded and two wait. y goes where y already is.
        x, y, z, u = self.OF_B[:4]
        self.assertEqual(self.chosen(router(), x, y, z, u, y), "bbbab")

    def test_one_that_is_not_ready_or_away_is_not_asked(self):
        r = self.looked(a=load(0, 0), b=load(1, 50), c=None)
        self.assertEqual(self.chosen(r, *self.OF_A[:3]), "bbb")
        # no encoder is ready: b, which is unknown, is asked
        r = self.looked(a=load(0, 9), b=None)
        self.assertEqual(self.chosen(r, self.OF_A[0]), "b")

    def test_what_is_no_exporter_is_not_asked(self):
        for said in (b"\xff", load(1, "-"), load("x", 0), ""):
            # an error ends the look at it
            r = self.looked(a=said, b=load(1, 50))
            self.assertEqual(self.chosen(r, self.OF_A[0]), "b", said)

    def test_items_of_two_owners_go_to_both(self):
        said = [item("image_url", str(n)) for n in range(9)]
        s = Session(a=encodes(fields={"grid": [[1]]}), b=encodes(
            fields={"grid": [[1]]}), d=tells)
        r = router(references=True)
        owners = [r.owner(ROUTER["key_of"](x)).url[-1] for x in said]
        got = chat(r, s, request(*said))
        self.assertEqual(set(owners), {"a", "b"})
        self.assertEqual([h for h, _ in s.asked], [*dict.fromkeys(owners), "d"])
        self.assertEqual([x["uuid"] for x in content(got["asked"])[1:]],
                         [ROUTER["name_of"](x) for x in said])


class Again(unittest.TestCase):
    def test_another_encoder_is_asked_and_the_first_one_rests(self):
        for failed in ((503, "busy"), (500, "broken")):
            s = Session(a=lambda body, f=failed: f, b=encodes(), d=tells)
            r = router(again=1)
            for _ in range(3):
                chat(r, s, request(item("image_url", "x")))
            self.assertEqual((s.count("a"), s.count("b"), s.count("d")),
                             (1, 3, 3))

    def test_an_encoder_that_is_gone(self):
        async def gone(body):
            raise Gone("refused")
        s = Session(a=gone, b=encodes(), d=tells)
        chat(router(again=1), s, request(item("image_url", "x")))
        s = Session(a=gone, b=gone, d=tells)
        with self.assertRaisesRegex(HTTPError, "502: http://b: Gone refused"):
            chat(router(again=1), s, request(item("image_url", "x")))
        self.assertEqual((s.count("a"), s.count("b"), s.count("d")), (1, 1, 0))

    def test_a_refusal_is_the_clients(self):
        s = Session(a=lambda body: (400, "no such model"), b=encodes(), d=tells)
        with self.assertRaisesRegex(HTTPError, "400: no such model"):
            chat(router(again=3), s, request(item("image_url", "x")))
        self.assertEqual(len(s.asked), 1)

    def test_rows_that_are_lost_are_encoded_again(self):
        answers = [(500, "rows lost"), (500, "rows lost"), {"good": 1}]
        s = Session(a=encodes(), b=encodes(), d=lambda body: answers.pop(0))
        self.assertEqual(chat(router(again=2), s, request(
            item("image_url", "x"))), {"good": 1})
        self.assertEqual(s.count("a") + s.count("b"), 3)
        answers[:] = [(500, "rows lost")] * 2
        with self.assertRaisesRegex(HTTPError, "500"):
            chat(router(again=1), s, request(item("image_url", "x")))


class Modes(unittest.TestCase):
    ITEMS = (item("image_url", "p"), item("video_url", "v"),
             item("image_url", "q"), item("input_audio", "s"),
             item("audio_url", "t"), item("image_url", "p"))

    def play(self, encode, *items, **how):
        s = Session(a=encode, d=tells)
        r = router("http://a", **how)
        got = chat(r, s, request(*items, mm_processor_kwargs={"fps": 1},
                                 ec_transfer_params={"of": "a client"}))
        return s, r, got["asked"]

    def test_what_it_does_not_know_is_refused(self):
        for body, said in (
                (request({"type": "image_embeds"}), "400: .*no image_embeds"),
                (request(stream=True), "400: .*no streams")):
            with self.assertRaisesRegex(HTTPError, said):
                chat(router(), Session(), body)

    def test_items_go_to_both_those_of_a_kind_in_one_request(self):
        s, r, asked = self.play(encodes(), *self.ITEMS)
        self.assertEqual([[x["type"] for x in content(body)]
                          for host, body in s.asked if host == "a"],
                         [["image_url"] * 3, ["video_url"],
                          ["input_audio", "audio_url"]])
        for host, body in s.asked[:3]:
            self.assertEqual(body["mm_processor_kwargs"], {"fps": 1})
        self.assertEqual(content(asked)[1:], list(self.ITEMS))
        self.assertEqual(set(asked["ec_transfer_params"]),
                         {dumps(x[x["type"]]) for x in self.ITEMS})
        self.assertEqual(r.sent, 0)

    def test_references_in_the_place_of_every_kind(self):
        s, r, asked = self.play(encodes({"grid": [[1, 2, 3]]}), *self.ITEMS,
                                references=True)
        got = content(asked)[1:]
        self.assertEqual([x["type"] for x in got], [
            "image_embeds", "video_embeds", "image_embeds", "audio_embeds",
            "audio_embeds", "image_embeds"])
        self.assertEqual(r.sent, 6)
        for x in got:
            self.assertEqual(x[x["type"]], {"grid": [1, 2, 3]})
            self.assertIn(x["uuid"], asked["ec_transfer_params"])
        self.assertEqual(got[0], got[5])  # these two have the same content
        self.assertEqual(len({x["uuid"] for x in got}), 5)

    def test_what_a_url_names_may_change(self):
        twice = [item("image_url", "http://x/y")] * 2
        _, _, asked = self.play(encodes({"grid": [[1]]}), *twice,
                                references=True)
        self.assertEqual(len({x["uuid"] for x in content(asked)[1:]}), 2)

    def test_no_kind_has_items_and_references(self):
        """One picture has no sizes: all pictures are passed on as such, by
        their names."""
        def encode(body):
            got = encodes({"grid": [[1]]})(body)
            if content(body)[0]["type"] == "image_url":
                list(got["ec_transfer_params"].values())[-1]["metadata"] = {}
            return got
        _, r, asked = self.play(encode, *self.ITEMS, references=True)
        self.assertEqual([x["type"] for x in content(asked)[1:]], [
            "image_url", "video_embeds", "image_url", "audio_embeds",
            "audio_embeds", "image_url"])
        for x in content(asked)[1:]:
            self.assertIn(x["uuid"], asked["ec_transfer_params"])

    def test_text_needs_no_encoder(self):
        s, _, asked = self.play(encodes())
        self.assertEqual([host for host, _ in s.asked], ["d"])
        self.assertNotIn("ec_transfer_params", asked)


class Rooms(Case):
    """Starts daemons, and opens rooms as an encoder does."""

    def setUp(self):
        super().setUp()
        self.e, self.d = self.pair(langd={"control": {
            "allow": ["tcp://127.0.0.1:*"]}})
        self.enc = mmx.connect("encoded", self.e.socket, name="vit")
        self.addCleanup(self.enc.close)

    def room(self):
        """Returns an announced room, and an encoder's offer of it."""
        src = self.enc.announce(None, self.enc.pool("vit"), 4, 4)
        src.wait_granted(timeout=LIMIT)
        src.commit(0, 4, final=True)
        return src, {"encoder": self.enc.info["advertise"],
                     "room": str(src.reference), "rows": 4, "key": "00" * 32}

    def declined(self, src):
        self.assertEqual(self.e.ended(src.room)["reason"], "declined")
        src.release(force=True)

    def beside(self, daemon):
        conn = mmx.connect(daemon.role, daemon.socket, name="router")
        self.addCleanup(conn.close)
        return conn


class Declines(Rooms):
    def test_of_a_client_that_leaves_between_the_two(self):
        async def main(r, s, reached):
            task = asyncio.create_task(r.chat(s, request(
                item("image_url", "x"))))
            await reached.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        for daemon in (self.e, self.d):
            with self.subTest(daemon.role):
                src, said = self.room()
                reached = asyncio.Event()

                async def decodes(body, reached=reached):
                    reached.set()
                    await asyncio.sleep(LIMIT)
                asyncio.run(main(
                    router("http://a", daemon=self.beside(daemon)),
                    Session(a=encodes(**said), d=decodes), reached))
                self.declined(src)

    def test_of_a_request_whose_other_items_are_refused(self):
        """Also if the rows come after the refusal."""
        src, said = self.room()

        async def encode(body):
            if content(body)[0]["type"] == "video_url":
                return 400, "no videos"
            await asyncio.sleep(0.05)
            return encodes(**said)(body)
        with self.assertRaisesRegex(HTTPError, "400: no videos"):
            chat(router("http://a", daemon=self.beside(self.e)),
                 Session(a=encode), request(item("image_url", "p"),
                                            item("video_url", "v")))
        self.declined(src)

    def test_of_rows_that_the_language_instance_did_not_get(self):
        rooms = [self.room() for _ in range(2)]
        turns = [encodes(**said) for _, said in rooms]
        answers = [(500, "rows lost"), {"good": 1}]
        chat(router("http://a", again=1, daemon=self.beside(self.d)),
             Session(a=lambda body: turns.pop(0)(body),
                     d=lambda body: answers.pop(0)),
             request(item("image_url", "x")))
        self.declined(rooms[0][0])
        self.assertEqual([x["room"] for x in self.e.show("rooms")
                          if not x.get("ended")], [rooms[1][0].room])
        rooms[1][0].release(force=True)

    def test_a_daemon_that_is_away_hides_no_error(self):
        conn = self.beside(self.d)
        src, said = self.room()
        self.d.kill()
        with self.assertRaisesRegex(HTTPError, "400: too long"):
            chat(router("http://a", daemon=conn), Session(
                a=encodes(**said), d=lambda body: (400, "too long")),
                request(item("image_url", "x")))
        src.release(force=True)


class Load(Scraped):
    def test_what_an_exporter_says(self):
        """A full pool, and a drain, by the daemon's own metrics."""
        e = self.world.encoded(blocks=4)
        at = self.start("--encoded", e.socket)
        enc = self.world.engine(e)

        async def seen():
            one = ROUTER["Encoder"](f"http://a,{at}")
            await one.look(Session(**{at.split("/")[2]: lambda: self.get(
                at + "/metrics")}))
            return one.ready, one.waiting
        self.assertEqual(asyncio.run(seen()), (True, 0))
        enc.opens(1, 512, 512)
        for room in (2, 3):
            enc.announce(room, 128, 128)
        eventually(lambda: asyncio.run(seen()) == (True, 2), "two wait")
        e.ctl("drain")
        eventually(lambda: asyncio.run(seen()) == (False, 2), "it drains")
        for room in (1, 2, 3):
            enc.rooms[room].release(force=True)


class Served(Rooms):
    """The program itself, over HTTP."""

    limit_s = 300  # aiohttp is downloaded

    def server(self, answer):
        """Returns the URL of an instance."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(
                    int(self.headers["Content-Length"])))
                got = answer(body)
                with contextlib.suppress(OSError):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(json.dumps(got).encode())

            def log_message(self, *words):
                pass
        made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        made.daemon_threads = True
        threading.Thread(target=made.serve_forever, daemon=True).start()
        self.addCleanup(made.server_close)
        self.addCleanup(made.shutdown)
        return "http://127.0.0.1:%d" % made.server_port

    def test_a_client_that_closes_its_connection(self):
        got = subprocess.run(
            [os.path.join(ROOT, "scripts/pypi"), "router", "aiohttp", "numpy"],
            capture_output=True, text=True)
        if got.returncode == 2:
            self.skipTest(got.stderr.strip().splitlines()[-1])
        self.assertEqual(got.returncode, 0, got.stderr)
        src, said = self.room()
        reached, left = threading.Event(), threading.Event()
        self.addCleanup(left.set)

        def decodes(body):
            reached.set()
            left.wait(LIMIT)
        port = free_port()
        program = subprocess.Popen(
            [os.path.join(got.stdout.strip(), "bin/python"), "-B", PATH,
             self.server(encodes(**said)), self.server(decodes), "--port",
             str(port), "--langd", self.d.socket], stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.path.join(
                ROOT, "lib/client/python")})
        self.addCleanup(program.wait, LIMIT)
        self.addCleanup(program.terminate)
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        self.addCleanup(client.close)

        def connects():
            with contextlib.suppress(OSError):
                client.connect()
                return True
        eventually(connects, "the router listens")
        client.request("POST", "/v1/chat/completions", json.dumps(
            request(item("image_url", "x"))))
        self.assertTrue(reached.wait(LIMIT))
        client.close()
        self.declined(src)
