"""mmxctl for people: top, widths that fit a terminal, human sizes, --watch. A
pseudo-terminal stands in for the terminal."""

import fcntl
import itertools
import json
import os
import pty
import pwd
import select
import signal
import struct
import subprocess
import termios
import time
from datetime import datetime, timezone

from pair import BUILD, LIMIT, Case, eventually


class Terminal:
    """mmxctl in a terminal of this size; `text` is all that it has written."""

    def __init__(self, case, daemon, width, height, *words):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ,
                    struct.pack("HHHH", height, width, 0, 0))
        self.theirs = theirs
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "mmxctl"), "--socket", daemon.socket, *words],
            stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=self.before_it)
        self.text = ""
        case.addCleanup(self.close)

    def before_it(self):
        """Runs in the child: makes the terminal its controlling one, so that
        keys send signals. Programs in the background of a shell ignore
        those."""
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def read(self, until, limit=LIMIT):
        """Reads until until(text) is true; returns its value."""
        end = time.monotonic() + limit
        while True:
            got = until(self.text)
            if got:
                return got
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"never drawn: {self.text!r}")
            if select.select([self.ours], [], [], left)[0]:
                self.text += os.read(self.ours, 65536).decode()

    def key(self, key):
        os.write(self.ours, key)

    def end(self):
        """Returns the exit status, and what was drawn at the end."""
        end = time.monotonic() + LIMIT
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 65536).decode()
        while select.select([self.ours], [], [], 0)[0]:
            self.text += os.read(self.ours, 65536).decode()
        return self.process.wait(LIMIT)


class Top(Case):
    def loaded(self):
        e, d, enc, lm = self.at_work()
        for room in range(1, 4):
            self.deliver(enc, lm, room, 300)
        return e, d

    def test_what_is_printed_fits_and_agrees(self):
        e, d = self.loaded()
        for daemon, role, peer in ((e, "encoded", "lang0"),
                                   (d, "langd", "enc0")):
            (pool,) = daemon.show("pools")
            text = daemon.ctl("top").stdout
            lines = text.splitlines()
            self.assertNotIn("\x1b", text)
            self.assertLessEqual(max(map(len, lines)), 80)
            self.assertTrue(lines[0].startswith(f"{daemon.name} ({role}), up"))
            self.assertTrue(lines[1].startswith("ready"), lines)
            self.assertIn("\nrooms 0 open, ", text)
            self.assertIn(f"\n{peer} ", text)
            row = next(x for x in lines if x.startswith("vit"))
            self.assertEqual(row.split()[1:5],
                             ["ready", str(pool["blocks"]),
                              str(pool["blocks"] - pool["free"]), "0%"])

    def test_a_daemon_that_ends(self):
        e = self.world.encoded()
        t = Terminal(self, e, 80, 24, "top", "--watch", "1")
        t.read(lambda text: text.count("every 1 s: top") >= 2)
        e.kill()
        self.assertNotEqual(t.end(), 0)
        self.assertIn("closed the connection", t.text)

    def test_rates_are_those_of_the_counters(self):
        e, d = self.loaded()
        for daemon in (e, d):
            (peer,), (pool,) = daemon.show("peers"), daemon.show("pools")
            for row in (peer, pool):
                self.assertEqual((row["rooms_moved"], row["bytes_moved"]),
                                 (3, 3 * 300 * 64))


