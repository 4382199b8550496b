"""Sequence ids: one engine, many processes, engines that die. No two requests
share an id, and no request waits for ever."""

import os
import subprocess
import sys
import time

from engine import LIMIT
from pair import HERE, Case, eventually
from test_reload import reload

import mmx


def work(socket: str, session: str, ids: int) -> None:
    """A process of an engine that has a space of ids, until it is killed."""
    with mmx.connect("langd", socket, session=session) as conn:
        conn.space("ctx", ids)
        print("ready", flush=True)
        sys.stdin.readline()


class Worker:
    def __init__(self, *args):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "test_tickets.py"),
             *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.path.dirname(
                os.path.dirname(mmx.__file__))})

    def line(self) -> str:
        return self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Tickets(Case):
    def langd(self, **conf):
        encoder = self.world.encoded(start=False)
        return self.world.langd([encoder], **conf)

    def connect(self, daemon, session="s", **more):
        conn = mmx.connect("langd", daemon.socket, session=session, **more)
        self.addCleanup(conn.close)
        return conn

    def heard(self, conn):
        """Returns the tickets of the next events, in order."""
        while True:
            got = [e.ticket for e in conn.step() if e.ticket]
            if got:
                return got
            self.assertTrue(mmx.wait_any([conn], LIMIT), "no event")

    def rows(self, daemon, **want):
        return [r for r in daemon.show("sequences")
                if all(r.get(k) == v for k, v in want.items())]


class One(Tickets):
    def test_acquire_and_release(self):
        d = self.langd()
        conn = self.connect(d)
        space = conn.space("ctx", 4)
        self.assertIs(conn.space("ctx", 4), space)
        with space.acquire("a") as t:
            self.assertEqual(t.seq, 0)
            self.assertFalse(t.pending)
            again = space.acquire("a")
            self.assertIs(again, t)
            self.assertEqual(space.query("a"), (t.seq, t.generation))
            # Another process of the session attaches to it, and has the same
            # id.
            other = self.connect(d).space("ctx", 4)
            self.assertEqual(other.query("a"), (t.seq, t.generation))
            self.assertEqual(other.acquire("a").seq, 0)
            self.assertEqual(len(self.rows(d, request="a")), 1)
        self.assertIsNone(space.query("a"))
        t.release()  # a second release does nothing
        self.assertEqual([e for e in conn.step() if e.ticket], [])
        # The id that has been free the longest comes first: 0 was released
        # last.
        self.assertEqual([space.acquire(r).seq for r in "bcde"], [1, 2, 3, 0])

    def test_pending_is_pushed(self):
        conn = self.connect(self.langd())
        space = conn.space("ctx", 2)
        a, b = space.acquire("a"), space.acquire("b")
        c, d = space.ask("c"), space.ask("d")
        space.query("d")  # its answer comes after theirs
        conn.step()
        self.assertTrue(c.pending and d.pending)
        self.assertIsNone(c.seq)
        self.assertEqual(space.query("c"), (None, 0))
        seq = b.seq
        b.release()
        self.assertEqual(self.heard(conn), [c])
        self.assertEqual(c.seq, seq)
        self.assertTrue(d.pending)
        a.release()
        self.assertEqual(self.heard(conn), [d])


class Ends(Tickets):
    def test_timeout_in_line(self):
        d = self.langd(timeouts={"total": "10m"})
        conn = self.connect(d)
        space = conn.space("ctx", 1)
        a = space.acquire("a")
        began = time.monotonic()
        self.refusal("timeout", space.acquire, "b", 0.05)
        self.assertLess(time.monotonic() - began, LIMIT)
        reload(d, timeouts={"total": "200ms"})
        self.refusal("timeout", space.acquire, "b")  # as configured
        self.assertIsNone(space.query("b"))
        self.assertEqual(space.query("a"), (0, a.generation))
        a.release()
        self.assertEqual(space.acquire("b", LIMIT).seq, 0)

    def test_lease(self):
        conn = self.connect(self.langd())
        space = conn.space("ctx", 1)
        a = space.acquire("a", hold=0.1)
        b = space.acquire("b", LIMIT)
        self.assertEqual(b.seq, 0)
        self.assertIsNone(a.seq)
        self.assertEqual(a.error.reason, "timeout")
        self.assertEqual(self.heard(conn), [a])
        a.release()
        self.assertEqual(space.query("b"), (0, b.generation))

    def test_room_that_fails(self):
        lm = self.world.engine(self.langd())
        space = lm.conn.space("ctx", 1)
        lm.request(7, "enc0")
        a = space.acquire("a", room=lm.rooms[7])
        b = space.ask("b")
        lm.abort(7)
        self.assertEqual(b.wait(LIMIT).seq, a.seq or 0)
        self.assertEqual(a.error.reason, "aborted")
        room = lm.rooms[7]
        lm.release(7)
        self.refusal("stale", space.acquire, "c", room=room)

    def test_killed_engine(self):
        """The ids of a killed engine are free when its session ends, not
        before."""
        d = self.langd()
        watcher = self.connect(d, "watcher")
        watcher.space("ctx", 2)
        rest = self.connect(d, "engine")
        space = rest.space("ctx", 2)
        p = Worker(d.socket, "engine", 2)
        self.addCleanup(p.end)
        self.assertEqual(p.line(), "ready\n")
        mine = space.acquire("mine")
        p.end()
        self.assertEqual(space.query("mine"), (0, mine.generation))
        self.assertEqual(len(self.rows(d, name="ctx")), 2)
        rest.close()
        eventually(lambda: len(self.rows(d, name="ctx")) == 1,
                   "the session's space is gone")
        self.assertEqual(self.rows(d, request="mine"), [])
        again = self.connect(d, "engine").space("ctx", 1)
        self.assertEqual(again.acquire("new").seq, 0)


class Shown(Tickets):
    def test_mmxctl(self):
        d = self.langd()
        conn = self.connect(d)
        space = conn.space("ctx-0", 2)
        for r in "abc":
            space.ask(r)
        self.assertIsNone(space.query("z"))
        text = d.ctl("sequences").stdout
        for word in ("ctx-0", "n_seq_max", "waiting"):
            self.assertIn(word, text)
        row, = self.rows(d, name="ctx-0")
        self.assertEqual((row["n_seq_max"], row["held"], row["idle"],
                          row["waiting"]), (2, 2, 0, 1))
        self.assertEqual([(r["request"], r["state"], r.get("seq"))
                          for r in d.show("sequences") if "request" in r],
                         [("a", "held", 0), ("b", "held", 1),
                          ("c", "waiting", None)])
        self.assertEqual(conn.query("sequences"), d.show("sequences"))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
