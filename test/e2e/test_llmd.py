"""Offers that pass through llm-d's router. Its sidecar (--ec-connector
ec-nixl) has each item encoded by a request of its own, joins what the encoders
return by the items' hashes, and puts it into the request for prefill. It is
written in Go, which reads a JSON number as a double. The stand-in here does
what llm-d-router does at v0.10.0-rc.1-62-gebab687
(pkg/sidecar/proxy/connector_ec_common.go and connector_ec_nixl.go).
MMX_LLMD_SIDECAR names a sidecar that is built (cmd/pd-sidecar there): then the
same tests have that one between servers of HTTP that answer as vLLM does."""

import functools
import http.server
import json
import os
import re
import subprocess
import threading
import unittest
import urllib.error
import urllib.request
from decimal import Decimal

from fake_vllm import FIELDS, Request, VllmCase
from pair import ROOT, eventually, free_port

from mmx.adapters import _vllm_engine

TEXT = ("encoder", "room", "key", "epoch")
SIDECAR = os.environ.get("MMX_LLMD_SIDECAR")
CHAT = "/v1/chat/completions"


def through_go(value):
    """Returns a value as Go has read and written it."""
    def number(text):
        x = float(text)
        return int(Decimal(repr(x))) if x.is_integer() and abs(x) < 1e21 \
            else x
    return json.loads(json.dumps(value), parse_int=number, parse_float=number)


def sidecar(items, encoders):
    """Returns the ec_transfer_params for prefill. items: URL and content of
    each. encoders: functions that encode one content and return
    ec_transfer_params."""
    params, seen = {}, {}
    for url, content in items:  # a URL that comes again is left out
        seen.setdefault(url, content)
    for i, content in enumerate(seen.values()):
        said = through_go(encoders[i % len(encoders)](content))
        if isinstance(said, dict):  # otherwise the sidecar only warns
            params.update(said)
    return params


class Sidecar(VllmCase):
    def setUp(self):
        super().setUp()
        self.start(encoded={"timeouts": {"unclaimed": "1s"}})
        self.other = self.world.encoded(name="enc1", fields=FIELDS, blocks=32)
        self.producers = [self.producer, self.engine_of(
            self.other, "producer", self.RANKS, mmx_patience_s=60)]
        self.said = {}  # the last offer for each hash

    def tearDown(self):
        if not self.broken:
            self.reclaim(self.other, self.producers[1])
        super().tearDown()

    def encoder(self, producer):
        def encode(content):
            got = producer.serve(Request(f"enc-{len(self.said)}", content))
            self.said.update(got)
            return got
        return encode

    def prefill(self, items, encoders=None):
        """Prefills a prompt of these items, which the sidecar has encoded
        first."""
        r = Request("r", *(content for _, content in items))
        r.ec_transfer_params = sidecar(
            items, encoders or [self.encoder(p) for p in self.producers])
        return r

    def test_a_prompt_of_two_encoders_items(self):
        items = [(n, (n, rows)) for n, rows in (
            ("cat", 300), ("dog", 129), ("video-10", 40), ("cat", 300))]
        r = self.prefill(items)
        self.assertEqual([p.encoded for p in self.producers],
                         [["cat", "video-10"], ["dog"]])
        self.assertEqual(set(r.ec_transfer_params), {n for n, _ in items})
        for name, offer in r.ec_transfer_params.items():
            for key in (*TEXT, "rows"):
                self.assertEqual(offer[key], self.said[name][key])
            for key in TEXT:  # Go would round a number above 2^53
                self.assertIsInstance(offer[key], str)
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])
        self.assertEqual(self.d.stats()["rooms_succeeded"], 3)

    def test_an_encoder_that_says_nothing(self):
        """An item without an offer is encoded where the prompt is
        prefilled."""
        r = self.prefill([("a", ("cat", 300)), ("b", ("dog", 129))],
                         [self.encoder(self.producer), lambda _: None])
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, ["dog"])

    def test_the_recipe_has_a_metric_that_is_there(self):
        with open(os.path.join(ROOT, "conf/helm/README.md")) as f:
            named = re.findall(r'"vllm:mmx_(\w+)"', f.read())
        self.assertEqual(named, [_vllm_engine.IN_USE])

    def test_one_picture_under_two_urls(self):
        """The sidecar keeps one of two rooms; the rows of the other give
        way."""
        r = self.prefill([("a", ("cat", 300)), ("b", ("cat", 300))])
        self.assertEqual(len(r.ec_transfer_params), 1)
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])
        self.assertEqual(self.d.stats()["rooms_succeeded"], 1)


class Server(http.server.BaseHTTPRequestHandler):
    """Answers a chat request by what `answer` returns for its body."""

    def __init__(self, answer, *words):
        self.answer = answer
        super().__init__(*words)

    def do_POST(self):
        assert self.path == CHAT, self.path
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = json.dumps({"choices": [], **self.answer(json.loads(body))})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_):
        pass


@unittest.skipUnless(SIDECAR, "MMX_LLMD_SIDECAR names no sidecar")
class Whole(Sidecar):
    def setUp(self):
        super().setUp()
        self.asked = []  # what came where the prompt is prefilled
        port, engine = free_port(), self.server(self.prefilled)
        self.url = f"http://127.0.0.1:{port}"
        self.log = os.path.join(self.world.dir, "sidecar.log")
        with open(self.log, "w") as log:
            process = subprocess.Popen(
                [SIDECAR, f"--port={port}", f"--model-server-port={engine}",
                 "--secure-proxy=false", "--ec-connector=ec-nixl"],
                stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def server(self, answer):
        """Starts a server; returns its port."""
        s = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Server, answer))
        thread = threading.Thread(target=s.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(s.server_close)
        self.addCleanup(s.shutdown)
        return s.server_port

    def prefilled(self, body):
        self.asked.append(body)
        return {}

    def prefill(self, items, encoders=None):
        contents, ports = dict(items), []
        for encode in encoders or [self.encoder(p) for p in self.producers]:
            def answer(body, encode=encode, lock=threading.Lock()):
                (part,) = body["messages"][0]["content"]
                with lock:
                    return {"ec_transfer_params": encode(
                        contents[part["image_url"]["url"]])}
            ports.append(self.server(answer))
        request = urllib.request.Request(
            self.url + CHAT, json.dumps({"model": "m", "messages": [
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": url}}
                    for url, _ in items]}]}).encode(),
            {"Content-Type": "application/json", "x-encoder-hosts-ports":
             ",".join(f"127.0.0.1:{p}" for p in ports)})

        def answers():
            try:
                with urllib.request.urlopen(request, timeout=60) as r:
                    return r.status
            except urllib.error.URLError as e:
                if isinstance(e.reason, ConnectionRefusedError):
                    return None
                raise
        self.assertEqual(eventually(answers, "the sidecar answers"), 200)
        r = Request("r", *(content for _, content in items))
        (body,) = self.asked
        r.ec_transfer_params = body.get("ec_transfer_params")
        return r
