"""Encoders of SGLang that register by HTTP: their server has a page that says
where their mmx-encoded is."""

import asyncio
import http.server
import json
import os
import sys
import threading
import types
from unittest import mock

import test_sglang
from pair import LIMIT, eventually
from sglang.srt.disaggregation.encoder import http_server, receiver

from mmx.adapters import _sglang_encoder as encoder_side
from mmx.adapters import _sglang_language


class HTTPException(Exception):
    """Stands in for fastapi's."""

    def __init__(self, status_code, detail):
        super().__init__(detail)
        self.status_code = status_code


FASTAPI = types.SimpleNamespace(HTTPException=HTTPException)


class Place(test_sglang.Base):
    def test_an_encoder_that_registers(self):
        """The encoder says where its mmx-encoded is; no variable names it."""
        self.start()
        encoder_side.say_place()
        with mock.patch.dict(os.environ,
                             MMX_ENCODED_SOCKET=self.e[0].socket):
            web = http.server.HTTPServer(("127.0.0.1", 0), self.handler())
            threading.Thread(target=web.serve_forever).start()
            self.addCleanup(web.server_close)
            self.addCleanup(web.shutdown)
            url = f"http://127.0.0.1:{web.server_port}"
            with mock.patch.dict(os.environ, MMX_ENCODED_SOCKET="/nowhere"), \
                    mock.patch.dict(sys.modules, fastapi=FASTAPI), \
                    mock.patch.object(encoder_side, "CONNECT_S", 0.1), \
                    self.assertRaisesRegex(OSError, "503"):
                _sglang_language.said(url)  # as a probe asks
            self.tokenizer.encode_urls.clear()
            bootstrap = receiver.EncoderBootstrapServer(
                "", 0, self.tokenizer.encode_urls)
            for wrong in (5, ["x"], {}, "", "x", "ftp://x", f"{url}/other"):
                # not accepted: it would fail every request
                bootstrap.register(wrong)
            bootstrap.register(url)
            eventually(lambda: self.tokenizer.encode_urls == [url],
                       "the encoder is in use")
        with mock.patch.object(test_sglang, "URLS", [url]):
            self.good(("r", 300))

    def handler(self):
        """Returns a handler that passes a GET to SGLang's application, on its
        loop."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler):
                call = http_server.app.routes.get(handler.path)
                if not call:
                    return handler.send_error(404)
                try:
                    said = asyncio.run_coroutine_threadsafe(
                        call(), self.loop).result(LIMIT)
                except HTTPException as e:
                    return handler.send_error(e.status_code)
                handler.send_response(200)
                handler.end_headers()
                handler.wfile.write(json.dumps(said).encode())

            def log_message(handler, *_):
                pass
        return Handler
