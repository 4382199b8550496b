"""mmx-otel: the spans that a collector gets of a pair's rooms."""

import os
import subprocess
import time

from collector import Collector
from engine import LIMIT
from pair import BUILD, Case, eventually, free_port, sanitized

PROGRAM = os.path.join(BUILD, "mmx-otel")
NAMES = os.path.join(BUILD, "test", "preload", "slow_names.so")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = CONTEXT[:-1] + "0"
ENCODED = {"mmx.request", "mmx.encode", "mmx.transfer"}
LANGD = {"mmx.request", "mmx.transfer", "mmx.ready"}


class Otel(Case):
    def setUp(self):
        super().setUp()
        if not os.path.exists(PROGRAM):
            self.skipTest("no mmx-otel: libcurl or protobuf-c was not found")

    def collector(self, port=0):
        c = Collector(port)
        self.addCleanup(c.close)
        return c

    def start(self, port, *daemons, user=None, env=None):
        """Starts the program; its lines on stderr go to self.log."""
        words = [w for d in daemons for w in ("--" + d.role, d.socket)]
        self.log = os.path.join(self.world.dir, "otel.log")
        with open(self.log, "wb") as log:
            p = subprocess.Popen(
                [PROGRAM, *words] + (
                    [] if env else ["--endpoint", f"http://127.0.0.1:{port}"]),
                env=env, stderr=log, user=user, extra_groups=[])
        self.addCleanup(p.wait, LIMIT)
        self.addCleanup(p.terminate)
        return p

    def said(self):
        with open(self.log, encoding="utf-8") as f:
            return f.read()

    def end(self, process):
        """Ends the program; returns its last words."""
        process.terminate()
        self.assertEqual(process.wait(LIMIT), 0)
        return self.said().splitlines()[-1]

    def give(self, enc, lm, room, announced="", requested="", rows=10):
        src = enc.conn.announce(room, enc.pool, rows, rows,
                                traceparent=announced)
        src.wait_granted(timeout=LIMIT)
        got = lm.conn.request(room, lm.pool, "enc0", traceparent=requested)
        src.commit(0, rows, final=True)
        got.wait_ready(timeout=LIMIT)
        src.wait_done(timeout=LIMIT)
        got.release()
        src.release()

    def working(self, **how):
        e, d, enc, lm = self.at_work(**how)
        enc.map_pool()
        lm.map_pool()
        return e, d, enc, lm

    def of(self, spans, service, room):
        return {s["name"]: s for s in spans if s["service.name"] == service
                and s["mmx.room"] == f"..{room:08x}"}

    def get(self, c, count):
        eventually(lambda: len(c.spans) >= count,
                   f"{count} spans of {c.spans}\n{self.said()}")
        self.assertEqual(c.wrong, [])
        self.assertEqual(len({s["id"] for s in c.spans}), len(c.spans))
        return c.spans

    def test_a_room_in_both_daemons(self):
        before = time.time_ns()
        e, d, enc, lm = self.working()
        c = self.collector()
        p = self.start(c.port, e, d)
        self.give(enc, lm, 0xabcdef0123456789, CONTEXT, CONTEXT, rows=300)
        spans = self.get(c, 6)
        sides = (self.of(spans, "mmx-encoded", 0x23456789),
                 self.of(spans, "mmx-langd", 0x23456789))
        self.assertEqual([set(s) for s in sides], [ENCODED, LANGD])
        for s in spans:
            self.assertEqual(
                (s["trace"], s["parent"], s["scope"], s["kind"], s["failed"],
                 s["flags"], s["mmx.rows"]),
                (TRACE, PARENT, "mmx-otel", 1, False, 0x301, 300), s)
            self.assertLess(before, s["from"])
            self.assertLessEqual(s["from"], s["to"])
            self.assertLess(s["to"], time.time_ns())
        for side, name, peer in zip(sides, ("enc0", "lang0"),
                                    ("lang0", "enc0")):
            for s in side.values():
                self.assertEqual((s["service.instance.id"], s["mmx.peer"]),
                                 (name, peer))
            whole = side["mmx.request"]
            for s in side.values():
                self.assertLessEqual(whole["from"], s["from"])
                if s["name"] != "mmx.ready":
                    self.assertLessEqual(s["to"], whole["to"])
        self.assertEqual(sides[1]["mmx.ready"]["from"],
                         sides[1]["mmx.request"]["to"])
        self.assertIn("spans: 6 sent, 0 wait, 0 dropped, 0 refused",
                      self.end(p))

    def test_a_collector_that_comes_late_and_answers_badly(self):
        e, d, enc, lm = self.working()
        port = free_port()
        p = self.start(port, e, d)
        self.give(enc, lm, 1, CONTEXT, CONTEXT)
        eventually(lambda: "tried again" in self.said(), "it is away")
        c = self.collector(port)
        first = self.get(c, 6)[:]
        c.status = 503
        self.give(enc, lm, 2, CONTEXT, CONTEXT)
        eventually(lambda: "status 503; tried again" in self.said(), "503")
        c.status = 200
        self.get(c, 12)
        c.status = 400
        seen = c.requests
        self.give(enc, lm, 3, CONTEXT)
        eventually(lambda: "status 400; spans are refused" in self.said(),
                   "400")
        eventually(lambda: c.requests >= seen + 2, "both daemons' spans")
        # an answer that two spans are rejected
        c.status, c.answer = 200, bytes((10, 2, 8, 2))
        self.give(enc, lm, 4, CONTEXT)
        self.get(c, 18)
        last = self.end(p)
        self.assertRegex(last, "0 wait, 0 dropped, ([89]|10) refused")
        # A program that reads the recorders again sends the same spans, with
        # equal ids.
        c.answer, c.spans = b"", []
        self.start(port, e, d)
        again = {s["id"]: s for s in self.get(c, 24)}
        for s in first:
            self.assertEqual(
                {**again[s["id"]], "from": 0, "to": 0}, {**s, "from": 0, "to": 0})

    def test_a_collector_that_hangs(self):
        """While it hangs the recorders are still read. Spans beyond the limit
        are counted as dropped."""
        e, d = self.pair()
        lm = self.world.engine(d)
        c = self.collector()
        c.free.clear()
        p = self.start(c.port, d)
        for room in range(1, 9001):
            lm.request(room, "enc0", rows=1, traceparent=CONTEXT)
            lm.release(room)
        lm.conn.query("status")
        eventually(lambda: "8192 wait" in self.said(), "it has read most")
        with open(f"/proc/{p.pid}/statm", encoding="ascii") as f:
            pages = int(f.read().split()[1])
        self.end(p)
        self.assertIn(f"spans: 0 sent, 8192 wait, {9000 - 8192} dropped, 0 "
                      "refused; not seen: 0 happenings", self.said())
        self.assertLess(pages * 4096, 64 << 20)
        del e

    def test_a_name_server_that_hangs(self):
        """A request fails by its own deadline, not by that of the look-up."""
        if sanitized(PROGRAM):
            self.skipTest("the sanitizer comes first in the library list")
        e, _, enc, _ = self.working()
        p = self.start(0, e, env={
            "LD_PRELOAD": NAMES,
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://slow.invalid"})
        enc.announce(1, 10, traceparent=CONTEXT)
        enc.abort(1)
        enc.release(1)
        eventually(lambda: "tried again" in self.said(), "it is away")
        self.assertIn("0 sent, 1 wait", self.end(p))

    def test_a_daemon_that_comes_again(self):
        e, d, enc, lm = self.working()
        c = self.collector()
        self.start(c.port, e)
        self.give(enc, lm, 1, CONTEXT)
        self.get(c, 3)
        self.assertEqual(e.stop(), 0)
        eventually(lambda: "tried again" in self.said(), "it is away")
        e.start()
        e.wait_ready()
        enc = self.world.engine(e)
        enc.map_pool()
        eventually(lambda: self.said().count("follows mmx-encoded enc0") == 2,
                   "it follows the next run")
        enc.announce(2, 10, traceparent=CONTEXT)
        enc.abort(2)
        enc.release(2)
        spans = self.get(c, 4)
        self.assertEqual(spans[3]["mmx.room"], "..00000002")
        del d, lm

    def test_a_daemon_that_hangs(self):
        """No span is sent twice afterwards: the daemon's run is the same."""
        e, d, enc, lm = self.working()
        c = self.collector()
        self.start(c.port, e, d)
        self.give(enc, lm, 1, CONTEXT)
        self.get(c, 6)
        with e.stopped():
            eventually(lambda: "does not answer" in self.said(), "it hangs")
            for i in range(8):  # the other daemon is still read
                lm.conn.request(3 + i, lm.pool, "enc0", deadline=0.1,
                                traceparent=CONTEXT)
                since = time.monotonic()
                self.get(c, 7 + i)
                self.assertLess(time.monotonic() - since, 3)
            c.spans.clear()
        self.give(enc, lm, 2, CONTEXT)
        spans = self.get(c, 6)
        self.assertEqual(set(self.of(spans, "mmx-encoded", 2)), ENCODED)
        self.assertEqual(self.said().count("follows mmx-encoded"), 2)

    def test_its_command_line(self):
        for words, why in ((["--endpoint", "ftp://x"], "a URL of http"),
                           (["--endpoint", "http://u:secret@a b"],
                            "a URL of http")):
            got = subprocess.run([PROGRAM, *words], capture_output=True,
                                 text=True, timeout=LIMIT)
            self.assertEqual(got.returncode, 1)
            self.assertIn(why, got.stderr)
            self.assertNotIn("secret", got.stderr)
        got = subprocess.run([PROGRAM, "x"], capture_output=True, text=True,
                             timeout=LIMIT)
        self.assertEqual(got.returncode, 64)
        c = self.collector()
        e, d, enc, lm = self.working()
        at = f"127.0.0.1:{c.port}/"
        self.start(0, e, env={
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:secret@" + at})
        c.status = 503
        self.give(enc, lm, 1, CONTEXT)
        eventually(lambda: "status 503; tried again" in self.said(), "503")
        c.status = 200
        self.get(c, 3)
        self.assertIn(f"sends to http://{at}v1/traces\n", self.said())
        self.assertNotIn("secret", self.said())
        self.assertNotIn("user", self.said())

    def test_another_user(self):
        """A program that may not see a room's id sends no span of it, and says
        so."""
        if os.geteuid() != 0:
            self.skipTest("another user: needs root")
        e, d, enc, lm = self.working()
        for path in (e.socket, d.socket, self.world.dir,
                     os.path.dirname(self.world.dir)):
            os.chmod(path, 0o777)
        self.give(enc, lm, 1, CONTEXT, CONTEXT)
        c = self.collector()
        p = self.start(c.port, e, d, user=45001)
        eventually(lambda: self.said().count("follows") == 2, "both")
        self.assertIn("spans: 0 sent, 0 wait, 0 dropped, 0 refused; not seen: "
                      "0 happenings or rooms, 2 contexts of other users",
                      self.end(p))
        self.assertEqual(c.requests, 0)
