"""mmxctl health, as probes use it: whether a daemon lives and is ready, why
not, how soon; and the status line of the service manager."""

import json
import os
import signal
import socket
import time

from pair import Case, eventually


class Health(Case):
    def health(self, daemon, *words):
        got = daemon.ctl("health", *words, check=False)
        self.assertEqual(got.stderr, "")
        return got.returncode, got.stdout.strip()

    def becomes(self, daemon, status, text, limit=10):
        """Health is so; the seconds that it took."""
        began = time.monotonic()

        def is_so():
            got = self.health(daemon)
            return got[0] == status and text in got[1]
        eventually(is_so, f"{daemon.name}: {text}; is {self.health(daemon)}",
                   limit)
        return time.monotonic() - began

    def test_a_pair_is_ready_before_the_first_room(self):
        e, d = self.pair()
        self.becomes(d, 0, "lang0: ready")
        self.becomes(e, 0, "enc0: ready")
        self.assertEqual(self.health(e, "--wait", "0", "--live")[0], 0)
        (row,) = json.loads(self.health(d, "--json")[1])
        self.assertEqual(
            (row["socket"], row["name"], row["role"], row["live"],
             row["ready"], row["state"], row["text"]),
            (d.socket, "lang0", "langd", 1, 1, "ready", "ready"))
        self.assertEqual(d.show("health"), [row])

    def test_langd_without_an_encoder(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e])
        self.becomes(d, 1, "not ready: no encoder is connected; enc0")
        self.assertEqual(self.health(d, "--live")[0], 0)
        (row,) = json.loads(self.health(d, "--json")[1])
        self.assertEqual((row["live"], row["ready"], row["state"]),
                         (1, 0, "not-ready"))
        e.start()
        self.assertEqual(self.health(d, "--wait", "30"), (0, "lang0: ready"))
        e.kill()
        # Two seconds are promised; the rest is for a machine under load.
        self.becomes(d, 1, "no encoder is connected", 10)
        e.start()
        self.becomes(d, 0, "ready")

    def test_langd_that_may_ask_none(self):
        d = self.world.langd([])
        self.becomes(d, 1, "peers and control.allow are empty")

    def test_encoders_of_other_layouts(self):
        e = self.world.encoded(fields="other:f32:16")
        d = self.world.langd([e])
        self.becomes(d, 1, "enc0 has no pool of a layout that is here")
        self.becomes(e, 0, "ready")

    def test_a_loop_that_stands_still_does_not_live(self):
        e = self.world.encoded()
        os.kill(e.pid, signal.SIGSTOP)
        try:
            for words in ((), ("--live",)):
                status, text = self.health(e, *words)
                self.assertEqual(status, 2)
                self.assertIn("not live: no answer within a second", text)
        finally:
            os.kill(e.pid, signal.SIGCONT)
        self.becomes(e, 0, "ready")

    def test_no_daemon(self):
        e = self.world.encoded()
        e.stop()
        for words in ((), ("--live",), ("--json",), ("--wait", "1")):
            status, text = self.health(e, *words)
            self.assertEqual(status, 2)
            self.assertIn("not live", text)
        for words in (("--wait",), ("--wait", "soon"), ("--wait", "-1")):
            self.assertEqual(
                e.ctl("health", *words, check=False).returncode, 64)

    def test_the_service_manager_is_told(self):
        path = os.path.join(self.world.dir, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(path)
            s.settimeout(30)

            def told(what):
                got = s.recv(4096)
                while what not in got:
                    got = s.recv(4096)

            e = self.world.encoded(start=False)
            d = self.world.langd([e], start=False)
            d.start({"NOTIFY_SOCKET": path})
            told(b"READY=1")
            told(b"STATUS=not ready: no encoder is connected; enc0")
            e.start()
            told(b"STATUS=ready")
            e.kill()
            told(b"STATUS=not ready: no encoder is connected; enc0")
            d.process.terminate()
            told(b"STOPPING=1")
            self.assertEqual(d.process.wait(30), 0)
