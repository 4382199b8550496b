"""A daemon that changes while it runs: orders and who may give them, other
configurations, other keys, with rooms under way all the time."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time

from engine import LIMIT
from manager import Manager
from pair import BUILD, Case, eventually, keygen, merged, yaml
from rawengine import answer, call, greeted
from test_shares import user
import wire

from mmx import errors

OTHER = 54321


def write(daemon, **more):
    """Writes another configuration, which the daemon has not read yet."""
    daemon.conf = merged(daemon.conf, more)
    with open(daemon.config + ".new", "w") as f:
        f.write(yaml(daemon.conf))
    os.rename(daemon.config + ".new", daemon.config)


def changes(got):
    return {r["key"]: r["result"] for r in json.loads(got.stdout)}


def reload(daemon, **more):
    """Reloads another configuration; returns {key: result}."""
    write(daemon, **more)
    return changes(daemon.ctl("reload", "--json"))


class Rooms:
    """Delivers rooms one after the other in a thread, until the block ends."""

    def __init__(self, case, enc, lm, first=1):
        self.case, self.enc, self.lm = case, enc, lm
        self.room, self.ended, self.wrong = first, 0, None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.stop.is_set():
                self.case.deliver(self.enc, self.lm, self.room, 300)
                self.room += 1
                self.ended += 1
        except BaseException as e:  # noqa: B902: the test's thread raises it
            self.wrong = e

    def more(self, n=3):
        """Waits for n rooms that began after the call."""
        until = self.ended + n + 1
        eventually(lambda: self.wrong or self.ended >= until, f"{n} rooms")
        if self.wrong:
            raise self.wrong

    def __enter__(self):
        self.thread.start()
        self.more(1)
        return self

    def __exit__(self, kind, _value, _trace):
        self.stop.set()
        self.thread.join()
        if self.wrong and not kind:
            raise self.wrong


class Commands(Case):
    def test_orders_are_taken_at_a_socket_of_their_own(self):
        """At the engines' socket orders are refused to every user: to another
        one, to the daemon's own, and to root, since root of a container may be
        there."""
        e, d = self.pair(socket={"mode": "0666"})
        os.chmod(self.world.dir, 0o755)
        for daemon in (e, d):
            self.refused(daemon)
            if os.geteuid() == 0:
                with user(OTHER):
                    self.refused(daemon)
                    with self.assertRaises(PermissionError):
                        os.stat(daemon.orders)
            self.assertEqual(daemon.show("status")[0]["draining"], 0)
        # mmxctl also takes the path that the refusal names.
        self.assertIn("draining", subprocess.run(
            [os.path.join(BUILD, "mmxctl"), "--socket", e.orders, "drain"],
            capture_output=True, text=True, timeout=LIMIT).stdout)

    # RULES 9.8
    def test_rooms_and_rows_are_ended_by_order(self):
        e, d, enc, lm = self.at_work()
        for number in (7, 8):
            lm.request(number, "enc0")
        got = json.loads(d.ctl("--json", "kill", "7").stdout)
        self.assertEqual(got[0]["rooms_ended"], 1)
        self.assertEqual(d.ended(7)["reason"], "aborted")
        self.assertIn("by an order", d.ended(7)["text"])
        got = json.loads(d.ctl("--json", "kill", str(os.getpid())).stdout)
        self.assertEqual(got[0]["rooms_ended"], 1)
        self.assertEqual(d.ended(8)["reason"], "aborted")
        got = json.loads(e.ctl("--json", "drop", "vit", "0" * 64).stdout)
        self.assertEqual(got[0]["rooms_dropped"], 0)
        for daemon, words in ((d, ("kill", "9")), (d, ("kill", "x")),
                              (d, ("drop",)), (e, ("drop", "vid")),
                              (e, ("drop", "vit", "12"))):
            got = daemon.ctl(*words, check=False)
            self.assertEqual(got.returncode, 1, words)

    def refused(self, daemon):
        with contextlib.closing(greeted(daemon, session="other")) as s:
            for order in ("reload", "conf-diff", "conf", "drain"):
                s.send(wire.QUERY.encode(5, what=order))
                got = answer(s)
                self.assertEqual(got.message, wire.REPORT)
                self.assertEqual(got.values["err"], 12)  # not-owner
                self.assertIn(daemon.orders.encode(), got.values["text"])

    def test_a_command_that_is_none(self):
        e, _ = self.pair()
        for words in (("relaod",), ("status", "more"), ("kill", "x" * 300)):
            self.assertEqual(e.ctl(*words, check=False).returncode, 64)


class Notified(Case):
    def test_the_service_manager_hears_when_it_begins_and_is_done(self):
        manager = Manager(self)
        e = self.world.encoded(start=False)
        e.start(env=manager.env())
        eventually(lambda: manager.times("READY=1"), "it is ready")
        e.ctl("conf-diff")
        e.ctl("reload")
        os.kill(e.pid, signal.SIGHUP)
        eventually(lambda: len(manager.times("READY=1")) == 3, "both are done")
        texts = [t for _, t in manager.heard
                 if "RELOADING" in t or "READY" in t]
        self.assertEqual([t.split("\n")[0] for t in texts], [
            "READY=1", "RELOADING=1", "READY=1", "RELOADING=1", "READY=1"])
        usec = [int(t.split("MONOTONIC_USEC=")[1]) for t in texts
                if "RELOADING" in t]
        self.assertTrue(0 < usec[0] <= usec[1] <=
                        time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)


class Reload(Case):
    """control.lost_after is long: how soon a slow machine connects again is
    not tested here."""

    def setUp(self):
        super().setUp()
        self.e, self.d = self.pair(control={"lost_after": "20s"})
        self.enc, self.lm = self.engines(self.e, self.d)

    # RULES 9.7; F35
    def test_what_changes_and_what_is_left(self):
        with Rooms(self, self.enc, self.lm) as rooms:
            self.assertEqual(self.d.ctl("conf-diff").returncode, 0)
            self.assertIn("in force", self.d.ctl("reload").stdout)
            write(self.d, log="debug", timeouts={"total": "77s"},
                  transfer={"shards": 2}, limits={"inbox": "2MiB"})
            got = self.d.ctl("conf-diff", "--json", check=False)
            self.assertEqual(got.returncode, 1)
            self.assertEqual(set(changes(got)), {
                "log", "timeouts.total", "transfer.shards", "limits.inbox"})
            self.assertNotIn("77s", self.d.ctl("conf").stdout)
            rooms.more()
            got = changes(self.d.ctl("reload", "--json"))
            self.assertEqual(got.pop("transfer.shards"), "needs a restart")
            self.assertEqual(set(got.values()), {"changed"})
            rooms.more()
        conf = self.d.ctl("conf").stdout
        self.assertIn("77s", conf.replace("1m17s", "77s"))
        self.assertIn("shards: 1", conf)
        self.assertIn("log: debug", conf)
        self.assertEqual(self.d.ctl("conf-diff", check=False).returncode,
                         1)

    # RULES 9.7; F35
    def test_a_bad_file_changes_nothing(self):
        before = self.d.ctl("conf").stdout
        write(self.d, log="debug", timeouts={"total": "5 weeks"})
        for order, status in (("reload", 1), ("conf-diff", 2)):
            got = self.d.ctl(order, check=False)
            self.assertEqual(got.returncode, status)
            self.assertIn("timeouts.total", got.stderr)
        with open(self.d.config, "w") as f:
            f.write("pools: [")
        self.assertEqual(self.d.ctl("reload", check=False).returncode, 1)
        os.unlink(self.d.config)
        got = self.d.ctl("reload", check=False)
        self.assertEqual(got.returncode, 1)
        self.assertIn(self.d.config, got.stderr)
        self.assertEqual(self.d.ctl("conf").stdout, before)
        self.deliver(self.enc, self.lm, 1, 300)

    def test_hangups_that_come_together(self):
        with Rooms(self, self.enc, self.lm) as rooms:
            write(self.e, timeouts={"keep": "7s"})
            write(self.d, timeouts={"total": "99s"})
            for _ in range(5):
                for daemon in (self.e, self.d):
                    os.kill(daemon.pid, signal.SIGHUP)
            for daemon, value in ((self.e, "keep: 7s"), (self.d, "99s")):
                eventually(lambda v=value, x=daemon: v in x.ctl("conf").stdout,
                           "the new value is in force")
            rooms.more()
        self.assertTrue(self.e.alive() and self.d.alive())

    # RULES 9.7
    def test_while_it_drains(self):
        self.d.conf = merged(self.d.conf, {"timeouts": {"drain": "20s"}})
        self.assertEqual(reload(self.d), {"timeouts.drain": "changed"})
        self.lm.request(1, "enc0")
        self.lm.conn.wait(self.lm.rooms[1].opened, 10)
        self.enc.announce(1, 300, 300)
        self.lm.conn.wait(self.lm.rooms[1].opened, 10)
        self.d.process.terminate()
        eventually(lambda: "draining" in self.d.tail(), "it drains")
        self.assertEqual(reload(self.d, log="debug"), {"log": "changed"})
        self.enc.granted(1)
        self.enc.finish(1, 0, 300)
        self.assertEqual(self.lm.ready(1), 300)
        self.lm.release(1)
        self.enc.ends(1)
        self.assertEqual(self.d.process.wait(20), 0)

    def test_users_of_a_pool(self):
        pools = self.e.conf["pools"]
        self.e.conf["pools"] = [{**pools[0], "uids": [OTHER]}]
        self.assertEqual(reload(self.e), {"pools[0].uids": "changed"})
        with greeted(self.e) as s:
            got, = call(s, wire.ANNOUNCE.encode(
                5, room=9, tag=1, storage=1, max_rows=1, total=1))
        if os.geteuid() != OTHER:
            self.assertEqual(got.values["err"], errors.NotOwner.number, got)
        self.e.conf["pools"] = pools
        self.assertEqual(reload(self.e), {"pools[0].uids": "changed"})
        self.deliver(self.enc, self.lm, 1, 300)


class Keys(Case):
    def setUp(self):
        super().setUp()
        self.e, self.d = self.pair(control={"lost_after": "20s"})
        self.enc, self.lm = self.engines(self.e, self.d)
        self.old = self.world.key
        self.new = keygen(os.path.join(self.world.dir, "new.key"))

    def keys(self, *daemons, keys):
        for daemon in daemons:
            reload(daemon, control={"keys": keys})

    def up(self):
        eventually(lambda: [r["state"] for r in self.d.show("peers")] == ["up"],
                   "the encoder is connected")

    # RULES 9.7; F35
    def test_a_new_key_under_load(self):
        """The new key is added everywhere, then moved to the front, then the
        old key is taken out: in each step one daemon is ahead of the other."""
        both = (self.e, self.d)
        with Rooms(self, self.enc, self.lm) as rooms:
            for keys in ([self.old, self.new], [self.new, self.old],
                         [self.new]):
                for daemon in both:
                    self.keys(daemon, keys=keys)
                    rooms.more()
                self.up()
                both = both[::-1]
        self.assertEqual(self.d.stats()["rooms_failed"], 0)

    def test_another_key_in_a_file_of_the_same_name(self):
        os.unlink(self.old)
        keygen(self.old)
        for daemon in (self.e, self.d):
            got = changes(daemon.ctl("conf-diff", "--json", check=False))
            self.assertEqual(got, {"keys in the files": "a reload changes it"})
            got = changes(daemon.ctl("reload", "--json"))
            self.assertEqual(got, {"keys in the files": "changed"})
        self.up()
        self.deliver(self.enc, self.lm, 1, 300)


class Peers(Case):
    """Encoders that come and go."""

    def not_had(self, lm, room, encoder):
        """A request for this encoder is refused."""
        lm.request(room, encoder)
        self.refusal("not-ready", lm.conn.wait, lm.rooms[room].opened, 10)
        lm.release(room)

    # RULES 9.7
    def test_an_encoder_comes_and_goes(self):
        _, d = self.pair()
        other = self.world.encoded("enc1")
        enc, lm = self.engines(other, d)
        self.not_had(lm, 1, "enc1")
        first = d.conf["peers"]
        both = [*first, {"name": "enc1", "address": other.address}]
        self.assertEqual(reload(d, peers=both), {"peers: enc1": "changed"})
        self.deliver(enc, lm, 2, 300, encoder="enc1")
        self.deliver(enc, lm, 3, 300, encoder=other.address)
        # One room is under way: it completes, and no new room begins.
        lm.request(5, "enc1")
        enc.opens(5, 300, 300)
        lm.until(5, "WAITING")
        self.assertEqual(reload(d, peers=first), {"peers: enc1": "changed"})
        self.assertIn("leaving", [r["state"] for r in d.show("peers")])
        self.not_had(lm, 6, "enc1")
        enc.finish(5, 0, 300)
        self.comes(enc, lm, 5, 300)
        eventually(lambda: [r["name"] for r in d.show("peers")] == ["enc0"],
                   "it is forgotten after its last room")
        eventually(lambda: other.show("status")[0]["peers_up"] == 0,
                   "its link is closed")

    # RULES 9.7
    def test_named_by_its_address_it_proves_the_key(self):
        e, d, enc, lm = self.at_work(langd={"peers": []})
        self.not_had(lm, 1, e.address)
        self.assertEqual(reload(d, control={"allow": ["key"]}),
                         {"control.allow": "changed"})
        self.deliver(enc, lm, 2, 300, encoder=e.address)
        reload(d, timeouts={"unreachable": "1s"})
        stranger = self.world.encoded(
            "enc9", control={"keys": [keygen(self.world.dir + "/9.key")]})
        lm.request(3, stranger.address)
        self.assertEqual(lm.failed(3), "peer-lost")
        lm.release(3)
