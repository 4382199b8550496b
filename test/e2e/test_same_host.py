"""Two daemons of one host: rows are copied from memory to memory unless that
is off or impossible, and every rule holds as it does over a network."""

import os
import shutil
import socket

from engine import LIMIT
from pair import BUILD, Case, eventually, sanitized
import wire

UNUSED = 61234  # a uid and gid without a user on this host
WIDE = "embedding:u8:32768"


UNMAP = os.path.join(BUILD, "test", "preload", "slow_unmap.so")


def opened(gate):
    """Opens the fifo for writing; returns None while no process reads from
    it."""
    try:
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


class SameHost(Case):
    def path(self, daemon):
        return [r["path"] for r in daemon.show("peers")
                if r["state"] != "refused"]

    def copying(self, *daemons):
        for d in daemons:
            eventually(lambda: "copy" in self.path(d),
                       f"{d.name} copies: {self.path(d)}")

    def both(self, **conf):
        """Starts a pair that copies, with an engine on either side."""
        e, d, enc, lm = self.at_work(**conf)
        self.deliver(enc, lm, 10000, 3)
        self.copying(e, d)
        return e, d, enc, lm

    def met(self, lm, room):
        eventually(lambda: lm.state(room)[0] != "BOOTSTRAPPING",
                   f"both daemons know of room {room}")

    def copied(self, daemon):
        return daemon.stats()["segments_copied"]


class Sent(SameHost):
    """Rows are not copied but sent, and come all the same."""

    def not_copied(self, e, d, enc, lm):
        for room in range(1, 4):
            self.deliver(enc, lm, room, 1500)
        self.assertEqual(self.path(e), ["sent"])
        self.assertEqual(self.path(d), ["sent"])
        self.assertEqual(self.copied(d), 0)

    def test_off_at_either(self):
        off = {"transfer": {"same_host": "off"}}
        for side in ("encoded", "langd"):
            e, d = self.pair(**{side: off})
            self.not_copied(e, d, *self.engines(e, d))
            self.world.end_engines()
            for daemon in (d, e):
                daemon.stop()

    def test_socket_cannot_be_reached(self):
        e = self.world.encoded()
        enc = self.world.engine(e)
        hidden = e.socket + ".hidden"
        os.rename(e.socket, hidden)
        # langd looks for the socket once it is connected
        d = self.world.langd([e])
        lm = self.world.engine(d)
        self.deliver(enc, lm, 1, 1500)
        eventually(lambda: "rows are sent, not copied" in d.tail(), "a line")
        self.deliver(enc, lm, 2, 1500)
        self.assertEqual(self.copied(d), 0)
        os.rename(hidden, e.socket)
        self.assertEqual(self.path(d), ["sent"])

    # RULES 3.4
    def test_a_socket_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root can start a daemon of another user")

        def leave():
            os.setgroups([])
            os.setgid(UNUSED)
            os.setuid(UNUSED)
        outside = os.path.dirname(self.world.dir)
        e = self.world.encoded(start=False, socket={
            "orders": os.path.join(outside, "own-admin", "enc0")})
        for folder in (self.world.dir, outside):
            os.chown(folder, UNUSED, UNUSED)
        os.chown(self.world.key, UNUSED, UNUSED)
        e.before = leave
        # Another user may not reach the build folder.
        e.binary = shutil.copy(e.binary, self.world.dir)
        e.start()
        # langd accepts a key file only of its own user.
        own = os.path.join(self.world.dir, "own.key")
        shutil.copy(self.world.key, own)
        os.chmod(own, 0o600)
        d = self.world.langd([e], control={"keys": [own]})
        eventually(lambda: "another user serves its socket" in d.tail(),
                   "langd looks at who serves")
        self.not_copied(e, d, *self.engines(e, d))
        self.assertIn("copy: another user serves its socket",
                      d.show("peers")[0]["not_by"])

    # RULES 3.4
    def test_a_token_cannot_be_guessed(self):
        e, d, enc, lm = self.both()
        epoch = int(next(r["epoch"] for r in e.show("peers")), 16)
        for token in (0, 1, 2**63 + 5):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.settimeout(LIMIT)
                s.connect(e.socket)
                s.send(wire.MAP.encode(1, token=token, epoch=epoch,
                                       name="lang0"))
                data, fds, _, _ = socket.recv_fds(s, 65536, 16)
                frame = next(iter(wire.frames(data)))
                self.assertEqual(frame.message.name, "answer")
                self.assertNotEqual(frame.values["err"], 0)
                self.assertEqual(fds, [])
                self.assertEqual(s.recv(100), b"")
        self.assertEqual(self.path(e), ["copy"])
        self.deliver(enc, lm, 1, 1000)


class Ends(SameHost):
    released = False

    def test_unmapping_holds_no_rows_up(self):
        if sanitized(os.path.join(BUILD, "mmx-langd")):
            self.skipTest("the sanitizer comes first in the library list")
        gate = os.path.join(self.world.dir, "gate")
        other, gone = (self.world.encoded(name, WIDE, 8)
                       for name in ("enc0", "enc1"))
        d = self.world.langd([other, gone], fields=WIDE, blocks=8,
                             start=False)
        d.start(env={"LD_PRELOAD": UNMAP, "MMX_GATE": gate})
        lm, enc = self.world.engine(d), self.world.engine(other)
        # langd connects to an encoder at the first request.
        self.deliver(self.world.engine(gone), lm, 1, 3, "enc1")
        eventually(lambda: self.path(d) == ["copy"] * 2, "both are mapped")
        os.mkfifo(gate)
        self.addCleanup(os.unlink, gate)  # removed before langd's end
        gone.kill()
        # The gate can be opened for writing once munmap() reads from it.
        hold = eventually(lambda: opened(gate), "the pool is unmapped")
        try:
            for room in range(1, 4):
                self.deliver(enc, lm, room, 700)
            self.assertEqual(self.path(d).count("copy"), 1)
        finally:
            os.close(hold)

    # RULES 6.4; F42
    def test_silent_langd_comes_back(self):
        e, d, enc, lm = self.both()
        self.halfway(enc, lm)
        with d.stopped():
            self.assertEqual(enc.failed(1), "peer-lost")
            enc.release(1)
            # The source blocks of a silent langd stay until it ends; no timer
            # frees them.
            pool = eventually(lambda: [r for r in e.show("pools")
                                       if r["quarantined"] == 16], "quarantine")
            self.assertEqual(pool[0]["free"], 48)
        e.all_free()
        self.assertEqual(lm.failed(1), "peer-lost")
        self.good(lm, 1, 0, 640)
        lm.release(1)
        d.all_free()
        self.copying(e, d)
        self.deliver(enc, lm, 2, 1500)

    def test_source_is_written_again(self):
        # As soon as an encode engine hears that a room has ended it overwrites
        # the rows, and takes the blocks for the next room.
        e, d, enc, lm = self.both(fields=WIDE, blocks=8, langd={"blocks": 32})
        for room in range(1, 25):
            lm.request(room, "enc0")
            enc.encode(room, 1000)
            enc.done(room)
            for run in enc.rooms[room].pieces(0, 1000):
                enc.pool.rows("embedding", run.place, run.rows)[:] = 0xEE
            enc.release(room)
            lm.ready(room)
            if room % 3 == 0:
                for old in range(room - 2, room + 1):
                    self.good(lm, old)
                    lm.release(old)
        self.assertGreater(self.copied(d), 24)
