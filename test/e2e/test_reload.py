"""A daemon that changes while it runs: commands, and who may give them."""

import os
import unittest

from pair import Case
from rawengine import answer, greeted
from test_shares import user

from mmx import wire

OTHER = 54321


class Commands(Case):
    def test_a_command_is_for_root_and_the_daemons_own_user(self):
        if os.geteuid() != 0:
            raise unittest.SkipTest("needs root to be another user")
        e, d = self.pair(socket={"mode": "0666"})
        os.chmod(self.world.dir, 0o755)
        for daemon in (e, d):
            with user(OTHER):
                s = greeted(daemon, session="other")
            self.addCleanup(s.close)
            s.send(wire.QUERY.encode(5, what="reload"))
            got = answer(s)
            self.assertEqual(got.message, wire.REPORT)
            self.assertEqual(got.values["err"], 12)  # not-owner
            self.assertIn(b"only root", got.values["text"])

    def test_a_command_that_is_none(self):
        e, _ = self.pair()
        got = e.ctl("relaod", check=False)
        self.assertEqual(got.returncode, 1)
        self.assertIn("reload", got.stderr)
        for words in (("status", "more"), ("reload", "x" * 300), ()):
            self.assertEqual(e.ctl(*words, check=False).returncode, 64)
