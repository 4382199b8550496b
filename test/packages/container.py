"""The lines of conf/Containerfile, carried out in a bare root over the packages
that were built for the release. No image is built: there is no container engine
in this, and the root is debootstrap's, not that of the image in FROM."""

import glob
import os
import re
import shlex
import shutil

from roots import ENV, SUITES, TOP, Failed, Root, checked

FILE = os.path.join(TOP, "conf/Containerfile")


def check(truth, what):
    if not truth:
        raise Failed(what)


class Container:
    STEPS = ("lines_of_the_container_file", "no_key_in_it", "programs_in_it")

    def __init__(self, release):
        self.release = release
        self.debs = os.path.join(TOP, "build/packages", SUITES[release])
        self.root, self.env, self.user = None, dict(ENV), "0:0"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.root:
            self.root.close()

    def logs(self):
        return ""

    # --- steps -------------------------------------------------------------
    def lines_of_the_container_file(self):
        self.root = Root(SUITES[self.release])
        with open(FILE) as f:
            text = re.sub(r"^#.*\n", "", f.read(), flags=re.M)
        for line in text.replace("\\\n", " ").splitlines():
            word, _, rest = line.partition(" ")
            if word:
                getattr(self, "do_" + word.lower())(rest)
        check(self.user == "990:990", f"USER {self.user}")

    def no_key_in_it(self):
        check(not os.path.exists(self.root.at("/etc/mmx/fleet.key")),
              "the image has a key")
        check(not os.listdir(self.root.at("/tmp")), "files are left in /tmp")

    def programs_in_it(self):
        check("mmxctl" in self.inside(*self.cmd), "CMD")
        for program in ("mmx-encoded", "mmx-langd", "mmx-exporter"):
            self.inside(program, "--version")
        check(self.inside("sh", "-c", "id -u; id -g").split() ==
              ["990", "990"], "its user")

    # --- instructions ------------------------------------------------------
    def do_arg(self, rest):
        check(rest == "RELEASE=12", f"ARG {rest}")

    def do_from(self, rest):
        check(rest == "debian:${RELEASE}-slim", f"FROM {rest}")

    def do_run(self, rest):
        checked(self.root.words(["sh", "-c", rest]), env=self.env)

    def do_copy(self, rest):
        *files, to = rest.split()
        os.makedirs(self.root.at(to), exist_ok=True)
        for pattern in files:
            for path in glob.glob(os.path.join(self.debs, pattern)):
                shutil.copy(path, self.root.at(to))

    def do_env(self, rest):
        self.env.update(w.split("=", 1) for w in shlex.split(rest))

    def do_user(self, rest):
        self.user = rest

    def do_cmd(self, rest):
        self.cmd = re.findall(r'"([^"]*)"', rest)

    def inside(self, *words):
        uid, gid = self.user.split(":")
        return checked(self.root.words(
            ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups",
             *words]), env=self.env)
