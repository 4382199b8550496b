"""A key for each daemon (control.identities): who is let in, under which name
and role, and what ends when a line is taken out."""

import os
import signal
import subprocess
import unittest

from pair import BUILD, LIMIT, Case, eventually, keygen, merged
from test_reload import Rooms, changes, reload, write


class Identities(Case):
    def setUp(self):
        super().setUp()
        self.who = os.path.join(self.world.dir, "identities")
        self.lines = {}
        for name, role in (("enc0", "encoded"), ("lang0", "langd"),
                           ("lang1", "langd")):
            self.add(name, role)

    def own(self, name):
        return os.path.join(self.world.dir, f"{name}.key")

    def add(self, name, role, listed=True):
        """Makes a new key and its line, as an operator does."""
        key = keygen(self.own(name))
        public = subprocess.run(
            [os.path.join(BUILD, "mmxctl"), "keygen", "--public", key],
            check=True, capture_output=True, text=True, timeout=LIMIT).stdout
        self.assertEqual(len(public), 41)
        self.lines[name] = f"{name} {role} {public}"
        if listed:
            self.list()

    def list(self, *but):
        with open(self.who + ".new", "w") as f:
            f.writelines(v for k, v in self.lines.items() if k not in but)
        os.rename(self.who + ".new", self.who)

    def control(self, key, **more):
        return {"keys": [self.own(key)], "identities": self.who, **more}

    def fleet(self):
        """Starts an encoder and two langds, with an engine of each."""
        e = self.world.encoded(control=self.control("enc0"))
        ds = [self.world.langd([e], name=n, control=self.control(n))
              for n in ("lang0", "lang1")]
        return e, ds, self.world.engine(e), [self.world.engine(d) for d in ds]

    def refused(self, daemon, words):
        eventually(lambda: any(words in r.get("what", "")
                               for r in daemon.show("peers")),
                   f"{daemon.name} shows {words}")
        eventually(lambda: words in daemon.tail(), f"its log has {words}")

    def shown(self, name):
        """Returns the key as logs show it."""
        return self.lines[name].split()[2][:8]

    def test_a_line_that_is_taken_out_ends_that_daemon_alone(self):
        e, (out, stays), enc, (_, lm) = self.fleet()
        for d in (out, stays):
            eventually(lambda d=d: d.show("peers")[0]["state"] == "up", "up")
            self.assertIn(f"is let in: key {self.shown(d.name)} of {d.name}",
                          e.tail())
            self.assertIn(f"it has key {self.shown('enc0')} of enc0", d.tail())
        epoch = {p["name"]: p["epoch"] for p in e.show("peers")}["lang1"]
        with Rooms(self, enc, lm) as rooms:
            self.list("lang0")
            self.assertEqual(reload(e), {"keys in the files": "changed"})
            self.refused(out, "key (this daemon's is not let in there)")
            self.refused(e, f"key ({self.shown('lang0')} is not let in)")
            rooms.more()
            states = {p["name"]: p["state"] for p in e.show("peers")}
            self.assertEqual(states["lang1"], "up")
            self.assertEqual(states["lang0"], "away")
            self.list()
            os.kill(e.pid, signal.SIGHUP)
            eventually(lambda: out.show("peers")[0]["state"] == "up",
                       "it is let in again")
            rooms.more()
        # one link, from first to last
        self.assertEqual(e.tail().count("of lang1"), 1)
        self.assertIn(epoch, [p.get("epoch") for p in e.show("peers")])

    # RULES 9.7
    def test_another_name_is_another_daemon(self):
        self.add("enc1", "encoded")
        e = self.world.encoded(control=self.control("enc0"))
        d = self.world.langd([e], control=self.control("lang0"))
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 100)
        named = [{"name": "enc1", "address": e.address}]
        self.assertEqual(reload(d, peers=named)["peers: enc1"], "changed")
        lm.request(2, "enc1", deadline=60)
        self.refused(d, "key (the other side ends the handshake")
        self.assertIn("not ready", d.ctl("health", check=False).stdout)
        self.assertEqual(lm.state(2)[0], "BOOTSTRAPPING")
        e.stop()
        e.conf = merged(e.conf, {
            "name": "enc1", "control": self.control("enc1")})
        e.start()
        enc = self.world.engine(e)
        enc.encode(2, 100)
        self.comes(enc, lm, 2, 100)

    # RULES 1.9
    def test_a_langd_under_the_name_of_another(self):
        e = self.world.encoded(control=self.control("enc0"))
        d = self.world.langd([e], name="lang1", control=self.control("lang0"),
                             start=False)
        self.assertNotEqual(self.check(d).returncode, 0)
        self.assertIn("has no line of this daemon; expected `lang1 langd ",
                      self.check(d).stderr)
        # langd's own file may give it the name lang1. The encoder's does not.
        mine = self.who + ".mine"
        with open(mine, "w") as f:
            f.write(self.lines["lang0"].replace("lang0", "lang1"))
            f.write(self.lines["enc0"])
        d.conf = merged(d.conf, {"control": {"identities": mine}})
        d.start()
        self.refused(d, "its key is that of langd lang0")
        self.refused(e, "its key is that of langd lang0")

    def write(self, daemon, conf, *gone):
        """Writes its file: as it runs, without these keys, and with conf."""
        was = daemon.conf
        daemon.conf = merged(was, conf)
        for key in gone:
            daemon.conf["control"] = {k: v for k, v in daemon.conf[
                "control"].items() if k != key}
        write(daemon)
        daemon.conf = was

    def test_a_reload_judges_keys_by_what_will_be_in_force(self):
        e = self.world.encoded(control=self.control("enc0"))
        # A name needs a restart, so the line has to be of the old one.
        self.write(e, {"name": "enc9", "log": "debug"})
        said = changes(e.ctl("reload", "--json"))
        self.assertEqual(said["log"], "changed")
        self.assertIn("restart", said["name"])
        with open(self.who + ".other", "w") as f:
            f.write(self.lines["enc0"].replace("enc0", "enc9"))
        self.write(e, {"name": "enc9", "control": {
            "identities": self.who + ".other"}})
        refused = e.ctl("reload", check=False)
        self.assertIn("has no line of this daemon", refused.stderr)
        # Whether a daemon has keys, and control.identities, is fixed for its
        # whole run.
        self.write(e, {"insecure": True}, "keys", "identities")
        said = changes(e.ctl("reload", "--json"))
        self.assertIn("restart", said["control.keys"])
        self.assertIn("restart", said["control.identities"])
        self.assertNotIn("keys in the files", said)

    def check(self, daemon):
        write(daemon)
        return subprocess.run(
            [os.path.join(BUILD, f"mmx-{daemon.role}"), "--config",
             daemon.config, "--check-config"], capture_output=True, text=True,
            timeout=LIMIT, check=False)


if __name__ == "__main__":
    unittest.main()
