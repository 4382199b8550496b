"""What the flight recorders remember, and how mmxctl shows it."""

import json
import os
import re
import signal
import subprocess

from pair import BUILD, Case, sanitized

MMXCTL = os.path.join(BUILD, "mmxctl")


def trace(*words, daemons=(), check=True):
    """Runs mmxctl trace for these daemons."""
    sockets = [w for d in daemons for w in ("--socket", d.socket)]
    return subprocess.run([MMXCTL, *sockets, "trace", *words], check=check,
                          stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60)


def lines(*words, daemons=(), **more):
    return json.loads(trace("--json", *words, daemons=daemons, **more).stdout)


# The order of events in a room: word, message, daemon.
LIVES = (
    (("requested", "", "lang0"), ("sent", "init", "lang0"),
     ("landed", "", "lang0"), ("ended", "", "lang0"),
     ("sent", "ack", "lang0"), ("freed", "", "lang0")),
    (("requested", "", "lang0"), ("length", "length", "lang0"),
     ("ended", "", "lang0")),
    (("announced", "", "enc0"), ("sent", "length", "enc0"),
     ("got", "ack", "enc0"), ("ended", "", "enc0"), ("freed", "", "enc0")),
    (("announced", "", "enc0"), ("committed", "", "enc0"),
     ("sending", "", "enc0"), ("got", "ack", "enc0")),
)


class Trace(Case):
    def delivered(self, rooms=(7,)):
        e, d, enc, lm = self.at_work()
        for room in rooms:
            self.deliver(enc, lm, room, 300)
        return e, d

    def follow_each_other(self, found):
        """Checks that each event is there, after the one before."""
        for life in LIVES:
            at = 0
            for word, message, daemon in life:
                rest = [i for i, h in enumerate(found[at:], at)
                        if (h["what"], h.get("message", ""), h["daemon"]) ==
                        (word, message, daemon)]
                self.assertTrue(rest, f"no {word} {message} of {daemon} from "
                                f"{at} on in {found}")
                at = rest[0]

    def test_a_room_end_to_end(self):
        e, d = self.delivered((7, 8))
        found = lines("7", daemons=(e, d))
        self.assertEqual({h["room"] for h in found}, {7})
        times = [h["ns"] for h in found]
        self.assertEqual(times, sorted(times))
        self.follow_each_other(found)
        text = trace("7", daemons=(e, d)).stdout
        self.assertIn("ended: reason ok, total 300", text)
        self.assertIn("got init from lang0", text)
        self.assertEqual(len(text.splitlines()), len(found))
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        # Without a room the trace has all rooms, and the daemons' own events.
        self.assertLess(len(found), len(lines(daemons=(e, d))))
        self.assertIn("peer-up", trace(daemons=(e,)).stdout)

    # RULES 10.1
    def test_a_room_as_the_log_names_it(self):
        """Half of an id finds the room in a trace, and is not enough to
        request it."""
        e, d, enc, lm = self.at_work()
        lm.request(0xfedcba9876543210, "enc0", deadline=0.1)
        lm.failed(0xfedcba9876543210)
        with open(d.log, encoding="utf-8") as f:
            log = f.read()
        self.assertNotIn("fedcba98", log)
        name = re.search(r"room (\.\.76543210): failed, timeout", log)[1]
        self.assertEqual({h["room"] for h in lines(name, daemons=(d,))},
                         {0xfedcba9876543210})
        for wrong in ("..7654321", "..765432100", "..7654321x", "..", "x"):
            got = trace(wrong, daemons=(d,), check=False)
            self.assertIn("as in the log", got.stderr)

    def test_a_room_that_is_none(self):
        e, d = self.delivered()
        got = trace("8", daemons=(e, d), check=False)
        self.assertEqual((got.returncode, got.stdout), (1, ""))
        self.assertIn("no happening of this room", got.stderr)
        self.assertEqual(lines("8", daemons=(e, d), check=False), [])


CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Context(Case):
    """A trace context travels with its room to the other side."""

    def shows(self, daemon, room, context):
        self.assertEqual(daemon.ended(room)["traceparent"], context)
        (h,) = [h for h in lines(str(room), daemons=(daemon,))
                if h["what"] == "context"]
        self.assertEqual(h["traceparent"], context)

    def deliver_with(self, enc, lm, room, announced, requested):
        src = enc.conn.announce(room, enc.pool, 10, 10, traceparent=announced)
        src.wait_granted(timeout=30)
        src.commit(0, 10, final=True)
        got = lm.conn.request(room, lm.pool, "enc0", traceparent=requested)
        got.wait_ready(timeout=30)
        src.wait_done(timeout=30)
        got.release()
        src.release()

    def test_from_either_side(self):
        e, d, enc, lm = self.at_work(
            encoded={"log": "debug"}, langd={"log": "debug"})
        enc.map_pool()
        lm.map_pool()
        self.deliver_with(enc, lm, 1, CONTEXT, "")
        self.deliver_with(enc, lm, 2, "", CONTEXT)
        self.deliver_with(enc, lm, 3, CONTEXT, OTHER)
        self.deliver_with(enc, lm, 4, "", "")
        for daemon, third in ((e, CONTEXT), (d, OTHER)):
            self.shows(daemon, 1, CONTEXT)
            self.shows(daemon, 2, CONTEXT)
            self.assertEqual(daemon.ended(3)["traceparent"], third)
            self.assertNotIn("traceparent", daemon.ended(4))
            with open(daemon.log, encoding="utf-8") as f:
                ends = [x for x in f if "room ..00000001: succ" in x]
            self.assertEqual(len(ends), 1)
            self.assertIn(f"; traceparent {CONTEXT}\n", ends[0])

    def test_a_bad_one_is_refused(self):
        e, d, enc, lm = self.at_work()
        for bad in (CONTEXT[:-1], CONTEXT.upper(), "0" * 55):
            with self.assertRaisesRegex(ValueError, "a traceparent is 00-"):
                enc.conn.announce(1, enc.pool, 10, traceparent=bad)
            with self.assertRaisesRegex(ValueError, "a traceparent is 00-"):
                lm.conn.request(1, lm.pool, "enc0", traceparent=bad)


class Crash(Case):
    def dies_of(self, number):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 7, 300)
        for daemon in (e, d):
            daemon.killed = True
            os.kill(daemon.pid, number)
            status = daemon.process.wait(60)
            if number == signal.SIGABRT or not sanitized(BUILD + "/mmx-langd"):
                # otherwise a sanitizer's own status
                self.assertEqual(status, -number)
            with open(daemon.log, encoding="utf-8") as f:
                log = f.read()
            name = signal.Signals(number).name
            self.assertIn(f"{name} in thread mmx-{daemon.role}"[:27], log)
            self.assertNotIn("<0>", log)  # which all terminals would show
            self.assertIn("happenings, by their age", log)
            self.assertIn("room ..00000007 ended reason ok", log)

    def test_beside_a_report_of_ucx(self):
        """UCX's crash report is on unless the unit's environment turns it
        off."""
        e = self.world.encoded()
        self.assertEqual(e.stop(), 0)
        e.start(env={"UCX_HANDLE_ERRORS": "bt"})
        e.killed = True
        os.kill(e.pid, signal.SIGSEGV)
        status = e.process.wait(60)
        with open(e.log, encoding="utf-8") as f:
            log = f.read()
        self.assertIn("SIGSEGV in thread mmx-encoded", log)
        self.assertIn("happenings, by their age", log)
        if not sanitized(BUILD + "/mmx-encoded"):
            self.assertEqual(status, -signal.SIGSEGV)
            self.assertRegex(log, "Caught signal|backtrace")

    def test_a_bad_access(self):
        self.dies_of(signal.SIGSEGV)

    def test_a_page_that_is_gone(self):
        self.dies_of(signal.SIGBUS)

    def test_an_abort(self):
        self.dies_of(signal.SIGABRT)
