"""UCX's registration cache under what the units allow: their environment, and
memory that cannot become executable (MemoryDenyWriteExecute)."""

import ctypes
import os

from pair import Case, ROOT

PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
# CMA reads a sender's memory where it lies, as RDMA does.
ROWS = {"transfer": {"same_host": "off", "carrier": "ucx",
                     "tls": "posix,cma"}}
LIBC = ctypes.CDLL(None, use_errno=True)
COPIED = "no registration cache: rows are copied"


def lines(name: str) -> "dict[str, str]":
    """The variables that a unit or drop-in sets."""
    with open(os.path.join(ROOT, "systemd", name)) as f:
        return dict(w.split("=", 1) for line in f
                    if line.startswith("Environment=")
                    for w in line[len("Environment="):].split())


def denied() -> None:
    """In the child, before it becomes the daemon."""
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
        """Moves rooms; the daemons' logs."""
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
