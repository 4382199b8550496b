"""test/engines/run with an engine that is a script: from a clone of its own,
with a folder that is relative; what a part started ends when a part fails."""

import contextlib
import os
import signal
import subprocess
import tempfile
import unittest

from engine import LIMIT
from pair import BUILD, ROOT

ENGINE = '''
import asyncio
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import install
import servers

PACKAGE, VERSION, PARTS = "stub", "1", ("serves", "fails", "stays", "wrong")


async def part(t, up, limit=0.1):
    e, d = t.pair("embedding:bf16:8")
    s = servers.Server(t.folder, "stub",
                       [os.path.join(t.folder, "venv/bin/stub")], {})
    print("started", s.process.pid, e.pid, d.pid, flush=True)
    s.wait(lambda x: up, limit=limit)
    t.line(True, "/it serves", "4 | 5", f"{t.folder}/socket")


async def wrong(t):
    t.line(True, "one is right")
    t.line(False, "and one is not")


def run(folder, parts):  # as the engines do, in their environment
    return install.follow([sys.executable, "-B", __file__, folder, *parts])


def main(folder, parts):
    table = servers.Table(folder, "embedding:bf16:8")
    return asyncio.run(table.play("stub", {
        "serves": lambda t: part(t, True),
        "fails": lambda t: part(t, False),
        "stays": lambda t: part(t, False, 600), "wrong": wrong}, parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
'''


class Run(unittest.TestCase):
    def setUp(self):
        there = tempfile.TemporaryDirectory(prefix="mmx-e2e-")
        self.addCleanup(there.cleanup)
        self.clone = there.name
        here = os.path.join(self.clone, "test/engines")
        os.makedirs(os.path.join(here, "stub"))
        os.symlink(os.path.join(ROOT, "test/e2e"),
                   os.path.join(self.clone, "test/e2e"))
        for name in ("run", "install.py", "signatures.py", "servers.py",
                     "marks.py", "page.py", "matrix.py"):
            os.symlink(os.path.join(ROOT, "test/engines", name),
                       os.path.join(here, name))
        self.write(os.path.join(here, "stub/engine.py"), ENGINE)
        # As make engines leaves an engine that it has installed.
        at = os.path.join(self.clone, "build/engines/stub")
        os.makedirs(os.path.join(at, "venv/bin"))
        self.write(os.path.join(at, "installed"), "stub==1\n")
        self.write(os.path.join(at, "venv/bin/stub"),
                   "#!/bin/sh\nexec sleep 600\n")
        os.chmod(os.path.join(at, "venv/bin/stub"), 0o755)

    def write(self, path, text):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def play(self, *parts, given_up=False):
        """Returns the exit status, the processes and the rest of it."""
        got = subprocess.Popen(
            ["test/engines/run", "stub", "--at", "build/engines", *parts],
            cwd=self.clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "MMX_BUILD": BUILD, "TMPDIR": self.clone})
        said = ""
        if given_up:
            for line in got.stdout:
                said += line
                if line.startswith("started "):
                    break
            got.terminate()
        try:
            said += got.communicate(timeout=LIMIT)[0]
        finally:
            got.kill()
        pids = [int(word) for line in said.splitlines()
                if line.startswith("started ") for word in line.split()[1:]]
        for pid in pids:
            self.addCleanup(self.end, pid)
        return got.returncode, pids, said

    def end(self, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def ended(self, pids):
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), pid)
        self.assertEqual([x for x in os.listdir(self.clone)
                          if x.startswith("mmx-")], [])

    def test_a_folder_may_be_relative(self):
        code, pids, said = self.play("serves")
        self.assertEqual((code, len(pids)), (0, 3), said)
        self.ended(pids)

    def test_what_a_part_started_ends_when_it_is_given_up(self):
        code, pids, said = self.play("stays", given_up=True)
        self.assertEqual((code, len(pids)), (143, 3), said)
        self.ended(pids)

    def test_the_page_has_what_was_printed(self):
        page = os.path.join(self.clone, "test/engines/stub/TABLE.md")
        for parts, code in ((["serves", "wrong"], 1), (["wrong"], 1)):
            got, _, said = self.play("--table", *parts)
            self.assertEqual(got, code, said)
            with open(page, encoding="utf-8") as f:
                text = f.read()
            # The rows of a part that failed are none, others stay.
            self.assertIn("| /it serves | 4 \\| 5 .../socket |\n", text)
            self.assertNotIn("one is right", text)
            self.assertEqual(text.count("\n## "), 1)

    def test_what_a_part_started_ends_when_it_fails(self):
        code, pids, said = self.play("fails")
        self.assertEqual((code, len(pids)), (1, 3), said)
        self.assertIn("engines: stub is not up", said)
        self.ended(pids)
