"""The wheel of `make wheel`, installed by pip into a clean virtual
environment: its programs run there, and move a room."""

import filecmp
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import zipfile

from pair import BUILD, ROOT, Case

COMMANDS = {"mmx", "mmx-encoded", "mmx-exporter", "mmx-langd", "mmxctl"}
MOST_BYTES = 12e6
# The pages promise the tag of Debian 12.
with open("/etc/os-release", encoding="utf-8") as f:
    GLIBC = "2_35" if "=bookworm\n" in f.read() else r"2_\d+"
# Both sides of a room, as the README has them.
ROOM = """
import ctypes, subprocess, sys, mmx, numpy as np
assert mmx.__file__.startswith(sys.prefix), mmx.__file__
with mmx.connect("encoded", sys.argv[1]) as enc, \\
        mmx.connect("langd", sys.argv[2]) as lm:
    room = lm.request(None, lm.pool("vit"), "enc0")
    said = mmx.Reference.read(str(room.reference))
    src = enc.announce(said, enc.pool("vit"), 500, 500, aux=b"grid")
    src.wait_granted(timeout=20)
    src["embedding"][0:500] = np.full((500, 64), 3, np.uint8)
    src.commit(0, 500, final=True)
    with room.wait_ready(timeout=20):
        assert (room.gather("embedding") == 3).all() and room.aux == b"grid"
    src.wait_done(timeout=20)
    src.release()
path = subprocess.run([sys.executable, "-m", "mmx", "library"], check=True,
                      stdout=subprocess.PIPE, text=True).stdout.strip()
version = ctypes.CDLL(path).mmx_version
version.restype = ctypes.c_char_p
assert version().decode() == mmx.__version__, version()
"""
# Without the variables that lead to the tree and its libraries.
CLEAN = {k: v for k, v in os.environ.items()
         if k not in ("PYTHONPATH", "MMX_LIBRARY", "LD_LIBRARY_PATH")}


