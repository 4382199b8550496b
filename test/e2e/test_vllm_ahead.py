"""Rows that are requested when a request's text arrives, before vLLM's
scheduler hears of it: they move once, whatever becomes of the request, and
nothing depends on them."""

import asyncio
import json
import os
import socket
import types
from unittest import mock

import fake_vllm
from engine import LIMIT
from fake_vllm import Request, VllmCase, tensor
from pair import eventually

import mmx
from mmx.adapters import vllm_ec
from mmx.adapters._vllm_ahead import address, log
from mmx.adapters.vllm_ahead import AskAhead, _params


class Ahead(VllmCase):
    def setUp(self):
        super().setUp()
        self.start()
        self.connect()
        self.middleware = AskAhead(self.app)
        self.state = types.SimpleNamespace(vllm_config=self.consumer.config)
        self.ahead = self.consumer.scheduler._consumer.ahead
        self.early, self.left, self.heard = True, False, []
        # The first request makes the thread connect.
        self.say({"request": "x", "offers": {"x": 5}})
        eventually(lambda: self.ahead.link and self.ahead.link.pool,
                   "it is connected")

    def test_an_end_that_is_said_while_it_wakes_is_heard(self):
        ahead, read = self.ahead, os.read

        def late(fd, size):
            if fd == ahead._wake:
                ahead._ends = True  # as close() does
                os.write(ahead._waker, b"1")
            return read(fd, size)
        with mock.patch.object(os, "read", late):
            os.write(ahead._waker, b"1")
            ahead._thread.join(LIMIT)
        self.assertFalse(ahead._thread.is_alive())
        ahead._ends = False
        ahead.close()

    def say(self, what, name=None):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(what if isinstance(what, bytes)
                     else json.dumps(what).encode(), name or address(
                         self.consumer.config.ec_transfer_config.engine_id))

    def quiet(self):
        """Waits until the thread has handled all messages."""
        self.say({"request": "q", "offers": {"q": 1}})
        self.say(b"no JSON")
        heard, hear = [], self.ahead._heard
        self.ahead._heard = lambda said: (hear(said), heard.append(said))
        self.say({"request": "last"})
        eventually(lambda: {"request": "last"} in heard, "all is heard")
        self.ahead._heard = hear

    async def app(self, scope, receive, send):
        """vLLM's application: reads the body, serves the request, answers."""
        body = b""
        more = True
        while more:
            message = await receive()
            body += message["body"]
            more = message.get("more_body")
        self.heard.append(body)
        self.quiet()
        self.assertEqual(bool(self.ahead._rooms), self.early)
        if self.left:
            raise asyncio.CancelledError
        body = json.loads(body)
        r = Request("r", *body["items"])
        r.ec_transfer_params = body.get("ec_transfer_params")
        while not self.consumer.ready(r, body.get("computed", 0)):
            await asyncio.sleep(0.001)
        self.consumer.step(r, computed=body.get("computed", 0))
        self.consumer.finish(r)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"{}"})

    def post(self, body, path="/v1/chat/completions", parts=3):
        """Sends a request in parts; returns what came back."""
        size = -(-len(body) // parts)
        messages = [{"type": "http.request", "body": body[i:i + size],
                     "more_body": i + size < len(body)}
                    for i in range(0, len(body), size)]
        sent = []

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message)

        async def talk():
            try:
                await self.middleware({
                    "type": "http", "method": "POST", "path": path,
                    "app": types.SimpleNamespace(state=self.state)},
                    receive, send)
            except asyncio.CancelledError:
                pass
        asyncio.run(talk())
        return sent

    def request(self, *items, **more):
        r = self.hand_over("r", *items)
        return json.dumps({"items": items, **more, "ec_transfer_params":
                           r.ec_transfer_params, "more": 1}).encode()

    def all_free(self):
        eventually(lambda: not self.ahead._rooms, "it holds nothing")
        self.d.all_free()

    def test_rows_are_asked_for_once(self):
        before = self.opened()
        body = self.request(("cat", 300), ("dog", 20))
        self.assertEqual(len(self.post(body)), 2)
        self.assertEqual(self.heard, [body])
        self.assertEqual(self.consumer.encoded, [])
        counts = self.consumer.scheduler.get_ec_connector_stats().reduce()
        self.assertEqual(counts["rooms_ahead"], 2)
        self.assertEqual(self.opened() - before, 2)
        self.all_free()
        # Rows that vLLM has already are not requested.
        self.early = False
        self.post(self.request(("cat", 300)))
        self.assertEqual(self.opened() - before, 2)

    def test_params_that_nest_deeply_are_vllms_to_refuse(self):
        self.assertIsNone(_params(
            b'"ec_transfer_params": {"a": ' + b"[" * 100000))

    def test_what_fails_in_the_thread_does_not_end_it(self):
        """The thread has to go on: it also gives back the rooms that the
        scheduler has taken over."""
        with mock.patch.object(self.ahead, "needed", side_effect=TypeError), \
                self.assertLogs(log, "ERROR"):
            self.early = False
            self.post(self.request(("cat", 300)))
        self.early = True
        self.post(self.request(("dog", 300)))
        self.assertEqual(self.consumer.encoded, [])
        self.all_free()

    def test_one_of_two_is_at_vllm(self):
        self.post(self.request(("cat", 300)))
        self.post(self.request(("cat", 300), ("dog", 20)))
        self.assertEqual(self.consumer.encoded, [])
        self.consumer.caches = [{} for _ in self.consumer.ranks]
        self.consumer.step(Request("other"))
        self.all_free()

    def test_a_client_that_leaves(self):
        self.left = True
        self.post(self.request(("cat", 300)))
        self.all_free()
        self.left = False
        self.post(self.request(("cat", 300), ("dog", 20)))
        self.assertEqual(self.consumer.encoded, [])
        self.all_free()

    def test_what_was_asked_for_in_vain_is_asked_for_again(self):
        r = self.hand_over("r", ("cat", 300))
        said = r.ec_transfer_params["cat"]
        self.say({"request": "y", "offers": r.ec_transfer_params})
        eventually(lambda: self.ahead._rooms, "it is asked for")
        early = self.ahead._rooms[said["encoder"], mmx.Reference.read(
            said["room"])]
        early.room._fail(AssertionError("in vain"))
        self.consumer.take(r)
        self.assertEqual(self.consumer.encoded, [])
        self.check(self.consumer, r)
        self.consumer.finish(r)
        self.all_free()

    def test_one_room_under_two_names(self):
        r = self.hand_over("r", ("cat", 300))
        said = r.ec_transfer_params["cat"]
        self.say({"request": "y", "offers": {"dog": said, "cat": said}})
        self.quiet()
        self.assertEqual(len(self.ahead._rooms), 1)
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])
        self.say({"request": "y"})
        self.all_free()

    def test_one_picture_in_several_requests_at_once(self):
        """Each request has a room of the same rows. One room is requested,
        whichever of the requests vLLM schedules first."""
        rs = [self.hand_over(f"r{n}", ("cat", 300)) for n in range(4)]
        before = self.opened()
        for r in rs:
            self.say({"request": r.request_id,
                      "offers": r.ec_transfer_params})
        self.quiet()
        self.assertEqual(len(self.ahead._rooms), 1)
        for r in reversed(rs):
            self.consumer.take(r)
        self.assertEqual(self.opened() - before, 1)
        self.assertEqual(self.consumer.encoded, [])
        for r in rs:
            self.consumer.finish(r)
        self.all_free()

    def test_rows_of_another_count_are_not_taken(self):
        """What was requested ahead is only what a client has named."""
        r = self.hand_over("r", ("cat", 300))
        liar = self.hand_over("liar", ("dog", 200))
        self.say({"request": "y", "offers": {
            "cat": liar.ec_transfer_params["dog"]}})
        self.quiet()
        self.fetch(r)
        self.assertEqual(self.consumer.encoded, [])
        self.say({"request": "y"})
        self.declined(liar.ec_transfer_params["dog"])
        self.all_free()

    def test_rows_of_other_weights_are_not_taken(self):
        early = self.hand_over("early", ("cat", 300))
        self.say({"request": "y", "offers": early.ec_transfer_params})
        self.quiet()
        self.producer.scheduler._producer.reset()
        self.producer.caches = [{} for _ in self.producer.ranks]
        with mock.patch.object(fake_vllm, "tensor",
                               lambda *how: tensor(*how) ^ 1):
            self.fetch(self.hand_over("late", ("cat", 300)))
        self.assertEqual(self.consumer.encoded, [])
        self.say({"request": "y"})
        self.all_free()

    def test_no_more_than_its_share_of_the_pool(self):
        self.early = False
        self.post(self.request(("cat", 128 * 17)))  # of 32 blocks, 17
        self.assertEqual(self.consumer.encoded, [])
        self.early = True
        self.post(self.request(("dog", 128 * 16)))
        self.all_free()

    def test_an_encoder_that_is_not_named_is_not_asked(self):
        self.consumer.scheduler.settings.encoders = {"tcp://192.0.2.7:7601"}
        self.early = False
        body = self.request(("cat", 300))
        self.post(body)
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.declined(json.loads(body)["ec_transfer_params"]["cat"])

    def test_a_prefix_hit_leaves_nothing(self):
        self.post(self.request(("cat", 300), computed=10**6))
        self.all_free()

    def test_other_requests_pass_as_they_are(self):
        self.early = False
        for said in ('{"items": []}', '{"items": [], "x": '
                     '"ec_transfer_params", "y": 1}',
                     '{"items": [], "ec_transfer_params": null}',
                     '{"items": [], "ec_transfer_params": {}}',
                     '{"items": [], "ec_transfer_params": {"a": 5}}',
                     '{"items": [], "ec_transfer_params": {"ä": {}}}',
                     '{"items": [], "ec_transfer_params": {"a": '
                     '{"encoder": "e", "room": "x", "rows": 1}}}'):
            with self.subTest(said=said):
                self.post(said.encode())
                self.assertEqual(self.heard.pop(), said.encode())
        body = self.request(("cat", 3))
        self.post(body, path="/v1/other")
        self.assertEqual(self.heard, [body])

    def test_data_parallel_engines_are_told_nothing(self):
        """All of them have one name; their middleware sends nothing."""
        made = types.SimpleNamespace(data_parallel_size=2, rank=0)
        config = types.SimpleNamespace(**{
            **vars(self.consumer.config), "parallel_config": made})
        with self.assertNoLogs(log, "INFO"):
            side = vllm_ec.MmxECConnector(
                config, vllm_ec.engine.ECConnectorRole.SCHEDULER)
        side.shutdown()

    def test_langd_is_away(self):
        body = self.request(("cat", 300))
        self.d.kill()
        eventually(lambda: not self.ahead.link.conn.connected, "it is away")
        settings, self.early = self.consumer.scheduler.settings, False
        settings.patience = 0.1
        self.post(body)
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.d.start()
        link = self.consumer.scheduler._consumer.link
        eventually(lambda: link.step() and self.ahead.link.pool, "it is back")
        settings.patience, self.early = 60, True
        self.post(self.request(("fox", 3)))
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.declined(json.loads(body)["ec_transfer_params"]["cat"])
