"""Fresh roots of Debian releases: a bare root per release, made once by
debootstrap, and overlays over it that end with this process, which has a mount
namespace of its own (enter). Its own systemd boots a root in namespaces of its
own, with a loopback network; commands join these."""

import contextlib
import ctypes
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
# Not in the build folder, since clones share the roots, and make searches that
# folder.
CACHE = os.environ.get("MMX_ROOTS", "/var/cache/mmx-roots")
SUITES = {"12": "bookworm", "13": "trixie", "22.04": "jammy"}
# For Ubuntu, where only the wheel is tested, as its main has no venv. Debian
# 12 has no package with Ubuntu's keys.
KEYS = os.environ.get("MMX_UBUNTU_KEYS",
                      "/usr/share/keyrings/ubuntu-archive-keyring.gpg")
UBUNTU = {"jammy": ("--components=main,universe", f"--keyring={KEYS}")}
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
       "LANG": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
ARCHIVES = "/var/cache/apt/archives"  # apt's folder of downloads
# A command that prints the content of a URL.
FETCH = ("python3", "-c", "import sys, urllib.request as u; "
         "print(u.urlopen(sys.argv[1], timeout=20).read().decode())")
BARE_S, BOOT_S = 300, 300  # limits for a slow machine, or network
CLONE_NEWNS = 0x20000
BOOT = r"""
set -e
echo $$ >"$2/cgroup.procs"
exec unshare -m -p -C -u -i -n --fork --kill-child sh -ec '
    mount -t proc proc "$1/proc"
    mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$1/run"
    cd "$1"
    pivot_root . .
    umount -l .
    mount --make-rshared /
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        chroot . /lib/systemd/systemd --log-target=journal --show-status=no
' sh "$1"
"""


class Failed(Exception):
    """A command in a root failed; has its last lines."""


class Lacking(Exception):
    """What this machine lacks for a step: it and the steps after it are
    skipped."""


def lacks():
    """Returns what this machine lacks to make roots and boot them, or None."""
    if os.geteuid():
        return "root"
    for program in ("debootstrap", "unshare", "nsenter", "chroot"):
        if not shutil.which(program):
            return program
    if not cgroup2():
        return "a mounted cgroup2"
    group = os.path.join(cgroup2(), f"mmx-packages-{os.getpid()}")
    try:
        os.mkdir(group)
        os.rmdir(group)
        os.makedirs(CACHE, exist_ok=True)
    except OSError as e:
        return f"the right to write to {e.filename}"
    with tempfile.TemporaryDirectory(dir=CACHE) as at:
        got = subprocess.run(
            ["unshare", "-m", "-p", "-C", "-u", "-i", "-n", "--fork", "sh",
             "-ec", "mkdir low up work root; mount -t overlay overlay -o "
             "lowerdir=low,upperdir=up,workdir=work root; umount root"],
            cwd=at, stderr=subprocess.DEVNULL)
    return "namespaces, or overlays" if got.returncode else None


def cgroup2():
    with open("/proc/mounts") as f:
        return next((w[1] for w in map(str.split, f) if w[2] == "cgroup2"),
                    None)


