"""Two hosts that are network namespaces, and mistakes between them: health,
doctor, the log and the failed room say what is wrong, and how to mend it."""

import json
import os
import socket
import subprocess
import unittest

import nets
import test_data_keys
from liar import Peer
from pair import SENT, Case, eventually
from rawpeer import HEADER, Dealer, frame, says, shake

BOOT = "/proc/sys/kernel/random/boot_id"
FAR = "10.213.1.2"
OTHER_BOOT = "6f1d5c1e-52f4-4d0b-9f8e-0c3a5b7d9e11\n"


@unittest.skipIf(SENT == "ucx", "data ports are of TCP")
class Devices(test_data_keys.Hosts):
    def on_hosts(self, boot=None, devices="lo", shards=1, **more):
        """Starts encoded on one host and langd with these devices on the
        other."""
        self.nets.link(self.e_host, self.l_host)
        e = self.world.encoded(
            start=False, transfer={"devices": "m0", "carrier": "tcp"},
            control={"listen": f"tcp://{nets.E_HOST}:7601"})
        e.address = f"tcp://{nets.E_HOST}:7601"
        d = self.world.langd([e], start=False, transfer={
            "devices": devices, "carrier": "tcp", "shards": shards,
            **more})
        e.inside = ["ip", "netns", "exec", self.e_host]
        d.inside = ["ip", "netns", "exec", self.l_host]
        if boot:
            path = os.path.join(self.world.dir, "boot_id")
            with open(path, "w") as f:
                f.write(boot)
            e.inside += ["sh", "-c",
                         f'mount --bind "$0" {BOOT} && exec "$@"', path]
        return e.start(), d.start()

    # RULES 9.6
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

    def received(self, device):
        """Returns how many bytes langd's host has received by a device."""
        said = subprocess.check_output(
            ["ip", "-n", self.l_host, "-s", "-j", "link", "show", device])
        return json.loads(said)[0]["stats64"]["rx"]["bytes"]

    def test_each_shard_has_its_device(self):
        nets.ip("link", "add", "m1", "netns", self.e_host, "type", "veth",
                "peer", "name", "m1", "netns", self.l_host)
        for number, host in enumerate((self.e_host, self.l_host), 1):
            nets.ip("-n", host, "address", "add", f"10.213.2.{number}/24",
                    "dev", "m1")
            nets.ip("-n", host, "link", "set", "m1", "up")
        e, d = self.on_hosts(devices="m0;m1", shards=2,
                             same_host="off")
        enc, lm = self.engines(e, d)
        at = {}
        for line in subprocess.check_output(
                d.inside + ["ss", "-Hltn"], text=True).splitlines():
            at[line.split()[3].rsplit(":", 1)[0]] = line
        self.assertEqual(sorted(at), [nets.L_HOST, "10.213.2.2"])
        for room in range(1, 9):
            self.deliver(enc, lm, room, 8000)
        for device in ("m0", "m1"):
            self.assertGreater(self.received(device), 1000000, device)

    def test_a_device_that_is_left_out_is_named(self):
        """No peer reaches loopback and a network."""
        for words in (("link", "add", "m1", "type", "veth", "peer", "name",
                       "m2"), ("link", "set", "m1", "up"),
                      ("address", "add", "127.9.9.9/8", "dev", "m1")):
            nets.ip("-n", self.l_host, *words)
        _, d = self.on_hosts(devices="m0,m1")
        self.assertIn("tcp: device m1 is left out", d.tail(400))

    def behind(self, host, address, near, by):
        """Gives a host an address whose answers are lost. Returns what opens
        it."""
        nets.ip("-n", host, "link", "add", "m1", "type", "veth", "peer",
                "name", "m2")
        nets.ip("-n", host, "address", "add", address, "dev", "m1")
        for end in ("m1", "m2"):
            nets.ip("-n", host, "link", "set", end, "up")
        eventually(lambda: "state UP" in subprocess.check_output(
            ["ip", "-n", host, "link", "show", "m1"], text=True),
                   "the kernel has seen that, and UCX will")
        nets.ip("-n", near, "route", "add", address, "via", by)
        drop = ["from", address, "blackhole"]
        nets.ip("-n", host, "rule", "add", *drop)
        return lambda: nets.ip("-n", host, "rule", "del", *drop)

    def said_by_doctor(self, daemon, text, advice):
        rows = json.loads(daemon.ctl("doctor", "--json", check=False).stdout)
        peer = next(r for r in rows if r["check"] == "peer")
        self.assertIn(text, peer["text"])
        self.assertIn(advice, peer["advice"])
        return peer["result"]

    def ready(self, *daemons):
        for daemon in daemons:
            eventually(lambda: daemon.ctl("health", check=False).stdout ==
                       f"{daemon.name}: ready\n", f"{daemon.name} is ready")

    def firewalled(self, listen, devices, carrier="tcp", **more):
        conf = {"carrier": carrier, "same_host": "off",
                "trusted_network": carrier == "ucx"}
        e = self.world.encoded(
            start=False, transfer={**conf, "devices": "m0", "stall": "1s"},
            control={"listen": f"tcp://{listen}:7601"})
        e.address = f"tcp://{listen}:7601"
        d = self.world.langd([e], start=False, transfer={
            **conf, "devices": devices, **more})
        e.inside = ["ip", "netns", "exec", self.e_host]
        d.inside = ["ip", "netns", "exec", self.l_host]
        return e.start(), d.start()

    # RULES 9.6
    def test_a_firewall_drops_at_the_data_port(self):
        self.drops("tcp", f"{FAR}:")

    # RULES 9.6
    def test_a_firewall_drops_at_ucx(self):
        self.drops("ucx", "its UCX address by tcp on m0: no answer")

    def drops(self, carrier, to):
        """Both daemons report dropped connections until answers come."""
        self.nets.link(self.e_host, self.l_host)
        opens = self.behind(self.l_host, FAR, self.e_host, nets.L_HOST)
        e, d = self.firewalled(nets.E_HOST, "m1", carrier)
        for daemon in (d, e):
            eventually(lambda: "no answer (transfer.ports)" in
                       daemon.ctl("health", check=False).stdout,
                       f"{daemon.name} says it")
            self.assertEqual(daemon.ctl("health", check=False).returncode, 1)
            self.assertEqual(self.said_by_doctor(
                daemon, f"rows cannot go to {to}", "transfer.ports"), "fail")
            self.assertEqual(daemon.show("peers")[0]["trouble"],
                             "data-timeout")
        opens()
        self.ready(d, e)
        for daemon in (d, e):
            self.assertIn("rows can go again", daemon.tail(400))

    def one_of_two_ports(self, host, rule, says):
        """While one of two data ports is shut, both daemons say so once rows
        were to go there, and no longer than that."""
        self.nets.link(self.e_host, self.l_host)
        e, d = self.firewalled(nets.E_HOST, "m0", shards=2,
                               ports="7701-7702")
        self.ready(d, e)
        rule = ["rule", "{}", "ipproto", "tcp", *rule]
        nets.ip("-n", host, *[w.format("add") for w in rule])
        enc, lm = self.engines(e, d)
        for room in range(1, 5):
            lm.request(room, e.name, deadline=60)
            enc.encode(room, 1900)
        for daemon in (d, e):
            eventually(lambda: f"7702: {says} (" in
                       daemon.ctl("health", check=False).stdout,
                       f"{daemon.name} says it")
            self.assertEqual(daemon.ctl("health", check=False).returncode, 1)
        nets.ip("-n", host, *[w.format("del") for w in rule])
        self.ready(d, e)
        for room in range(1, 5):
            lm.release(room)
            enc.release(room)
        self.deliver(enc, lm, 9, 8000)

    # RULES 9.6
    def test_a_firewall_drops_at_one_of_two_data_ports(self):
        self.one_of_two_ports(
            self.l_host, ["sport", "7702", "blackhole"], "no answer")

    # RULES 9.6
    def test_a_host_has_no_way_to_one_of_two_data_ports(self):
        self.one_of_two_ports(
            self.e_host, ["dport", "7702", "unreachable"], "Network is unreachable")

    def test_a_firewall_drops_at_the_control_port(self):
        self.nets.link(self.e_host, self.l_host)
        opens = self.behind(self.e_host, FAR, self.l_host, nets.E_HOST)
        _, d = self.firewalled(FAR, "m0")
        eventually(lambda: "cannot be connected: no answer (control.listen)" in
                   d.ctl("health", check=False).stdout,
                   "health says it")
        self.assertEqual(d.ctl("health", check=False).returncode, 1)
        self.assertEqual(self.said_by_doctor(
            d, "no answer", "firewalls"), "warn")
        self.assertEqual(d.show("peers")[0]["trouble"], "timeout")
        opens()
        self.ready(d)


