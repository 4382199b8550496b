"""Today's daemons together with those of the newest release (scripts/compat),
and engines of that release with today's daemons: the tests of that release run
unchanged over a folder in which each daemon is of the release or of today."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from pair import BUILD, ROOT, Case, eventually, sanitized

OFF = {"transfer": {"same_host": "off"}}
# Seconds for all the tests that one test here runs, and for a build.
LIMIT = 600
# abidiff must treat the types of other headers as private. It takes the names
# of headers without a path.
PUBLIC = ("--drop-private-types", *(
    word for side in (1, 2) for name in ("mmx.h", "mmx_aux.h", "mmx_binding.h")
    for word in (f"--hf{side}", name)))
# How structs that begin with their size may change.
GROW = """[suppress_type]
type_kind = struct
name_regexp = ^(%s)$
has_data_member_inserted_at = end
"""


def base():
    """Returns the tree of the release, built; skips where none is tagged."""
    got = subprocess.run([os.path.join(ROOT, "scripts", "compat")],
                         capture_output=True, text=True)
    if got.returncode == 2:
        raise unittest.SkipTest(got.stderr.strip())
    if got.returncode:
        raise AssertionError(f"scripts/compat: {got.stderr}")
    return got.stdout.strip()


class Beside(Case):
    """Today's tests with one daemon of the release."""

    limit_s = 2 * LIMIT

    def setUp(self):
        super().setUp()
        self.base = base()

    def old(self, daemon):
        return daemon.of_base(os.path.join(self.base, "build")).start()

    def served(self, encoded, langd, room):
        """Delivers a room; returns what langd says of the pair."""
        enc, lm = self.engines(encoded, langd)
        self.deliver(enc, lm, room, 1500)
        return langd.show("peers")[0]

    def test_an_encoder_of_the_release(self):
        e = self.old(self.world.encoded(start=False))
        for room, conf in enumerate(({}, OFF), 1):
            d = self.world.langd([e], f"lang{room}", **conf)
            self.assertEqual(self.served(e, d, room)["state"], "up")
        eventually(lambda: sorted(r["path"] for r in e.show("peers")) ==
                   ["copy", "sent"], "pools of the first are mapped")

    def test_a_langd_of_the_release(self):
        e = self.world.encoded()
        d = self.old(self.world.langd([e], "old", start=False))
        today = self.world.langd([e], "today")
        self.served(e, d, 1)
        self.served(e, today, 2)
        eventually(lambda: [r["path"] for r in e.show("peers")] ==
                   ["copy"] * 2, "pools of both are mapped")
        self.joined(today)
        e.ctl("drain")
        for langd in (d, today):
            eventually(lambda: langd.show("peers")[0]["state"] == "draining",
                       f"{langd.name} knows")
        lm = self.world.engine(d)
        lm.request(3, "enc0")
        self.assertEqual(lm.failed(3), "draining")
        lm.release(3)
        e.ctl("undrain")
        self.served(e, d, 4)

    def test_a_fleet_of_each_kind(self):
        """At one encoder a langd that copies, one that has more than TCP in
        common with it, one that has TCP alone, and one of the release."""
        more = {"transfer": {"tls": "posix,tcp"}}
        sent = {"transfer": {"tls": "posix,tcp", "same_host": "off"}}
        e = self.world.encoded(**more)
        better = "ucx" if "ucx" in e.show("status")[0]["carriers"] else "tcp"
        fleet = {
            "copied": self.world.langd([e], "copied", **more),
            "better": self.world.langd([e], "better", **sent),
            "plain": self.world.langd([e], "plain", transfer={
                "carrier": "tcp", "same_host": "off"}),
            "old": self.old(self.world.langd([e], "old", start=False, **sent))}
        enc = self.world.engine(e)
        for turn in range(2):
            for i, d in enumerate(fleet.values()):
                lm = self.world.engine(d)
                self.deliver(enc, lm, 1 + 10 * turn + i, 1500)
        eventually(lambda: "copy" in [r["path"] for r in e.show("peers")],
                   "encoded hears that pools are mapped")
        got = {r["name"]: (r["path"], r["carrier"]) for r in e.show("peers")}
        self.assertEqual(got, {
            "copied": ("copy", better), "better": ("sent", better),
            "plain": ("sent", "tcp"), "old": ("sent", better)})
        for name in ("better", "plain", "old"):
            self.assertEqual(fleet[name].show("peers")[0]["carrier"],
                             got[name][1])


    def test_upgraded_and_taken_back_with_rooms_open(self):
        """One daemon at a time is replaced: that of the release by today's,
        then back. While it drains one of its rooms completes; the other fails.
        The engines stay."""
        drain = {"drain": "2s"}
        e = self.old(self.world.encoded(start=False, timeouts=drain))
        d = self.old(self.world.langd([e], start=False, timeouts=drain))
        enc, lm = self.engines(e, d)
        room = 1
        for folder in (BUILD, os.path.join(self.base, "build")):
            for daemon, engine in ((d, lm), (e, enc)):
                self.halfway(enc, lm, room)
                self.halfway(enc, lm, room + 1)
                epoch = engine.conn.epoch
                daemon.process.terminate()
                eventually(lambda x=daemon: x.show("status")[0]["draining"],
                           f"{daemon.name} drains")
                enc.write(room, 640, 2000)
                enc.commit(room, 640, 2000, final=True)
                self.comes(enc, lm, room, 2000)
                for x in (enc, lm):
                    self.assertEqual(x.failed(room + 1), "daemon-lost" if
                                     x is engine else "peer-lost")
                    x.release(room + 1)
                self.assertEqual(daemon.process.wait(LIMIT), 0)
                daemon.of_base(folder).start()
                engine.conn.wait(lambda c=engine.conn, was=epoch: c.connected
                                 and c.epoch != was, 10)
                engine.map_pool()
                self.deliver(enc, lm, room + 2, 1500)
                room += 3


