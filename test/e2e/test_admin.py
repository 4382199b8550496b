"""What an operator touches: mmxctl, --check-config, signals, systemd's
notifications, the idle daemon."""

import os
import select
import socket
import subprocess
import time

from mmx import errors
from pair import BUILD, Case, eventually, keygen


WHATS = ("status", "rooms", "pools", "peers", "conf", "stats", "ends")


class Ctl(Case):
    def test_everything_as_text_and_json(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        lm.request(2, "enc0")
        for daemon in (e, d):
            for what in WHATS:
                with self.subTest(daemon=daemon.name, what=what):
                    text = daemon.ctl(what).stdout
                    self.assertTrue(text.strip())
                    self.assertTrue(daemon.show(what))
        self.assertIn("vit", d.ctl("pools").stdout)
        self.assertIn("enc0", d.ctl("peers").stdout)
        self.assertIn("blocks: 64", d.ctl("conf").stdout)
        self.assertEqual(d.stats()["rooms_succeeded"], 1)
        self.assertEqual(d.ended(1)["bytes"], 300 * 64)
        self.assertEqual(lm.conn.query("pools"), d.show("pools"))
        (pool,) = d.show("pools")
        self.assertEqual((pool["number"], pool["pool"]), (0, "vit"))
        self.assertIn("4 KiB pages", pool["mapped"])
        lm.release(2)

    def test_what_cannot_be_shown(self):
        e, _ = self.pair()
        got = e.ctl("nonsense", check=False)
        self.assertNotEqual(got.returncode, 0)
        self.assertTrue(got.stderr)
        with self.assertRaisesRegex(errors.Malformed, "there is health"):
            self.world.engine(e).conn.query("nonsense")
        got = subprocess.run(
            [os.path.join(BUILD, "mmxctl"), "--socket",
             self.world.dir + "/nobody.sock", "status"],
            capture_output=True, text=True)
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("nobody.sock", got.stderr)


class Config(Case):
    def keys(self):
        """Returns the words of a command that give a daemon its key."""
        if not os.path.exists(self.world.key):
            keygen(self.world.key)
        return ("--set", f"control.keys={self.world.key}")

    def check(self, text, role="langd", *more, units="/nowhere"):
        path = os.path.join(self.world.dir, "some.yaml")
        with open(path, "w") as f:
            f.write(text)
        return subprocess.run(
            [os.path.join(BUILD, f"mmx-{role}"), "--config", path,
             "--check-config", *self.keys(), *more], capture_output=True,
            text=True, env={**os.environ, "MMX_UNITS": units})

    def test_good_and_bad(self):
        pools = "pools:\n  - name: vit\n    blocks: 8\n"
        for role in ("encoded", "langd"):
            got = self.check(pools, role)
            self.assertEqual(got.returncode, 0, got.stderr)
        for text, word in ((pools + "pool: 1\n", "pools"),
                           ("pools: [", "some.yaml"),
                           (pools + "transfer:\n  shards: 0\n", "shards"),
                           (pools + "timeouts:\n  total: 5 weeks\n", "total"),
                           ("pools:\n  - blocks: 8\n", "name"),
                           (pools + "    default_blocks: 9\n",
                            "default_blocks")):
            with self.subTest(text=text):
                got = self.check(text)
                self.assertEqual(got.returncode, 78, got.stderr)
                self.assertIn(word, got.stderr)

    # Configurations that only this host shows to be wrong: text, line of the
    # error, its words.
    MISSING = (
        ("socket:\n  group: no-such-group\n", 2, "no group no-such-group"),
        ("transfer:\n  devices: nosuch0\n", 2, "no device `nosuch0`"),
        ("pools:\n  - name: a\n    numa: 1023\n    blocks: 8\n", 3,
         "pools[0].numa: this host has no NUMA node 1023"),
        ("pools:\n  - name: a\n    memory: cuda:15\n    blocks: 8\n", 3,
         "pools[0].memory: GPU 15 cannot be used: "),
        ("pools:\n  - name: a\n    blocks: 16777216\n    block_rows: 255\n"
         "    layout: a:f32:65536\n", 3, "MiB is all that there is on this"),
        ("pools:\n  - name: a\n    blocks: 16777216\n    block_rows: 255\n"
         "    layout: a:f32:65536\n    huge_pages: true\n", 3,
         "in huge pages (vm.nr_hugepages)"))

    def test_what_this_host_does_not_have(self):
        for text, line, word in self.MISSING:
            whole = text if text.startswith("pools") else (
                text + "pools:\n  - name: vit\n    blocks: 8\n")
            with self.subTest(text=text):
                got = self.check(whole)
                self.assertEqual((got.returncode, got.stdout), (78, ""), got)
                self.assertIn(f"some.yaml:{line}:", got.stderr)
                self.assertIn(word, got.stderr)
        # All errors are reported in one run.
        got = self.check("".join(t for t, _, _ in self.MISSING[:3]))
        self.assertEqual(len(got.stderr.splitlines()), 3, got.stderr)

    def test_what_is_not_as_it_was_asked_for(self):
        pools = "pools:\n  - name: vit\n    blocks: 8\n"
        unit = os.path.join(self.world.dir, "mmx-langd.service")
        with open(unit, "w") as f:
            f.write("[Service]\nTimeoutStopSec=45\n")
        for text, word in (
                ("transfer:\n  cpus: [4095]\n", "none is number 4095"),
                ("transfer:\n  devices: lo\npeers:\n  - name: far\n"
                 "    address: tcp://192.0.2.1:7601\n",
                 "rows of far, which is another host"),
                ("timeouts:\n  drain: 45s\n", "TimeoutStopSec, 45 s")):
            with self.subTest(text=text):
                got = self.check(text + pools, units=self.world.dir)
                self.assertEqual(got.returncode, 0, got.stderr)
                self.assertIn(": good", got.stdout)
                self.assertIn("some.yaml:2:", got.stderr)
                self.assertIn(word, got.stderr)
        for more in ("", "[Service]\nTimeoutStopSec=1min\n"):
            os.makedirs(unit + ".d", exist_ok=True)
            with open(unit + ".d/more.conf", "w") as f:
                f.write(more)
            got = self.check("timeouts:\n  drain: 50s\n" + pools,
                             units=self.world.dir)
            self.assertEqual(got.stderr == "", bool(more), got.stderr)
        got = self.check("peers:\n  - name: here\n"
                         "    address: tcp://127.0.0.2:7601\n" + pools)
        self.assertEqual(got.stderr, "")

    def test_a_start_says_the_same(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        at = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        e = self.world.encoded(start=False, control={"listen": at})
        e.conf["pools"][0]["numa"] = "1023"
        with self.assertRaisesRegex(AssertionError, "ended with 1"):
            e.start()
        e.killed = True
        self.assertRegex(e.tail(), r"yaml:[0-9]+:[0-9]+: control.listen: .* "
                         "Address already in use; ")
        self.assertIn("has no NUMA node 1023; numa: any", e.tail())

    def test_a_key_that_is_missing_names_the_file(self):
        for text in ("", "log: info\n"):
            got = self.check(text)
            self.assertEqual(got.returncode, 78, got.stderr)
            self.assertRegex(got.stderr, "/some.yaml: pools: at least one")

    def test_a_running_daemon_refuses_it_too(self):
        path = os.path.join(self.world.dir, "bad.yaml")
        with open(path, "w") as f:
            f.write("nonsense: true\n")
        for role in ("encoded", "langd"):
            got = subprocess.run([os.path.join(BUILD, f"mmx-{role}"),
                                  "--config", path],
                                 capture_output=True, text=True, timeout=10)
            self.assertEqual(got.returncode, 78, got.stderr)


class Service(Case):
    # RULES 9.5; F34
    def test_sigterm_waits_for_open_rooms(self):
        e, d, enc, lm = self.at_work(timeouts={"drain": "20s"})
        lm.request(1, "enc0", mode="stream")
        enc.opens(1, 600, 600)
        enc.write(1, 0, 600)
        enc.commit(1, 0, 300)
        lm.rows(1, 256)
        d.process.terminate()
        e.process.terminate()
        for daemon, engine, ask in (
                (e, enc, lambda: enc.announce(2, 10)),
                (d, lm, lambda: lm.request(2, "enc0"))):
            eventually(lambda: "draining" in daemon.tail(), "draining")
            ask()
            self.assertEqual(engine.failed(2), "draining")
            engine.release(2)
        enc.commit(1, 300, 600, final=True)
        self.comes(enc, lm, 1, 600)
        for daemon in (e, d):
            self.assertEqual(daemon.process.wait(10), 0)

    def test_idle_daemons_do_not_spin(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 1500)
        hertz = os.sysconf("SC_CLK_TCK")

        def share(daemon, seconds):
            """Returns what part of a processor's time the daemon takes."""
            before, began = daemon.cpu_ticks(), time.monotonic()
            # No condition to wait for: the daemon's processor time is
            # measured.
            select.select([], [], [], seconds)
            return (daemon.cpu_ticks() - before) / hertz / (
                time.monotonic() - began)
        for daemon in (e, d):  # a daemon that spins does so all the time
            eventually(lambda x=daemon: share(x, 2) < 0.02,
                       f"{daemon.name} rests")

    def test_one_log_line_for_a_room(self):
        e, d, enc, lm = self.at_work(log="debug")
        self.deliver(enc, lm, 0xABCDE, 1500)
        for daemon in (e, d):
            eventually(lambda: daemon.tail(50), "a log")
            lines = [x for x in daemon.tail(50).splitlines()
                     if "abcde" in x.lower() or str(0xABCDE) in x]
            self.assertEqual(len(lines), 1, daemon.tail(50))
