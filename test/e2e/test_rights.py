"""Who may have a room: engines that know its secret, and on one host the users
for whom the encoder's pool is (RULES 10)."""

import contextlib
import os
import shutil
import subprocess
import sys
import unittest

from pair import HERE, ROOT, SMALL, Case, eventually

import mmx

NAMED, OTHER, GROUP = 45001, 45002, 45100
COPY = {"transfer": {"same_host": "copy"}}
# Prints what this process cannot read of another one.
PEEK = """
import os, sys
at = f"/proc/{sys.argv[1]}/"
for look, name in ((os.readlink, "root"), (os.readlink, "cwd"),
                   (os.listdir, "fd"), (open, "mem"), (open, "maps"),
                   (open, "environ")):
    try:
        look(at + name)
    except PermissionError:
        print(name)
"""


@contextlib.contextmanager
def user(uid, groups=()):
    """Connections made inside belong to this user, with these groups."""
    before = os.getgroups()
    os.setgroups(groups)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setgroups(before)


class Closed(Case):
    insecure = True

    def test_a_daemon_is_closed_to_other_programs_of_its_user(self):
        e = self.world.encoded(start=False)
        around = os.path.dirname(self.world.dir)
        e.binary = shutil.copy(e.binary, around)
        words = [sys.executable, "-c", PEEK]
        if os.geteuid() == 0:  # root may read everything
            e.inside = words[:0] = [
                "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}",
                "--clear-groups"]
            for path in (around, self.world.dir):
                os.chown(path, OTHER, OTHER)
        e.start()
        got = subprocess.run([*words, str(e.pid)], stdout=subprocess.PIPE,
                             check=True, text=True, cwd="/")
        self.assertEqual(got.stdout.split(), ["root", "cwd", "fd", "mem",
                                              "maps", "environ"])


class Secrets(Case):
    # RULES 10.1
    def test_it_goes_with_the_id(self):
        e, d, enc, lm = self.at_work()
        thief = self.world.engine(d)
        key = mmx.secret()
        thief.request(7, "enc0", deadline=1)
        thief.request(8, "enc0", deadline=1, secret=mmx.secret())
        lm.request(7, "enc0", secret=key)
        lm.request(8, "enc0", secret=key)
        for room in (7, 8):
            enc.encode(room, 500, aux="grid", secret=key)
            self.assertEqual(lm.ready(room), 500)
            self.good(lm, room)
            self.assertEqual(enc.done(room), [1, 0])
            self.assertEqual(thief.failed(room), "timeout")
            self.assertEqual(thief.aux(room), "")
            thief.release(room)
            lm.release(room)
            enc.release(room)


@unittest.skipIf(os.geteuid(), "to be another user takes root")
class Users(Case):
    # RULES 10.2
    def test_rows_are_for_those_that_the_pool_names(self):
        os.chmod(self.world.dir, 0o755)
        mode = {"socket": {"mode": "0666"}, **COPY}
        e, d = self.pair(langd=mode, encoded={**mode, "pools": [
            {"name": "vit", "blocks": 64, "block_rows": 128,
             "layout": "embedding:u8:64", "uids": [NAMED], "gids": [GROUP]}]})
        with user(NAMED):
            enc, lm = self.engines(e, d)
        with user(OTHER):
            other = self.world.engine(d)
        enc.announce(7, 500, 500, aux="grid")
        other.request(7, "enc0")
        self.assertEqual(other.failed(7), "not-owner")
        self.assertEqual(other.aux(7), "")
        other.release(7)
        lm.request(7, "enc0")
        enc.granted(7)
        enc.finish(7, 0, 500)
        lm.ready(7)
        self.good(lm, 7)
        self.over(enc, lm, 7)
        self.assertEqual(e.stats()["rights_refused"], 1)


class Copies(Case):
    # RULES 10.5
    def test_a_langd_that_only_says_pong_holds_its_share(self):
        self.world.insecure = True
        e, d, enc, lm = self.at_work(
            encoded={"timeouts": {"drain": "1s", "bootstrap": "6s"}, **COPY})
        rooms = range(1, 9)
        for room in rooms:  # eight of 64 blocks each
            enc.opens(room, 1024, 1024)
            enc.finish(room, 0, 1024)
        self.assertEqual(e.free()[0], 0)
        with subprocess.Popen(
                [sys.executable, os.path.join(HERE, "liar.py"), e.address,
                 e.socket, SMALL, *map(str, rooms)], text=True,
                stdout=subprocess.PIPE, env={
                    **os.environ, "PYTHONPATH": os.path.join(
                        ROOT, "lib/client/python")}) as liar:
            try:
                self.assertEqual(liar.stdout.readline(), "asked\n")
                eventually(lambda: e.stats()["copies_refused"] == 2,
                           "two of eight are sent")
                for room in rooms:
                    enc.release(room)
                # Blocks whose rows were sent come back in time, the others do
                # not.
                eventually(lambda: e.free()[0] == 16, "a quarter comes back")
                for room in range(20, 30):
                    self.deliver(enc, lm, room, 1500)
                self.assertEqual(e.free()[0], 16)
            finally:
                liar.kill()
        e.all_free()


if __name__ == "__main__":
    unittest.main()
