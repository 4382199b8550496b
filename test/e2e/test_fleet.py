"""Keys of the fleet: who is let in, who is refused, and how a refusal is
shown."""

import os
import subprocess
import time

from curve import Client
from pair import BUILD, Case, eventually, keygen
from rawpeer import Dealer, hello


class Fleet(Case):
    def key(self, name):
        return keygen(os.path.join(self.world.dir, name))

    def peers(self, daemon):
        return [(r["state"], r["what"]) for r in daemon.show("peers")
                if r["what"]]

    def doctor(self, daemon):
        got = subprocess.run(
            [os.path.join(BUILD, "mmxctl"), "--socket", daemon.socket,
             "doctor"], capture_output=True, text=True)
        return got.stdout

    def shown(self, e, d, here, there):
        """Checks that both sides show the refusal, each with its reason."""
        lm = self.world.engine(d)
        lm.request(1, "enc0")
        for daemon, why in ((e, here), (d, there)):
            eventually(lambda: any(why in text for _, text in
                                   self.peers(daemon)),
                       f"{daemon.name} shows {why}: {self.peers(daemon)}")
            self.assertGreater(daemon.stats()["peer_keys_refused"], 0)
            told = self.doctor(daemon)
            self.assertIn("refused: key", told)
            # encoded warns only: what it refused may be a port scan, not a
            # peer.
            self.assertIn("fail  peer" if daemon is d else "warn  peer", told)
            eventually(lambda: "refused: key" in daemon.tail(), "logged")
        health = d.ctl("health", check=False)
        self.assertEqual(health.returncode, 1)
        self.assertIn(f"; enc0: {there}", health.stdout)
        lm.release(1)

    def test_another_key(self):
        e = self.world.encoded()
        d = self.world.langd([e], control={"keys": [self.key("other.key")]})
        self.shown(e, d, "refused: key (the other side has another one)",
                   "refused: key (the other side ends the handshake")
        d.stop()
        d.conf["control"]["keys"].append(self.world.key)
        d.start()
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 2, 300)
        self.assertEqual(self.peers(d), [])

    def test_no_key_there_or_here(self):
        e = self.world.encoded()
        d = self.world.langd([e], insecure=True)
        self.shown(e, d, "refused: key (the other side",
                   "refused: key (the other side")
        self.assertEqual(d.show("status")[0]["control"],
                         "insecure: no key, in the clear")
        self.assertIn("insecure: true: any program", d.tail())
        self.assertIn("warn  keys", self.doctor(d))
        self.assertNotIn(" keys  ", self.doctor(e))
        self.assertEqual(e.show("status")[0]["control"], "CURVE, 1 key")
        open_ = self.world.encoded(name="enc1", insecure=True)
        keyed = self.world.langd([open_], name="lang1")
        lm = self.world.engine(keyed)
        lm.request(2, "enc1")
        eventually(lambda: "refused: key (the other side" in
                   str(self.peers(keyed)), "shown")
        eventually(lambda: "wants one" in str(self.peers(open_)), "shown")
        lm.release(2)

    def test_files_that_are_none_stop_a_daemon(self):
        e = self.world.encoded(start=False)
        with open(self.world.key, "rb") as f:
            secret = f.read()
        os.chmod(self.world.key, 0o644)
        with self.assertRaises(AssertionError) as caught:
            e.start()
        e.process = None
        self.assertIn("enc0.yaml:", str(caught.exception))
        self.assertIn("control.keys[0]: " + self.world.key +
                      ": is open to all users; expected mode 0640 or 0600",
                      str(caught.exception))
        del e.conf["control"]["keys"]
        with self.assertRaises(AssertionError) as caught:
            e.start()
        e.process = None
        self.assertIn("mmxctl keygen", str(caught.exception))
        got = subprocess.run([os.path.join(BUILD, "mmxctl"), "keygen",
                              self.world.key], capture_output=True, text=True)
        self.assertEqual(got.returncode, 1)
        self.assertIn("File exists", got.stderr)
        with open(self.world.key, "rb") as f:
            self.assertEqual(f.read(), secret)

    def test_clients_by_hand(self):
        e = self.world.encoded()
        d = self.world.langd([e])
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)
        with open(self.world.key) as f:
            ours = f.read().strip()
        with open(self.key("strange.key")) as f:
            strange = f.read().strip()
        # A client that knows the listener's public key, with a key pair of its
        # own, is refused by ZMQ's handler. One that does not know it does not
        # get so far.
        for server, pair, let_in in ((strange, strange, False),
                                     (ours, strange, False),
                                     (ours, ours, True)):
            before = e.stats()["peer_keys_refused"]
            with Client(e.address, server, pair) as c:
                c.send(hello("by-hand"))
                if let_in:
                    self.assertEqual(c.receive()[5], 1)  # its HELLO
                    continue
                eventually(lambda: e.stats()["peer_keys_refused"] > before,
                           "what")
                self.assertIsNone(c.receive(0.2))
        with self.assertRaises(ConnectionError):
            Dealer(e.address).answer(1)
        # With a key it is still no other daemon: the name is taken, and
        # engines see the true daemon's run, not the number that it claims.
        seen = int(next(r["epoch"] for r in e.show("peers")
                        if r["name"] == "lang0"), 16)
        for epoch in (seen, 77):
            with Client(e.address, ours, ours) as c:
                c.send(hello("lang0", from_epoch=epoch))
                self.assertEqual(c.receive()[5], 13)  # NACK
        self.deliver(enc, lm, 2, 300)

    def test_sessions_live_on(self):
        """A connection that stands is not checked again: the connector's key
        may be deleted."""
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        os.rename(self.world.key, self.world.key + ".gone")
        began = time.monotonic()
        while time.monotonic() < began + 1.2:  # longer than a heartbeat
            self.deliver(enc, lm, int(time.monotonic() * 1e6), 300)
