"""The world of a test: daemons with generated configurations in a directory of
their own, engines as objects or processes, mmxctl's answers as values. What
the test starts is ended here, by its process id."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import random
import resource
import shutil
import signal
import socket

import subprocess
import sys
import tempfile
import time
import unittest

from engine import LIMIT, Engine

import mmx

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("MMX_BUILD", os.path.join(ROOT, "build"))
SMALL = "embedding:u8:64"
# The carrier of rows that are not to be copied: run's --sent.
SENT = os.environ.get("MMX_SENT")
TRANSFER = {"transfer": {"same_host": "off", "carrier": SENT}} if SENT else {}
# UCX's transports, and the device of each side: "rc_verbs rxe0:1 rxe1:1".
OVER = os.environ.get("MMX_UCX", "").split()
# As the units set them; UCX reads them once, when it is loaded.
UCX = {"UCX_HANDLE_ERRORS": "none", "UCX_VFS_ENABLE": "n",
       "UCX_MEM_EVENTS": os.environ.get("UCX_MEM_EVENTS", "n")}


def sanitized(binary: str) -> bool:
    """True if the program is built with AddressSanitizer, whose functions no
    preloaded library may hide."""
    with open(binary, "rb") as f:
        return b"__asan_init" in f.read()


def eventually(condition, what: str, limit: float = LIMIT):
    """Asks again until the condition is true. The only place that waits by the
    clock: the condition lies in another process and has no event for us."""
    end = time.monotonic() + limit
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}; last: {got}")
        time.sleep(0.01)


def free_port() -> int:
    """Returns a port below those that the kernel gives to outgoing
    connections: no other program gets it by chance before the daemon has bound
    it."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(15000, 32000)))
            return s.getsockname()[1]


def yaml(value, indent: int = 0) -> str:
    pad = "  " * indent
    text = ""
    if isinstance(value, dict):
        for key, v in value.items():
            if isinstance(v, (dict, list)):
                text += f"{pad}{key}:\n{yaml(v, indent + 1)}"
            else:
                text += f"{pad}{key}: {scalar(v)}\n"
    else:
        for v in value:
            if isinstance(v, dict):
                inner = yaml(v, indent + 1)
                text += f"{pad}- {inner.lstrip()}"
            else:
                text += f"{pad}- {scalar(v)}\n"
    return text


