#!/usr/bin/env python3
"""hosts.py - rows between two hosts by UCX: bytes, bandwidth, time of a small
room, kills. scripts/rdma-suite runs it; needs numpy.

  test/rdma/hosts.py --build DIR --listen tcp://ADDRESS:PORT --tls T
      --devices D[,THEIRS] [--there "ssh HOST"] [--mib N] [--kills N]

Runs mmx-langd and a language engine here, and starts itself, by --there, as
the other side, mmx-encoded and an encode engine: with `--play encoded`, in the
same folder, where this tree is built. The key goes to it on its standard
input, which no list of processes shows; its end is the end of that side.
Prints a JSON object a line, as suite.py reads them."""

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "lib/client/python"))

import mmx  # noqa: E402
import numpy as np  # noqa: E402
from mmx.demo import Stage  # noqa: E402

ELEMENTS, BLOCK = 8192, 128  # 16 KiB a row
ROOMS = 4  # at once
SMALL = 300
LIMIT, SEEN = 60, 6  # seconds: of a step; within which a killed peer is known


def rows_of(room, rows):
    """What the rows of a room are: no two rows of it, and no two of the rooms
    that are open together, are alike."""
    first = np.arange(rows, dtype=np.uint16) * np.uint16(257) + \
        np.uint16(room * 7919 % 65536)
    return first[:, None] + np.arange(ELEMENTS, dtype=np.uint16) * np.uint16(3)


class Side(Stage):
    """One daemon and its engine."""

    def __init__(self, args, role, *settings):
        super().__init__(argparse.Namespace(
            programs=os.path.abspath(args.build), memory="host", keep=False))
        self.rows = args.mib * 64
        tls, devices = args.tls, args.devices.split("/")
        self.role, self.settings = role, (
            f"pools[0].layout=embedding:bf16:{ELEMENTS}",
            f"pools[0].block_rows={BLOCK}",
            f"pools[0].blocks={(ROOMS + 1) * (self.rows // BLOCK + 1)}",
            "transfer.carrier=ucx", f"transfer.tls={tls}",
            f"transfer.devices={devices[-1 if role == 'encoded' else 0]}",
            "transfer.same_host=off", "transfer.trusted_network=true",
            *settings)

    def begin(self):
        self.daemon(self.role, *self.settings)
        self.conn = mmx.connect(self.role, f"{self.dir}/{self.role}.sock")
        self.pool = self.conn.pool()


class Encoded(Side):
    """Does what is said on standard input, a line each, and answers each."""

    def serve(self):
        self.open = {}
        for line in sys.stdin:
            what, *numbers = line.split()
            print(getattr(self, what)(*map(int, numbers)), flush=True)

    def write(self, room, rooms):
        """Opens `rooms` rooms and writes all their rows; commits none of
        them."""
        for n in range(room, room + rooms):
            source = self.conn.announce(n, self.pool, self.rows, self.rows)
            source.wait_granted(LIMIT)
            source["embedding"][0:self.rows] = rows_of(n, self.rows)
            self.open[n] = source
        return "written"

    def commit(self, room, rooms):
        for n in range(room, room + rooms):
            self.open[n].commit(0, self.rows, final=True)
        return "committed"

    def small(self, room, rooms):
        """Rooms of one row, one after another: microseconds from the commit
        until langd's acknowledgement is here, the median."""
        took = []
        for n in range(room, room + rooms):
            source = self.conn.announce(n, self.pool, 1, 1)
            source.wait_granted(LIMIT)
            source["embedding"][0:1] = rows_of(n, 1)
            began = time.perf_counter()
            source.commit(0, 1, final=True)
            source.wait_done(LIMIT)
            took.append((time.perf_counter() - began) * 1e6)
            source.release()
        return f"{statistics.median(took):.1f}"

    def kill(self, after_us):
        time.sleep(after_us / 1e6)
        self.processes[self.role].kill()
        self.processes[self.role].wait()
        self.conn.close()
        self.open.clear()
        self.begin()
        return "restarted"

    def path(self):
        row = self.ctl("encoded", "peers")[0]
        return f"{row['carrier']}, {row['transport']}"

    def forget(self, room, rooms):
        """As done(), where the rooms may have failed."""
        for n in range(room, room + rooms):
            self.open.pop(n).release(force=True)
        return "forgotten"

    def done(self, room, rooms):
        for n in range(room, room + rooms):
            self.open.pop(n).wait_done(LIMIT).release()
        return "released"


