"""mmx-exporter: what it serves for Prometheus and for people."""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

from engine import LIMIT
from pair import BUILD, ROOT, Case, eventually, free_port
import wire

from mmx.errors import TooLarge

sys.path.insert(0, os.path.join(ROOT, "scripts"))

import surface  # noqa: E402
import test_ctl  # noqa: E402

PROGRAM = os.path.join(BUILD, "mmx-exporter")


class Scraped(Case):
    def setUp(self):
        super().setUp()
        if not os.path.exists(PROGRAM):
            self.skipTest("no mmx-exporter: libmicrohttpd was not found")

    def start(self, *sockets, port=None, host="127.0.0.1", within=()):
        at = f"{host}:{port or free_port()}"
        p = subprocess.Popen([*within, PROGRAM, "--listen", at, *sockets],
                             stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait, LIMIT)
        self.addCleanup(p.terminate)
        self.said = p.stderr.readline()
        self.process = p
        return f"http://{at}"

    def get(self, url):
        with urllib.request.urlopen(url, timeout=LIMIT) as r:
            return r.read().decode()

    def status(self, url):
        """Returns (status, text) of an answer, also of a refusal."""
        try:
            return 200, self.get(url)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def values(self, text):
        """Returns {metric with its labels: value}, and checks the format."""
        out, typed = {}, set()
        for line in text.splitlines():
            if line.startswith("# TYPE"):
                name = line.split()[2]
                self.assertNotIn(name, typed)
                typed.add(name)
                continue
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            self.assertRegex(name, r'^mmx_[a-z_]+\{([a-z]+="[^"]*",?)*\}$')
            family = name.split("{")[0]
            if family not in typed:
                family = re.sub("_(bucket|sum|count)$", "", family)
            self.assertIn(family, typed)
            self.assertNotIn(name, out)
            out[name] = float(value)
        return out


