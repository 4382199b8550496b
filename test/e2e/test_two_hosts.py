"""Two hosts that are network namespaces, and what does not fit between them:
health, doctor, the log and the failed room say it, and what mends it."""

import json
import os
import unittest

import nets
import test_data_keys
from pair import SENT, Case, eventually, free_port

BOOT = "/proc/sys/kernel/random/boot_id"
DATA = "10.213.1.2"
OTHER_BOOT = "6f1d5c1e-52f4-4d0b-9f8e-0c3a5b7d9e11\n"


@unittest.skipIf(SENT == "ucx", "data ports are of TCP")
class Devices(test_data_keys.Hosts):
    def on_hosts(self, boot=None):
        """Encoded on one host; langd, whose devices stay lo, on the other."""
        self.nets.link(self.e_host, self.l_host)
        e = self.world.encoded(
            start=False, transfer={"devices": "m0", "carrier": "tcp"},
            control={"listen": f"tcp://{nets.E_HOST}:7601"})
        e.address = f"tcp://{nets.E_HOST}:7601"
        d = self.world.langd([e], start=False, transfer={
            "devices": "lo", "carrier": "tcp"})
        e.inside = ["ip", "netns", "exec", self.e_host]
        d.inside = ["ip", "netns", "exec", self.l_host]
        if boot:
            path = os.path.join(self.world.dir, "boot_id")
            with open(path, "w") as f:
                f.write(boot)
            e.inside += ["sh", "-c",
                         f'mount --bind "$0" {BOOT} && exec "$@"', path]
        return e.start(), d.start()

    def test_langd_is_left_at_loopback(self):
        e, d = self.on_hosts(OTHER_BOOT)
        says = "on another host, and transfer.devices is lo"
        eventually(lambda: d.ctl("health", check=False).stdout.strip() ==
                   f"{d.name}: not ready: {e.name}: {says}", "health says it")
        self.assertEqual(d.ctl("health", check=False).returncode, 1)
        rows = json.loads(d.ctl("doctor", "--json", check=False).stdout)
        peer = next(r for r in rows if r["check"] == "peer")
        self.assertEqual((peer["result"], peer["text"]),
                         ("fail", f"{e.name} at {e.address}: {says}"))
        self.assertIn("transfer.devices", peer["advice"])
        eventually(lambda: "Connection refused (transfer.devices)" in
                   e.ctl("health", check=False).stdout, "encoded says it, too")
        lm = self.world.engine(d)
        lm.request(1, e.name, deadline=20)
        lm.failed(1)
        self.assertEqual(d.ended(1)["text"], says)
        self.assertEqual(d.tail(400).count(f"{e.address}: {says}"), 1)

    def test_a_firewall_drops_at_the_data_port(self):
        """Answers from langd's data address go nowhere; both say so until they
        come."""
        e_host, l_host = self.e_host, self.l_host
        self.nets.link(e_host, l_host)
        nets.ip("-n", l_host, "link", "add", "m1", "type", "veth", "peer",
                "name", "m2")
        nets.ip("-n", l_host, "address", "add", DATA, "dev", "m1")
        nets.ip("-n", l_host, "link", "set", "m1", "up")
        nets.ip("-n", e_host, "route", "add", DATA, "via", nets.L_HOST)
        drop = ["from", DATA, "blackhole"]
        nets.ip("-n", l_host, "rule", "add", *drop)
        e = self.world.encoded(
            start=False, transfer={
                "devices": "m0", "carrier": "tcp", "stall": "1s",
                "same_host": "off"},
            control={"listen": f"tcp://{nets.E_HOST}:7601"})
        e.address = f"tcp://{nets.E_HOST}:7601"
        d = self.world.langd([e], start=False, transfer={
            "devices": "m1", "carrier": "tcp", "same_host": "off"})
        e.inside = ["ip", "netns", "exec", e_host]
        d.inside = ["ip", "netns", "exec", l_host]
        e.start()
        d.start()
        for daemon in (d, e):
            eventually(lambda: "no answer (transfer.ports)" in
                       daemon.ctl("health", check=False).stdout,
                       f"{daemon.name} says it")
            self.assertEqual(daemon.ctl("health", check=False).returncode, 1)
            rows = json.loads(daemon.ctl("doctor", "--json",
                                         check=False).stdout)
            peer = next(r for r in rows if r["check"] == "peer")
            self.assertEqual(peer["result"], "fail")
            self.assertIn(f"rows cannot go to {DATA}:", peer["text"])
            self.assertIn("transfer.ports", peer["advice"])
            self.assertEqual(daemon.show("peers")[0]["trouble"],
                             "data-timeout")
        nets.ip("-n", l_host, "rule", "del", *drop)
        for daemon in (d, e):
            eventually(lambda: daemon.ctl("health", check=False).stdout ==
                       f"{daemon.name}: ready\n", f"{daemon.name} is ready")
            self.assertIn("rows can go again", daemon.tail(400))


class Addresses(Case):
    def becomes(self, daemon, text):
        eventually(lambda: text in daemon.ctl("health", check=False).stdout,
                   f"{text}; is {daemon.ctl('health', check=False).stdout}")

    def said_at(self, address, text):
        """Health of a langd whose encoder should be there."""
        e = self.world.encoded(start=False)
        e.address = address
        d = self.world.langd([e])
        self.becomes(d, f"{e.name}: cannot be connected: {text}")
        return d.ctl("health", check=False).stdout

    def test_a_wrong_port(self):
        self.said_at(f"tcp://127.0.0.1:{free_port()}", "Connection refused")

    def test_a_wrong_name(self):
        said = self.said_at("tcp://no.such.host.invalid:7601", "")
        self.assertNotIn("refused", said)

    def test_one_that_was_up_is_lost(self):
        e, d = self.pair()
        self.becomes(d, f"{d.name}: ready")
        e.kill()
        self.becomes(d, f"{e.name}: the connection is lost, for ")
        self.becomes(d, f"{e.name}: cannot be connected: Connection refused "
                     "(control.listen), for ")
        peer = d.show("peers")[0]
        self.assertGreaterEqual(peer["trouble_ms"], 0)


@unittest.skipIf(SENT == "ucx", "data ports are of TCP")
class Moves(test_data_keys.Hosts):
    def test_a_host_gets_another_address(self):
        self.nets.link(self.e_host, self.l_host)
        e, d = self.fleet()
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 64)
        at = ["-n", self.l_host, "address"]
        nets.ip(*at, "del", f"{nets.L_HOST}/24", "dev", "m0")
        nets.ip(*at, "add", "10.213.0.77/24", "dev", "m0")
        self.deliver(enc, lm, 2, 64)
        self.assertGreater(d.stats()["workers_replaced"], 0)
