"""mmxctl and strange daemons: refusals and reports with control characters,
and a daemon whose report never ends."""

import collections
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time

from engine import LIMIT
from pair import BUILD, Case, eventually
import wire

MMXCTL = os.path.join(BUILD, "mmxctl")
RED = "\x1b[31mred\a"
CONTROL = r"[\x00-\x09\x0b-\x1f]"
WELCOME = wire.WELCOME.encode(
    1, version=1, role=2, cells=1, name="strange")


def cell(name, value):
    """Returns a cell of a row, as a report has it."""
    head = bytes([len(name)]) + name.encode()
    if isinstance(value, int):
        return b"\3" + head + value.to_bytes(8, "little")
    text = value.encode(errors="surrogateescape")
    return b"\2" + head + len(text).to_bytes(4, "little") + text


def row(**cells):
    return b"\1" + b"".join(cell(k, v) for k, v in cells.items())


class Strange(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name

    def daemon(self, answer):
        """Listens on a socket; answers each query with answer(frame), or does
        not answer if that is None."""
        path = os.path.join(self.dir, "strange.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen()

        def talk(s):
            with s, contextlib.suppress(OSError):
                while packet := s.recv(wire.PACKET_MAX):
                    for frame in wire.frames(packet):
                        said = WELCOME if frame.message is wire.HELLO \
                            else answer(frame)
                        if said is not None:
                            s.send(said)

        def serve():
            while True:
                try:
                    s, _ = listener.accept()
                except OSError:
                    return  # the test has ended
                threading.Thread(target=talk, args=(s,), daemon=True).start()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        self.addCleanup(listener.close)
        self.addCleanup(thread.join, LIMIT)
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)
        return path

    def ctl(self, *words):
        return subprocess.run([MMXCTL, *words], capture_output=True,
                              text=True, timeout=LIMIT)

    def said(self, path, *words):
        """Returns mmxctl's output, or "" if health said that no answer came in
        a second, on a slow machine."""
        got = self.ctl("--socket", path, *words)
        return "" if "within a second" in got.stdout \
            else got.stdout + got.stderr

    def test_a_refusal_with_control_characters(self):
        path = self.daemon(lambda frame: wire.REPORT.encode(
            frame.seq, err=9, text=RED.encode()))
        for what in (("pools",), ("health",), ("trace",), ("top",),
                     ("drain",), ("doctor",)):
            said = eventually(lambda w=what: self.said(path, *w), what)
            if what != ("doctor",):  # has words of its own
                self.assertIn("31mred", said)
            self.assertNotRegex(said, CONTROL, what)

    def test_a_daemon_that_does_not_answer(self):
        """The daemon has refused nothing, and may still carry out the order."""
        drains = row(name="strange", state="draining", rooms_open=1)
        path = self.daemon(lambda frame: wire.REPORT.encode(
            frame.seq, text=drains) if frame.values["what"] == "drain"
            else None)
        waits = [subprocess.Popen(
            [MMXCTL, "--socket", path, *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
            for words in (("reload",), ("drain", "--wait", "60"))]
        for process in waits:
            with process:
                said = process.communicate(timeout=LIMIT)[1]
            self.assertEqual(
                (process.returncode, said),
                (2, "mmxctl: the daemon has not answered in 10 s\n"))

    def test_json_of_any_text(self):
        def answer(frame):
            some = row(name='a"\\\n\x1b\udcff\u00e4', n=2**64 - 1) + row(n=7)
            return wire.REPORT.encode(frame.seq, text=b"" if frame.values[
                "what"] == "peers" else some)
        path = self.daemon(answer)
        got = self.ctl("--socket", path, "--json", "pools")
        self.assertEqual(json.loads(got.stdout), [
            {"name": 'a"\\\n\x1b?\u00e4', "n": 2**64 - 1}, {"n": 7}])
        got = self.ctl("--socket", path, "--json", "peers")
        self.assertEqual(got.stdout, "[]\n")

    def test_a_daemon_that_never_rests(self):
        """A trace ends with what had happened when mmxctl asked."""
        number = 0

        def answer(frame):
            nonlocal number
            number += 1
            return wire.REPORT.encode(frame.seq, text=row(
                what="draining", number=number, ns=time.monotonic_ns()))
        got = self.ctl("--socket", self.daemon(answer), "trace")
        self.assertEqual(got.returncode, 0)
        self.assertIn("draining", got.stdout)

    def test_happenings_with_control_characters(self):
        """Some texts of a trace come from other daemons."""
        path = self.daemon(lambda frame: wire.REPORT.encode(
            frame.seq, text=row(what="got", number=0, ns=1 << 62, room=1,
                                message="init", peer=f'"{RED}')))
        got = self.ctl("--socket", path, "trace")
        self.assertIn("31mred", got.stdout)
        self.assertNotRegex(got.stdout, CONTROL)

    def test_a_bad_command_line(self):
        """One line says what is wrong; all of --help would hide it."""
        for words, why in ((("--watch", "x", "pools"), "whole seconds"),
                           (("--watch", "1", "drain"), "--watch goes with"),
                           (("pools", "vit"), "no more words"),
                           (("conf-diff", "FILE"), "no more words"),
                           (("reload", "FILE"), "no more words"),
                           (("drain", "now"), "no more words"),
                           (("foo",), "no such word"),
                           (("keygen",), "keygen takes one FILE"),
                           (("keygen", "a", "b"), "keygen takes one FILE"),
                           (("--live", "rooms"), "--live goes with"),
                           (("--live",), "--live goes with"),
                           (("trace", "--wait", "3"), "--wait goes with"),
                           (("--wait", "3"), "--wait goes with"),
                           (("rooms", "--config", "x"), "--config goes with"),
                           (("trace", "vit"), "number of a room"),
                           (("trace", "1", "2"), "number of a room"),
                           (("--watch", "1", "trace"), "--watch goes with"),
                           (("--nix", "pools"), "'--nix'")):
            got = self.ctl(*words)
            self.assertEqual((got.returncode, got.stdout), (64, ""), words)
            self.assertIn(why, got.stderr)
            self.assertIn("; mmxctl --help says", got.stderr)
            self.assertLessEqual(len(got.stderr.splitlines()), 2)

    def test_a_path_of_many_letters(self):
        got = self.ctl("--socket", "/" + "a" * 100000, "--json", "health")
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertEqual(json.loads(got.stdout)[0]["live"], 0)

    def test_many_pools_and_peers(self):
        """top has all pools and peers; the busiest come first."""
        rounds = collections.Counter()

        def answer(frame):
            what = frame.values["what"]
            rounds[what] += 1
            names = {"pools": "pool", "peers": "name"}
            if what not in names:
                return wire.REPORT.encode(frame.seq, text=row(name="strange"))
            rows = [row(peer=i, number=i,
                        rooms_moved=rounds[what] * i * 1000,
                        **{names[what]: f"{what}-{i:03}"}) for i in range(300)]
            return wire.REPORT.encode(frame.seq, text=b"".join(rows))
        path = self.daemon(answer)
        said = self.ctl("--socket", path, "top").stdout
        for what in ("pools", "peers"):
            shown = re.findall(f"^{what}-(\\d+) ", said, re.M)
            self.assertEqual(shown, [f"{i:03}" for i in range(299, -1, -1)])

    def test_figures_that_do_not_fit(self):
        """A pool has more free blocks than blocks, and a row has no name."""
        odd = row(pool="vit", blocks=5, free=2**64 - 1, waiting_rooms=1)
        path = self.daemon(lambda frame: wire.REPORT.encode(
            frame.seq, text=odd))
        got = self.ctl("--socket", path, "top")
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertIn("vit", got.stdout)
        for what in ("drain", "health", "pools", "trace"):
            got = self.ctl("--socket", path, what)
            self.assertGreaterEqual(got.returncode, 0, got.stderr)
