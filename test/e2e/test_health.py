"""mmxctl health, as probes use it: whether a daemon lives and is ready, why
not, how soon; the status line of the service manager; drains."""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import time

from engine import LIMIT
from manager import Manager
from pair import BUILD, Case, eventually

SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
LATE = "no answer within a second"
BEAT = "WATCHDOG=1"


@contextlib.contextmanager
def stopped_threads(pid):
    """Stops the threads of our code but the first, as a debugger does; yields
    their ids, none where that is not allowed."""
    ptrace = ctypes.CDLL(None).ptrace
    ptrace.argtypes, ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
    stopped = []
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        with open(f"/proc/{pid}/task/{tid}/comm") as f:
            ours = f.read().startswith("mmx-")
        if ours and tid != pid and ptrace(SEIZE, tid, 0, 0) == 0:
            ptrace(INTERRUPT, tid, 0, 0)
            os.waitpid(tid, WALL)
            stopped.append(tid)
    try:
        yield stopped
    finally:
        for tid in stopped:
            ptrace(DETACH, tid, 0, 0)


def looked(daemon, *words):
    """Returns what mmxctl health says of a daemon that lives; on a slow
    machine the answer may be late."""
    def look():
        got = daemon.ctl("health", *words, check=False)
        return None if LATE in got.stdout else got
    return eventually(look, f"{daemon.name} answers")


class Looks(Case):
    def health(self, daemon, *words):
        got = looked(daemon, *words)
        self.assertEqual(got.stderr, "")
        return got.returncode, got.stdout.strip()

    def becomes(self, daemon, status, text, limit=LIMIT):
        """Waits until mmxctl health says this."""
        def is_so():
            got = self.health(daemon)
            return got[0] == status and text in got[1]
        eventually(is_so, f"{daemon.name}: {text}; is {self.health(daemon)}",
                   limit)


class Health(Looks):
    def test_a_daemon_whose_unit_is_enabled_is_asked_for(self):
        if os.geteuid() != 0:
            self.skipTest("needs a mount namespace")
        wants = os.path.join(self.world.dir, "multi-user.target.wants")
        os.mkdir(wants)
        open(os.path.join(wants, "mmx-langd.service"), "w").close()
        got = subprocess.run(
            ["unshare", "-m", "sh", "-c",
             'mount -t tmpfs mmx /run && exec "$@"', "sh", os.path.join(BUILD, "mmxctl"), "health"],
            env={**os.environ, "MMX_UNITS": self.world.dir},
            capture_output=True, text=True)
        self.assertEqual((got.returncode, got.stdout, got.stderr),
                         (2, "/run/mmx/langd.sock: not live: No such file or "
                          "directory\n", ""))

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

    # RULES 9.6
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
        self.becomes(d, 1, "no encoder is connected")
        e.start()
        self.becomes(d, 0, "ready")

    # RULES 9.6; F41
    def test_a_loop_that_stands_still_does_not_live(self):
        e = self.world.encoded()
        with e.stopped():
            for words in ((), ("--live",)):
                got = e.ctl("health", *words, check=False)
                self.assertEqual(got.returncode, 2)
                self.assertIn(f"not live: {LATE}", got.stdout)
        self.becomes(e, 0, "ready")

    # RULES 9.6; F41
    def test_a_shard_that_hangs(self):
        """The shard's thread is stopped, as a carrier could stop it. The loop
        never runs a shard that has a core of its own."""
        manager = Manager(self)
        e = self.world.encoded(start=False, transfer={
            "cpus": [min(os.sched_getaffinity(0))]})
        e.start(manager.env(200))
        self.becomes(e, 0, "ready")
        with stopped_threads(e.pid) as threads:
            if not threads:
                self.skipTest("no right to stop a thread")
            self.becomes(e, 1, "not ready: shard 0 has done nothing for", 30)
            eventually(lambda: self.health(e, "--live")[0] == 2,
                       "it is not taken for alive")
            # A beat is due every 0.1 s: 2 s are twenty times as long.
            eventually(lambda: time.monotonic() - manager.times(BEAT)[-1] > 2,
                       "the watchdog is not fed")
            fed = len(manager.times(BEAT))
        self.becomes(e, 0, "ready", 30)
        eventually(lambda: len(manager.times(BEAT)) > fed, "it is fed again")

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

    # RULES 9.6
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


class Drain(Looks):
    # RULES 9.5
    def test_a_drain_lets_rooms_complete_and_is_taken_back(self):
        e, d, enc, lm = self.at_work()
        self.halfway(enc, lm)
        for daemon in (e, d):
            got = daemon.ctl("drain").stdout
            self.assertEqual(
                got, f"{daemon.name}: draining: 1 room is open\n")
            status = looked(daemon)
            self.assertEqual((status.returncode, status.stdout), (1, got))
            self.assertEqual(daemon.show("status")[0]["draining"], 1)
        for engine, ask in ((enc, lambda: enc.announce(2, 10)),
                            (lm, lambda: lm.request(2, "enc0"))):
            ask()
            self.assertEqual(engine.failed(2), "draining")
            engine.release(2)
        got = e.ctl("drain", "--wait", "0", check=False)
        self.assertEqual(got.returncode, 1)
        self.assertIn("enc0: 1 room left, 128 KiB in their blocks",
                      got.stdout)
        self.assertIn("draining: 1 room is open after 0 s", got.stderr)
        waits = [subprocess.Popen(
            [os.path.join(BUILD, "mmxctl"), "--socket", x.socket, "drain",
             "--wait", "60"], stdout=subprocess.PIPE, text=True)
            for x in (e, d)]
        enc.write(1, 640, 2000)
        enc.commit(1, 640, 2000, final=True)
        self.assertEqual(lm.ready(1), 2000)
        for daemon, wait in zip((e, d), waits):
            said = wait.communicate(timeout=60)[0].splitlines()
            self.assertEqual(wait.returncode, 0)
            self.assertIn("0 rooms left", said[-2])
            self.assertEqual(said[-1], f"{daemon.name}: draining")
        lm.release(1)
        enc.release(1)
        for daemon in (e, d):
            self.assertIn("ready", daemon.ctl("undrain").stdout)
            self.assertEqual(daemon.show("status")[0]["draining"], 0)
        self.deliver(enc, lm, 3, 300)

    def test_only_who_may(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to be another user")
        e = self.world.encoded(socket={"mode": "0666"})
        os.chmod(self.world.dir, 0o755)
        # The other user may not be able to enter the build folder.
        mmxctl = os.path.join(self.world.dir, "mmxctl")
        shutil.copy(os.path.join(BUILD, "mmxctl"), mmxctl)
        for word in ("drain", "undrain"):
            got = subprocess.run(
                [mmxctl, "--socket", e.socket, word], cwd="/",
                user=54321, capture_output=True, text=True)
            self.assertEqual(got.returncode, 1)
            self.assertIn("not-owner", got.stderr)
        self.assertEqual(e.show("status")[0]["draining"], 0)
