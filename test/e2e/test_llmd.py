"""Offers that pass through llm-d's router. Its sidecar (--ec-connector
ec-nixl) has each item encoded by a request of its own, joins what the encoders
return by the items' hashes, and puts it into the request for prefill. It is
written in Go, which reads a JSON number as a double. The stand-in here does
what llm-d-router does at v0.10.0-rc.1-62-gebab687
(pkg/sidecar/proxy/connector_ec_common.go and connector_ec_nixl.go)."""

import json
import os
import re
from decimal import Decimal

from fake_vllm import FIELDS, Request, VllmCase
from pair import ROOT

from mmx.adapters import _vllm_engine

TEXT = ("encoder", "room", "key", "epoch")


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