class Wheel(Case):
    limit_s = 600  # downloads packages
    the = None  # the wheel, built once for all tests in a folder of its own

    def made(self):
        if not Wheel.the:
            folder = tempfile.TemporaryDirectory()
            Wheel.the = folder, self.build(folder.name)
        return Wheel.the[1]

    def build(self, folder):
        """Returns the wheel's path; skips where PyPI cannot be reached."""
        if not os.path.isdir(os.path.join(BUILD, "wheel")):
            self.skipTest("a build with sanitizers has no programs for it")
        if not os.path.exists(os.path.join(BUILD, "wheel/mmx-exporter")):
            self.skipTest("no mmx-exporter was built here")
        for name in ("libmmx.so.0", "wheel"):
            os.symlink(os.path.join(BUILD, name), os.path.join(folder, name))
        got = subprocess.run([os.path.join(ROOT, "scripts/wheel"), folder],
                             capture_output=True, text=True)
        if got.returncode == 2:
            self.skipTest(got.stderr.strip().splitlines()[-1])
        self.assertEqual(got.returncode, 0, got.stderr)
        return got.stdout.strip()

    def clean(self, folder, wheel):
        """Returns the python of a new virtual environment that has the wheel
        alone."""
        at = os.path.join(folder, "its venv")  # a path may have spaces
        subprocess.run([sys.executable, "-m", "venv", at], check=True)
        python = os.path.join(at, "bin/python")
        self.pip(python, "install", "--no-index", wheel)
        return python

    def pip(self, python, *words):
        got = subprocess.run(
            [python, "-m", "pip", "--disable-pip-version-check", "-q", *words],
            env=CLEAN, capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stderr)

    def test_it_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel = self.made()
            self.assertRegex(os.path.basename(wheel), r"^mmx-[0-9.]+-py3-none-"
                             rf"manylinux_{GLIBC}_\w+\.whl$")
            self.assertLess(os.path.getsize(wheel), MOST_BYTES)
            with zipfile.ZipFile(wheel) as z:
                names = set(z.namelist())
                z.extractall(os.path.join(folder, "site"))
            self.assertLessEqual({"mmx/py.typed", "mmx/libmmx.so.0",
                                  "mmx/adapters/vllm_ec.py"}, names)
            self.carried(folder, names)
            info, = importlib.metadata.distributions(
                path=[os.path.join(folder, "site")])
            about = info.metadata
            self.assertEqual(about["License-Expression"], "Apache-2.0")
            self.assertEqual(about["Requires-Python"], ">=3.9")
            self.assertEqual(about["Description-Content-Type"],
                             "text/markdown")
            self.assertIn("mmx.connect", about.get_payload())
            self.assertIn("Typing :: Typed", about.get_all("Classifier"))
            points = {(e.group, e.name): e.value for e in info.entry_points}
            self.assertEqual(points.pop(("sglang.srt.plugins", "mmx")),
                             "mmx.adapters.sglang:register")
            self.assertEqual(set(points),
                             {("console_scripts", c) for c in COMMANDS})

    def carried(self, folder, names):
        """For each library the wheel says package, version and licence."""
        libs = {re.sub(r"-[0-9a-f]{8}", "", n.split("/")[-1]).split(".so")[0]
                for n in names if n.startswith("mmx.libs/")}
        self.assertLessEqual({"libzmq", "libuv", "libyaml-0", "libssl",
                              "libcrypto", "libsodium"}, libs)
        self.assertFalse([n for n in libs if n.startswith("libuc")], libs)
        at = os.path.join(folder, "site/mmx/bin/licences")
        with open(os.path.join(at, "carried")) as f:
            packages = {line.split()[0] for line in f}
        # In Debian 13 some of these have names that end in t64.
        self.assertLessEqual({"libzmq5", "libssl3", "libuv1"},
                             {re.sub("t64$", "", p) for p in packages})
        self.assertLessEqual(packages | {"Apache-2.0", "LGPL-2.1"},
                             set(os.listdir(at)))

    def test_built_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertTrue(filecmp.cmp(self.made(), self.build(folder),
                                        shallow=False), "other bytes")

    def test_its_programs(self):
        """As in the README: without numpy, and without the system's
        libraries."""
        with tempfile.TemporaryDirectory() as folder:
            at = os.path.dirname(self.clean(folder, self.made()))

            def said(*words):
                return subprocess.run(
                    [os.path.join(at, words[0]), *words[1:]], env=CLEAN,
                    cwd=folder, capture_output=True, text=True)

            for name in sorted(COMMANDS):
                got = said(name, "--version")
                self.assertEqual(got.returncode, 0, got.stderr)
            key = os.path.join(folder, "fleet.key")
            self.assertEqual(said("mmxctl", "keygen", key).returncode, 0)
            got = said("mmxctl", "keygen", "--public", key)
            self.assertEqual(len(got.stdout), 41, got.stderr)
            got = subprocess.run(
                [os.path.join(at, "mmxctl"), "--version"], text=True,
                env={**CLEAN, "PYTHONPATH": os.path.join(
                    ROOT, "lib/client/python")}, capture_output=True)
            self.assertEqual(got.returncode, 1)
            self.assertRegex(got.stderr, r"^mmxctl: \S+ is missing: .*\n$")
            got = said("mmx", "demo")
            self.assertRegex(got.stdout, r"^demo: ok .*, copied, sent over "
                             r"TCP: \S+\n$", got.stderr)
            os.unlink(got.stdout.split()[-1])
            got = said("mmx-encoded", "--check-config", "--config",
                       os.devnull, "--set", "insecure=true", "--set",
                       "pools[0].name=vit", "--set", "pools[0].layout=e:u8:64",
                       "--set", "pools[0].blocks=4", "--set",
                       "transfer.carrier=ucx")
            self.assertEqual(got.returncode, 78, got.stderr)
            self.assertIn("was built without UCX", got.stderr)

    def test_a_room_by_it(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel = self.made()
            python = self.clean(folder, wheel)
            found = os.path.join(folder, "found")
            got = subprocess.run(
                [python, "-m", "pip", "--disable-pip-version-check", "download",
                 "-q", "-d", found, "numpy"], capture_output=True, text=True)
            if got.returncode:
                self.skipTest(f"no numpy of PyPI: {got.stderr.strip()[-200:]}")
            self.pip(python, "install", "--no-index", "--find-links", found,
                     wheel + "[views]")
            e, d = self.pair()
            got = subprocess.run(
                [python, "-c", ROOM, e.socket, d.socket], cwd=folder,
                env=CLEAN, capture_output=True, text=True)
            self.assertEqual(got.returncode, 0, got.stderr)
