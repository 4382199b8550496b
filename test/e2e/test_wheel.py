"""The wheel of `make wheel`, installed by pip into a clean virtual environment:
a room passes by it."""

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile

from pair import BUILD, ROOT, Case

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


class Wheel(Case):
    limit_s = 600  # packages are downloaded

    def made(self, folder):
        """The wheel's path; skips where PyPI's tools cannot be had."""
        os.symlink(os.path.join(BUILD, "libmmx.so.0"),
                   os.path.join(folder, "libmmx.so.0"))
        got = subprocess.run([os.path.join(ROOT, "scripts/wheel"), folder],
                             capture_output=True, text=True)
        if got.returncode == 2:
            self.skipTest(got.stderr.strip().splitlines()[-1])
        self.assertEqual(got.returncode, 0, got.stderr)
        return got.stdout.strip()

    def clean(self, folder, wheel):
        """A new virtual environment with it and what it needs, which PyPI
        has; its python."""
        at, found = (os.path.join(folder, x) for x in ("venv", "found"))
        subprocess.run([sys.executable, "-m", "venv", at], check=True)
        python = os.path.join(at, "bin/python")
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        got = subprocess.run([*pip, "download", "-q", "-d", found, "numpy"],
                             capture_output=True, text=True)
        if got.returncode:
            self.skipTest(f"no numpy of PyPI: {got.stderr.strip()[-200:]}")
        got = subprocess.run([*pip, "install", "-q", "--no-index",
                              "--find-links", found, wheel + "[views]"],
                             capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stderr)
        return python

    def test_it_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel = self.made(folder)
            self.assertRegex(os.path.basename(wheel), r"^mmx-[0-9.]+-py3-none-"
                             r"manylinux_2_[0-9]+_\w+\.whl$")
            with zipfile.ZipFile(wheel) as z:
                names = set(z.namelist())
                z.extractall(os.path.join(folder, "site"))
            self.assertLessEqual({"mmx/py.typed", "mmx/libmmx.so.0",
                                  "mmx/adapters/vllm_ec.py"}, names)
            info, = importlib.metadata.distributions(
                path=[os.path.join(folder, "site")])
            about = info.metadata
            self.assertEqual(about["License-Expression"], "Apache-2.0")
            self.assertEqual(about["Requires-Python"], ">=3.9")
            self.assertEqual(about["Description-Content-Type"],
                             "text/markdown")
            self.assertIn("mmx.connect", about.get_payload())
            self.assertIn("Typing :: Typed", about.get_all("Classifier"))
            self.assertEqual([(e.group, e.name, e.value)
                              for e in info.entry_points],
                             [("sglang.srt.plugins", "mmx",
                               "mmx.adapters.sglang:register")])

    def test_a_room_by_it(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel = self.made(folder)
            python = self.clean(folder, wheel)
            e, d = self.pair()
            got = subprocess.run(
                [python, "-c", ROOM, e.socket, d.socket], cwd=folder,
                env={k: v for k, v in os.environ.items()
                     if k not in ("PYTHONPATH", "MMX_LIBRARY")}, capture_output=True, text=True)
            self.assertEqual(got.returncode, 0, got.stderr)
