"""Installation, upgrade and removal of the packages in one release."""

import glob
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse

from roots import ENV, FETCH, HERE, SUITES, TOP, Failed, Root, checked

DAEMONS = ("mmx-encoded", "mmx-langd")
UNITS = [f"{d}.{kind}" for d in DAEMONS for kind in ("socket", "service")]
# Daemons drain for at most timeouts.drain; then rooms fail.
DRAIN_S = 10
# Paths where the test itself writes, or apt keeps its downloads.
NOT_OURS = ("/proc", "/sys", "/dev", "/tmp", "/root", "/home", "/var/cache",
            "/var/lib/apt", "/var/log")
# What a container has in /run, in a process namespace of its own.
CONTAINER = """
mkdir -p /tmp/mmx && mount --bind -o ro /run/mmx /tmp/mmx &&
mount -t tmpfs tmpfs /run && mkdir /run/mmx &&
mount --move /tmp/mmx /run/mmx && mount -t proc proc /proc && exec "$@"
"""
ENGINE = ("setpriv", "--reuid=engine", "--regid=engine", "--init-groups")


def check(truth, what):
    if not truth:
        raise Failed(what)


class Life:
    STEPS = ("build", "build_again", "lintian", "install", "start_by_the_units",
             "start_without_its_address", "orders", "room_in_python",
             "room_in_c", "prometheus", "page", "spans",
             "upgrade_with_rooms_open", "remove", "purge")

    def __init__(self, release):
        self.release, self.suite = release, SUITES[release]
        self.root = self.builder = None
        self.folder = os.path.join(TOP, "build/packages", self.suite)
        self.engines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for e in self.engines:
            e.kill()
            e.wait()
        for root in (self.root, self.builder):
            if root:
                root.close()

    def logs(self):
        if not self.root or not self.root.init:
            return ""
        return self.root.status("journalctl", "--no-pager", "-n", "60",
                                "-u", "mmx-*", "-t", "systemd")[1]

    # --- steps -------------------------------------------------------------
    def build(self):
        self.builder = b = Root(self.suite, "build")
        shutil.rmtree(self.folder, ignore_errors=True)
        made = os.path.join(self.folder, "tree")
        tree = checked(["scripts/deb/build", "--tree", made],
                       cwd=TOP).strip().splitlines()[-1]
        shutil.copytree(os.path.join(TOP, made), b.at("/tmp/src"),
                        symlinks=True)
        src = os.path.join("/tmp/src", os.path.basename(tree))
        b.apt("update")
        b.apt("install", "--no-install-recommends", "build-essential",
              "lintian")
        b.apt("build-dep", "--no-install-recommends", src)
        b.run("sh", "-c", f"cd {src} && dpkg-buildpackage -b -uc -us")
        for path in glob.glob(b.at("/tmp/src/*.deb")):
            shutil.copy(path, self.folder)

    def build_again(self):
        """Builds in another folder: the bytes must be the same."""
        b = self.builder
        shutil.copytree(os.path.join(self.folder, "tree"), b.at("/tmp/again"),
                        symlinks=True)
        b.run("sh", "-c", "cd /tmp/again/mmx-* && "
              "dpkg-buildpackage -b -uc -us")
        one, other = (b.run("sh", "-c", f"cd /tmp/{folder} && sha256sum *.deb")
                      for folder in ("src", "again"))
        check(one == other, f"{one}\n{other}")

    def lintian(self):
        self.builder.run("sh", "-c", "lintian --allow-root --fail-on error,"
                         "warning,info,pedantic /tmp/src/*.changes")

    def install(self):
        self.root = r = Root(self.suite)
        r.apt("update")
        r.boot()
        os.mkdir(r.at("/root/debs"))
        for path in glob.glob(os.path.join(self.folder, "*.deb")):
            shutil.copy(path, r.at("/root/debs"))
        self.install_from("/root/debs")
        check(r.run("id", "-gn", "mmx").strip() == "mmx", "the user's group")
        check(r.run("stat", "-c", "%a %U:%G", "/etc/mmx/fleet.key").strip()
              == "600 root:root", "rights of the key: " +
              r.run("stat", "-c", "%a %U:%G", "/etc/mmx/fleet.key"))
        for page in ("README.md", "cmd/README.md", "lib/client/README.md",
                     "cmd/GUARANTEES.md", "cmd/COMPATIBILITY.md",
                     "lib/wire/RULES.md", "lib/wire/PROTOCOL.md",
                     "lib/wire/EMBEDDING.md", "lib/wire/SECURITY.md",
                     "conf/kubernetes.yaml", "conf/helm/values.yaml"):
            check(os.path.exists(r.at("/usr/share/doc/mmx/" + page)), page)
        for unit in UNITS:
            check(self.active(unit) == "inactive", f"{unit} runs unasked")

    def start_by_the_units(self):
        r = self.root
        r.run("useradd", "-m", "-G", "mmx-engine", "engine")
        for d in DAEMONS:
            r.run("sed", "-i", f"s/drain: .*/drain: {DRAIN_S}s/",
                  f"/etc/mmx/{d}.yaml")
        r.run("systemctl", "enable", "--now", *UNITS, "mmx-exporter",
              "mmx-otel")
        for d in DAEMONS:
            check(self.active(d) == "active", f"{d} does not run")
            with open(f"/proc/{self.pid(d)}/status") as f:
                uid = next(w.split()[1] for w in f if w.startswith("Uid"))
            check(uid == r.run("id", "-u", "mmx").strip(), f"{d}: its user")
            line = r.run("systemctl", "show", "-P", "ExecStart", d)
            check(f"argv[]=/usr/bin/{d} --config /etc/mmx/{d}.yaml ;" in line,
                  line)
        r.run("mmxctl", "doctor", user="engine")

    def start_without_its_address(self):
        """A daemon that lacks something at start is tried until it is there,
        and its engines' socket stays."""
        r, name = self.root, "mmx-encoded"
        at = r.at("/etc/systemd/system", f"{name}.service.d")
        os.makedirs(at)
        with open(os.path.join(at, "test.conf"), "w") as f:
            f.write("[Service]\nRestartSec=1s\nExecStart=\n"
                    f"ExecStart=/usr/bin/{name} --config /etc/mmx/{name}.yaml "
                    "--set control.listen=tcp://192.0.2.7:7601\n")
        r.run("systemctl", "daemon-reload")
        r.run("systemctl", "restart", "--no-block", name)
        self.within(120, lambda: int(r.run(
            "systemctl", "show", "-P", "NRestarts", name)) > 12 or
            self.active(name) == "failed", "a daemon starts 12 times")
        check(self.active(name) == "activating", self.active(name))
        check(self.active(f"{name}.socket") == "active", "its socket")
        checked(["nsenter", "-t", str(r.init), "-n", "ip", "address", "add",
                 "192.0.2.7/32", "dev", "lo"])
        self.within(60, lambda: self.active(name) == "active",
                    "it runs once the address is there")
        shutil.rmtree(at)
        r.run("systemctl", "daemon-reload")
        r.run("systemctl", "restart", name)
        r.run("mmxctl", "--langd", "health", "--wait", "60")

    def orders(self):
        """Orders come by a socket that engines neither see nor are told of."""
        r = self.root
        container = ("unshare", "-mpf", "sh", "-c", CONTAINER, "sh")
        for role in ("encoded", "langd"):
            for words in (ENGINE, container):
                for order in ("drain", "conf"):
                    code, said = r.status(*words, "mmxctl", f"--{role}", order)
                    check(code == 1 and "not-owner: orders are taken at "
                          f"/run/mmx-admin/{role}.sock" in said, said)
            for order in ("drain", "undrain", "conf"):
                r.run("mmxctl", f"--{role}", order)
            r.run("systemctl", "reload", f"mmx-{role}")
        check(r.run("stat", "-c", "%a %U", "/run/mmx-admin").strip() ==
              "700 mmx", "the folder of orders")

    def room_in_python(self):
        shutil.copy(os.path.join(HERE, "engines.py"),
                    self.root.at("/home/engine"))
        self.root.run("python3", "/home/engine/engines.py", "room", "7",
                      user="engine")
        said = self.root.run("python3", "-m", "mmx", "demo", user="engine")
        check(said.startswith("demo: ok "), said)

    def room_in_c(self):
        r = self.root
        r.apt("install", "--no-install-recommends", "gcc", "libc6-dev",
              "pkg-config")
        r.run("sh", "-c", "cd /home/engine && cc -Wall -Werror -o room "
              "/usr/share/doc/libmmx-dev/examples/room.c "
              "$(pkg-config --cflags --libs mmx)")
        r.run("/home/engine/room", "8", user="engine")

    def prometheus(self):
        r = self.root
        with open(r.at("/home/engine/p.yml"), "w") as f:
            json.dump({"global": {"scrape_interval": "500ms"},
                       "rule_files": ["/usr/share/mmx/prometheus-rules.yaml"],
                       "scrape_configs": [{
                           "job_name": "mmx", "static_configs": [
                               {"targets": ["127.0.0.1:9464"]}]}]}, f)
        r.apt("install", "--no-install-recommends", "prometheus")
        r.run("systemctl", "stop", "prometheus")
        r.run("systemd-run", "--unit=scraper", "prometheus",
              "--config.file=/home/engine/p.yml",
              "--storage.tsdb.path=/home/tsdb",
              "--web.listen-address=127.0.0.1:9190")
        for expr in ('up{job="mmx"} == 1', 'mmx_up{daemon="encoded"} == 1',
                     'mmx_rooms_ended_by_reason_total{daemon="langd",'
                     'reason="ok"} >= 2'):
            self.within(180, lambda: self.asked(expr), f"Prometheus: {expr}")
        r.run("systemctl", "stop", "scraper")

    def spans(self):
        """mmx-otel sees all rooms; this host has no collector."""
        r = self.root
        r.run("systemctl", "stop", "mmx-otel")
        said = r.run("journalctl", "--no-pager", "-u", "mmx-otel")
        check(re.search("spans: 0 sent, [1-9][0-9]* wait, 0 dropped, 0 refused;"
                        " not seen: 0 happenings or rooms, 0 contexts", said),
              said)
        r.run("systemctl", "start", "mmx-otel")

    def page(self):
        got = self.fetched("http://127.0.0.1:9464/")
        check("<h2>mmx-encoded</h2>" in got and "vit" in got,
              f"the page: {got[:2000]}")

    def upgrade_with_rooms_open(self):
        r = self.root
        self.next_version()
        finish, hang = self.engine("finish", 20), self.engine("hang", 30)
        pids = [self.pid(d) for d in DAEMONS]
        sockets = r.run("ls", "-i", "/run/mmx")
        began = time.monotonic()
        upgrade = subprocess.Popen(
            r.words(["sh", "-c", "apt-get -q -y -o Dpkg::Use-Pty=0 install "
                     "/root/next/*.deb"], net=True), env=ENV, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.within(180, lambda: "deactivating" in (
            self.active("mmx-encoded"), self.active("mmx-langd")),
                    "a daemon drains")
        finish.stdin.write("\n")
        finish.stdin.flush()
        said, _ = finish.communicate(timeout=180)
        check(said == "passed\n", f"a room that goes on: {said}")
        out, _ = upgrade.communicate(timeout=600)
        check(upgrade.returncode == 0, out)
        took = time.monotonic() - began
        said, _ = hang.communicate(timeout=300)
        print(f"     upgraded in {took:.1f} s; the other room: "
              f"{said.splitlines()[0]}")
        check(said.startswith("ended ") and said.endswith("\npassed\n") and
              len(said.splitlines()[0].split()) == 3, said)
        for d, pid in zip(DAEMONS, pids):
            check(self.active(d) == "active" and self.pid(d) != pid,
                  f"{d} is not the new one")
        check(r.run("ls", "-i", "/run/mmx") == sockets, "sockets were closed")
        check("Version: 0.1.0+next" in r.run("dpkg", "-s", "mmx"),
              "the version")
        for d in DAEMONS:
            check(f"drain: {DRAIN_S}s" in r.run("cat", f"/etc/mmx/{d}.yaml"),
                  f"{d}.yaml is not the administrator's")
        self.room_in_python()
        self.upgrade_of_one_side()

    def upgrade_of_one_side(self):
        """An upgrade brings no other side to a host that runs one side."""
        r = self.root
        r.run("systemctl", "disable", "--now", *UNITS[2:])
        r.apt("install", "--reinstall", "/root/next/mmx_*.deb".replace(
            "*", self.tail("mmx")))
        check(self.active("mmx-encoded") == "active", "encoded is away")
        check(self.active("mmx-langd") != "active", "langd was started")

    def remove(self):
        r = self.root
        r.apt("remove", "mmx", "mmx-exporter", "mmx-otel", "libmmx0",
              "libmmx-dev", "python3-mmx")
        left = r.status("pgrep", "-a", "mmx-")[1] if os.path.exists(
            r.at("/usr/bin/pgrep")) else self.processes()
        check(not left, f"left running: {left}")
        check(os.path.exists(r.at("/etc/mmx/fleet.key")), "the key is gone")
        for path in ("/run/mmx/encoded.sock", "/run/mmx/langd.sock",
                     "/usr/bin/mmx-langd"):
            check(r.status("test", "-e", path)[0], f"{path} is left")

    def purge(self):
        r = self.root
        r.apt("purge", "mmx", "mmx-exporter", "mmx-otel")
        left = self.files()
        check(not left, f"left behind:\n{left}")
        # The user stays, as with Debian's packages, so that no other user gets
        # its number. It owns no file and cannot log in.
        check("/usr/sbin/nologin" in r.run("getent", "passwd", "mmx"),
              "mmx could log in")
        check(not r.run("find", "/", "-xdev", "-user", "mmx", "-not", "-path",
                        "/proc/*"), "mmx owns files")

    # --- what they need ----------------------------------------------------
    def install_from(self, folder):
        """Installs as the README says."""
        self.root.run("sh", "-c", f"cd {folder} && apt-get -q -y -o "
                      "Dpkg::Use-Pty=0 install ./*.deb", net=True)

    def tail(self, package):
        path, = glob.glob(self.root.at(f"/root/next/{package}_*"))
        return os.path.basename(path)[len(package) + 1:-len(".deb")]

    def next_version(self):
        """Builds the same packages with the next version, and other samples."""
        r = self.root
        r.run("mkdir", "/root/next")
        for path in glob.glob(r.at("/root/debs/*.deb")):
            name = os.path.basename(path)
            r.run("sh", "-c", "set -e; cd /root; rm -rf unpacked; "
                  f"dpkg-deb -R debs/{name} unpacked; "
                  "sed -i -E 's/(^Version: |\\(= )0.1.0/\\10.1.0+next/' "
                  "unpacked/DEBIAN/control; "
                  "find unpacked -name 'mmx-*.yaml' -exec sed -i "
                  "'1s/$/ (next)/' {} +; "
                  f"dpkg-deb -b unpacked next/{name} >/dev/null; "
                  "rm -rf unpacked")

    def engine(self, what, room):
        """Starts a pair of engines with an open room."""
        p = subprocess.Popen(
            self.root.words(["python3", "/home/engine/engines.py", what,
                             str(room)], user="engine"), env=ENV, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.engines.append(p)
        said = p.stdout.readline()
        check(said == "open\n", f"{what}: {said}")
        return p

    def active(self, unit):
        return self.root.status("systemctl", "is-active", unit)[1].strip()

    def pid(self, daemon):
        """Returns the process id on this machine."""
        inside = self.root.run("systemctl", "show", "-P", "MainPID",
                               daemon).strip()
        for path in glob.glob("/proc/[0-9]*/status"):
            try:
                with open(path) as f:
                    text = f.read()
            except OSError:
                continue
            if f"Name:\t{daemon[:15]}\n" in text and \
                    f"\t{inside}\n" in text.split("NSpid:")[1]:
                return int(path.split("/")[2])
        raise Failed(f"{daemon} has no process")

    def processes(self):
        """Returns the package's processes, as ps would list them."""
        return self.root.run("sh", "-c", "cat /proc/[0-9]*/comm | "
                             "grep ^mmx- || true")

    def files(self):
        """Returns every path that has our name in it."""
        words = ["find", "/", "("]
        for path in NOT_OURS:
            words += ["-path", path, "-o"]
        return self.root.run(*words[:-1], ")", "-prune", "-o", "-path",
                             "*mmx*", "-print")

    def fetched(self, url):
        return self.root.run(*FETCH, url)

    def asked(self, expr):
        code, got = self.root.status(
            *FETCH, "http://127.0.0.1:9190/api/v1/query?" +
            urllib.parse.urlencode({"query": expr}))
        return code == 0 and json.loads(got)["data"]["result"]

    def within(self, seconds, condition, what):
        end = time.monotonic() + seconds
        while not condition():
            check(time.monotonic() < end, f"not within {seconds} s: {what}")
            time.sleep(0.05)
