"""Middleware of vLLM's API server that asks for rows before the scheduler
does: rows move once, whatever becomes of the request, and nothing depends on
it."""

import asyncio
import json
import types

from fake_vllm import Request, VllmCase
from pair import eventually

from mmx.adapters.vllm_ahead import AskAhead


class Ahead(VllmCase):
    def setUp(self):
        super().setUp()
        self.start()
        self.connect()
        self.asker = AskAhead(self.app)
        self.state = types.SimpleNamespace(vllm_config=self.consumer.config)
        self.heard, self.status = [], 200

    def tearDown(self):
        if self.asker.link:
            self.asker.link.close()
        super().tearDown()

    async def app(self, scope, receive, send):
        """vLLM's: reads the body, serves it, answers."""
        self.heard.append((await receive())["body"])
        if self.status == "left":
            raise asyncio.CancelledError
        body = json.loads(self.heard[-1])
        r = Request("r", *body["items"])
        r.ec_transfer_params = body.get("ec_transfer_params")
        while not self.consumer.ready(r):
            await asyncio.sleep(0.001)
        self.consumer.step(r)
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
            scope = {"type": "http", "method": "POST", "path": path,
                     "app": types.SimpleNamespace(state=self.state)}
            if not self.asker.link:
                self.asker._linked(scope)
                await self.asker._linking
            try:
                await self.asker(scope, receive, send)
            except asyncio.CancelledError:
                pass
        asyncio.run(talk())
        return sent

    def request(self, *items):
        r = self.hand_over("r", *items)
        return json.dumps({"items": items, "ec_transfer_params":
                           r.ec_transfer_params, "more": 1}).encode()

    def all_free(self):
        self.asker.link.step()
        self.d.all_free()
        self.assertEqual(self.asker._blocks, 0)

    def test_rows_are_asked_for_once(self):
        before = self.opened()
        self.post(self.request(("cat", 300), ("dog", 20)))
        self.assertEqual(self.consumer.encoded, [])
        self.assertEqual(self.opened() - before, 2)
        said = json.loads(self.heard[0])["ec_transfer_params"]
        self.assertTrue(all(x["asked"] for x in said.values()))
        self.all_free()
        # What the engine may have is left to its scheduler.
        self.post(self.request(("cat", 300)))
        self.assertNotIn(b"asked", self.heard[1])
        self.assertEqual(self.opened() - before, 2)
        self.all_free()

    def test_a_client_that_leaves(self):
        self.status = "left"
        self.post(self.request(("cat", 300)))
        self.assertIn(b"asked", self.heard[0])
        self.all_free()
        self.status = 200
        self.post(self.request(("cat", 300), ("dog", 20)))
        self.assertEqual(self.consumer.encoded, [])
        self.all_free()

    def test_what_was_asked_for_in_vain_is_asked_for_again(self):
        """A client says so, or the API server's process has ended."""
        r = self.hand_over("r", ("cat", 300))
        r.ec_transfer_params["cat"]["asked"] = True
        self.consumer.admit(r)
        self.consumer.step(r)
        self.assertEqual(self.consumer.encoded, [])
        self.check(self.consumer, r)
        self.consumer.finish(r)
        self.post(self.request(("dog", 300)))
        self.all_free()

    def test_no_more_than_its_share_of_the_pool(self):
        self.post(self.request(("cat", 128 * 9)))  # of 32 blocks
        self.assertNotIn(b"asked", self.heard[0])
        self.assertEqual(self.consumer.encoded, [])
        self.post(self.request(("dog", 128 * 8)))
        self.assertIn(b"asked", self.heard[1])
        self.all_free()

    def test_a_prefix_hit_leaves_nothing(self):
        said = json.loads(self.request(("cat", 300)))
        ready, self.consumer.ready = self.consumer.ready, \
            lambda r: ready(r, 10**6)
        step, self.consumer.step = self.consumer.step, \
            lambda r: step(r, computed=10**6)
        self.post(json.dumps(said).encode())
        self.all_free()
        del self.consumer.ready, self.consumer.step
        self.declined(said["ec_transfer_params"]["cat"])

    def test_other_requests_pass_as_they_are(self):
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
        self.post(b'{"items": [], "ec_transfer_params": {"a"'
                  b': {"room": 1}, "b": {}}}', parts=1)
        self.heard.pop()
        body = self.request(("cat", 3))
        self.post(body, path="/v1/embeddings", parts=1)
        self.assertEqual(self.heard.pop(), body)

    def test_langd_is_away(self):
        body = self.request(("cat", 300))
        self.d.kill()
        eventually(lambda: not self.asker.link or self.asker.link.step()
                   is None, "the link is down")
        self.consumer.scheduler.settings.patience = 0.1
        self.post(body)
        self.assertNotIn(b"asked", self.heard[0])
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.d.start()
        eventually(lambda: self.consumer.scheduler._consumer.link.step(),
                   "the consumer has its pool again")
        self.consumer.scheduler.settings.patience = 60
        self.post(self.request(("fox", 3)))
        self.assertEqual(self.consumer.encoded, ["cat"])
        self.declined(json.loads(body)["ec_transfer_params"]["cat"])
