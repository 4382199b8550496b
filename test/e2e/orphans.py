"""A langd by hand that sends messages about rooms and generations that do not
exist, and reads the answers: a process of its own, which takes commands as
engine.py does."""

import itertools
import random
import struct
import time

from engine import serve
from liar import Peer
from rawpeer import HEADER, frame, hello, part, text

# Frames of one message, and how many ABORTs may be without an answer.
FRAMES, OPEN = 50, 4
# Kind and body: RESUME, ACK, ABORT, DECLINE, STATE.
KINDS = ((3, struct.pack("<IIIB", 0, 100, 0, 1)),
         (6, struct.pack("<I", 100)),
         (7, struct.pack("<B", 1) + text("orphan") + bytes(24)),
         (11, bytes(32 + 4 + 4 + 16)),
         (12, struct.pack("<BBBIIIBB", 5, 2, 0, 0, 100, 100, 0, 0)))
DRAINED = 8  # answers an ABORT


class Orphans:
    def __init__(self, address):
        self.peer = Peer(address)
        self.peer.send(hello("orphans"))
        head = HEADER.unpack_from(self.peer.message())
        self.epoch = head[6]
        self.draw = random.Random(1)
        self.open = 0

    def say(self, count, rate):
        """Sends `count` messages, at most `rate` a second, and waits for the
        answer to each ABORT. Returns the rate that it reached."""
        began = time.monotonic()
        kinds = itertools.cycle(KINDS)
        for sent in range(0, count, FRAMES):
            self.peer.s.sendall(part(b"".join(
                frame(kind, body, self.draw.getrandbits(64),
                      self.draw.getrandbits(64), to_epoch=self.epoch)
                for kind, body in itertools.islice(kinds, FRAMES))))
            self.open += FRAMES // len(KINDS)
            self.answers(OPEN * FRAMES // len(KINDS))
            ahead = began + sent / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
        self.answers(0)
        return count / (time.monotonic() - began)

    def answers(self, left):
        """Reads until only `left` ABORTs have no answer."""
        while self.open > left:
            data, at = self.peer.message(), 0
            while at < len(data):
                head = HEADER.unpack_from(data, at)
                self.open -= head[2] == DRAINED
                at += HEADER.size + head[5]

    def close(self):
        self.peer.close()


if __name__ == "__main__":
    serve(Orphans)
