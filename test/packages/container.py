"""The image of conf/Containerfile, built by podman from the packages that were
built for the release, and containers of it: both daemons with one key, an
engine beside them. The command lines are those at the head of that file. No
registry is asked: the image in FROM is the bare root, without systemd, as
Debian's slim image is."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time

from roots import (ARCHIVES, CACHE, ENV, FETCH, HERE, SUITES, TOP, Failed,
                   Lacking, bare, checked, downloads, limited)

FILE = os.path.join(TOP, "conf/Containerfile")
BASE = "docker.io/library/debian:{}-slim"
LAYERS_OF_BASE = 2
SOCKETS = "/run/mmx"
LIMIT_S = 900  # for a command that hangs; a build downloads 300 MB
# Bytes over the base image: 13 MB with Debian 12. UCX of Debian 13 depends on
# AMD's runtime and its compiler: 271 MB.
MOST_BYTES = {"12": 40e6, "13": 400e6}
# Tools for building, and leftovers of apt or of the installation.
NOT_IN_IT = ("gcc", "cc", "make", "ld", "git", "python3", "systemd")
NOT_IN_LAYERS = ("fleet.key", ".deb", "_Packages", "pkgcache.bin")
ENGINE = """
FROM {}
COPY python3-mmx_*.deb libmmx0_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends \\
    /tmp/*.deb python3-numpy
USER 1000:1000
"""
BUILD = ("build", "-q", "--pull=never", "--network", "host")


def check(truth, what):
    if not truth:
        raise Failed(what)


class Container:
    STEPS = ("podman_that_works", "base_without_systemd",
             "image_of_the_container_file", "what_is_in_the_image",
             "daemons_in_containers", "room_in_containers",
             "exporter_in_a_container", "containers_stop")

    def __init__(self, release):
        self.release, self.base = release, BASE.format(release)
        self.debs = os.path.join(TOP, "build/packages", SUITES[release])
        self.at = self.env = None  # env: podman's, with a store of our own

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.at:
            return
        if self.env:
            self.status("rm", "--all", "--force", "--depend", "--time", "0")
        with open("/proc/self/mounts") as f:
            mounts = [w.split()[1] for w in f]
        for path in reversed(mounts):
            if path.startswith(self.at + "/"):
                subprocess.run(["umount", "-l", path], check=True)
        shutil.rmtree(self.at)

    def logs(self):
        names = ("mmx-encoded", "mmx-langd") if self.env else ()
        return "\n".join(self.status("logs", name)[1] for name in names)

    # --- steps -------------------------------------------------------------
    def podman_that_works(self):
        """Builds and runs a trivial image."""
        for program in ("podman", "runc"):
            if not shutil.which(program):
                raise Lacking(program)
        self._store()
        tree = os.path.join(self.at, "bare.tar")
        checked(["tar", "-C", bare(SUITES[self.release]), "-cf", tree, "."])
        try:
            self.podman("import", "-q", tree, "bare")
            self.podman(*BUILD, "-f", self._file("FROM bare\nRUN true\n"))
            self.podman("run", "--rm", "bare", "true")
        except Failed as e:
            raise Lacking(f"what podman needs: {e}") from e
        os.unlink(tree)

    def base_without_systemd(self):
        self.podman(*BUILD, "-t", self.base, "-f", self._file(
            "FROM bare\nRUN apt-get purge -y --allow-remove-essential "
            "systemd-sysv systemd dbus && "
            "apt-get clean && rm -rf /var/lib/apt/lists/* && "
            "echo 'Acquire::Retries 3;' >/etc/apt/apt.conf.d/retries\n"))

    def image_of_the_container_file(self):
        self._as_said("podman build", "encoded", *BUILD[1:], "--build-arg",
                      f"RELEASE={self.release}")

    def what_is_in_the_image(self):
        config = json.loads(self.podman("inspect", "mmx"))[0]["Config"]
        check(config["User"] == "990:990", f"its user: {config['User']}")
        check("org.opencontainers.image.title" in config["Labels"], "labels")
        check("mmxctl" in self.podman("run", "--rm", "mmx"), "CMD")
        for program in ("mmx-encoded", "mmx-langd", "mmx-exporter",
                        "mmx-otel"):
            self.podman("run", "--rm", "mmx", program, "--version")
        has = self.status("run", "--rm", "mmx", "sh", "-c", "for p; do "
                          "command -v $p; done", "sh", *NOT_IN_IT)[1]
        check(not has, f"the image has {has}")
        size = self._layers()
        print(f"     {size / 1e6:.1f} MB over the base")
        check(size < MOST_BYTES[self.release], f"{size} bytes over the base")

    def daemons_in_containers(self):
        self._as_said("install")
        self._as_said("podman run --rm")
        # If this test is killed, the containers end by themselves.
        for side, net in (("encoded", "none"),
                          ("langd", "container:mmx-encoded")):
            self._as_said("podman run -d", side, "--timeout", "1800",
                          network=net)
        for side in ("encoded", "langd"):
            self._as_said("podman exec", side)

    def room_in_containers(self):
        kept = f"{downloads(SUITES[self.release])}:{ARCHIVES}"
        self.podman(*BUILD, "-v", kept, "-t", "engine", "-f",
                    self._file(ENGINE.format(self.base)), self.debs)
        self.podman("run", "--rm", "--network", "none", "--pid", "host",
                    "--cap-drop", "all", "--group-add", "991",
                    *self._sockets(), "-v", f"{HERE}/engines.py:/engines.py:ro",
                    "engine", "python3", "/engines.py", "room", "7")

    def exporter_in_a_container(self):
        net = ("--network", "container:mmx-encoded")
        self.podman("run", "-d", "--timeout", "1800", "--name", "mmx-exporter",
                    *net, *self._sockets(), "mmx", "mmx-exporter")
        end = time.monotonic() + 60
        while True:
            code, said = self.status("run", "--rm", *net, "engine", *FETCH,
                                     "http://127.0.0.1:9464/metrics")
            if not code:
                break
            check(time.monotonic() < end, said)
        check('mmx_rooms_ended_by_reason_total{daemon="langd",reason="ok"'
              in said, said)

    def containers_stop(self):
        names = ("mmx-exporter", "mmx-langd", "mmx-encoded")
        self.podman("stop", *names)
        for name in names:
            code = self.podman("inspect", "-f", "{{.State.ExitCode}}", name)
            check(code.strip() == "0", f"{name}: exit status {code}")
        left = os.listdir(self.at + SOCKETS)
        check(not left, f"left in {SOCKETS}: {left}")

    # --- what they need ----------------------------------------------------
    def _as_said(self, start, side="encoded", *options, network=None):
        """Runs the command line at the head of the container file that begins
        like this, with our own folders in place of the host's, and more
        options."""
        with open(FILE) as f:
            text = "".join(re.findall(r"^#     (.*\n)", f.read(), flags=re.M))
        line = next(x for x in text.replace("\\\n", " ").splitlines()
                    if x.startswith(start)).replace("encoded", side)
        ours = {"--network=host": f"--network={network}",
                "build/deb": self.debs}
        words = [ours.get(w, w) for w in shlex.split(line)]
        words = [self.at + w if w[0] == "/" and
                 (":" in w or start == "install") else w for w in words]
        checked(limited(LIMIT_S, *words[:2], *options, *words[2:]),
                env=self.env, cwd=TOP)

    def _sockets(self):
        return "-v", f"{self.at}{SOCKETS}:{SOCKETS}"

    def _store(self):
        """Makes a store and settings for this test, on disk until it ends."""
        self.at = tempfile.mkdtemp(dir=CACHE)
        # The defaults exceed what a root without CAP_SYS_RESOURCE may set.
        self._file("[containers]\n"
                   "default_ulimits = [\"nofile=4096\", \"nproc=4096\"]\n"
                   "[engine]\nruntime = \"runc\"\nevents_logger = \"none\"\n"
                   "cgroup_manager = \"cgroupfs\"\nlock_type = \"file\"\n"
                   f"tmp_dir = \"{self.at}/tmp\"\n", "containers.conf")
        self._file("[storage]\ndriver = \"overlay\"\n"
                   f"graphroot = \"{self.at}/images\"\n"
                   f"runroot = \"{self.at}/mounts\"\n", "storage.conf")
        self.env = {**ENV, "CONTAINERS_CONF": f"{self.at}/containers.conf",
                    "CONTAINERS_STORAGE_CONF": f"{self.at}/storage.conf"}

    def _file(self, text, name="Containerfile"):
        path = os.path.join(self.at, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def _layers(self):
        """Returns the bytes of the layers over the base. No layer may have
        files that a later one deletes."""
        path = os.path.join(self.at, "mmx.tar")
        self.podman("save", "-q", "-o", path, "mmx")
        size = 0
        with tarfile.open(path) as image:
            layers = json.load(image.extractfile("manifest.json"))[0]["Layers"]
            for layer in layers[LAYERS_OF_BASE:]:
                size += image.getmember(layer).size
                with tarfile.open(fileobj=image.extractfile(layer)) as t:
                    bad = [n for n in t.getnames() if n.endswith(NOT_IN_LAYERS)]
                check(not bad, f"in a layer: {bad[:9]}")
        os.unlink(path)
        return size

    def podman(self, *words):
        return checked(limited(LIMIT_S, "podman", *words), env=self.env)

    def status(self, *words):
        got = subprocess.run(limited(LIMIT_S, "podman", *words), env=self.env,
                             text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return got.returncode, got.stdout
