"""The SGLang plugin with encoders that are gRPC servers, between real daemons;
grpcio itself is a stand-in."""

import asyncio
import os
import sys
from unittest import mock

import stand_in_grpc as grpc
import test_sglang as of_http
from pair import LIMIT, eventually
from sglang.srt.disaggregation.encoder import grpc_server, receiver, server

from mmx.adapters import _sglang_encoder as encoder_side
from mmx.adapters import _sglang_language, sglang

URLS = ["grpc://enc0:1", "grpc://enc1:1"]
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Servicer:
    def __init__(self, case, encoder):
        self.case, self.encoder, self.health = case, encoder, SERVING

    async def Encode(self, request, context):
        rows = self.case.rows[request["req_id"].split("~")[0]]
        try:
            await self.encoder.execute(request, rows)
        except server.MMError as e:
            await context.abort(grpc.StatusCode.INTERNAL, str(e))

    async def Check(self, request, context):
        return self.health


class Grpc(of_http.Base):
    def start(self, **how):
        for patch in (mock.patch.dict(os.environ, {sglang.MODE: "grpc"}),
                      mock.patch.object(of_http, "URLS", URLS),
                      mock.patch.dict(sys.modules, grpc=grpc),
                      mock.patch.dict(grpc.SERVERS)):
            patch.start()
            self.addCleanup(patch.stop)
        super().start(**how)
        self.servicers = [Servicer(self, e) for e in self.encoders]
        for url, servicer in zip(URLS, self.servicers):
            made = grpc.SERVERS[url[len("grpc://"):]] = grpc.Server(self.loop)
            grpc_server.add_SGLangEncoderServicer_to_server(servicer, made)

    # RULES 7.9
    def test_each_part_has_a_room(self):
        self.start(ranks=2, encoders=2)
        self.good(("a", 300), ("b", 5))
        stats = self.d.stats()
        self.assertEqual(stats["rooms_succeeded"], 4)
        self.assertEqual(stats["bytes_moved"], 610 * 2 * of_http.WIDTH)
        self.d.all_free()

    def test_an_encoders_error_is_one_line(self):
        self.start()
        self.encoders[0].width = of_http.WIDTH * 2
        self.ask("r", 300)
        self.answered(502, "^encoder enc0:1: INTERNAL: .*rows are 64$")
        self.encoders[0].width = of_http.WIDTH
        self.good(("r", 300))

    def test_an_encoder_that_is_away(self):
        self.start()
        there = grpc.SERVERS.pop("enc0:1")
        self.ask("r", 300)
        self.answered(502, "^encoder enc0:1: UNAVAILABLE: no connection$")
        grpc.SERVERS["enc0:1"] = there
        self.good(("r", 300))

    def bootstrap(self):
        self.tokenizer.encode_urls.clear()
        return receiver.EncoderBootstrapServer(
            "", 0, self.tokenizer.encode_urls)

    def test_an_encoder_that_registers(self):
        """The encoder says where its mmx-encoded is; no variable names it."""
        self.start()
        grpc.SERVERS["new:1"] = grpc.SERVERS["enc0:1"]
        grpc.SERVERS["without:1"] = grpc.Server(self.loop)
        bootstrap = self.bootstrap()
        with mock.patch.dict(os.environ,
                             MMX_ENCODED_SOCKET=self.e[0].socket), \
                self.assertLogs("mmx.sglang", "WARNING") as said:
            self.assertFalse(bootstrap.register("http://new:1"))
            bootstrap.register("grpc://without:1")
            bootstrap.register("grpc://new:1")
            eventually(lambda: self.tokenizer.encode_urls ==
                       ["grpc://new:1"] and not _sglang_language.asked,
                       "the encoder is in use")
        self.assertRegex("\n".join(said.output), "http://new:1' is no URL(.|\n"
                         ")*without:1 is not used: it runs without mmx")
        with mock.patch.object(of_http, "URLS", ["grpc://new:1"]):
            self.good(("r", 300))

    def test_an_encoder_whose_daemon_is_away_does_not_say_its_place(self):
        self.start()
        with mock.patch.dict(os.environ, MMX_ENCODED_SOCKET="/nowhere"), \
                mock.patch.object(encoder_side, "CONNECT_S", 0.1), \
                self.assertRaisesRegex(OSError, "UNAVAILABLE: .*/nowhere"):
            _sglang_language.said(URLS[0])

    def test_health(self):
        """SGLang itself would look for an HTTP page, and find every encoder
        unwell."""
        self.start()
        bootstrap = self.bootstrap()

        def well(url, session=None):
            return asyncio.run(bootstrap._probe(session, url))
        self.assertTrue(well(URLS[0]))
        self.servicers[0].health = NOT_SERVING
        self.assertFalse(well(URLS[0]))
        self.assertFalse(well("grpc://absent:1"))
        self.assertTrue(well("http://a:1", "well"))
