"""Control connections that strangers open, or that a hostile daemon fills:
others are not affected, memory stays bounded, the daemon lives."""

import ctypes
import os
import socket
import struct
import threading
import time
import unittest

from engine import LIMIT
from pair import BUILD, Case, eventually, free_port, sanitized
from rawpeer import PING, Dealer, cut, hello, part, pour, shake

MIB = 1 << 20
# Number of frames in a message, which take far longer to read than to send.
MANY, FEW = 800, 40


def floods(chunk, frames):
    # ZMQ itself answers the PING, as soon as it reads it.
    return (part(chunk * frames) + PING) * (6400 // frames)


def together(count, do):
    all_ = [threading.Thread(target=do, args=(n,)) for n in range(count)]
    for t in all_:
        t.start()
    for t in all_:
        t.join()


class Floods(Case):
    """Connections break while their inboxes are full. libzmq could abort when a
    heartbeat came for an inbox that it no longer read."""
    insecure = True

    def go_on(self, enc, lm):
        """Delivers rooms for longer than a heartbeat: a heartbeat ended the
        daemon."""
        end = time.monotonic() + 1.3
        room = 100
        while time.monotonic() < end:
            self.deliver(enc, lm, room, 300)
            room += 1

    def attack_langd(self, beat, frames):
        """An encoder that langd has connected to floods it, again and
        again."""
        e = self.world.encoded()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(LIMIT)
            port = server.getsockname()[1]
            d = self.world.langd([e], control={"heartbeat": beat, "allow": [
                f"tcp://127.0.0.1:{port}"]})
            enc, lm = self.engines(e, d)
            lm.request(1, f"tcp://127.0.0.1:{port}")
            for n in range(3):
                s, _ = server.accept()
                shake(s, b"ROUTER")
                s.sendall(part(hello("evil", role=1)))
                pour(s, floods(hello("evil", role=1), frames), 160 * MIB)
                cut(s)
                self.deliver(enc, lm, 10 + n, 300)
            eventually(lambda: d.stats()["peer_ended_flooded"] >= 1,
                       "a flood is ended")
        self.go_on(enc, lm)
        self.assertTrue(d.alive(), d.tail())
        lm.release(1)

    def test_an_encoder_that_floods_and_breaks(self):
        self.attack_langd("1s", MANY)

    def test_an_encoder_that_floods_with_heartbeats_and_breaks(self):
        self.attack_langd("1m", FEW)


class Strangers(Case):
    insecure = True

    def test_routing_ids_cannot_be_guessed(self):
        # libzmq numbers its connections from a number that it draws by rand(),
        # and aborts when a client names the next number as its own.
        libc = ctypes.CDLL(None)
        libc.srand(1)
        low, high = libc.rand(), libc.rand() << 31
        first = (low | high) & 0xffffffff
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        crowd = [Dealer(e.address, b"\0" + struct.pack(">I", first + n))
                 for n in range(20, 60)]
        for raw in crowd:
            raw.s.recv(1)  # the handshake is over
        for _ in range(80):
            crowd.append(Dealer(e.address))
            crowd[-1].s.recv(1)
        self.deliver(enc, lm, 2, 300)
        for raw in crowd:
            raw.close()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
            return True
    except OSError:
        return False


@unittest.skipUnless(has_ipv6(), "this host has no IPv6")
class Ipv6(Case):
    def test_every_interface(self):
        port = free_port()
        address = f"tcp://[::1]:{port}"
        e = self.world.encoded(control={
            "listen": f"tcp://[::]:{port}", "advertise": address})
        e.address = address
        d = self.world.langd([e])
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)


SOON = 15
NAMES = os.path.join(BUILD, "test", "preload", "slow_names.so")


class Names(Case):
    def setUp(self):
        super().setUp()
        if sanitized(os.path.join(BUILD, "mmx-langd")):
            self.skipTest("the sanitizer comes first in the library list")

    def test_a_name_that_nobody_answers_delays_nobody_else(self):
        # slow_names.so takes 60 s for this name. A daemon that waited for it
        # would be missed by its peer, and would take longer than SOON to end.
        beat = {"control": {"heartbeat": "4s"}}
        e = self.world.encoded(**beat)
        slow = self.world.encoded(name="enc1", start=False)
        slow.address = "tcp://slow.invalid:7601"
        d = self.world.langd([e, slow], start=False, **beat)
        d.start(env={"LD_PRELOAD": NAMES})
        enc, lm = self.engines(e, d)
        lm.request(10**6, "enc1")
        end = time.monotonic() + 5
        room = 1
        while time.monotonic() < end:
            began = time.monotonic()
            self.deliver(enc, lm, room, 300)
            self.assertLess(time.monotonic() - began, SOON)
            room += 1
        self.assertEqual(d.stats()["peers_lost"], 0)
        eventually(lambda: "no answer from DNS for the name" in d.tail(),
                   "it is told")
        lm.release(10**6)
        # The daemon's end does not wait for the look-up.
        began = time.monotonic()
        self.world.end_engines()
        d.stop()
        self.assertLess(time.monotonic() - began, SOON)

    def test_a_name_whose_address_changes_is_followed(self):
        e = self.world.encoded()
        d = self.world.langd([e], start=False,
                             timeouts={"unreachable": "60s"})
        port = e.address.rsplit(":", 1)[1]
        d.conf["peers"][0]["address"] = f"tcp://moved.invalid:{port}"
        path = os.path.join(self.world.dir, "moved")

        def move(to):
            with open(path, "w") as f:
                f.write(to)

        with socket.create_server(("127.0.0.99", int(port))) as before:
            before.settimeout(LIMIT)
            move("127.0.0.99")
            d.start(env={"LD_PRELOAD": NAMES, "MMX_MOVED": path})
            enc, lm = self.engines(e, d)
            lm.request(1, "enc0")
            enc.encode(1, 300)
            before.accept()[0].close()
        move("127.0.0.1")
        self.assertEqual(lm.ready(1), 300)
        self.over(enc, lm)


class Descriptors(Case):
    def limits(self, daemon):
        with open(f"/proc/{daemon.pid}/limits") as f:
            line = next(x for x in f if x.startswith("Max open files"))
        return tuple(int(x) for x in line.split()[3:5])

    def test_the_soft_limit_is_raised_to_the_hard_one(self):
        e = self.world.encoded(start=False)
        e.nofile = (256, 4096)
        e.start()
        self.assertEqual(self.limits(e), (4096, 4096))
        self.assertNotIn("RLIMIT_NOFILE", e.tail())

    def test_limits_that_do_not_fit_are_told(self):
        e = self.world.encoded(start=False)
        e.nofile = (256, 512)
        e.start()
        self.assertIn("RLIMIT_NOFILE is 512, but limits.connections 256",
                      e.tail())