def enter():
    """Enters a mount namespace: mounts of this process end with it."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("--make-rprivate", "/")


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def checked(words, **more):
    got = subprocess.run(words, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace", **more)
    if got.returncode:
        raise Failed(f"{' '.join(words)[-300:]}: exit status "
                     f"{got.returncode}\n" +
                     "\n".join(got.stdout.splitlines()[-40:]))
    return got.stdout


def limited(seconds, *words):
    """Returns a command line that ends the command, with its children, after
    this time."""
    return ["timeout", "-k", "10", str(seconds), *words]


def name_of(release):
    of = "Ubuntu" if SUITES[release] in UBUNTU else "Debian"
    return f"{of} {release}"


def bare(suite):
    """Returns the folder of a bare root; makes the root if there is none."""
    path = os.path.join(CACHE, suite + ".bare")
    more = UBUNTU.get(suite, ())
    if more and not os.path.exists(KEYS):
        raise Failed(f"no {KEYS}: the keys of Ubuntu's archive")
    if not os.path.exists(path):
        os.makedirs(CACHE, exist_ok=True)
        part = tempfile.mkdtemp(dir=CACHE)
        try:
            os.chmod(part, 0o755)
            checked(limited(BARE_S, "debootstrap", "--variant=minbase",
                            "--include=systemd-sysv,dbus", *more, suite, part))
            os.rename(part, path)
        except Failed:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return path


def mirrors(suite):
    """Returns the sources of this machine's apt for the release, as words of
    mmdebstrap; none: its default."""
    if not shutil.which("apt-get"):
        return []
    found = checked(["apt-get", "indextargets", "--format", "$(REPO_URI)",
                     "Created-By: Packages", "Origin: Debian",
                     f"Codename: {suite}"])
    return sorted(set(found.split()))[:1]


def record(root):
    """Writes what dpkg would know of the packages with libraries that were
    unpacked there, from their archives, which go: for dpkg-query, and as one
    DEBIAN, where dpkg-shlibdeps -S looks."""
    info, about = f"{root}/var/lib/dpkg/info", f"{root}/DEBIAN"
    for folder in (info, about):
        os.makedirs(folder, exist_ok=True)
    with open(f"{info}/format", "w") as f:
        f.write("1\n")
    with open(f"{root}/var/lib/dpkg/status", "w") as status, \
            tempfile.TemporaryDirectory() as part:
        for deb in sorted(glob.glob(f"{root}{ARCHIVES}/*.deb")):
            one = os.path.join(part, os.path.basename(deb))
            checked(["dpkg-deb", "-e", deb, one])
            for kind in ("shlibs", "symbols"):
                with contextlib.suppress(FileNotFoundError), \
                        open(f"{one}/{kind}") as f, \
                        open(f"{about}/{kind}", "a") as whole:
                    whole.write(f.read())
            if os.path.exists(f"{one}/shlibs"):
                with open(f"{one}/control") as f:
                    text = f.read()
                field = dict(re.findall(r"^(\S+): (.*)", text, re.M))
                status.write(f"{text}Status: install ok installed\n\n")
                name = field["Package"] + (
                    ":" + field["Architecture"]
                    if field.get("Multi-Arch") == "same" else "")
                names = checked(["sh", "-c", "dpkg-deb --fsys-tarfile $0 | "
                                 "tar -t", deb]).splitlines()
                with open(f"{info}/{name}.list", "w") as f:
                    f.writelines(f"{path[1:].rstrip('/') or '/.'}\n"
                                 for path in names)
            os.unlink(deb)


def foreign(suite, arch, packages):
    """Returns the folder of a root for another processor. Its packages are
    only unpacked: no program of them has run. Other packages need a new
    root."""
    path = os.path.join(CACHE, f"{suite}.{arch}")
    has, words = path + ".has", " ".join(packages)
    with contextlib.suppress(OSError), open(has) as f:
        if f.read() == words and os.path.isdir(f"{path}/DEBIAN"):
            return path
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(CACHE, exist_ok=True)
    checked(limited(BARE_S, "mmdebstrap", f"--architecture={arch}",
                    "--variant=extract", f"--include={','.join(packages)}",
                    "--skip=essential/unlink,cleanup/apt/cache", suite, path, *mirrors(suite)))
    record(path)
    # What a linker would look for in this machine's root.
    for link in glob.glob(f"{path}/usr/lib/*/*.so"):
        if os.path.islink(link) and os.readlink(link).startswith("/"):
            to = path + os.readlink(link)
            os.unlink(link)
            os.symlink(os.path.relpath(to, os.path.dirname(link)), link)
    for name in ("proc", "sys", "root"):
        os.makedirs(os.path.join(path, name), exist_ok=True)
    for name in ("passwd", "group"):
        shutil.copy(f"{path}/usr/share/base-passwd/{name}.master",
                    f"{path}/etc/{name}")
    with open(has, "w") as f:
        f.write(words)
    return path


def downloads(suite):
    """Returns the folder of the root's downloads by apt."""
    path = os.path.join(CACHE, suite + ".debs")
    os.makedirs(os.path.join(path, "partial"), exist_ok=True)
    return path


