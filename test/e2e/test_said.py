"""Messages between daemons that a relay loses, doubles and delays. The relay
has to read them, so these daemons have no keys."""

import collections
import os
import random
import struct
import threading
import unittest

import mmx
from pair import ROOT, SENT, Case, eventually
from rawpeer import HEADER, part
from relay import Relay
import wire

GREETING = 64
LONG, COMMAND = 2, 4
NAMES = {m["number"]: m["name"].lower() for m in wire.tables.messages(
    os.path.join(ROOT, "lib/wire/peer.def"))}
SEED = os.environ.get("MMX_SEED", "1")
ROWS = 2000  # more rows than langd grants at first
# Messages about rooms whose rows are sent; such rooms come whole or end.
SAID = ("init", "resume", "length", "ack", "acked", "abort", "drained",
        "failed", "state")
CHANCES = {"lost": 0.1, "twice": 0.2, "late": 0.2}


class Between(Relay):
    """Cuts the daemons' messages into frames. how(name, draw) decides about
    each: it is lost, twice, late (it goes behind the next message), or passed
    on; each direction of each connection draws from MMX_SEED. A body in
    `wrong` under the frame's name replaces its body."""

    def __init__(self, address):
        super().__init__()
        self.how = lambda _name, _draw: ""
        # for what follows: each direction is a thread
        self.lock = threading.Lock()
        self.did = collections.Counter()
        self.wrong = {}
        # one for each direction
        self.late, self.heard, self.draws = [], [], []
        host, port = address.replace("tcp://", "").split(":")
        self.port = self.door(("127.0.0.1", 0), (host, int(port)),
                              lambda a, b: self.start(
                                  a, b, self.reads(), self.reads()))

    def reads(self):
        """Returns the change for one direction of a connection."""
        rest, greeted, at = bytearray(), 0, len(self.late)
        with self.lock:
            self.late.append([])
            self.heard.append([])
            self.draws.append(random.Random(f"{SEED} {at}"))

        def change(_, data):
            nonlocal greeted
            rest.extend(data)
            out = bytes(rest[:GREETING - greeted])
            del rest[:len(out)]
            greeted += len(out)
            size = self.whole(rest)
            while greeted == GREETING and size:
                head = 9 if rest[0] & LONG else 2
                with self.lock:
                    out += bytes(rest[:size]) if rest[0] & COMMAND else \
                        self.frames(bytes(rest[head:size]), at)
                del rest[:size]
                size = self.whole(rest)
            return out
        return change

    @staticmethod
    def whole(rest):
        """Returns the bytes of the first message, or 0 if it is not whole
        yet."""
        head = 9 if rest and rest[0] & LONG else 2
        if len(rest) < head:
            return 0
        size = head + (struct.unpack(">Q", rest[1:9])[0] if head == 9
                       else rest[1])
        return size if len(rest) >= size else 0

    def again(self):
        """Sends all frames about rooms once more, behind the next message.
        Returns how many there are."""
        with self.lock:
            for late, heard in zip(self.late, self.heard):
                late.extend(heard)
            return sum(map(len, self.heard))

    def frames(self, body, which):
        """Returns the frames that are sent in place of a message."""
        out, before, at = [], self.late[which], 0
        self.late[which] = []
        while at < len(body):
            head = HEADER.unpack_from(body, at)
            frame = body[at:at + HEADER.size + head[5]]
            at += len(frame)
            name = NAMES[head[2]]
            if name != "hello":
                self.heard[which].append(frame)
            if name in self.wrong:
                frame = frame[:HEADER.size] + self.wrong[name]
            how = self.how(name, self.draws[which])
            self.did[how, name] += 1
            if how == "late":
                self.late[which].append(frame)
            else:
                out += [frame] * {"lost": 0, "twice": 2}.get(how, 1)
        said = b"".join(out + before)
        return part(said) if said else b""


