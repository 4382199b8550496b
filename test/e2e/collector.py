"""A collector for one test: takes OTLP over HTTP, and decodes it with a
protobuf reader of its own. Where Python's opentelemetry-proto is installed,
each body is also decoded with the published definitions, and both results must
be equal."""

import http.server
import threading

try:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
except ImportError:
    trace_service_pb2 = None


def fields(data):
    """{number: [value]} of a message: bytes, or an integer."""
    out, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7f) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
            value = data[at:at + size]
            if len(value) != size:
                raise ValueError(f"field {key >> 3} is cut")
            at += size
            if key & 7 != 2:
                value = int.from_bytes(value, "little")
        out.setdefault(key >> 3, []).append(value)
    return out


def attributes(pairs):
    out = {}
    for pair in map(fields, pairs):
        value = fields(pair[2][0])
        out[pair[1][0].decode()] = value[1][0].decode() if 1 in value \
            else value[3][0]
    return out


def spans_of(body):
    """Returns the spans of a request as [{...}]; a span has the attributes of
    its resource."""
    out = []
    for side in map(fields, fields(body)[1]):
        about = attributes(fields(side[1][0])[1])
        for scope in map(fields, side[2]):
            name = fields(scope[1][0])[1][0].decode()
            for s in map(fields, scope[2]):
                status = fields(s[15][0]) if 15 in s else {}
                out.append({
                    "scope": name, "trace": s[1][0].hex(),
                    "id": s[2][0].hex(), "parent": s[4][0].hex(),
                    "name": s[5][0].decode(), "kind": s[6][0],
                    "from": s[7][0], "to": s[8][0], "flags": s[16][0],
                    "failed": status.get(3) == [2],
                    **about, **attributes(s[9])})
    return out


def published(body):
    """Returns the same as spans_of, read with the published definitions."""
    out = []
    for side in trace_service_pb2.ExportTraceServiceRequest.FromString(
            body).resource_spans:
        for scope in side.scope_spans:
            for s in scope.spans:
                out.append({
                    "scope": scope.scope.name, "trace": s.trace_id.hex(),
                    "id": s.span_id.hex(), "parent": s.parent_span_id.hex(),
                    "name": s.name, "kind": s.kind,
                    "from": s.start_time_unix_nano,
                    "to": s.end_time_unix_nano, "flags": s.flags,
                    "failed": s.status.code == 2,
                    **{a.key: a.value.string_value or a.value.int_value
                       for a in (*side.resource.attributes, *s.attributes)}})
    return out


class Collector:
    """Answers with this status and body; while `free` is cleared it hangs."""

    def __init__(self, port=0):
        self.spans, self.wrong, self.requests = [], [], 0
        self.status, self.answer = 200, b""
        self.free = threading.Event()
        self.free.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, self.headers["Content-Type"], body)
                collector.free.wait()
                try:
                    self.send_response(collector.status)
                    self.send_header("Content-Length", len(collector.answer))
                    self.end_headers()
                    self.wfile.write(collector.answer)
                except OSError:  # the sender waits no more
                    pass

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port),
                                                      Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, kind, body):
        self.requests += 1
        try:
            found = spans_of(body)
            if trace_service_pb2 and published(body) != found:
                self.wrong.append("the published definitions say otherwise")
            if (path, kind) != ("/v1/traces", "application/x-protobuf"):
                self.wrong.append((path, kind))
            if self.status == 200 and self.free.is_set():
                self.spans += found
        except (LookupError, ValueError) as e:
            self.wrong.append(repr(e))

    def close(self):
        self.free.set()
        self.server.shutdown()
        self.server.server_close()