class Exporter(Scraped):
    def test_metrics_of_a_pair(self):
        e, d, enc, lm = self.at_work()
        for room in range(1, 4):
            self.deliver(enc, lm, room, 300)
        enc.announce(9, 10)
        enc.abort(9)
        enc.release(9)
        url = self.start("--encoded", e.socket, "--langd", d.socket)
        text = self.get(url + "/metrics")
        seen = self.values(text)
        self.assertEqual(seen['mmx_up{daemon="encoded"}'], 1)
        self.assertEqual(seen['mmx_up{daemon="langd"}'], 1)
        ended = 'mmx_rooms_ended_by_reason_total{daemon="%s",reason="%s"}'
        self.assertEqual(seen[ended % ("langd", "ok")], 3)
        self.assertEqual(seen[ended % ("encoded", "aborted")], 1)
        for daemon in (e, d):
            label = f'{{daemon="{"encoded" if daemon is e else "langd"}"'
            for name, value in daemon.stats().items():
                name = name.replace("unknown_bits", "unknown_flags")
                self.assertIn(f"mmx_{name}_total{label}}}", seen)
            pool = seen[f'mmx_pool_blocks{label},pool="vit"}}']
            self.assertEqual(pool, daemon.free()[1])
        said = set(re.findall(r"^# TYPE (\w+)", text, re.M))
        with contextlib.chdir(ROOT):
            self.assertEqual(said - surface.metrics(), set())
        up = [k for k, v in seen.items()
              if k.startswith("mmx_peer_up{") and v == 1]
        self.assertEqual(len(up), 2)
        self.assertTrue(all(re.search(r'carrier="\w+",path="\w+"', k)
                            for k in up))
        if shutil.which("promtool"):
            got = subprocess.run(["promtool", "check", "metrics"], input=text,
                                 text=True, capture_output=True)
            self.assertEqual((got.returncode, got.stdout + got.stderr),
                             (0, ""))

    # RULES 9.6
    def test_a_pool_that_waits_for_its_layout_is_no_fault(self):
        e = self.world.encoded(fields="engine")
        url = self.start("--encoded", e.socket, "--langd", "/nowhere")
        seen = self.values(self.get(url + "/metrics"))
        self.assertEqual(e.show("pools")[0]["state"], "no-layout")
        self.assertEqual(
            (seen['mmx_ready{daemon="encoded"}'],
             seen['mmx_pool_usable{daemon="encoded",pool="vit"}']), (1, 1))

    def test_a_peer_that_drains(self):
        e, d = self.pair()
        url = self.start("--encoded", e.socket, "--langd", d.socket)
        e.ctl("drain")
        says = 'mmx_peer_draining{daemon="langd",peer="enc0"}'
        eventually(
            lambda: self.values(self.get(url + "/metrics")).get(says) == 1,
            "the peer drains")
        seen = self.values(self.get(url + "/metrics"))
        self.assertEqual(
            [v for k, v in seen.items() if k.startswith("mmx_peer_up{")
             and 'peer="enc0"' in k], [1])
        self.assertIn(">draining<", self.get(url + "/"))

    def test_histograms(self):
        e, d, enc, lm = self.at_work()
        for room in range(1, 4):
            self.deliver(enc, lm, room, 300)
        url = self.start("--encoded", e.socket, "--langd", d.socket)
        seen = self.values(self.get(url + "/metrics"))
        rows = {r["name"]: r for r in e.show("histograms")
                + d.show("histograms")}
        for daemon, names in (
                ("encoded", ("announce_to_first_row_seconds",
                             "commit_to_ready_seconds",
                             "source_wait_seconds", "room_size_bytes")),
                ("langd", ("request_to_ready_seconds",
                           "destination_wait_seconds", "room_size_bytes"))):
            for name in names:
                labels = f'{{daemon="{daemon}",pool="vit"'
                self.assertEqual(seen[f"mmx_{name}_count{labels}}}"], 3)
                buckets = [(k, v) for k, v in seen.items() if k.startswith(
                    f"mmx_{name}_bucket{labels}")]
                self.assertEqual(len(buckets), 20)
                bounds = [float(re.search('le="([^"]*)"', k)[1])
                          for k, _ in buckets]
                self.assertEqual(bounds, sorted(bounds))
                self.assertEqual(bounds[-1], float("inf"))
                counts = [v for _, v in buckets]
                self.assertEqual(counts, sorted(counts))
                self.assertEqual(counts[-1], 3)
                mean = seen[f"mmx_{name}_sum{labels}}}"] / 3
                word, unit = name.rsplit("_", 1)
                self.assertEqual(rows[word]["count"], 3)
                if unit == "bytes":
                    self.assertEqual(mean, 300 * 64)
                    self.assertEqual(rows[word]["mean"], 300 * 64)
                    self.assertEqual(counts[bounds.index(16384)], 0)
                    self.assertEqual(counts[bounds.index(32768)], 3)
                else:
                    self.assertLess(mean, LIMIT)

    def test_a_daemon_away(self):
        e, d = self.pair()
        url = self.start("--encoded", e.socket, "--langd", "/nowhere.sock")
        seen = self.values(self.get(url + "/metrics"))
        self.assertEqual(seen['mmx_up{daemon="encoded"}'], 1)
        self.assertEqual(seen['mmx_up{daemon="langd"}'], 0)
        page = self.get(url + "/")
        self.assertIn("does not answer at /nowhere.sock", page)
        self.assertIn("mmx-encoded", page)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.get(url + "/other")
        self.assertEqual(caught.exception.code, 404)
        caught.exception.close()
        e.kill()
        eventually(lambda: self.values(self.get(url + "/metrics"))[
            'mmx_up{daemon="encoded"}'] == 0, "it is seen to be away")

    def alone(self, encoded):
        """Starts an exporter that finds this daemon in /run/mmx, alone."""
        if os.geteuid() != 0:
            self.skipTest("needs a mount namespace")
        return self.start(within=(
            "env", f"MMX_UNITS={self.world.dir}", "unshare", "-m", "sh", "-c",
            "mount -t tmpfs mmx /run && mkdir /run/mmx && "
            f'ln -s {encoded.socket} /run/mmx/encoded.sock && exec "$@"', "sh"))

    def up(self, url):
        seen = self.values(self.get(url + "/metrics"))
        return {k: v for k, v in seen.items() if k.startswith("mmx_up{")}

    def test_a_daemon_whose_unit_is_enabled_is_asked_for(self):
        e, _ = self.pair()
        wants = os.path.join(self.world.dir, "multi-user.target.wants")
        os.mkdir(wants)
        open(os.path.join(wants, "mmx-langd.service"), "w").close()
        self.assertEqual(self.up(self.alone(e)),
                         {'mmx_up{daemon="encoded"}': 1,
                          'mmx_up{daemon="langd"}': 0})

    def test_a_host_of_one_role_is_not_asked_for_the_other(self):
        """Without options the exporter looks for the daemons in /run/mmx."""
        e, _ = self.pair()
        url = self.alone(e)
        self.assertEqual(self.up(url), {'mmx_up{daemon="encoded"}': 1})
        self.assertIn("ready", self.get(url + "/healthz"))
        e.kill()
        eventually(lambda: self.values(self.get(url + "/metrics")).get(
            'mmx_up{daemon="encoded"}') == 0, "it is missed")

    def test_peers_that_no_configuration_names_are_not_missed(self):
        gone = {"name": "enc7", "state": "away", "configured": 0,
                "trouble": "lost", "trouble_ms": 61000}
        peers = b"".join(test_ctl.row(**peer) for peer in (
            gone, {**gone, "name": "enc8", "trouble_ms": 2000},
            {**gone, "name": "enc9", "configured": 1},
            {**gone, "name": "enc9", "state": "leaving", "trouble_ms": 0}))

        def talk(s):
            while packet := s.recv(wire.PACKET_MAX):
                for frame in wire.frames(packet):
                    asked = frame.values.get("what") == "peers"
                    s.send(test_ctl.WELCOME if frame.message is wire.HELLO
                           else wire.REPORT.encode(
                               frame.seq, text=peers if asked else b""))
        seen = self.get(self.start("--langd", self.fake(talk)) + "/metrics")
        self.assertEqual(re.findall(r'^mmx_peer_up.*peer="(\w+)"', seen, re.M),
                         ["enc8", "enc9"])

    def test_a_refused_report_is_not_empty(self):
        refused = ("rooms", "slow", "pools", "peers", "buckets")

        def talk(s):
            while packet := s.recv(wire.PACKET_MAX):
                for frame in wire.frames(packet):
                    s.send(test_ctl.WELCOME if frame.message is wire.HELLO
                           else wire.REPORT.encode(
                               frame.seq, text=b"", err=TooLarge.number * (
                                   frame.values.get("what") in refused)))
        url = self.start("--langd", self.fake(talk))
        seen = self.values(self.get(url + "/metrics"))
        self.assertEqual(seen['mmx_up{daemon="langd"}'], 1)
        self.assertFalse([k for k in seen if k.startswith("mmx_rooms{")])
        self.assertNotIn("<h3>", self.get(url + "/"))

    def fake(self, talk):
        """Starts a daemon that sends on each connection what `talk` does;
        returns the path of its socket."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(os.path.join(folder.name, "fake.sock"))
        listener.listen()

        def run():
            while True:
                try:
                    s, _ = listener.accept()
                except OSError:
                    return
                with s, contextlib.suppress(OSError):
                    talk(s)
        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(listener.close)
        self.addCleanup(thread.join)
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)
        return listener.getsockname()

    def test_a_daemon_that_answers_half(self):
        e, _ = self.pair()
        welcome = wire.WELCOME.encode(
            1, version=1, role=2, cells=1)
        whole = wire.REPORT.encode(2, text=b"", more=0)
        half = wire.REPORT.encode(2, text=b"\0", more=1)
        for says, ends in (([], False), ([b"\xff" * 100], True),
                           ([welcome, whole, whole], True),
                           ([welcome, whole, half], False)):
            said = []

            def talk(s):
                for packet in says:
                    s.recv(wire.PACKET_MAX)
                    s.send(packet)
                said.append(True)
                while not ends and s.recv(wire.PACKET_MAX):
                    pass
            url = self.start("--encoded", e.socket, "--langd", self.fake(talk))
            seen = self.values(self.get(url + "/metrics"))
            self.assertEqual(seen['mmx_up{daemon="encoded"}'], 1)
            self.assertEqual([(k, v) for k, v in seen.items()
                              if 'daemon="langd"' in k],
                             [('mmx_up{daemon="langd"}', 0)])
            self.process.terminate()
            self.process.wait(LIMIT)
            self.assertTrue(said or ends)

    def test_a_daemon_that_goes_on_and_on(self):
        """A daemon's answer never ends: each packet comes soon after the one
        before."""
        half = wire.REPORT.encode(2, text=b"", more=1)
        cut = []

        def talk(s):
            s.recv(wire.PACKET_MAX)
            s.send(wire.WELCOME.encode(1, version=1, role=2, cells=1))
            try:
                for _ in range(10 * LIMIT):
                    s.send(half)
                    threading.Event().wait(0.1)
            except OSError:
                cut.append(True)
        url = self.start("--langd", self.fake(talk))
        seen = self.values(self.get(url + "/metrics"))
        self.assertEqual(seen['mmx_up{daemon="langd"}'], 0)
        eventually(lambda: cut, "the exporter has closed it")

    def test_two_daemons_that_hang(self):
        """The exporter answers before Prometheus gives up."""
        with contextlib.ExitStack() as sockets:
            paths = []
            for _ in range(2):
                folder = sockets.enter_context(tempfile.TemporaryDirectory())
                s = sockets.enter_context(socket.socket(
                    socket.AF_UNIX, socket.SOCK_SEQPACKET))
                s.bind(os.path.join(folder, "s"))
                s.listen()
                paths.append(s.getsockname())
            url = self.start("--encoded", paths[0], "--langd", paths[1])
            with urllib.request.urlopen(url + "/metrics", timeout=10) as r:
                seen = self.values(r.read().decode())
            self.assertEqual([v for k, v in seen.items()
                              if k.startswith("mmx_up")], [0, 0])

    def test_a_slow_daemon_that_was_away(self):
        def talk(s):
            for seq in range(1, 11):
                s.recv(wire.PACKET_MAX)
                threading.Event().wait(0.15)
                s.send(wire.WELCOME.encode(1, version=1, role=2, cells=1)
                       if seq == 1 else
                       wire.REPORT.encode(seq, text=b"", more=0))
        path = self.fake(talk)
        os.rename(path, path + ".away")
        url = self.start("--langd", path)
        for up in (0, 1):
            seen = self.values(self.get(url + "/metrics"))
            self.assertEqual(seen['mmx_up{daemon="langd"}'], up)
            if not up:
                os.rename(path + ".away", path)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
            self.start(port=port)
            self.assertEqual(self.said, f"mmx-exporter: --listen 127.0.0.1:"
                             f"{port}: Address already in use\n")
            self.assertEqual(self.process.wait(LIMIT), 1)

    def test_half_requests_of_one_address_leave_places(self):
        port = urllib.parse.urlsplit(self.start()).port
        for _ in range(16):
            s = socket.create_connection(("127.0.0.1", port), LIMIT,
                                         source_address=("127.0.0.2", 0))
            self.addCleanup(s.close)
            s.sendall(b"GET /metrics HTTP/1.1\r\n")
        # Well before the 10 s after which a silent connection ends.
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        self.addCleanup(c.close)
        c.request("GET", "/metrics")
        self.assertEqual(c.getresponse().status, 200)

    def asked(self, url, host, method="GET"):
        """Returns status, text and length of the answer for this host name."""
        at = urllib.parse.urlsplit(url)
        c = http.client.HTTPConnection("127.0.0.1", at.port, timeout=LIMIT)
        self.addCleanup(c.close)
        c.putrequest(method, "/metrics", skip_host=True)
        if host is not None:
            c.putheader("Host", host)
        c.endheaders()
        r = c.getresponse()
        return r.status, r.read().decode(), int(r.headers["Content-Length"])

    def test_names_of_others_are_refused(self):
        """Otherwise a page of another site, whose name now leads here, could
        read the metrics."""
        nowhere = ("--encoded", "/nowhere.sock")
        url = self.start(*nowhere, "--host", "gpu7.example", "--host", "gpu7")
        for host in ("127.0.0.1", "localhost:9464", "LocalHost", "[::1]:80",
                     "127.3.2.1:1", "GPU7.example:9464", "gpu7"):
            self.assertEqual(self.asked(url, host)[0], 200, host)
        for host in ("evil.example", "evil.example:9464", "192.0.2.1", "",
                     "localhost.evil.example", "[fd00::7]:9464", "[::1",
                     "127.0.0.1.evil.example", "localhost:80:80", "x" * 999):
            status, text, _ = self.asked(url, host)
            self.assertEqual(status, 403, host)
            self.assertIn("--host NAME", text)
        url = self.start(*nowhere, host="0.0.0.0")  # as in the pods
        for host, status in (("10.1.2.3:9464", 200), ("[fd00::7]:9464", 200),
                             ("localhost", 200), ("evil.example", 403)):
            self.assertEqual(self.asked(url, host)[0], status, host)

    def test_the_head_of_an_answer(self):
        url = self.start("--encoded", "/nowhere.sock")
        whole = self.asked(url, "localhost")
        self.assertEqual(self.asked(url, "localhost", "HEAD"),
                         (200, "", whole[2]))
        self.assertEqual(self.asked(url, "localhost", "DELETE")[0], 405)

    def test_an_address_that_is_none(self):
        for at in ("9464", "localhost:9464", "127.0.0.1:0", "::1:9464"):
            got = subprocess.run([PROGRAM, "--listen", at], text=True,
                                 capture_output=True, timeout=LIMIT)
            self.assertEqual(got.returncode, 64)
            self.assertIn(f"--listen {at}: expected", got.stderr)


class Dashboard(Scraped):
    """A real Prometheus scrapes a pair at work."""
    RULES = os.path.join(ROOT, "conf/prometheus-rules.yaml")
    limit_s = 300  # Prometheus starts, and each panel waits for scrapes

    def prometheus(self, target):
        at = f"127.0.0.1:{free_port()}"
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(os.path.join(folder.name, "p.yml"), "w") as f:
            json.dump({"global": {"scrape_interval": "200ms"},
                       "rule_files": [self.RULES],
                       "scrape_configs": [{
                           "job_name": "mmx", "static_configs": [
                               {"targets": [target]}]}]}, f)
        p = subprocess.Popen(
            ["prometheus", f"--config.file={folder.name}/p.yml",
             f"--storage.tsdb.path={folder.name}/data",
             f"--web.listen-address={at}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(p.wait, LIMIT)
        self.addCleanup(p.terminate)
        return f"http://{at}/api/v1/"

    def ask(self, api, what, **words):
        try:
            return json.loads(self.get(
                api + what + "?" + urllib.parse.urlencode(words)))["data"]
        except (OSError, http.client.HTTPException):  # it has not started yet
            return {"result": [], "groups": []}

    def test_every_panel_shows_something(self):
        if not shutil.which("prometheus"):
            self.skipTest("no prometheus")
        e, d, enc, lm = self.at_work()
        url = self.start("--encoded", e.socket, "--langd", d.socket)
        api = self.prometheus(url.removeprefix("http://"))
        with open(os.path.join(ROOT, "conf/grafana-dashboard.json")) as f:
            panels = json.load(f)["panels"]
        exprs = [t["expr"].replace("$host", ".*") for p in panels
                 for t in p["targets"]]
        self.assertGreater(len(exprs), 8)
        room = 0
        for expr in exprs:
            # metrics of engines, which do not run: the query must be valid
            if ":mmx_" in expr:
                eventually(lambda expr=expr: self.ask(
                    api, "query", query=expr).get("resultType"), expr)
                continue
            def shown():
                nonlocal room
                room += 1
                self.deliver(enc, lm, room, 100)
                return self.ask(api, "query", query=expr)["result"]
            eventually(shown, f"{expr} is not empty", 60)
        eventually(lambda: self.ask(api, "rules")["groups"], "rules are read")
        rules = self.ask(api, "rules")["groups"][0]["rules"]
        self.assertEqual([r["lastError"] for r in rules if r.get("lastError")],
                         [])

    def test_panels_of_engines_name_what_the_adapters_have(self):
        with open(os.path.join(ROOT, "conf/grafana-dashboard.json")) as f:
            named = set(re.findall(
                r"(vllm|sglang):mmx_(\w+?)(?:_total|_sum|_bucket)?\b",
                f.read()))
        self.assertGreater(len(named), 6)
        for engine, name in named:
            at = f"lib/client/python/mmx/adapters/_{engine}_" + \
                ("engine.py" if engine == "vllm" else "common.py")
            with open(os.path.join(ROOT, at), encoding="utf-8") as f:
                self.assertRegex(
                    f.read(), f'"{name}"' if engine == "vllm"
                    else f'"sglang:mmx_{name}"')

    def test_rules(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool")
        subprocess.run(["promtool", "check", "rules", self.RULES], check=True,
                       stdout=subprocess.DEVNULL)

    def test_what_texts_promise(self):
        """The commands that the alerts' texts name exist."""
        e, d = self.pair()
        with open(self.RULES) as f:
            text = f.read()
        said = set(re.findall(r"mmxctl (\w+)", text))
        self.assertGreater(len(said), 6)
        with open(os.path.join(ROOT, "lib/wire/show.def")) as f:
            shown = set(re.findall(r'^SHOW\(\w+, "(\w+)"', f.read(), re.M))
        self.assertEqual(said - shown, {"doctor"})
        eventually(lambda: [r["state"] for r in e.show("peers")] == ["up"],
                   "it is up")
        d.kill()
        eventually(lambda: "trouble_ms" in e.show("peers")[0], "it is down")
        self.assertIn("what", e.show("peers")[0])

    def test_rules_of_rooms_without_rows(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool")
        # A room is open at every third scrape: rooms fail and are requested
        # again.
        asked = {'mmx_rooms{daemon="d",instance="i",state="WaitingForInput"}':
                 "0 0 1 " * 20}
        bytes_moved = 'mmx_bytes_moved_total{daemon="d",instance="i"}'
        for rooms, moved, fires in ((asked, "7x60", True),
                                    (asked, "7+9x60", False),
                                    ({k: "0x60" for k in asked}, "7x60", False),
                                    # a single room that failed
                                    ({k: "0x20 1 0x39" for k in asked},
                                     "7x60", False)):
            self.assertEqual(self.alerts(
                "MmxNoRows", {**rooms, bytes_moved: moved}), fires, moved)
        up = 'mmx_uptime_seconds{daemon="d",instance="i"}'
        self.assertTrue(self.alerts("MmxRestarts", {up: "0 60 0 60 0 60 0x30"}))
        self.assertFalse(self.alerts("MmxRestarts", {up: "0+60x10 0+60x30"}))

    def test_rules_of_what_is_gone_full_or_cut(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool")
        of = '{daemon="d",instance="i",pool="p"%s}'
        up, free, kept, all_blocks, path = (f"mmx_{name}{of}" for name in (
            "up", "pool_free_blocks", "pool_kept_blocks", "pool_blocks",
            "peer_up"))
        for alert, series, fires in (
                ("MmxHostAway", {up % "": "1x18 _x20"}, True),
                ("MmxHostAway", {up % "": "1x40"}, False),
                ("MmxHostAway", {up % ',node="n"': "1x18 _x20"}, True),
                # a pod of the same node has another address
                ("MmxHostAway", {
                    up % ',node="n"': "1x18 _x20",
                    (up % ',node="n"').replace('"i"', '"j"'): "_x18 1x20"},
                 False),
                ("MmxDataPath", {path % ',trouble="data-refused"': "1x40"},
                 True),
                ("MmxDataPath", {path % ',trouble=""': "1x40"}, False),
                ("MmxPoolFull", {free % "": "1x40", all_blocks % "": "64x40"},
                 True),
                ("MmxPoolFull", {free % "": "1x40", all_blocks % "": "64x40",
                                 kept % "": "0x40"}, True),
                ("MmxPoolFull", {free % "": "1x40", all_blocks % "": "64x40",
                                 kept % "": "60x40"}, False)):
            self.assertEqual(self.alerts(alert, series), fires, series)

    def fires(self, alert, series, seconds):
        """True if the alert fires when rooms, one each second, take `seconds`
        each."""
        bounds = [f"{64e-6 * 2 ** i:.15g}" for i in range(19)] + ["+Inf"]
        return self.alerts(alert, {
            f'{series}_bucket{{daemon="d",pool="p",instance="i",'
            f'le="{bound}"}}':
            "0+60x30" if float(bound) >= seconds else "0x30"
            for bound in bounds})

    def alerts(self, alert, series):
        """True if the alert fires with these series, one value a minute."""
        test = {"interval": "1m", "input_series": [
            {"series": name, "values": values}
            for name, values in series.items()], "promql_expr_test": [{
                "expr": f'count(ALERTS{{alertname="{alert}",'
                        'alertstate="firing"})',
                "eval_time": "25m",
                "exp_samples": [{"labels": "{}", "value": 1}]}]}
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
            json.dump({"rule_files": [self.RULES], "evaluation_interval": "1m",
                       "tests": [test]}, f)
            f.flush()
            got = subprocess.run(["promtool", "test", "rules", f.name],
                                 capture_output=True, text=True)
        return got.returncode == 0

    def test_rules_of_histograms(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool")
        for alert, series in (
                ("MmxRoomsSlow", "mmx_commit_to_ready_seconds"),
                ("MmxRoomsWaitForBlocks", "mmx_source_wait_seconds"),
                ("MmxRoomsWaitForBlocks", "mmx_destination_wait_seconds")):
            self.assertTrue(self.fires(alert, series, 8), series)
            self.assertFalse(self.fires(alert, series, 0.5), series)