class Tables(Case):
    def test_tables_fit_the_terminal(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        for width in (40, 80, 132):
            for what in ("status", "rooms", "pools", "peers", "stats",
                         "ends", "histograms"):
                with self.subTest(what=what, width=width):
                    t = Terminal(self, d, width, 24, what)
                    self.assertEqual(t.end(), 0)
                    lines = t.text.replace("\r\n", "\n").splitlines()
                    self.assertGreater(len(lines), 1)
                    self.assertLessEqual(max(map(len, lines)), width, lines)

    def test_what_matters_is_shown_in_80_columns(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 2**63 + 12345, 300)
        for daemon, what, columns in (
                (d, "pools", "pool state blocks free ready oldest_ready "
                 "quarantined waiting_rooms"),
                (e, "pools", "pool state blocks free quarantined "
                 "waiting_items"),
                (d, "peers", "name address state path carrier"),
                (e, "peers", "name state path carrier"),
                (d, "rooms", "room peer state reason total bytes done_us"),
                (e, "rooms", "room state reason total bytes done_us")):
            with self.subTest(what=what, daemon=daemon.name):
                t = Terminal(self, daemon, 80, 24, what)
                self.assertEqual(t.end(), 0)
                head = t.text.split("\r\n")[0].split()
                self.assertEqual([c for c in columns.split()
                                  if c not in head], [], head)
        # In a pipe lines have at most 80 columns, too, unless a text is
        # longer: no text is cut there.
        for daemon, what in itertools.product((e, d), ("rooms", "pools")):
            lines = daemon.ctl(what).stdout.splitlines()
            self.assertLessEqual(max(map(len, lines)), 80, lines)
            self.assertRegex(lines[-1], r"\(\d+ more columns: --json\)")

    def test_times_are_those_of_people(self):
        """The daemons' clock counts from the host's start."""
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        before = datetime.now(timezone.utc)
        for daemon in (e, d):
            t = Terminal(self, daemon, 250, 24, "rooms")
            self.assertEqual(t.end(), 0)
            self.assertNotIn("opened_ns", t.text)
            self.assertRegex(t.text, r" \d\d:\d\d:\d\d\.\d{3} ")
            (row,) = daemon.show("rooms")
            opened = datetime.fromisoformat(row["opened"].replace("Z", "+00:00"))
            self.assertLess(abs((before - opened).total_seconds()), LIMIT)
            engine = next(row for row in daemon.show("engines")
                          if row["pid"] == os.getpid() and
                          row["state"] == "connected")
            self.assertEqual(
                (engine["pid"], engine["uid"], engine["user"],
                 engine["rooms_total"], engine["bytes"]),
                (os.getpid(), os.geteuid(), pwd.getpwuid(os.geteuid()).pw_name,
                 1, 300 * 64))
        self.assertRegex(d.ctl("status").stdout, r"\nuptime +\d")
        e.kill()
        eventually(lambda: "trouble_ms" in d.show("peers")[0], "e is down")
        head, row = d.ctl("peers").stdout.splitlines()[:2]
        at = head.index("  trouble  ") + 2
        self.assertRegex(row[at:at + 9], r"^\d+(\.\d)? (ms|s) ?")

    def test_top_fits_its_terminal(self):
        """The busiest pools and peers come first, and stay visible."""
        d = self.world.langd([], pools=[
            {"name": f"p{i}", "blocks": 8, "layout": "embedding:u8:64"}
            for i in range(12)])
        t = Terminal(self, d, 80, 20, "top", "--watch", "60")
        t.read(lambda text: "PEER" in text and text.endswith("\n"))
        picture = t.text[t.text.rindex("\x1b[2J"):]
        self.assertLess(picture.count("\n"), 20)
        self.assertIn("more)", picture)
        t.key(b"\x03")
        t.end()
        got = d.ctl("--json", "top", check=False)
        self.assertEqual(got.returncode, 64)
        self.assertIn("--json goes with reports", got.stderr)

    def test_sizes(self):
        e, d = self.pair()
        (pool,) = json.loads(d.ctl("pools", "--json").stdout)
        self.assertEqual(pool["bytes"], 524288)
        self.assertIn(" 512 KiB ", e.ctl("pools").stdout)
        self.assertRegex(d.ctl("stats").stdout, r"bytes_moved +0 B ")

    def test_watch(self):
        _, d = self.pair()
        t = Terminal(self, d, 80, 24, "pools", "--watch", "1")
        t.read(lambda text: text.count("every 1 s: pools") >= 2)
        t.key(b"\x03")
        t.end()
        for words in (("pools", "--watch", "0"), ("reload", "--watch", "1"),
                      ("trace", "--watch", "1"), ("doctor", "--watch", "1")):
            self.assertEqual(d.ctl(*words, check=False).returncode, 64, words)
        # --watch also goes on while the daemon restarts.
        t = Terminal(self, d, 80, 24, "health", "--watch", "1")
        t.read(lambda text: text.count("every 1 s: health") >= 2)
        d.kill()
        t.read(lambda text: "not live: no daemon is listening" in text)
        t.key(b"\x03")
        t.end()
