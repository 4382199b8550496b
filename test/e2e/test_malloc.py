"""Our code allocates nothing on the way of a room: once a pair is warm, more
rooms cost no call of malloc from the daemons' own code. (What libzmq and UCX
allocate is in separate objects, which are not counted.)"""

import failing
from pair import Case


class Malloc(Case):
    def start(self, daemon):
        """Starts the daemon with its allocations counted; returns what reads
        the count."""
        calls = failing.Calls(daemon.config + ".calls")
        self.addCleanup(calls.close)
        daemon.start(env=calls.env)
        return lambda: calls.kinds()["memory"]

    # F47
    def test_no_room_allocates(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e], start=False)
        counts = [self.start(e), self.start(d)]
        enc, lm = self.engines(e, d)
        for room in range(1, 21):
            self.deliver(enc, lm, room, 10 * room)
        before = [count() for count in counts]
        self.assertTrue(all(n > 0 for n in before), before)
        for room in range(100, 400):
            self.deliver(enc, lm, room, 1 + room * 7 % 3000)
        self.assertEqual([count() for count in counts], before)
