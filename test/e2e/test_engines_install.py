"""What `make engines` says when it cannot: one line, and nothing half
installed."""

import importlib
import os
import shutil
import subprocess
import sys
import types
from unittest import mock

from pair import Case

ENGINES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(
    __file__))), "engines")


class Install(Case):
    def setUp(self):
        super().setUp()
        sys.path.insert(0, ENGINES)
        self.addCleanup(sys.path.remove, ENGINES)
        self.install = importlib.import_module("install")
        self.folder = os.path.join(self.world.dir, "engines", "one")
        self.engine = types.SimpleNamespace(
            PACKAGE="package", VERSION="1.0", NEED_BYTES=1000,
            requirements=lambda meta: [], after=lambda folder: None)

    def refused(self):
        with self.assertRaises(self.install.Refused) as got:
            self.install.install(self.engine, self.folder)
        self.assertFalse(os.path.exists(self.folder))
        said = str(got.exception)
        self.assertNotIn("\n", said)
        return said

    def test_an_unknown_engine(self):
        got = subprocess.run([sys.executable, os.path.join(ENGINES, "run"),
                              "other"], capture_output=True, text=True)
        self.assertEqual(got.returncode, 2)
        self.assertRegex(got.stderr, "^engines: there is no engine 'other'; "
                         "ENGINE is one of .*vllm\n$")

    def test_too_little_disk(self):
        self.engine.NEED_BYTES = 10**18
        self.assertIn("make room, or name another folder", self.refused())

    def test_a_folder_that_cannot_be_made(self):
        self.folder = "/proc/no/such"
        self.assertIn("name another folder by --at", self.refused())

    def test_a_package_that_cannot_be_had(self):
        def pip(venv, *words):
            raise self.install.Refused("ERROR: No matching distribution")
        with mock.patch.multiple(self.install, make_venv=lambda path: path,
                                 pip=pip):
            self.assertIn("package==1.0 cannot be had", self.refused())

    def test_what_fails_in_the_middle_is_removed(self):
        """And what an earlier run left unfinished."""
        os.makedirs(self.folder)
        with open(os.path.join(self.folder, "left"), "w"):
            pass

        def fetch(venv, wanted, folder):
            self.assertEqual(os.listdir(self.folder), [])
            raise OSError("no space left")
        with mock.patch.multiple(self.install, make_venv=lambda path: path,
                                 fetch=fetch):
            self.assertIn("package==1.0 was not installed: no space left",
                          self.refused())
        shutil.rmtree(os.path.dirname(self.folder))