def scalar(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else str(value)


def merged(base: dict, more: dict) -> dict:
    """Returns `base` with `more` on top; mappings are merged, not replaced."""
    out = dict(base)
    for key, value in more.items():
        old = out.get(key)
        out[key] = merged(old, value) \
            if isinstance(old, dict) and isinstance(value, dict) else value
    return out


class Daemon:
    def __init__(self, world: "World", role: str, name: str, conf: dict):
        self.world, self.role, self.name = world, role, name
        self.binary = os.path.join(BUILD, f"mmx-{role}")
        self.socket = os.path.join(world.dir, f"{name}.sock")
        self.config = os.path.join(world.dir, f"{name}.yaml")
        self.log = os.path.join(world.dir, f"{name}.log")
        self.conf = conf
        self.process = None
        self.killed = False
        self.nofile = None  # (soft, hard) RLIMIT_NOFILE
        self.before = None  # called in the child
        self.inside = []  # words before the command: how to enter a namespace

    def of_base(self, folder: str) -> "Daemon":
        """Makes it a daemon of another build."""
        self.binary = os.path.join(folder, f"mmx-{self.role}")
        return self

    @contextlib.contextmanager
    def stopped(self):
        """Stops the process (SIGSTOP) while the block runs."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def limit(self) -> None:
        """Runs in the child, before it becomes the daemon."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self.nofile)

    def start(self, env=None, stderr=None) -> "Daemon":
        with open(self.config, "w") as f:
            f.write(yaml(self.conf))
        self.killed = False
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [*self.inside, self.binary, "--config", self.config],
                stderr=log if stderr is None else stderr,
                stdout=log, stdin=subprocess.DEVNULL,
                preexec_fn=self.before or
                (self.limit if self.nofile else None),
                env={**os.environ, **UCX, **(env or {})})
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        waits = itertools.count(1)  # longer each time, for a slow machine

        def connects():
            if self.process.poll() is not None:
                raise AssertionError(
                    f"{self.name} ended with {self.process.returncode}:\n"
                    f"{self.tail()}")
            try:
                mmx.connect(self.role, self.socket,
                            timeout=0.2 * next(waits)).close()
                return True
            except (mmx.errors.DaemonLost, mmx.errors.DaemonSilent):
                return False
        eventually(connects, f"{self.name} takes connections")

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.name} did not end on SIGTERM") \
                from None

    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 30) -> str:
        try:
            with open(self.log, errors="replace") as f:
                return "".join(f.readlines()[-lines:])
        except FileNotFoundError:
            return ""

    # --- what it says -----------------------------------------------------
    def ctl(self, *words: str, check: bool = True):
        return subprocess.run(
            [os.path.join(BUILD, "mmxctl"), "--socket", self.socket, *words],
            capture_output=True, text=True, check=check, timeout=LIMIT)

    @property
    def orders(self) -> str:
        """Returns the path of the socket for orders."""
        folder, name = os.path.split(self.socket)
        return os.path.join(folder + "-admin", name)

    def show(self, what: str):
        """Returns mmxctl's answer as rows."""
        return json.loads(self.ctl(what, "--json").stdout)

    def stats(self) -> dict:
        return {r["name"]: r["value"] for r in self.show("stats")}

    def ended(self, room: int) -> dict:
        """Returns the row of the history for a room that has ended."""
        def newest():
            rows = [r for r in self.show("rooms")
                    if r["room"] == room and r.get("ended")]
            return rows[-1] if rows else None
        return eventually(newest, f"room {room} in {self.name}'s history")

    def free(self) -> "tuple[int, int]":
        """Returns (free, all) blocks of all pools."""
        rows = self.show("pools")
        return (sum(r["free"] for r in rows), sum(r["blocks"] for r in rows))

    def all_free(self, limit: float = LIMIT) -> None:
        eventually(lambda: len(set(self.free())) == 1,
                   f"{self.name}: all blocks free, have {self.free()}", limit)

    def rss_kib(self) -> int:
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(w.split()[1]) for w in f if w.startswith("VmRSS"))

    def fds(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except PermissionError:  # also to its own user
            raise unittest.SkipTest("needs root to count a daemon's "
                                    "descriptors") from None

    def cpu_ticks(self) -> int:
        with open(f"/proc/{self.pid}/stat") as f:
            words = f.read().rsplit(")", 1)[1].split()
        return int(words[11]) + int(words[12])


class Remote:
    """An Engine, or another kind of one, in a process of its own."""

    def __init__(self, kind=Engine, **how):
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, inspect.getfile(kind)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._send(how)
        self._result()

    def _send(self, value) -> None:
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def _result(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the engine's process has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["trace"])
        return answer["ok"]

    def __getattr__(self, do: str):
        def call(*args, **more):
            names = getattr(self.kind, do).__code__.co_varnames[1:]
            self._send({"do": do, **dict(zip(names, args)), **more})
            return self._result()
        return call

    def begin(self, do: str, **how) -> None:
        """Begins a call without waiting for its end."""
        self._send({"do": do, **how})

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def keygen(path: str) -> str:
    """Writes a new fleet key to this path."""
    subprocess.run([os.path.join(BUILD, "mmxctl"), "keygen", path],
                   check=True, capture_output=True, timeout=LIMIT)
    return path


class World:
    def __init__(self, insecure=False):
        # The outer folder also has the sockets for orders, beside `w`.
        around = tempfile.mkdtemp(prefix="mmx-e2e-")
        os.chmod(around, 0o711)
        self.dir = os.path.join(around, "w")
        os.mkdir(self.dir, 0o700)
        self.daemons, self.engines = [], []
        self.logs = ""
        self.insecure = insecure  # daemons that are started now have no key
        self.key = os.path.join(self.dir, "fleet.key")

    def trusting(self, conf: dict) -> dict:
        """Returns the configuration with this world's key, or without one, and
        with this machine's devices."""
        if OVER and conf.get("transfer", {}).get("carrier") == "ucx":
            device = OVER[2 if "peers" in conf else 1]
            conf = merged({"transfer": {"tls": OVER[0], "devices": device}},
                          conf)
        if self.insecure:
            return merged({"insecure": True}, conf)
        if conf.get("transfer", {}).get("carrier") == "ucx":
            conf = merged({"transfer": {"trusted_network": True}}, conf)
        if conf.get("insecure") or "keys" in conf.get("control", {}):
            return conf
        if not os.path.exists(self.key):
            keygen(self.key)
        return merged({"control": {"keys": [self.key]}}, conf)

    def encoded(self, name="enc0", fields=SMALL, blocks=64, block_rows=128,
                start=True, **conf) -> Daemon:
        port = free_port()
        base = {"name": name, "socket": {"path": f"{self.dir}/{name}.sock"},
                "control": {"listen": f"tcp://127.0.0.1:{port}"},
                "timeouts": {"drain": "1s"},
                "pools": [{"name": "vit", "blocks": blocks,
                           "block_rows": block_rows, "layout": fields}],
                **TRANSFER}
        d = Daemon(self, "encoded", name, self.trusting(merged(base, conf)))
        d.address = f"tcp://127.0.0.1:{port}"
        self.daemons.append(d)
        return d.start() if start else d

    def langd(self, encoders, name="lang0", fields=SMALL, blocks=64,
              block_rows=128, default_blocks=8, start=True, **conf) -> Daemon:
        base = {"name": name, "socket": {"path": f"{self.dir}/{name}.sock"},
                # Encoders may start slowly on a slow machine.
                "timeouts": {"drain": "1s", "unreachable": "60s"},
                "pools": [{"name": "vit", "blocks": blocks,
                           "block_rows": block_rows, "layout": fields,
                           "default_blocks": default_blocks}],
                "peers": [{"name": e.name, "address": e.address}
                          for e in encoders],
                **TRANSFER}
        d = Daemon(self, "langd", name, self.trusting(merged(base, conf)))
        self.daemons.append(d)
        return d.start() if start else d

    def engine(self, daemon: Daemon, name="", **more) -> Engine:
        e = Engine(daemon.role, daemon.socket,
                   name or f"engine{len(self.engines)}", **more)
        self.engines.append(e)
        return e

    def process(self, daemon: Daemon, name="", **more) -> Remote:
        e = Remote(role=daemon.role, socket=daemon.socket,
                   name=name or f"engine{len(self.engines)}", **more)
        self.engines.append(e)
        return e

    def all_free(self) -> None:
        for d in self.daemons:
            if d.process and d.alive():
                d.all_free()

    def end_engines(self) -> None:
        for e in self.engines:
            if isinstance(e, Remote):
                e.end()
            else:
                e.close()
        self.engines.clear()

    def close(self) -> "list[str]":
        """Ends everything; returns what was wrong with the daemons at their
        end."""
        wrong = []
        self.end_engines()
        for d in self.daemons:
            if not d.process:
                continue
            if not d.alive() and not d.killed and d.process.returncode:
                wrong.append(f"{d.name} ended with {d.process.returncode}")
            try:
                code = d.stop()
                if code and not d.killed and not wrong:
                    wrong.append(f"{d.name}: exit {code} after SIGTERM")
            except AssertionError as e:
                wrong.append(str(e))
            self.logs += f"--- {d.name}\n{d.tail()}"
        shutil.rmtree(os.path.dirname(self.dir), ignore_errors=True)
        return wrong


class Case(unittest.TestCase):
    """A test with a world. At its end every block is free on every side:
    before the engines end if the test released everything (released = True),
    and always after they have ended."""

    released = True
    insecure = False  # daemons without a key, for peers that are made by hand
    broken = False  # the test has failed: what its end shows proves nothing

    def setUp(self):
        self.ids_used = {}  # ids of rooms, by encode engine
        self.world = World(self.insecure)
        self.addCleanup(self._close)

    def tearDown(self):
        if self.broken:
            return
        if self.released:
            self.world.all_free()
        self.world.end_engines()
        self.world.all_free()

    def _close(self):
        wrong = self.world.close()
        if wrong:
            raise AssertionError("; ".join(wrong))

    def pair(self, encoded=None, langd=None, **both):
        """Starts one daemon of each side; returns (encoded, langd)."""
        e = self.world.encoded(**{**both, **(encoded or {})})
        return e, self.world.langd([e], **{**both, **(langd or {})})

    def at_work(self, **how):
        """Starts a pair with an engine of each side; returns (encoded, langd,
        enc, lm)."""
        e, d = self.pair(**how)
        return e, d, *self.engines(e, d)

    def joined(self, langd):
        """Waits until langd has opened all that it opens for its encoder: for
        a test that counts descriptors."""
        eventually(lambda: langd.show("peers")[0]["path"] == "copy",
                   "pools are mapped")

    def engines(self, encoded, langd):
        """Returns one engine of each side, inside this process."""
        return self.world.engine(encoded), self.world.engine(langd)

    def good(self, engine, room, first=0, end=None):
        """Checks that the rows are those of this room, byte for byte."""
        self.assertEqual(engine.wrong(room, first, end), [])

    def halfway(self, enc, lm, room=1):
        """Opens a room of 2,000 rows of which 640 have arrived."""
        lm.request(room, "enc0", mode="stream")
        enc.opens(room, 2000, 2000)
        enc.write(room, 0, 640)
        enc.commit(room, 0, 640)
        lm.rows(room, 640)

    def deliver(self, enc, lm, room, rows, encoder="enc0", aux="grid"):
        """Takes a room through its whole life, and checks it. Its id must be
        new to the encoder: a request that comes before the announce would find
        the end of the older room."""
        rooms = self.ids_used.setdefault(enc, set())
        self.assertNotIn(room, rooms)
        rooms.add(room)
        lm.request(room, encoder)
        enc.encode(room, rows, aux=aux)
        self.assertEqual(lm.ready(room), rows)
        self.assertEqual(lm.aux(room), aux)
        self.good(lm, room)
        self.over(enc, lm, room)

    def over(self, enc, lm, room=1):
        """Waits until encoded has served the room; both sides release it."""
        self.assertEqual(enc.done(room), [1, 0])
        lm.release(room)
        enc.release(room)

    def comes(self, enc, lm, room, rows):
        """Waits until langd has all rows of the room; both sides release
        it."""
        self.assertEqual(lm.ready(room), rows)
        self.good(lm, room)
        self.over(enc, lm, room)

    def refusal(self, reason, call, *args, **more):
        """Checks that the call is refused with this reason; returns the
        error."""
        with self.assertRaises(mmx.MmxError) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.reason, reason, caught.exception)
        return caught.exception
