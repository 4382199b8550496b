"""The wheel in one release, on a system with Python alone: installed by pip
into a virtual environment, by a user who is not root."""

import filecmp
import glob
import os
import re
import shutil
import subprocess
import tempfile

from life import check
from roots import SUITES, TOP, Lacking, Root, checked

# Libraries of the daemons that must be missing; Python itself may need libssl.
NOT_THERE = ("libzmq", "libuv", "libyaml", "libsodium", "libucp",
             "libmicrohttpd", "libmmx")
COMMANDS = {"mmx", "mmx-encoded", "mmx-exporter", "mmx-langd", "mmxctl"}
USER = "someone"
AT = f"/home/{USER}"


def jobs():
    return f"-j{len(os.sched_getaffinity(0))}"


class Wheel:
    STEPS = ("build", "build_again", "python_alone", "pip_install", "demo")
    # shared by all releases: built on this host, not in a root
    made = again = None

    def __init__(self, release):
        self.suite = SUITES[release]
        self.root = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.root:
            self.root.close()

    def logs(self):
        return ""

    # --- steps -------------------------------------------------------------
    def build(self):
        if Wheel.made:
            return
        # make's exit status does not say that the tools are missing.
        got = subprocess.run(["scripts/wheel", "--tools"], cwd=TOP, text=True,
                             capture_output=True)
        if got.returncode == 2:
            raise Lacking(got.stderr.strip().splitlines()[-1])
        check(not got.returncode, got.stderr)
        said = checked(["make", "-s", jobs(), "wheel"], cwd=TOP)
        Wheel.made = os.path.join(TOP, said.strip().splitlines()[-1])

    def build_again(self):
        """Builds from a copy of the tree in another folder: the bytes must be
        the same."""
        if Wheel.again:
            return
        with tempfile.TemporaryDirectory() as folder:
            tree = checked(["scripts/deb/build", "--tree", folder], cwd=TOP)
            at = tree.strip().splitlines()[-1]
            os.makedirs(os.path.join(at, "build"))
            os.symlink(os.path.join(TOP, "build/pypi"),
                       os.path.join(at, "build/pypi"))
            day = checked(["git", "log", "-1", "--format=%ct"], cwd=TOP)
            said = checked(["make", "-s", jobs(), "wheel"], cwd=at, env={
                **os.environ, "SOURCE_DATE_EPOCH": day.strip()})
            again = os.path.join(at, said.strip().splitlines()[-1])
            check(filecmp.cmp(self.made, again, shallow=False),
                  "other bytes the second time")
        Wheel.again = True

    def python_alone(self):
        self.root = r = Root(self.suite)
        r.apt("update")
        r.apt("install", "--no-install-recommends", "python3", "python3-venv")
        there = r.run("ldconfig", "-p")
        for name in NOT_THERE:
            check(name not in there, f"{name} is there")
        check(r.status("python3", "-c", "import numpy")[0], "numpy is there")
        r.run("useradd", "-m", USER)

    def pip_install(self):
        """Installs as the README says, without a network."""
        r = self.root
        os.makedirs(r.at(AT, "build"))
        shutil.copy(self.made, r.at(AT, "build"))
        with open(os.path.join(TOP, "README.md"), encoding="utf-8") as f:
            lines = re.findall(r"^ {4}((?:python3 -m venv|venv/bin/).*)$",
                               f.read(), re.M)
        check(len(lines) == 3, lines)
        *lines, self.last = lines
        for line in lines:
            r.run("sh", "-c", f"cd {AT} && {line}", user=USER)
        found = {os.path.basename(path)
                 for path in glob.glob(r.at(AT, "venv/bin/mmx*"))}
        check(found == COMMANDS, f"commands: {found}")
        for name in sorted(found):
            said = r.run(f"{AT}/venv/bin/{name}", "--version", user=USER)
            check("0.1.0" in said, f"{name} --version: {said}")
            print(f"     {said.strip()}")

    def demo(self):
        said = self.root.run("sh", "-c", f"cd {AT} && {self.last}", user=USER)
        check(said.startswith("demo: ok ") and said.count("\n") == 1 and
              "copied, sent over TCP: " in said, said)
        print(f"     {said.strip()}")
