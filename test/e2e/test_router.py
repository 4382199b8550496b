"""vLLM's trial router over stand-ins of the instances: what it asks again, and
what goes on in each mode."""

import asyncio
import contextlib
import json
import os
import runpy
import sys
import types
import unittest
from unittest import mock

from pair import ROOT

PATH = os.path.join(ROOT, "test/engines/vllm/router.py")


class Gone(Exception):
    """aiohttp's ClientError."""


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
        return self.said


class Session:
    """aiohttp's, to instances that are functions of a request: what they
    return is the answer, or the status and a text."""

    def __init__(self, **hosts):
        self.hosts, self.asked = hosts, []  # (host, body)

    @contextlib.asynccontextmanager
    async def post(self, url, json, headers):  # as aiohttp has it
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
    """A part of a message: its content is here unless text is a URL."""
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
    """An encoder, which names items by their uuid or their content."""
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
    """A language instance, which answers with what it was asked."""
    return {"asked": body}


def router(encoders="http://a http://b", **how):
    return ROUTER["Router"](encoders, "http://d", **how)


def chat(r, session, body):
    return asyncio.run(r.chat(session, body))


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
        self.assertEqual(got[0], got[5])  # the same content
        self.assertEqual(len({x["uuid"] for x in got}), 5)

    def test_what_a_url_names_may_change(self):
        twice = [item("image_url", "http://x/y")] * 2
        _, _, asked = self.play(encodes({"grid": [[1]]}), *twice,
                                references=True)
        self.assertEqual(len({x["uuid"] for x in content(asked)[1:]}), 2)

    def test_no_kind_has_items_and_references(self):
        """One picture without sizes: all pictures go on, by their names."""
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
