"""mmx.place sends each item to its owner, among four real encoders: together
they are one cache. test/bench/place simulates larger fleets."""

import collections
import random
import unittest

from pair import Case

import mmx

KEPT = 16  # items that each encoder keeps
ASKED = random.Random(1).choices(
    range(100), [1 / (1 + n) for n in range(100)], k=300)


def key(n):
    return (n + 1).to_bytes(32, "little")  # zero means: no key


class Owners(Case):
    def setUp(self):
        super().setUp()
        self.daemons = {f"enc{i}": self.world.encoded(f"enc{i}", blocks=KEPT)
                        for i in range(4)}
        self.engines_ = {name: self.world.engine(d)
                         for name, d in self.daemons.items()}
        self.lm = self.world.engine(self.world.langd(self.daemons.values()))
        self.room = 0

    def drop(self):
        for d in self.daemons.values():
            d.ctl("drop")

    def serve(self, name, n):
        """Serves a request for item n at this encoder, which encodes the item
        unless it has the rows."""
        self.room += 1
        room, enc, lm = self.room, self.engines_[name], self.lm
        for x in (enc, lm):
            x.item([room], n)
        enc.announce(room, 100, 100, key=key(n), keep=True)
        if not enc.have(room):
            enc.finish(room, 0, 100)
        lm.request(room, name, key=key(n))
        self.assertEqual(lm.ready(room), 100)
        self.good(lm, room)
        self.over(enc, lm, room)

    def avoided(self, choose):
        """Returns how many encodes are avoided, of requests by a Zipf law."""
        def have():
            return sum(d.stats()["have"] for d in self.daemons.values())
        before = have()
        for n in ASKED:
            self.serve(choose(n), n)
        got = have() - before
        self.drop()
        return got

    def ideal(self):
        kept, got = collections.OrderedDict(), 0
        for n in ASKED:
            got += n in kept
            kept[n] = True
            kept.move_to_end(n)
            if len(kept) > 4 * KEPT:
                kept.popitem(last=False)
        return got

    def test_four_encoders_keep_what_one_as_large_would(self):
        names, dice = list(self.daemons), random.Random(2)
        owner = self.avoided(
            lambda n: mmx.place(key(n), names, [0] * len(names))[0])
        drawn = self.avoided(lambda n: dice.choice(names))
        ideal = self.ideal()
        print(f"avoided of {len(ASKED)}: by owner {owner}, drawn {drawn}, "
              f"ideal {ideal}")
        self.assertGreater(owner, 0.9 * ideal)
        self.assertGreater(owner, drawn + len(ASKED) // 10)

    def test_one_that_drains_loses_its_items_alone(self):
        """The draining encoder's items are encoded once more, at the next
        owner."""
        names = list(self.daemons)
        few = range(12)

        def serve(there):
            for n in few:
                self.serve(mmx.place(key(n), there, [0] * len(there))[0], n)
            return [d.stats()["have"] for d in self.daemons.values()]
        owners = [mmx.place(key(n), names, [0] * 4)[0] for n in few]
        self.assertEqual(sum(serve(names)), 0)
        self.daemons["enc0"].ctl("drain")
        others = serve(names[1:])
        self.assertEqual(others[0], 0)
        self.assertEqual(sum(others), len(few) - owners.count("enc0"))
        self.daemons["enc0"].ctl("undrain")
        self.assertEqual(sum(serve(names)), sum(others) + len(few))
        self.drop()


if __name__ == "__main__":
    unittest.main()
