"""mmxctl for people: top in a terminal, widths that fit one, human sizes,
--watch. A pseudo-terminal stands for the terminal, read as one draws."""

import fcntl
import itertools
import json
import os
import pty
import pwd
import re
import select
import signal
import struct
import subprocess
import termios
import time
from datetime import datetime, timezone

from pair import BUILD, LIMIT, Case, eventually

END = "\x1b[?2026l"
CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Terminal:
    """mmxctl in a terminal of this size; its screen is what it has drawn."""

    def __init__(self, case, daemon, width, height, *words):
        self.ours, theirs = pty.openpty()
        self.resize(width, height)
        self.theirs = theirs
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "mmxctl"), "--socket", daemon.socket, *words],
            stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=self.before_it)
        self.text = ""
        case.addCleanup(self.close)

    def before_it(self):
        """In the child: its terminal, whose keys it hears; what runs in the
        background of a shell ignores them."""
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)

    def resize(self, width, height):
        self.width, self.height = width, height
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ,
                    struct.pack("HHHH", height, width, 0, 0))

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def read(self, until, limit=LIMIT):
        """Reads until the text has what `until` returns of it."""
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

    def frame(self, what=""):
        """The lines of the next whole picture that has `what`; the text
        before it is forgotten."""
        def whole(text):
            frames = text.split("\x1b[H")[1:]
            for f in frames:
                if END in f and what in f:
                    return f[:f.index(END)]
            return None
        found = self.read(whole)
        self.text = self.text[self.text.index(found) + len(found):]
        lines = re.split("\r*\n", CONTROL.sub("", found))
        return lines[:-1] if lines[-1] == "" else lines

    def key(self, key):
        os.write(self.ours, key)

    def end(self):
        """The exit status; what was drawn at the end."""
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

    def fits(self, terminal, lines):
        self.assertLessEqual(len(lines), terminal.height)
        for line in lines:
            self.assertLessEqual(len(line), terminal.width, line)

    def test_what_is_drawn_fits_and_agrees(self):
        e, d = self.loaded()
        for daemon, peer in ((e, "lang0"), (d, "enc0")):
            (pool,) = daemon.show("pools")
            for width, height in ((80, 24), (132, 50), (40, 12), (80, 7)):
                with self.subTest(daemon=daemon.name, width=width):
                    t = Terminal(self, daemon, width, height, "top")
                    lines = t.frame()
                    self.fits(t, lines)
                    text = "\n".join(lines)
                    self.assertIn(daemon.name, lines[0])
                    self.assertTrue(lines[1].startswith("ready"), lines)
                    self.assertIn("rooms 0 open", text)
                    if height > 7:
                        self.assertIn(f"\n{peer} ", text)
                    if width > 40:
                        row = next(x for x in lines if x.startswith("vit"))
                        self.assertEqual(
                            row.split()[1:5],
                            ["ready", str(pool["blocks"]),
                             str(pool["blocks"] - pool["free"]), "0%"])
                    t.key(b"q")
                    self.assertEqual(t.end(), 0)

    def test_keys_sizes_and_the_way_out(self):
        _, d = self.loaded()
        for out in (lambda t: t.key(b"q"), lambda t: t.key(b"\x03"),
                    lambda t: t.key(b"\x1c"),  # SIGQUIT
                    lambda t: t.key(b"\x1b"),
                    lambda t: t.process.send_signal(signal.SIGTERM),
                    lambda t: t.process.send_signal(signal.SIGINT)):
            t = Terminal(self, d, 80, 24, "top")
            t.frame("now: rooms")
            self.assertNotEqual(termios.tcgetattr(t.theirs), t.before)
            # Ctrl-Z would leave the shell on this screen.
            self.assertEqual(termios.tcgetattr(t.theirs)[6][termios.VSUSP],
                             b"\0")
            # Arrows, of both kinds, and F5 are no key of it, and no ESC.
            for key, word in ((b"n", "name"), (b"\x1b[Ab", "bytes"),
                              (b"\x1bOBw", "waits"), (b"\x1b[15~r", "rooms")):
                t.key(key)
                t.frame(f"now: {word}")
            t.resize(40, 10)
            t.process.send_signal(signal.SIGWINCH)
            self.fits(t, t.frame("keys: q, sort"))
            out(t)
            self.assertEqual(t.end(), 0)
            self.assertEqual(termios.tcgetattr(t.theirs), t.before)
            self.assertTrue(t.text.endswith("\x1b[?25h\x1b[?1049l"), t.text)

    def test_a_daemon_that_ends(self):
        e = self.world.encoded()
        t = Terminal(self, e, 80, 24, "top")
        t.frame()
        e.kill()
        self.assertNotEqual(t.end(), 0)
        self.assertEqual(termios.tcgetattr(t.theirs), t.before)
        self.assertIn("closed the connection", t.text)

    def test_once_and_without_a_terminal(self):
        e, _ = self.loaded()
        got = e.ctl("top", check=False)
        self.assertEqual((got.returncode, got.stdout), (64, ""))
        self.assertIn("--once", got.stderr)
        text = e.ctl("top", "--once").stdout
        self.assertNotIn("\x1b", text)
        self.assertIn("enc0 (encoded), up ", text)
        self.assertIn("\nlang0 ", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

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
        # Elsewhere lines are as long, as far as no text has to be cut.
        for daemon, what in itertools.product((e, d), ("rooms", "pools")):
            lines = daemon.ctl(what).stdout.splitlines()
            self.assertLessEqual(max(map(len, lines)), 80, lines)
            self.assertRegex(lines[-1], r"\(\d+ more columns: --json\)")

    def test_times_are_those_of_people(self):
        """The daemons' clock counts from the start of the host."""
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

    def test_sizes(self):
        e, d = self.pair()
        (pool,) = json.loads(d.ctl("pools", "--json").stdout)
        self.assertEqual(pool["bytes"], 524288)
        self.assertIn(" 512 KiB ", e.ctl("pools").stdout)
        self.assertIn(" 524288 ", e.ctl("pools", "--bytes").stdout)
        self.assertRegex(d.ctl("stats").stdout, r"bytes_moved +0 B ")
        self.assertRegex(d.ctl("stats", "--bytes").stdout, r"bytes_moved +0 ")

    def test_watch(self):
        _, d = self.pair()
        t = Terminal(self, d, 80, 24, "pools", "--watch", "1")
        t.read(lambda text: text.count("every 1 s: pools") >= 2)
        t.key(b"\x03")
        t.end()
        for words in (("pools", "--watch", "0"), ("reload", "--watch", "1"),
                      ("trace", "--watch", "1"), ("doctor", "--watch", "1")):
            self.assertEqual(d.ctl(*words, check=False).returncode, 64, words)
        # The state of a daemon that comes and goes is watched, too.
        t = Terminal(self, d, 80, 24, "health", "--watch", "1")
        t.read(lambda text: text.count("every 1 s: health") >= 2)
        d.kill()
        t.read(lambda text: "not live: no daemon is listening" in text)
        t.key(b"\x03")
        t.end()