class Langd(Side):
    def __init__(self, args):
        super().__init__(args, "langd", "peers[0].name=encoded-0",
                         f"peers[0].address={args.listen}")
        self.of, self.room = args, 1

    def begin(self):
        super().begin()
        words = [sys.executable, os.path.abspath(__file__),
                 *sys.argv[1:], "--play", "encoded"]
        if self.of.there:
            words = [*shlex.split(self.of.there), shlex.join(words)]
        self.there = subprocess.Popen(words, text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
        with open(f"{self.dir}/fleet.key") as f:
            key = f.read().split()
        self.say(" ".join(key))
        self.heard()

    def say(self, *words):
        print(*words, file=self.there.stdin, flush=True)

    def heard(self):
        line = self.there.stdout.readline()
        if not line:
            raise SystemExit("hosts: the other side has ended")
        return line.strip()

    def asked(self, *words):
        self.say(*words)
        return self.heard()

    def ask(self, rooms, rows):
        first, self.room = self.room, self.room + rooms
        return first, [
            self.conn.request(n, self.pool, "encoded-0", rows=rows)
            for n in range(first, first + rooms)]

    def right(self, room, rows):
        want = rows_of(room.room, rows)
        return bool((room.gather("embedding", 0, rows) == want).all())

    def stream(self):
        """Returns (seconds from the word to commit until all have come,
        whether each byte is right)."""
        first, rooms = self.ask(ROOMS, self.rows)
        self.asked("write", first, ROOMS)
        began = time.perf_counter()
        self.say("commit", first, ROOMS)
        for room in rooms:
            room.wait_ready(LIMIT)
        took = time.perf_counter() - began
        self.heard()
        right = all([self.right(room, self.rows) for room in rooms])
        for room in rooms:
            room.release()
        self.asked("done", first, ROOMS)
        return took, right

    def killed(self, after_us):
        """Kills the encoder's daemon so long after the commits; see over()."""
        first, rooms = self.ask(ROOMS, self.rows)
        self.asked("write", first, ROOMS)
        # A room that encoded has not heard of would wait for its next run.
        self.conn.wait(lambda: all(r.total is not None for r in rooms), LIMIT)
        self.asked("commit", first, ROOMS)
        self.say("kill", after_us)
        end = self.over(rooms)
        self.heard()
        return end

    def over(self, rooms):
        """Waits until the rooms have come or failed. Returns (rooms whose bytes
        are wrong, seconds that it took)."""
        began, wrong = time.perf_counter(), 0
        for room in rooms:
            try:
                room.wait_ready(LIMIT)
                wrong += not self.right(room, self.rows)
            except mmx.MmxError:
                pass
        took = time.perf_counter() - began
        for room in rooms:
            room.release(force=True)
        return wrong, took

    def cut(self):
        """Breaks the link by --cut as rows are committed, and goes on when the
        command has ended; see over()."""
        first, rooms = self.ask(ROOMS, self.rows)
        self.asked("write", first, ROOMS)
        breaks = subprocess.Popen(self.of.cut, shell=True)
        self.asked("commit", first, ROOMS)
        end = self.over(rooms)
        breaks.wait(LIMIT)
        self.say("forget", first, ROOMS)
        self.heard()
        return end

    def play(self):
        runs = [self.stream() for _ in range(9)]
        path = self.asked("path")
        line("path", path, passed="ucx" in path)
        line("bytes", f"{sum(r for _, r in runs)} of {len(runs)} rounds right",
             passed=all(r for _, r in runs))
        size = ROOMS * self.rows * ELEMENTS * 2
        line("bandwidth", size / statistics.median(t for t, _ in runs) / 1e9,
             unit="GB/s", note=f"{ROOMS} rooms of {self.of.mib} MiB at once")
        first, rooms = self.ask(SMALL, 1)
        self.say("small", first, SMALL)
        for room in rooms:
            room.wait_ready(LIMIT)
            room.release()
        line("small room, commit to acknowledgement", float(self.heard()),
             unit="us", note="the encode engine's median")
        spread = int(1e6 * statistics.median(t for t, _ in runs))
        ends = [self.killed(spread * i // max(1, self.of.kills))
                for i in range(self.of.kills)]
        took, right = self.stream()
        wrong, late = sum(w for w, _ in ends), max([t for _, t in ends] + [0])
        line(f"{self.of.kills} kills of encoded", f"{wrong} rooms wrong, the "
             f"last known after {late:.1f} s", note=f"then {took:.2f} s",
             passed=not wrong and right and late < SEEN)
        if self.of.cuts:
            self.cuts()

    def cuts(self):
        ends = [self.cut() for _ in range(self.of.cuts)]
        took, right = self.stream()
        wrong, late = sum(w for w, _ in ends), max(t for _, t in ends)
        line(f"{self.of.cuts} cuts of the link", f"{wrong} rooms wrong, the "
             f"last known after {late:.1f} s", note=f"then {took:.2f} s",
             passed=not wrong and right)

    def close(self):
        if hasattr(self, "there"):
            self.there.stdin.close()
            try:
                self.there.wait(LIMIT)
            except subprocess.TimeoutExpired:
                self.there.kill()
        super().close()


def line(what, value, **more):
    print(json.dumps({"what": f"two hosts: {what}", "value": value, **more}),
          flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", default=os.path.join(ROOT, "build"))
    p.add_argument("--listen", required=True, help="where encoded listens")
    p.add_argument("--tls", required=True)
    p.add_argument("--devices", required=True,
                   help="langd's, then / and encoded's where they differ")
    p.add_argument("--there", help="runs a command on the other host")
    p.add_argument("--mib", type=int, default=128, help="of a room")
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--cut", help="a command that breaks the link for a while")
    p.add_argument("--cuts", type=int, default=0)
    p.add_argument("--play", choices=("encoded",))
    args = p.parse_args()
    if args.play:
        side = Encoded(args, "encoded", f"control.listen={args.listen}",
                       "name=encoded-0")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C: the end of input
        fd = os.open(f"{side.dir}/fleet.key", os.O_WRONLY | os.O_CREAT, 0o600)
        with open(fd, "w") as f:
            f.write("\n".join(sys.stdin.readline().split()) + "\n")
    else:
        side = Langd(args)
    try:
        side.begin()
        if args.play:
            print("up", flush=True)
            side.serve()
        else:
            side.play()
    except BaseException:
        with contextlib.redirect_stdout(sys.stderr):  # of two processes
            side.logs()
        raise
    finally:
        side.close()


if __name__ == "__main__":
    main()