class Root:
    """A root over the bare one. With a name its changes are kept for the next
    run; without, they are dropped."""

    def __init__(self, suite, kept=None, lower=None):
        self.suite, self.init, self.outer = suite, None, None
        lower = lower or bare(suite)
        self.thrown = None if kept else tempfile.mkdtemp(dir=CACHE)
        at = self.thrown or os.path.join(CACHE, f"{suite}.{kept}")
        for name in ("up", "work", "root", "debs"):
            os.makedirs(os.path.join(at, name), exist_ok=True)
        self.path = os.path.join(at, "root")
        mount("-t", "overlay", "overlay", "-o",
              f"lowerdir={lower},upperdir={at}/up,workdir={at}/work",
              self.path)
        self._mounts()
        for name in ("resolv.conf", "hosts"):
            shutil.copy(os.path.join("/etc", name), self.at("/etc", name))

    def _mounts(self):
        mount("--bind", downloads(self.suite), self.at(ARCHIVES))
        mount("-t", "proc", "proc", self.at("/proc"))
        mount("--rbind", "/sys", self.at("/sys"))
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", self.at("/dev"))
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            with open(self.at("/dev", name), "w"):
                pass
            mount("--bind", f"/dev/{name}", self.at("/dev", name))
        for name in ("shm", "pts"):
            os.mkdir(self.at("/dev", name))
        os.symlink("/proc/self/fd", self.at("/dev/fd"))
        os.symlink("pts/ptmx", self.at("/dev/ptmx"))
        mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620",
              "devpts", self.at("/dev/pts"))
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.at("/dev/shm"))
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.at("/tmp"))

    def at(self, *parts):
        """Returns the path by which this process reaches a path of the
        root."""
        return self.path + os.path.join(*parts)

    # --- commands ----------------------------------------------------------
    def words(self, words, net=False, user=None):
        """Returns the command line for a command inside. net: with this
        machine's network, which a booted root does not have."""
        how = ["chroot", self.path]
        if self.init:
            how = ["nsenter", "-t", str(self.init), "-m", "-p", "-C", "-u",
                   "-i", "-r", "-w", *([] if net else ["-n"])]
        as_user = ["runuser", "-u", user, "--"] if user else []
        return [*how, *as_user, *words]

    def run(self, *words, net=False, user=None, **more):
        """Runs a command; returns its output, raises Failed."""
        return checked(self.words(words, net, user), env=ENV, **more)

    def status(self, *words):
        """Returns a command's exit status and output."""
        got = subprocess.run(self.words(words), env=ENV, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        return got.returncode, got.stdout

    def apt(self, *words, **more):
        return self.run("apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0",
                        "-o", "Acquire::Retries=3", *words, net=True, **more)

    # --- booted ------------------------------------------------------------
    def boot(self):
        """Starts the root's systemd and waits until it is up."""
        self.group = os.path.join(cgroup2(), f"mmx-packages-{os.getpid()}")
        os.mkdir(self.group)
        self.outer = subprocess.Popen(
            ["sh", "-c", BOOT, "sh", self.path, self.group],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        end = time.monotonic() + BOOT_S
        while not self._up():
            if time.monotonic() > end or self.outer.poll() is not None:
                raise Failed(f"{self.suite}: systemd did not start")
            time.sleep(0.1)

    def _up(self):
        pid = self.outer.pid
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            child = f.read().split()
        if not child:
            return False
        try:
            with open(f"/proc/{child[0]}/comm") as f:
                if f.read() != "systemd\n":
                    return False
        except FileNotFoundError:
            return False
        self.init = int(child[0])
        return self.status("systemctl", "is-system-running")[1].strip() in (
            "running", "degraded")

    def close(self):
        if self.outer:  # unshare: its child, the init, ends with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init or self.outer.pid, signal.SIGKILL)
            self.outer.wait()
            for folder, _, _ in sorted(os.walk(self.group), reverse=True):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        subprocess.run(["umount", "-l", self.path], check=True)
        if self.thrown:
            shutil.rmtree(self.thrown)