class Library(unittest.TestCase):
    limit_s = LIMIT

    def test_no_program_of_the_release_breaks(self):
        """Functions, structs and enums of mmx.h, as abidiff sees them."""
        if not shutil.which("abidiff"):
            self.skipTest("no abidiff: Debian's abigail-tools")
        tree = base()
        with open(os.path.join(tree, "lib/client/mmx.h"),
                  encoding="utf-8") as f:
            sized = re.findall(r"^struct (\w+) \{\n +size_t size;", f.read(),
                               re.M)
        with tempfile.NamedTemporaryFile("w", suffix=".ini") as f:
            f.write(GROW % "|".join(sized))
            f.flush()
            got = subprocess.run(
                ["abidiff", "--no-added-syms", *PUBLIC, "--suppressions",
                 f.name, os.path.join(tree, "build/libmmx.so.0"),
                 os.path.join(BUILD, "libmmx.so.0")],
                capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)


class Tests(unittest.TestCase):
    """The release's tests, with its engines and its C library."""

    limit_s = 2 * LIMIT

    def run_base(self, old, *names):
        """Runs files with this daemon of the release, the others of today."""
        if sanitized(os.path.join(BUILD, "mmx-langd")):
            self.skipTest("run with the plain build")
        tree = base()
        theirs = os.path.join(tree, "build")
        with tempfile.TemporaryDirectory(prefix="mmx-compat-") as folder:
            for name in ("mmx-encoded", "mmx-langd", "mmxctl", "libmmx.so.0",
                         "test"):
                today = name.startswith("mmx") and name != old
                os.symlink(os.path.join(BUILD if today else theirs, name),
                           os.path.join(folder, name))
            said = subprocess.run(
                ["/usr/bin/python3", "test/e2e/run", "--build", folder,
                 *(f"{name}." for name in names)], cwd=tree, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=LIMIT).stdout
        if not re.search(r"^[1-9]\d* passed, 0 failed", said, re.M):
            self.fail(said)

    def test_its_engines_in_c(self):
        self.run_base("", "test_llama.Split", "test_tickets", "test_plan")

    def test_its_engines_in_python(self):
        self.run_base("", "test_rooms", "test_python", "test_shares")

    def test_its_encoded(self):
        self.run_base("mmx-encoded", "test_rooms")

    def test_its_langd(self):
        self.run_base("mmx-langd", "test_rooms")
