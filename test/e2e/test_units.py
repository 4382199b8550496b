"""The daemons with the rights that their units leave: their system calls
(SystemCallFilter), and UCX's registration cache with their environment and
with memory that cannot become executable (MemoryDenyWriteExecute)."""

import ctypes
import errno
import os
import platform
import re
import shutil
import struct
import subprocess

from pair import BUILD, ROOT, Case, sanitized

PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
PR_SET_SECCOMP, FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
NUMBERS = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
ALLOW, REFUSE = 0x7FFF0000, 0x50000 | errno.EPERM  # SECCOMP_RET_
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF
# CMA reads a sender's memory where it lies, as RDMA does.
ROWS = {"transfer": {"same_host": "off", "carrier": "ucx",
                     "tls": "posix,cma"}}
LIBC = ctypes.CDLL(None, use_errno=True)
COPIED = "no registration cache: rows are copied"


def lines(name: str) -> "dict[str, str]":
    """Returns the variables that a unit or drop-in sets."""
    with open(os.path.join(ROOT, "systemd", name)) as f:
        return dict(w.split("=", 1) for line in f
                    if line.startswith("Environment=")
                    for w in line[len("Environment="):].split())


def group(name: str) -> "set[str]":
    """Returns the system calls of a group, as systemd defines it."""
    if not name.startswith("@"):
        return {name}
    got = subprocess.run(["systemd-analyze", "syscall-filter", name],
                         check=True, stdout=subprocess.PIPE, text=True)
    words = re.findall(r"^    (\S+)", got.stdout, re.M)
    return set().union(*(group(w) for w in words if w != "#"))


def allowed(unit: str) -> "set[str]":
    """Returns the system calls that the unit's lines allow; the first line
    allows a group, others take some out."""
    calls = group("@default")
    with open(os.path.join(ROOT, "systemd", unit)) as f:
        for words in re.findall(r"^SystemCallFilter=(.*)", f.read(), re.M):
            named = set().union(*(group(w) for w in
                                  words.removeprefix("~").split()))
            calls = calls - named if words[0] == "~" else calls | named
    return calls


def program(calls: "set[str]") -> bytes:
    """Returns a filter for this architecture that refuses all other calls with
    EPERM."""
    with open(NUMBERS) as f:
        numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", f.read()))
    steps = [(LOAD, 0, 0, 0)]
    for name in sorted(calls & numbers.keys()):
        steps += [(EQUAL, 0, 1, int(numbers[name])), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, REFUSE))
    return b"".join(struct.pack("HBBI", *s) for s in steps)


def filtered(code: bytes):
    """Returns what applies the filter in the child."""
    at = ctypes.create_string_buffer(code, len(code))
    prog = ctypes.create_string_buffer(struct.pack(
        "HxxxxxxP", len(code) // 8, ctypes.addressof(at)))

    def apply(_at=at) -> None:
        if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
                LIBC.prctl(PR_SET_SECCOMP, FILTER, prog, 0, 0):
            os._exit(99)
    return apply


class Calls(Case):
    def test_rooms_under_the_filter(self):
        if not shutil.which("systemd-analyze") or \
                platform.machine() != "x86_64" or not os.path.exists(NUMBERS):
            self.skipTest("no systemd-analyze, or another architecture")
        if sanitized(os.path.join(BUILD, "mmx-langd")):
            self.skipTest("a sanitizer makes calls of its own")
        e = self.world.encoded(start=False)
        copied = self.world.langd([e], "copied", start=False)
        sent = self.world.langd([e], "sent", start=False,
                                transfer={"same_host": "off"})
        for daemon in (e, copied, sent):
            daemon.before = filtered(program(allowed(
                f"mmx-{daemon.role}.service")))
            daemon.start()
        for room, d in enumerate((copied, sent), 1):
            enc, lm = self.engines(e, d)
            self.deliver(enc, lm, room, 1500)


def denied() -> None:
    """Runs in the child, before it becomes the daemon."""
    if LIBC.prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
        os._exit(99)


class Cache(Case):
    def setUp(self):
        super().setUp()
        child = os.fork()
        if child == 0:
            os._exit(LIBC.prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
        if os.waitpid(child, 0)[1]:
            self.skipTest("this kernel cannot deny executable memory")

    def rows(self, env, deny):
        """Moves rooms; returns the daemons' logs."""
        e = self.world.encoded(start=False, **ROWS)
        d = self.world.langd([e], start=False, **ROWS)
        for daemon in (e, d):
            daemon.before = denied if deny else None
            daemon.start({**env, "UCX_CMA_MEMORY_INVALIDATE": "y"})
        enc, lm = self.engines(e, d)
        for room in range(1, 9):
            self.deliver(enc, lm, room, 3000)
        logs = []
        for daemon in (e, d):
            with open(daemon.log) as f:
                logs.append(f.read())
        self.assertIn("cma/memory", logs[0])
        return logs

    def test_the_unit(self):
        for log in self.rows(lines("mmx-langd.service"), deny=True):
            self.assertIn(COPIED, log)

    def test_hooks_that_are_denied(self):
        env = {**lines("mmx-langd.service"), **lines("mmx-rdma.conf")}
        for log in self.rows(env, deny=True):
            self.assertIn(COPIED, log)

    def test_the_drop_in(self):
        env = {**lines("mmx-langd.service"), **lines("mmx-rdma.conf")}
        for log in self.rows(env, deny=False):
            self.assertNotIn(COPIED, log)
