"""One call that our code makes fails: the n-th of each kind, while a daemon
starts, while it serves, and in a client. Nothing crashes, hangs or leaks, the
error is reported, and the next room comes. Which calls: the table of
test/preload/nth_call.c. A run is a sample: MMX_NTH says how many n of each
kind are tried (1), 0: every n (an hour). MMX_SEED draws them; without it the
day of the year does. MMX_NTH_KINDS names kinds."""

import os
import re
import subprocess
import time
import unittest

import failing
from engine import LIMIT
from pair import BUILD, SENT, Case, eventually, keygen, yaml

import mmx

EACH = int(os.environ.get("MMX_NTH", "1"))
KINDS = os.environ.get("MMX_NTH_KINDS", "").split()
SEED = int(os.environ.get("MMX_SEED") or time.strftime("%j"))
ROOM = os.path.join(BUILD, "test", "each", "room")
ROWS = 300
# Seconds: of the daemons' and a client's timeouts, and within which rooms with
# these timeouts must end.
SHORT, SLOWEST = LIMIT // 5, LIMIT * 3 // 5
SOON = {"bootstrap": f"{SHORT}s", "progress": f"{SHORT}s",
        "total": f"{SHORT * 3 // 2}s"}

# A line that says why a daemon ends: an error, or a line that the daemon
# prints before its log is open. Lines of UCX are neither.
WHY = re.compile(r"\S+Z error |(?!\S+Z \w+ |\[)")

# Configuration of `transfer`, and the kinds of calls that are tried with it;
# no kinds: all.
COPY = {}, ("memory", "map", "socket", "passing", "thread", "loop", "zmq",
            "disk")
TLS = {"same_host": "off", "carrier": "tcp", "encrypt": "on"}, (
    "message", "tls")
UCX = {"same_host": "off", "carrier": "ucx", "tls": "tcp"}, ("ucx",)


def chosen(count):
    """Returns which n of 1 to count are tried: all, or some at equal
    distances."""
    if not EACH or EACH >= count:
        return range(1, count + 1)
    part = count // EACH
    return [1 + i * part + SEED * 7919 % part for i in range(EACH)]


@unittest.skipIf(SENT, "each way that rows go is here already")
@unittest.skipIf(os.environ.get("COVER"), "the counters' own calls fail, too")
class Walk(Case):
    limit_s = 12 * LIMIT if EACH else 7200
    way = COPY

    def setUp(self):
        super().setUp()
        self.seen, self.room = {}, 0
        how = {"timeouts": SOON, "transfer": self.way[0]}
        self.e = self.world.encoded(start=False, **how)
        self.d = self.world.langd([self.e], start=False, **how)
        self.d.conf["timeouts"]["unreachable"] = "60s"

    def watched(self, path):
        calls = failing.Calls(path + ".calls")
        self.addCleanup(calls.close)
        return calls

    def walk(self, counts, attempt, again=None, never=()):
        """For the chosen n of each kind calls attempt(kind, n), which says
        whether that call has come and failed; after an exception calls
        `again`. Each kind of self.way must have calls, except those in
        `never`."""
        self.assertTrue(counts, "nothing is preloaded")
        self.assertEqual({kind for kind in self.way[1] if not counts[kind]},
                         set(never).intersection(self.way[1]),
                         "of these no call has come")
        counts = {kind: count for kind, count in counts.items() if
                  (not KINDS or kind in KINDS) and
                  (not EACH or not self.way[1] or kind in self.way[1])}
        if not counts:
            self.skipTest("none of MMX_NTH_KINDS is tried here")
        for kind, count in counts.items():
            for n in chosen(count):
                with self.subTest(kind=kind, n=n, seed=SEED):
                    try:
                        # The number of calls differs between runs.
                        while not attempt(kind, n):
                            self.assertGreater(n, 1, "no such call has come")
                            n //= 2
                    except BaseException:
                        self.world.end_engines()
                        if again:
                            again()
                        raise

    def note(self, kind, n, calls, binary, what):
        """Records and returns whether a call has failed."""
        if not calls.failed():
            return False
        self.seen.setdefault((kind, what), []).append(n)
        if not EACH:
            print(f"{kind} {n} {calls.place(binary)}: {what}", flush=True)
        return True

    def tell(self, who):
        self.assertTrue(self.seen, "no call has failed")
        for (kind, what), ns in sorted(self.seen.items()):
            print(f"{who}: {kind}: {len(ns)} {what}", flush=True)

    def whole(self):
        """Takes one room between new engines from its request to its
        release."""
        self.room += 1
        enc = self.world.engine(self.e, timeout=SHORT)
        lm = self.world.engine(self.d, timeout=SHORT)
        lm.request(self.room, "enc0")
        enc.encode(self.room, ROWS, aux="grid", step=100)
        self.assertEqual(lm.ready(self.room), ROWS)
        self.good(lm, self.room)
        lm.release(self.room)
        enc.done(self.room)
        enc.release(self.room)
        self.world.end_engines()

    def lives(self, *daemons):
        for daemon in daemons:
            self.assertTrue(daemon.alive(), f"{daemon.name} ended with "
                            f"{daemon.process.returncode}, {daemon.tail()}")

    def over(self, what):
        """After a failure checks that another room comes, and that all blocks
        are free."""
        if what != "whole":
            self.whole()
        self.world.all_free()

    def outcome(self, act, *args):
        """Returns "whole", or the reason of the error."""
        began = time.monotonic()
        try:
            act(*args)
            what = "whole"
        except mmx.MmxError as error:
            what = error.reason
        except TimeoutError as error:
            self.fail(f"{error}")
        self.world.end_engines()
        self.assertLess(time.monotonic() - began, SLOWEST, what)
        return what


