"""Sequence ids: one engine, many processes and threads, engines that die,
and the seed's list: an id is never shared, nobody waits for ever, nobody is
given a negative one."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

from engine import LIMIT
from pair import BUILD, HERE, Case, eventually
from test_reload import reload

import mmx
from mmx import errors


def work(socket: str, session: str, ids: int, count: int) -> None:
    """A process of an engine: on a line of its own input it begins; tells
    who held what when."""
    with mmx.connect("langd", socket, session=session) as conn:
        space = conn.space("ctx", ids)
        print("ready", flush=True)
        sys.stdin.readline()
        held = []
        for i in range(count):
            with space.acquire(f"{os.getpid()}-{i}", timeout=LIMIT) as t:
                held.append([t.seq, t.generation, time.monotonic_ns(), 0])
                held[-1][3] = time.monotonic_ns()
        print(json.dumps(held), flush=True)
        sys.stdin.readline()  # keeps the session until all have ended


class Worker:
    def __init__(self, *args):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "test_tickets.py"),
             *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.path.dirname(
                os.path.dirname(mmx.__file__))})

    def line(self) -> str:
        return self.process.stdout.readline()

    def go(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

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
        """The tickets of the next events, in order."""
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
            # Another process of the session sees it, and has the same id.
            other = self.connect(d).space("ctx", 4)
            self.assertEqual(other.query("a"), (t.seq, t.generation))
            self.assertEqual(other.acquire("a").seq, 0)
            self.assertEqual(len(self.rows(d, request="a")), 1)
        self.assertIsNone(space.query("a"))
        t.release()  # once more does nothing
        self.assertEqual([e for e in conn.step() if e.ticket], [])
        # Longest idle first: 0 was given back last.
        self.assertEqual([space.acquire(r).seq for r in "bcde"], [1, 2, 3, 0])

    def test_pending_is_pushed(self):
        conn = self.connect(self.langd())
        space = conn.space("ctx", 2)
        a, b = space.acquire("a"), space.acquire("b")
        c, d = space.ask("c"), space.ask("d")
        conn.wait(lambda: c._asks == d._asks == 0, LIMIT)
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

    def test_place_in_line_is_given_up(self):
        conn = self.connect(self.langd())
        space = conn.space("ctx", 1)
        a, b, c = space.acquire("a"), space.ask("b"), space.ask("c")
        b.release()
        a.release()
        self.assertIs(c.wait(LIMIT), c)
        # The turn comes while the release is on its way.
        d = space.ask("d")
        c.release()
        d.release()
        self.assertEqual(space.acquire("e", LIMIT).seq, 0)

    def test_late_release(self):
        conn = self.connect(self.langd())
        space = conn.space("ctx", 1)
        old = space.acquire("a")
        generation = old.generation
        old.release()
        new = space.acquire("a")
        self.assertGreater(new.generation, generation)
        with self.assertRaises(errors.Stale):
            conn.wait(space.release("a", generation), LIMIT)
        self.assertEqual(space.query("a"), (0, new.generation))
        conn.wait(space.release("a", new.generation), LIMIT)
        self.assertTrue(new.released)
        with space.acquire("b") as b:
            with self.assertRaises(errors.UnknownRoom):
                conn.wait(space.release("a", new.generation), LIMIT)
            self.assertEqual(space.query("b"), (0, b.generation))

    def test_caps(self):
        d = self.langd(limits={"sequences": 4, "sequence_spaces": 1,
                               "sequence_requests": 3})
        conn = self.connect(d)
        self.refusal("malformed", conn.space, "ctx", 5)
        self.refusal("malformed", conn.space, "ctx", 0)
        space = conn.space("ctx", 2)
        self.refusal("malformed", conn.space, "ctx", 3)
        self.refusal("quota", conn.space, "more", 1)
        tickets = [space.ask(r) for r in "abcd"]
        self.assertEqual(tickets[0].wait(LIMIT).seq, 0)
        self.refusal("quota", tickets[3].wait, LIMIT)
        self.refusal("malformed", space.acquire, "")
        encoded = self.world.encoded("enc1")
        with mmx.connect("encoded", encoded.socket) as other:
            self.refusal("malformed", other.space, "ctx", 1)


class Ends(Tickets):
    def test_timeout_in_line(self):
        d = self.langd(timeouts={"sequence": "10m"})
        conn = self.connect(d)
        space = conn.space("ctx", 1)
        a = space.acquire("a")
        began = time.monotonic()
        self.refusal("timeout", space.acquire, "b", 0.05)
        self.assertLess(time.monotonic() - began, LIMIT)
        reload(d, timeouts={"sequence": "200ms"})
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
        lm.release(7)
        self.refusal("unknown-room", space.acquire, "c",
                     room=mmx.Room(lm.conn, 9, lm.pool, "enc0"))

    def test_killed_engine(self):
        """Its ids are free when its session ends, not before."""
        d = self.langd()
        watcher = self.connect(d, "watcher")
        watcher.space("ctx", 2)
        rest = self.connect(d, "engine")
        space = rest.space("ctx", 2)
        p = Worker(d.socket, "engine", 2, 0)
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

    def test_process_in_line_dies(self):
        """The turn of one who is gone goes to the next."""
        d = self.langd()
        conn = self.connect(d)
        space = conn.space("ctx", 1)
        a = space.acquire("a")
        p = Worker(d.socket, "s", 1, 1)
        self.addCleanup(p.end)
        self.assertEqual(p.line(), "ready\n")
        p.go()
        eventually(lambda: self.rows(d, state="waiting"), "it waits")
        b = space.ask("b")
        p.end()
        eventually(lambda: len(self.rows(d, state="waiting")) == 1, "b waits")
        a.release()
        self.assertEqual(b.wait(LIMIT).seq, 0)

    def test_daemon_lost(self):
        d = self.langd()
        conn = self.connect(d)
        space = conn.space("ctx", 1)
        a, b = space.acquire("a"), space.ask("b")
        d.kill()
        conn.wait(lambda: not conn.connected, LIMIT)
        for t in (a, b):
            self.assertEqual(t.error.reason, "daemon-lost")
            t.release()
        d.start()
        conn.wait(lambda: conn.connected, LIMIT)
        self.refusal("daemon-lost", space.acquire, "a")
        self.assertEqual(conn.space("ctx", 1).acquire("a").seq, 0)


class Many(Tickets):
    limit_s = 600

    def test_eleven_requests_on_eight_ids(self):
        """The seed's hang: the ninth never came to its turn."""
        conn = self.connect(self.langd())
        space = conn.space("ctx", 8)
        line = [space.ask(f"req-{i}") for i in range(11)]
        conn.wait(lambda: not any(t._asks for t in line), LIMIT)
        self.assertEqual(sorted(t.seq for t in line[:8]), list(range(8)))
        self.assertTrue(all(t.pending for t in line[8:]))
        for t in line:
            self.assertIn(t.wait(LIMIT).seq, range(8))
            t.release()
        self.assertEqual(space.acquire("last").seq, 3)

    def test_cycle_of_10000(self):
        d = self.langd()
        conn = self.connect(d)
        space = conn.space("ctx", 8)
        uses = [0] * 8
        line = [space.ask(f"r{i}") for i in range(16)]
        for i in range(16, 10016):
            t = line.pop(0).wait(LIMIT)
            uses[t.seq] += 1
            t.release()
            line.append(space.ask(f"r{i}"))
        for t in line:
            t.release()
        self.assertIsNone(space.query("r10015"))
        self.assertEqual(sum(uses), 10000)
        self.assertGreater(min(uses), 1000)
        row, = self.rows(d, name="ctx")
        self.assertEqual((row["held"], row["idle"], row["waiting"]),
                         (0, 8, 0))

    def test_eight_processes(self):
        d = self.langd()
        keeper = self.connect(d)
        keeper.space("ctx", 3)
        workers = [Worker(d.socket, "s", 3, 50) for _ in range(8)]
        for w in workers:
            self.addCleanup(w.end)
        for w in workers:
            self.assertEqual(w.line(), "ready\n")
        for w in workers:
            w.go()
        held = [h for w in workers for h in json.loads(w.line())]
        self.assertEqual(len(held), 400)
        for seq in range(3):
            mine = sorted((h for h in held if h[0] == seq),
                          key=lambda h: h[2])
            for a, b in zip(mine, mine[1:]):
                self.assertLessEqual(a[3], b[2])  # one after the other
                self.assertLess(a[1], b[1])
        self.assertEqual({h[0] for h in held}, {0, 1, 2})
        row, = self.rows(d, name="ctx")
        self.assertEqual((row["held"], row["idle"], row["waiting"]),
                         (0, 3, 0))

    def test_two_engines(self):
        d = self.langd()
        a = self.connect(d, "one").space("ctx", 2)
        b = self.connect(d, "two").space("ctx", 1)
        self.assertEqual([a.acquire("x").seq, a.acquire("y").seq], [0, 1])
        self.assertEqual(b.acquire("x").seq, 0)
        self.assertIsNone(b.query("y"))
        waiting = b.ask("y")
        a.conn.close()
        eventually(lambda: len(self.rows(d, name="ctx")) == 1, "one is gone")
        self.assertTrue(waiting.pending)
        b.release("x", b.query("x").generation)
        self.assertEqual(waiting.wait(LIMIT).seq, 0)

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