@unittest.skipIf(SENT == "ucx", "what is said is the same by any carrier")
class Said(Case):
    insecure = True
    limit_s = 400

    def setUp(self):
        super().setUp()
        sent = {"transfer": {"same_host": "off", "carrier": "tcp"}}
        self.e = self.world.encoded(**sent)
        self.between = Between(self.e.address)
        self.addCleanup(self.between.close)
        self.e.address = f"tcp://127.0.0.1:{self.between.port}"
        self.d = self.world.langd([self.e], **sent)
        self.enc, self.lm = self.engines(self.e, self.d)

    def opens(self, room):
        """Opens a room whose length is known only with its last row."""
        self.lm.request(room, "enc0", deadline=2)
        self.enc.opens(room, ROWS)
        self.enc.write(room, 0, ROWS)
        self.enc.commit(room, 0, ROWS // 2)

    def ends(self, room):
        """Returns how the room ended at langd: "" with all its rows."""
        try:
            self.assertEqual(self.lm.ready(room), ROWS)
            self.good(self.lm, room)
            return ""
        except mmx.MmxError as e:
            self.assertEqual(self.lm.state(room)[0], "FAILED", e)
            return e.reason

    def agrees(self, room, end):
        """Checks that encoded agrees with `end`, as ends() returned it; both
        sides release the room."""
        if end:
            self.assertNotEqual(self.enc.state(room)[0], "SUCCESS")
        else:
            self.assertEqual(self.enc.done(room), [1, 0])
        self.lm.release(room)
        self.enc.release(room)

    # F18, F19, F20, F22
    def test_any_of_them_lost_twice_and_late(self):
        def how(_, draw):
            at = draw.random()
            for name, chance in CHANCES.items():
                if at < chance:
                    return name
                at -= chance
            return ""
        self.between.how = how
        rooms = range(1, 61)
        for some in (rooms[i:i + 3] for i in range(0, len(rooms), 3)):
            for room in some:
                self.lm.request(room, "enc0", deadline=20)
                self.enc.encode(room, ROWS, known=False, aux="grid")
            for room in some:
                self.comes(self.enc, self.lm, room, ROWS)
        with self.between.lock:
            for how in CHANCES:
                self.assertGreater(sum(
                    n for (h, _), n in self.between.did.items() if h == how),
                    20)
        self.assertEqual(self.d.stats()["peers_lost"], 0)

    # F22
    def test_each_of_them_is_never_heard(self):
        room = 0
        for name in SAID:
            with self.subTest(name=name):
                self.between.how = lambda its, _draw, name=name: \
                    "lost" if its == name else ""
                comes, there, here = rooms = range(room + 1, room + 4)
                room += 3
                for one in rooms:
                    self.opens(one)
                self.enc.finish(comes, ROWS // 2, ROWS)
                self.enc.abort(there)
                self.lm.abort(here)
                ends = [self.ends(one) for one in rooms]
                eventually(lambda name=name: self.between.did["lost", name] > 1,
                           "it is repeated")
                self.between.how = lambda _name, _draw: ""
                self.assertIn(ends[0], ("", "timeout"))
                # unknown-room: the INIT came after the abort.
                self.assertIn(ends[1], ("aborted", "timeout", "unknown-room"))
                self.assertEqual(ends[2], "aborted")
                for one, end in zip(rooms, ends):
                    self.agrees(one, end)
                self.world.all_free()
                room += 1
                self.deliver(self.enc, self.lm, room, ROWS)

    # F21
    def test_all_that_was_said_comes_again(self):
        for room in range(1, 9):
            self.opens(room)
            if room % 4 == 0:
                self.lm.abort(room)
                for engine in (self.enc, self.lm):
                    engine.until(room, "FAILED")
                    engine.release(room)
            else:
                self.enc.finish(room, ROWS // 2, ROWS)
                self.comes(self.enc, self.lm, room, ROWS)
        self.world.all_free()
        self.halfway(self.enc, self.lm, 20)
        self.enc.announce(1, 300, 300)  # the id belongs to another room now
        self.enc.granted(1)
        self.assertGreater(self.between.again(), 30)
        self.enc.finish(20, 640, 2000)
        self.comes(self.enc, self.lm, 20, 2000)
        self.assertEqual(self.enc.state(1)[0], "BOOTSTRAPPING")
        self.enc.finish(1, 0, 300)
        self.lm.request(1, "enc0")
        self.comes(self.enc, self.lm, 1, 300)

    # F27
    def test_grants_that_cannot_be(self):
        most = 2**32 - 1
        for room, (attempt, granted, first) in enumerate((
                (0, most, 0), (0, 0, 0), (0, 1, 0), (0, ROWS, 7),
                (0, ROWS, ROWS + 1), (1, ROWS, 0), (most, most, most)), 1):
            self.between.wrong = {"resume": struct.pack(
                "<IIIB", attempt, granted, first, 1)}
            self.opens(room)
            self.enc.finish(room, ROWS // 2, ROWS)
            said = self.ends(room)
            self.between.wrong = {}
            self.agrees(room, said)
            self.world.all_free()
        self.assertGreaterEqual(self.between.did["", "resume"], 7)
        self.deliver(self.enc, self.lm, 20, ROWS)
