"""Tests what owners save, in small versions of the fleets of
test/bench/place."""

import importlib.machinery
import importlib.util
import os
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LOADER = importlib.machinery.SourceFileLoader(
    "place", os.path.join(HERE, "../bench/place"))
place = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("place", LOADER))
LOADER.exec_module(place)


class Fleets(unittest.TestCase):
    def worlds(self, kind, encoders=20, requests=6000):
        got = {choice: place.World(kind, choice, encoders, requests, 1)
               for choice in place.CHOICES}
        for w in got.values():  # each request is answered once
            self.assertEqual(len(w.waits), len(got["ideal"].waits))
        return got

    def test_what_all_would_avoid_and_each_one_does_not(self):
        """The bounds are far from the values seen (place.World.line)."""
        for kind, of_ideal in (("calm", 0.95), ("crowd", 0.95),
                               ("restart", 0.8), ("hang", 0.8)):
            got = self.worlds(kind)
            share = got["owner"].avoided / got["ideal"].avoided
            self.assertGreater(share, of_ideal, kind)
            self.assertGreater(got["owner"].avoided,
                               got["random"].avoided + 0.2, kind)
            self.assertLess(got["owner"].waited(0.99),
                            got["random"].waited(0.99), kind)

    def test_a_crowd_is_one_encode_or_two(self):
        """At most one encoder more, for a while, while the owner has a
        queue."""
        w = self.worlds("crowd")["owner"]
        had = sum(place.key_of_item(-1) in e.kept for e in w.encoders)
        self.assertIn(had, (1, 2))
        self.assertGreater(len(w.waits), 6000 + 200)

    def test_one_that_hangs_costs_its_own_requests_their_limit(self):
        waits = self.worlds("hang")["owner"].waits
        late = [x for x in waits if x >= place.LIMIT_S]
        self.assertTrue(late)
        self.assertLess(len(late), len(waits) / 20)
        self.assertLess(max(waits), 2 * place.LIMIT_S)


if __name__ == "__main__":
    unittest.main()