# --- the C library, by hand -------------------------------------------------
class Opt(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("role", ctypes.c_int),
                ("socket", ctypes.c_char_p), ("engine", ctypes.c_char_p),
                ("session", ctypes.c_char_p), ("cells", ctypes.c_uint32),
                ("timeout_ms", ctypes.c_int), ("why", ctypes.c_char_p),
                ("why_size", ctypes.c_size_t)]


class Ask(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("space", ctypes.c_int),
                ("request", ctypes.c_char_p), ("wait_ms", ctypes.c_uint32),
                ("hold_ms", ctypes.c_uint32), ("room", ctypes.c_uint32 * 2),
                ("user", ctypes.c_void_p)]


class Seq(ctypes.Structure):
    _fields_ = [("held", ctypes.c_int), ("id", ctypes.c_uint32),
                ("generation", ctypes.c_uint32)]


class Threads(Tickets):
    def test_eight_threads_on_one_handle(self):
        d = self.langd()
        lib = ctypes.CDLL(os.path.join(BUILD, "libmmx.so.0"))
        m = ctypes.c_void_p()
        opt = Opt(size=ctypes.sizeof(Opt), role=2, socket=d.socket.encode(),
                  session=b"s", timeout_ms=10000)
        self.assertEqual(lib.mmx_open(ctypes.byref(opt), ctypes.byref(m)), 0)
        self.addCleanup(lib.mmx_close, ctypes.byref(m))
        space = lib.mmx_space(m, b"ctx", 3, 10000)
        self.assertEqual(space, 0)
        holders, wrong, done = [0] * 3, [], []

        def run(n):
            for i in range(100):
                name = f"{n}-{i}".encode()
                ask = Ask(size=ctypes.sizeof(Ask), space=space, request=name)
                seq = Seq()
                err = lib.mmx_ticket(m, ctypes.byref(ask)) \
                    or lib.mmx_ticket_wait(m, space, name, 20000,
                                           ctypes.byref(seq))
                if err or seq.id > 2 or holders[seq.id]:
                    wrong.append((name, err, seq.id))
                    return
                holders[seq.id] += 1
                holders[seq.id] -= 1
                err = lib.mmx_ticket_release(m, space, name, seq.generation)
                if err:
                    wrong.append((name, err))
                done.append(name)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((wrong, len(done)), ([], 800))
        seq = Seq()
        self.assertEqual(lib.mmx_ticket_query(m, space, b"0-0", 10000,
                                              ctypes.byref(seq)), -5)
        row, = self.rows(d, name="ctx")
        self.assertEqual((row["held"], row["idle"]), (0, 3))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
