"""mmxctl without --encoded or --langd: all daemons of the host, one under the
other. A mount namespace has their sockets in the default places."""

import json
import os
import re
import subprocess

from engine import LIMIT
from pair import BUILD, Case, eventually

ENTER = ("unshare", "-rm") if os.geteuid() else ("unshare", "-m")
HERE = """mount -t tmpfs none /run && mkdir /run/mmx /run/mmx-admin || exit 99
for s in encoded langd; do
    [ -e "$1/$s" ] && ln -s "$1/$s" /run/mmx/$s.sock
    [ -e "$1/$s-orders" ] && ln -s "$1/$s-orders" /run/mmx-admin/$s.sock
done
shift && exec "$@"
"""


class Host(Case):
    def ctl(self, *words, status=0):
        """Runs mmxctl where the sockets of self.daemons are in /run/mmx."""
        where = os.path.join(self.world.dir, "run")
        os.makedirs(where, exist_ok=True)
        for daemon in self.daemons:
            at = os.path.join(where, daemon.role)
            if not os.path.lexists(at):
                os.symlink(daemon.socket, at)
                os.symlink(daemon.orders, at + "-orders")
        got = subprocess.run(
            [*ENTER, "sh", "-c", HERE, "sh", where,
             os.path.join(BUILD, "mmxctl"), *words],
            capture_output=True, text=True, timeout=LIMIT)
        if got.returncode in (1, 99) and "unshare" in got.stderr or \
                "mount:" in got.stderr:
            self.skipTest("no mount namespaces here")
        self.assertEqual(got.returncode, status, got)
        return got

    def both(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        self.daemons = [e, d]
        return e, d

    def test_reports_are_of_both(self):
        self.both()
        for what in ("status", "rooms", "slow", "pools", "peers", "engines",
                     "stats", "sequences", "inventory", "ends", "histograms",
                     "conf"):
            with self.subTest(what=what):
                got = self.ctl(what)
                self.assertEqual(got.stderr, "")
                heads = re.findall(r"^(?:# )?(\w+) \((\w+)\):$", got.stdout,
                                   re.M)
                self.assertEqual(heads, [("enc0", "encoded"),
                                         ("lang0", "langd")])
                rows = json.loads(self.ctl(what, "--json").stdout)
                if what not in ("sequences", "inventory"):
                    self.assertEqual({r["daemon"] for r in rows},
                                     {"enc0", "lang0"})
                rows = json.loads(self.ctl(what, "--langd", "--json").stdout)
                self.assertFalse([r for r in rows if "daemon" in r])
        self.assertEqual(
            [(r["name"], r["live"])
             for r in json.loads(self.ctl("health", "--json").stdout)],
            [("enc0", 1), ("lang0", 1)])
        top = self.ctl("top").stdout
        self.assertLess(top.index("enc0 (encoded), up"),
                        top.index("lang0 (langd), up"))
        got = self.ctl("conf-diff")
        self.assertEqual(
            got.stdout.count("the file says what is in force"), 2)

    def test_an_order_is_for_one(self):
        _, d = self.both()
        for order in ("drain", "undrain", "reload"):
            got = self.ctl(order, status=64)
            self.assertEqual(
                (got.stdout, got.stderr),
                ("", "mmxctl: both daemons run here: use --encoded or --langd "
                     f"with {order}\n"))

    def test_a_socket_without_a_daemon_is_said_and_not_counted(self):
        e, d = self.both()
        e.kill()
        for what in ("pools", "peers", "top", "trace", "reload"):
            got = self.ctl(*what.split())
            self.assertEqual(got.stderr, "mmxctl: /run/mmx/encoded.sock: no "
                             "daemon is listening\n", what)
            self.assertNotIn("(langd):", got.stdout)
        rows = json.loads(self.ctl("pools", "--json").stdout)
        self.assertEqual([r["daemon"] for r in rows], ["lang0"])
        d.kill()
        for what in ("pools", "drain", "trace"):
            got = self.ctl(what, status=2)
            self.assertIn("no daemon listens in /run/mmx", got.stderr)

    def test_alone_it_shows_the_host(self):
        e, d = self.both()
        lm = self.world.engine(d)
        lm.request(2, "enc0", deadline=0.1)
        eventually(lambda: d.ended(2), "it has failed")
        got = self.ctl()
        self.assertEqual(got.stderr, "")
        self.assertLessEqual(max(map(len, got.stdout.splitlines())), 80)
        time = r"\d\d:\d\d:\d\d\.\d{3}"
        self.assertRegex(got.stdout, re.compile(
            r"^enc0 \(encoded\), up .*\nready\nrooms \d+ open, .*\n"
            rf"slowest +1  {time}  [\d.]+ [um]?s, until [^$]*"
            r"^lang0 \(langd\), up .*\nready\nrooms 0 open, .*\n"
            rf"slowest +1  {time}  [\d.]+ [um]?s, until .*\n"
            rf"failed  +2  {time}  timeout, the room's total time expired$",
            re.M))
        for words in ("--json",), ("--watch", "1"):
            self.ctl(*words, status=64)
        e.kill()
        d.kill()
        got = self.ctl(status=2)
        self.assertIn("no daemon listens in /run/mmx", got.stderr)