class Foreign(Peer):
    def __init__(self, s):
        self.s = s
        shake(s, b"ROUTER")


class Versions(Case):
    """A daemon by hand, with another protocol version."""
    insecure = True
    SPEAKS = "{} speaks protocol version 7 to 9, {} 1"

    def hello(self, name, role, to_epoch=0):
        return frame(1, says(name, role, to_epoch > 0, versions=(7, 9)),
                     room=0, generation=0, to_epoch=to_epoch)

    # RULES 9.6; F25
    def test_an_encoder_of_another_version(self):
        said = "is refused: " + self.SPEAKS.format("encoded", "langd")
        with socket.create_server(("127.0.0.1", 0)) as door:
            e = self.world.encoded(start=False)
            e.address = f"tcp://127.0.0.1:{door.getsockname()[1]}"
            d = self.world.langd([e])
            with door.accept()[0] as s:
                peer = Foreign(s)
                epoch = HEADER.unpack_from(peer.message())[6]
                peer.send(self.hello(e.name, 1, epoch))
                eventually(lambda: f"{e.name}: {said}" in
                           d.ctl("health", check=False).stdout,
                           "health says it")
                row = d.show("peers")[0]
                self.assertEqual((row["trouble"], row["what"]),
                                 ("version", said))
                self.assertIn(said, d.ctl("doctor", check=False).stdout)
                self.assertEqual(d.tail(400).count(f"{e.address}: {said}"), 1)

    # RULES 9.6; F25
    def test_a_langd_of_another_version(self):
        said = "is refused: " + self.SPEAKS.format("langd", "encoded")
        e = self.world.encoded()
        raw = Dealer(e.address)
        raw.send(self.hello("raw", 2))
        eventually(lambda: f"itself raw {said}" in e.tail(400), "it is logged")
        self.assertEqual(e.show("peers")[0]["what"], said)
        raw.close()


@unittest.skipIf(SENT == "ucx", "data ports are of TCP")
class Moves(test_data_keys.Hosts):
    def test_a_host_gets_another_address(self):
        self.moves("m0")

    def test_a_host_of_all_devices_gets_another_address(self):
        self.moves("all")

    def moves(self, devices):
        self.nets.link(self.e_host, self.l_host)
        e, d = self.fleet(devices=devices)
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 64)
        self.move(nets.L_HOST, "10.213.0.77")
        self.deliver(enc, lm, 2, 64)
        replaced = d.stats()["workers_replaced"]
        self.assertGreater(replaced, 0)
        e.stop()  # from here on no daemon connects to langd's data port
        self.move("10.213.0.77", "10.213.0.78")
        eventually(lambda: d.stats()["workers_replaced"] > replaced,
                   "an idle daemon listens there")
        self.assertNotIn(" error ", d.tail(400))

    def move(self, old, new):
        at = ["-n", self.l_host, "address"]
        nets.ip(*at, "del", f"{old}/24", "dev", "m0")
        nets.ip(*at, "add", f"{new}/24", "dev", "m0")
