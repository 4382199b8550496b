"""Control connections that strangers make, or that a hostile daemon fills:
nobody else notices, memory stays bounded, the daemon lives."""

import socket
import threading
import time

from pair import BUILD, Case, eventually
from rawpeer import PING, Dealer, cut, frame, hello, part, pour, shake

MIB = 1 << 20
# Frames of a message, which take far longer to look at than to send.
MANY, FEW = 800, 40


def floods(chunk, frames):
    # ZMQ itself answers the PING, as soon as it takes it.
    return (part(chunk * frames) + PING) * (6400 // frames)


def together(count, do):
    all_ = [threading.Thread(target=do, args=(n,)) for n in range(count)]
    for t in all_:
        t.start()
    for t in all_:
        t.join()


class Floods(Case):
    """Inboxes that are full when their connections break: libzmq aborts when
    it has stopped to read one, by a heartbeat of its own or one it had read."""

    def go_on(self, enc, lm):
        """Work for longer than a heartbeat, which is what killed."""
        end = time.monotonic() + 1.3
        room = 100
        while time.monotonic() < end:
            self.deliver(enc, lm, room, 300)
            room += 1

    def attack(self, beat, frames):
        e, d = self.pair(control={"heartbeat": beat})
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)
        before = e.rss_kib()

        def flood(n):
            raw = Dealer(e.address)
            raw.send(hello(f"flood{n}"))
            pour(raw.s, floods(hello(f"flood{n}"), frames), 160 * MIB)
            cut(raw.s)

        together(4, flood)
        eventually(lambda: e.stats()["peer_ended_flooded"] == 4,
                   "the floods are ended")
        self.go_on(enc, lm)
        self.assertTrue(e.alive(), e.tail())
        self.assertLess(e.rss_kib() - before, 512 * 1024)

    def test_full_inboxes_that_break(self):
        self.attack("1s", MANY)

    def test_full_inboxes_of_heartbeats_that_break(self):
        self.attack("1m", FEW)

    def attack_langd(self, beat, frames):
        """An encoder that langd connects to floods it, again and again."""
        e = self.world.encoded()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(10)
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
            eventually(lambda: d.stats()["peer_ended_flooded"] == 3,
                       "the floods are ended")
        self.go_on(enc, lm)
        self.assertTrue(d.alive(), d.tail())
        lm.release(1)

    def test_an_encoder_that_floods_and_breaks(self):
        self.attack_langd("1s", MANY)

    def test_an_encoder_that_floods_with_heartbeats_and_breaks(self):
        self.attack_langd("1m", FEW)


class Strangers(Case):
    def endless(self, e, first):
        """A message that never ends, in parts; how much of it was taken."""
        raw = Dealer(e.address)
        if first:
            raw.send(first)
        sent = pour(raw.s, part(bytes(255), more=True) * 512, 400 * MIB)
        self.assertTrue(raw.ended())
        raw.close()
        return sent

    def test_messages_without_an_end(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        before = e.rss_kib()
        for first in (None, hello()):
            self.assertLess(self.endless(e, first), 400 * MIB)
        self.assertEqual(e.stats()["peer_ended_flooded"], 2)
        self.assertLess(e.rss_kib() - before, 512 * 1024)
        self.deliver(enc, lm, 1, 300)

    def test_who_says_no_hello_is_ended(self):
        e, d = self.pair(encoded={"timeouts": {"hello": "500ms"}})
        enc, lm = self.engines(e, d)
        silent = Dealer(e.address)
        other = Dealer(e.address)
        other.send(frame(7, bytes(3)))  # ours, but no HELLO
        heard = Dealer(e.address)
        heard.send(hello())
        heard.answer(1)
        self.assertTrue(silent.ended())
        self.assertTrue(other.ended())
        self.assertFalse(heard.ended(1))
        self.assertEqual(e.stats()["peer_ended_silent"], 2)
        self.deliver(enc, lm, 1, 300)
        heard.close()

    def test_what_is_not_ours_is_ended_at_once(self):
        e, d = self.pair(encoded={"timeouts": {"hello": "10m"}})
        enc, lm = self.engines(e, d)
        for sent in (part(b"rubbish"), part(b""),
                     part(b"two", more=True) + part(b"parts")):
            raw = Dealer(e.address)
            raw.s.sendall(sent)
            self.assertTrue(raw.ended(), sent)
        self.assertEqual(e.stats()["peer_ended_strange"], 3)
        self.deliver(enc, lm, 1, 300)

    def test_a_crowd_makes_nobody_deaf(self):
        # More than there are places for, 4 x 2 x limits.peers + 64.
        e = self.world.encoded(limits={"peers": 1},
                               timeouts={"hello": "10m"})
        crowd = [Dealer(e.address) for _ in range(120)]
        d = self.world.langd([e])
        enc, lm = self.engines(e, d)
        self.deliver(enc, lm, 1, 300)
        for raw in crowd:
            raw.close()
        self.deliver(enc, lm, 2, 300)