class Start(Walk):
    """A call fails while the daemon starts, serves its first room, and
    ends."""

    def starts(self, daemon, calls):
        """Starts the daemon. True: it serves. False: it has ended and said
        why."""
        with open(daemon.log, "w"):
            pass
        try:
            try:
                daemon.start(env=calls.env)
            except mmx.MmxError:  # the daemon has refused its first engine
                daemon.wait_ready()
            return True
        except AssertionError:
            status = daemon.process.poll()
        said = daemon.tail()
        self.assertIn(status, (1, 78), said)
        daemon.killed = True  # its exit status is checked here
        self.assertTrue([line for line in said.splitlines()
                         if WHY.match(line) and
                         not line.endswith("cannot start")],
                        f"{calls.place(daemon.binary)}: no word why:\n{said}")
        return False

    def walk_start(self, victim, other, never=()):
        calls = self.watched(victim.config)
        other.start()
        victim.start(env=calls.env)
        self.whole()
        victim.stop()
        counts, clean = calls.kinds(), calls.held()

        def attempt(kind, n):
            calls.clear()
            calls.fail(kind, n)
            if self.starts(victim, calls):
                what = self.outcome(self.whole)
                self.lives(victim, other)
                if calls.failed():
                    self.over(what)
                self.assertEqual(victim.stop(), 0, victim.tail())
                self.assertEqual(calls.held(), clean)
            else:
                what = "not started"
                if not EACH:
                    print(victim.tail(2), end="")
            return self.note(kind, n, calls, victim.binary, what)

        def again():
            if victim.alive():
                victim.kill()
        self.walk(counts, attempt, again, never)
        self.tell(f"start of {victim.role}")

    # F38
    def test_encoded(self):
        self.walk_start(self.e, self.d, ("passing",))

    # F38
    def test_langd(self):
        self.walk_start(self.d, self.e)


class StartTls(Start):
    way = TLS


class StartUcx(Start):
    way = UCX


class Life(Walk):
    """A call fails while both serve: the other daemon restarts, engines
    connect, complete a room and leave, mmxctl asks for reports, a reload
    changes the first key."""

    def setUp(self):
        super().setUp()
        second = keygen(os.path.join(self.world.dir, "second.key"))
        for daemon in (self.e, self.d):
            daemon.conf["control"]["keys"].append(second)

    def life(self, victim, other):
        other.stop()
        other.start()
        self.whole()
        victim.conf["control"]["keys"].reverse()
        with open(victim.config, "w") as f:
            f.write(yaml(victim.conf))
        for words in (("rooms",), ("status", "--json"), ("reload",)):
            victim.ctl(*words, check=False)
        self.whole()

    def walk_life(self, victim, other, never):
        calls = self.watched(victim.config)

        def again():
            for daemon in (victim, other):
                if daemon.process:
                    daemon.kill()
            calls.clear()
            victim.start(env=calls.env)
            other.start()
            self.life(victim, other)
            self.world.all_free()

        def quiet():
            """Returns the allocations, maps and descriptors that the daemon
            has."""
            return (*calls.held(), victim.fds())
        again()
        counts = {}
        for _ in range(2):
            before = calls.kinds()
            self.life(victim, other)
            self.world.all_free()
            for kind, count in calls.kinds().items():
                counts[kind] = max(count - before[kind], counts.get(kind, 0))
        looks = []
        eventually(lambda: looks.append(quiet()) or
                   len(set(looks[-40:])) == 1 and len(looks) >= 40, "quiet")
        rest = looks[-1]

        def attempt(kind, n):
            calls.fail(kind, n)
            what = self.outcome(self.life, victim, other)
            calls.spare()
            self.lives(victim, other)
            self.over(what)
            eventually(lambda: all(a <= b for a, b in zip(quiet(), rest)),
                       f"{rest} again after {calls.place(victim.binary)}, "
                       f"{what}; has {quiet()}", LIMIT / 2)
            return self.note(kind, n, calls, victim.binary, what)
        self.walk(counts, attempt, again, never)
        self.tell(f"life of {victim.role}")

    # F38
    def test_encoded(self):
        self.walk_life(self.e, self.d, ("passing", "thread"))

    # F38
    def test_langd(self):
        self.walk_life(self.d, self.e, ("thread",))


class LifeTls(Life):
    way = TLS


class LifeUcx(Life):
    way = UCX


class Client(Walk):
    """A call fails in a program in C that is both engines of a room."""

    way = COPY[0], ()  # all kinds

    def run_room(self, calls):
        self.room += 1
        got = subprocess.run(
            [ROOM, self.e.socket, self.d.socket, "enc0", str(self.room)],
            env={**os.environ, **calls.env}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT, check=False)
        return got.returncode, got.stderr.strip()

    # F38
    def test_client(self):
        self.e.start()
        self.d.start()
        calls = self.watched(self.e.config)
        self.assertEqual(self.run_room(calls), (0, ""))
        self.assertEqual(self.run_room(calls), (0, ""))
        calls.clear()
        self.assertEqual(self.run_room(calls), (0, ""))
        counts = calls.kinds()
        self.assertEqual(calls.held(), (0, 0))

        def attempt(kind, n):
            calls.clear()
            calls.fail(kind, n)
            status, said = self.run_room(calls)
            self.assertIn(status, (0, 1), said)
            self.assertEqual(bool(said), status == 1, said)
            self.assertEqual(calls.held(), (0, 0), said)
            self.world.all_free()
            return self.note(kind, n, calls, ROOM, said or "whole")
        self.walk(counts, attempt)
        self.tell("client")


if __name__ == "__main__":
    unittest.main()
