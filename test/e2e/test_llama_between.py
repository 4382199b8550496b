"""llama.cpp's language host, over a relay that delays what langd says."""

import os
import re
import select
import threading

from engine import LIMIT
from pair import eventually
from relay import Packets
import test_llama
import wire

import mmx


class Between(test_llama.Llama):
    held = test_llama.Windows.held
    one_more = test_llama.Windows.one_more

    def test_an_id_that_comes_too_late_is_given_back(self):
        """Otherwise langd would lease it for good, and the host has one."""
        e, d = self.pair_of()
        asked, go = threading.Event(), threading.Event()

        def up(frames):
            if any(f.message is wire.TICKET for f in frames):
                asked.set()

        def down(frames):
            if asked.is_set():
                go.wait(LIMIT)

        line, encode = self.line(), self.encode_host(e)
        manifest = self.encoded_line(encode, line)
        late = os.path.join(self.dir, "late")
        p = self.language_host(Packets(d.socket, up, down), FAKE_LATE=late)
        p.stdin.write(manifest)
        p.stdin.flush()
        self.assertTrue(asked.wait(LIMIT))
        while not select.select([p.stdout], [], [], 0.1)[0]:
            with open(late, "a", encoding="ascii") as f:
                f.write(100 * ".")
        self.assertRegex(p.stdout.readline(), "^r1 error timeout, advice ")
        go.set()
        out, said = p.communicate("r2" + manifest[2:], timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", out),
                         self.unsplit(line)[0], out + said)
        self.end(encode)

    def test_rows_are_read_once_an_event_says_where_they_lie(self):
        """Their number is in the cell before."""
        e, d = self.pair_of()
        go = threading.Event()

        def down(frames):
            if any(f.message is wire.EVENT and
                   f.values["what"] & mmx.LANDED for f in frames):
                go.wait(LIMIT)

        self.file("sound", "4 3 5 3")
        line = self.line(["sound"])
        encode = self.held(e)
        p = self.language_host(Packets(d.socket, down=down))
        p.stdin.write(self.encoded_line(encode, line))
        p.stdin.flush()
        self.one_more(2)
        eventually(lambda: any(r.get("landed") == 12 for r in d.show("rooms")),
                   "a window has landed")
        self.assertFalse(select.select([p.stdout], [], [], 1.5)[0])
        go.set()
        self.one_more(3)
        self.one_more(3)
        out, said = p.communicate(timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", out),
                         self.unsplit(line)[0], out + said)
        self.end(encode)

    def test_a_program_maps_again_after_a_connection_is_lost(self):
        """Of the same run of langd."""
        e, d = self.pair_of()
        relay = Packets(d.socket)
        lines = self.line("a"), self.line("b")
        host = self.encode_host(e, "--digest", "tiny")
        for line in lines:
            self.encoded_line(host, line)
        p = self.program("linked", self.model_path, self.model_path, "5",
                         str(test_llama.STEPS), self.dir + "/logits",
                         MMX_LANGD_SOCKET=relay.socket, MMX_ENCODER="enc0",
                         MMX_MODEL="tiny")

        def fetched(line):
            before = self.encodes("linked")
            p.stdin.write(line)
            p.stdin.flush()
            self.assertEqual(re.findall(r" tokens (.*)", p.stdout.readline()),
                             self.unsplit(line)[0])
            return self.encodes("linked") == before

        self.assertTrue(fetched(lines[0]))
        relay.cut()
        eventually(lambda: fetched(lines[1]), "a picture comes from langd")
        p.communicate(timeout=LIMIT)
        self.end(host)
        e.stop()
