"""Both engines of a room, by the installed client, as a user of the group
mmx-engine, who cannot read the key of the fleet.

    engines.py room ID      a room passes
    engines.py finish ID    opens a room; the rest of its rows come when a line
                            is read
    engines.py hang ID      opens a room whose rows never come; says how it ends
                            and passes another one when the daemons are back"""

import sys
import time

import numpy as np

import mmx

ROWS, HALF, LIMIT = 500, 200, 60
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def say(text):
    print(text, flush=True)


def has_no_key():
    try:
        open("/etc/mmx/fleet.key", "rb").close()
    except OSError:
        return
    sys.exit("an engine can read /etc/mmx/fleet.key")


class Pair:
    def __init__(self):
        has_no_key()
        self.enc = mmx.connect("encoded", timeout=LIMIT)
        self.lm = mmx.connect("langd", timeout=LIMIT)
        self.rows = np.arange(ROWS * 2352, dtype=np.uint32) % 65521
        self.rows = self.rows.astype(np.uint16).reshape(ROWS, 2352)

    def open(self, number):
        self.room = self.lm.request(number, self.lm.pool("vit"), "encoded-0",
                                    traceparent=CONTEXT)
        self.src = self.enc.announce(number, self.enc.pool("vit"), ROWS, ROWS,
                                     aux=b"grid")
        self.src.wait_granted(timeout=LIMIT)
        self.src["embedding"][0:HALF] = self.rows[:HALF]
        self.enc.wait(self.src.commit(0, HALF), LIMIT)

    def rest(self):
        self.src["embedding"][HALF:ROWS] = self.rows[HALF:]
        self.src.commit(HALF, ROWS, final=True)
        with self.room.wait_ready(timeout=LIMIT):
            assert (self.room.gather("embedding") == self.rows).all()
            assert self.room.aux == b"grid"
        self.src.wait_done(timeout=LIMIT)
        self.src.release()

    def ended(self):
        """Returns the reasons with which an open room ends at both sides."""
        names = []
        for wait in (self.room.wait_ready, self.src.wait_done):
            try:
                wait(timeout=LIMIT)
            except mmx.MmxError as e:
                names.append(e.reason)
        return names

    def again(self, number):
        """Passes a room once both daemons are back; they may come and go
        meanwhile."""
        end = time.monotonic() + LIMIT
        while True:
            try:
                fresh = Pair()
                fresh.open(number)
                return fresh.rest()
            except mmx.MmxError:
                if time.monotonic() > end:
                    raise
            number += 1


def main():
    what, number = sys.argv[1], int(sys.argv[2])
    pair = Pair()
    pair.open(number)
    say("open")
    if what == "hang":
        say("ended " + " ".join(pair.ended()))
        pair.again(number + 1)
    else:
        if what == "finish":
            sys.stdin.readline()
        pair.rest()
    say("passed")


main()
