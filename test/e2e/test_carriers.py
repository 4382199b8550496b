"""In one fleet each pair of daemons has the carrier that suits it: copies on
one host, UCX if both have transports that are better than TCP, else plain
TCP."""

import os
import subprocess

from engine import LIMIT
from pair import ROOT, Case, eventually, yaml

OFF = {"transfer": {"same_host": "off"}}
# Shared memory stands for a network card: it is named, so it counts.
SHM = {"transfer": {"tls": "posix,tcp", "trusted_network": True}}
SHARDS = 64


class Carriers(Case):
    def served(self, encoded, langd, room):
        """Delivers a room; returns what both sides say of the pair."""
        enc, lm = self.engines(encoded, langd)
        self.deliver(enc, lm, room, 1500)
        names = {langd.name: encoded.show("peers"), "": langd.show("peers")}
        there = next(r for r in names[langd.name] if r["name"] == langd.name)
        return there, names[""][0]

    def needs_ucx(self, daemon):
        status = {k: v for r in daemon.show("status") for k, v in r.items()}
        if status["not_by"]:
            self.skipTest(status["not_by"])

    def test_tcp_and_copy(self):
        e = self.world.encoded()
        copied = self.world.langd([e], "copied")
        tcp = self.world.langd([e], "tcp", transfer={
            "carrier": "tcp", "same_host": "off"})
        auto = self.world.langd([e], "auto", **OFF)
        self.served(e, copied, 1)
        eventually(lambda: copied.show("peers")[0]["path"] == "copy",
                   "pools are mapped")
        for room, d in ((2, tcp), (3, auto)):
            there, here = self.served(e, d, room)
            self.assertEqual((there["carrier"], here["carrier"]),
                             ("tcp", "tcp"))
            self.assertEqual(here["path"], "sent")
            self.assertTrue(here["carriers"].endswith("tcp"), here)
            self.assertEqual((there["not_by"], here["not_by"]),
                             ("copy: not mapped, ucx: not here",
                              "copy: off here, ucx: not here"))

    def test_ucx_where_both_have_more_by_it(self):
        e = self.world.encoded(**SHM)
        self.needs_ucx(e)
        both = self.world.langd([e], "both", transfer={
            **SHM["transfer"], "same_host": "off"})
        plain = self.world.langd([e], "plain", transfer={
            "carrier": "tcp", "same_host": "off"})
        ucx = self.world.langd([e], "ucx", transfer={
            **SHM["transfer"], "carrier": "ucx", "same_host": "off"})
        for room, (d, carrier, why) in enumerate((
                (both, "ucx", "copy: off here"),
                (plain, "tcp", "copy: off here, ucx: not here"),
                (ucx, "ucx", "copy: off here"))):
            there, here = self.served(e, d, room + 1)
            with self.subTest(d.name):
                self.assertEqual((there["carrier"], here["carrier"]),
                                 (carrier, carrier))
                self.assertEqual(here["not_by"], why)
                self.assertTrue(here["transport"].startswith(
                    carrier) or there["transport"].startswith(carrier),
                    (here, there))

    def test_addresses_of_many_shards(self):
        """UCX's addresses have more than 8,192 bytes."""
        forced = {"transfer": {"carrier": "ucx",
                               "tls": "posix,cma,tcp",
                               "same_host": "off"}}
        e = self.world.encoded(**forced)
        forced["transfer"]["shards"] = SHARDS
        d = self.world.langd([e], **forced)
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 1500)
        there = next(r for r in e.show("peers") if r["name"] == d.name)
        self.assertEqual((there["carrier"], int(there["data_addresses"])),
                         ("ucx", SHARDS))
        sent = e.stats()
        self.assertEqual(sent["bytes_packed"], sent["bytes_sent"])
        self.assertEqual(d.stats()["bytes_packed"], 0)

    def refused(self, transfer):
        """Returns what --check-config says of this section."""
        d = self.world.langd([], start=False)
        with open(d.config, "w", encoding="utf-8") as f:
            f.write(yaml({**d.conf, "transfer": transfer}))
        got = subprocess.run([d.binary, "--config", d.config,
                              "--check-config"], capture_output=True,
                             text=True, timeout=LIMIT)
        self.assertEqual(got.returncode, 78, got)
        return got.stderr

    def test_a_device_that_is_not_there(self):
        """Each carrier that would use the device refuses it."""
        for carrier, device in (("auto", "nosuch0"), ("auto", "nosuch_0:1"),
                                ("tcp", "nosuch_0:1"), ("ucx", "nosuch0")):
            with self.subTest(carrier=carrier, device=device):
                said = self.refused({"carrier": carrier,
                                     "devices": "all," + device,
                                     "trusted_network": True})
                self.assertRegex(
                    said, r"yaml:[0-9]+:[0-9]+: transfer.devices: this host "
                    f"has no device `{device}`")

    def test_a_release_of_ucx_that_cannot_be_had_is_counted(self):
        got = subprocess.run(
            [os.path.join(ROOT, "scripts", "ucx-matrix"), "--contract",
             "1.22", "1.99"], stdout=subprocess.PIPE, text=True,
            timeout=5 * LIMIT, env={**os.environ, "PIP_NO_INDEX": "1"})
        self.assertIn("skip UCX 1.22: pip: ", got.stdout)
        self.assertIn("0 passed, 0 failed, 2 skipped", got.stdout)

    def test_with_keys_ucx_needs_a_trusted_network(self):
        conf = {"transfer": {"tls": "posix,tcp", "same_host": "off"}}
        e = self.world.encoded(**conf)
        said = {k: v for r in e.show("status") for k, v in r.items()}["not_by"]
        if "trusted_network" not in said:
            self.skipTest(said)
        d = self.world.langd([e], **conf)
        there, here = self.served(e, d, 1)
        self.assertEqual((there["carrier"], here["carrier"]), ("tcp", "tcp"))
        self.assertEqual(here["not_by"],
                         "copy: off here, ucx: cannot encrypt")
        self.assertEqual(there["transport"], "tcp/lo proved")
        said = d.ctl("doctor", check=False).stdout
        self.assertIn("ucx: cannot encrypt, and transfer.trusted_network is "
                      "not set", said)

    def test_doctor_says_which_and_why(self):
        e = self.world.encoded()
        sent = self.world.langd([e], "sent", **OFF)
        copied = self.world.langd([e], "copied")
        tcp = self.world.langd([e], "tcp", transfer={
            "carrier": "tcp", "same_host": "off"})
        moved = self.world.encoded("moved", **OFF)
        new = self.world.langd([moved], "new")

        def said(daemon):
            return daemon.ctl("doctor", check=False).stdout

        self.engines(moved, new)
        eventually(lambda: "copy: off there" in said(new), "it is up")
        self.assertIn("no rows have moved yet", said(new))
        for room, d in enumerate((sent, copied, tcp), 1):
            enc, lm = self.engines(e, d)
            self.deliver(enc, lm, room, 100)
            self.assertNotIn("no rows have moved", said(d))
        self.assertIn("on this host, carrier tcp (copy: off here, ucx: not "
                      "here)", said(sent))
        eventually(lambda: "on this host, rows are copied, carrier tcp (ucx: "
                   "not here)" in said(copied), "pools are mapped")
        self.assertIn("rows between hosts go by tcp; not by ucx: "
                      "transfer.carrier is tcp", said(tcp))
        self.assertRegex(said(sent), "rows between hosts go by tcp; not by "
                         "ucx: UCX 1[.][0-9]+ ")
        self.assertRegex(said(e), "sent is up, on this host, carrier tcp "
                         "[(]copy: not mapped, ucx: not here[)], tcp/lo")
