"""The adapter for the SGLang fork, driven as its queues do: 1 to 4 ranks of
each side, each a forked process with a connection of its own, and the MIN of
their states in every turn of the loop."""

import json
import os
import signal
import socket
import sys
import traceback
import types

import numpy as np
from sglang.srt.disaggregation.base.conn import KVPoll
from pair import Case, eventually

import mmx
from mmx.adapters import sglang_fork as fork

HIDDEN, DEEP = 32, 3
FIELDS = fork.layout(HIDDEN, DEEP)


def request(rows, room):
    """What the fork's encode side has when its encoder has run."""
    some = np.random.default_rng(room)
    return types.SimpleNamespace(
        embedding=some.integers(0, 2**16, (rows, HIDDEN), dtype="u2"),
        deepstack_embedding=some.integers(0, 2**16, (rows, HIDDEN * DEEP),
                                          dtype="u2"),
        fill_ids=list(range(room, room + rows)), embedding_indices=None,
        multimodal_inputs=types.SimpleNamespace(
            mrope_positions=some.integers(0, 999, (3, rows)),
            mrope_position_delta=np.array([[-room]])))


class Rank:
    """One rank's loop; `least` is its all-reduce."""

    def __init__(self, side, rank, size, least):
        self.mgr = fork.MmxEmbeddingManager(
            types.SimpleNamespace(engine_rank=rank), side,
            types.SimpleNamespace(tp_size=size, dist_init_addr="tests"))
        self.allocator = fork.MmxAllocator(self.mgr, 8)
        self.buffers = fork.MmxDataBuffers(self.mgr)
        self.least = least

    def polls(self, pollers):
        return fork.poll_and_all_reduce(pollers, None, self.least)

    def until(self, poller, state):
        """Turns of the loop until the least of all ranks says so."""
        seen = []

        def there():
            seen.append(self.polls([poller])[0])
            return seen[-1] in (state, KVPoll.Failed)
        eventually(there, f"all ranks say {state}")
        assert KVPoll.Transferring not in seen, seen
        return seen[-1]

    def encode(self, room, rows, ahead=True, abort=False):
        sender = fork.MmxEmbeddingSender(self.mgr, "", room, [0], 0)
        self.until(sender, KVPoll.WaitingForInput)
        req = request(rows, room)
        req.embedding_indices = self.allocator.alloc(rows, f"r{room}")
        sender.init(block_indices=req.embedding_indices,
                    mrope_position_delta=-room if ahead else None)
        if abort:
            sender.abort()
        self.buffers.set_buf(req)
        sender.send_embedding(req.embedding_indices, True, rows)
        end = self.until(sender, KVPoll.Success)
        text = self.end(sender, req.embedding_indices, end)
        return [int(end), text]

    def language(self, address, room, rows):
        receiver = fork.MmxEmbeddingReceiver(self.mgr, address, room)
        self.until(receiver, KVPoll.WaitingForInput)
        indices = self.allocator.alloc(1024, f"r{room}")
        receiver.init(embedding_indices=indices, allocated_tokens=1024)
        end = self.until(receiver, KVPoll.Success)
        if end == KVPoll.Success:
            self.check(indices, room, rows)
        text = self.end(receiver, indices, end)
        return [int(end), text]

    def check(self, indices, room, rows):
        want = request(rows, room)
        embeds, ids, mrope, aux, deep = self.buffers.get_buf(
            block_indices=indices)
        assert ids.tolist() == want.fill_ids
        for have, meant in (
                (embeds, want.embedding), (deep, want.deepstack_embedding),
                (mrope, want.multimodal_inputs.mrope_positions)):
            np.testing.assert_array_equal(have, meant)
        if rows:  # warm-up has none, and no aux
            assert (aux[0], aux[1]) == (rows, -room), aux

    def end(self, transfer, indices, state):
        text = ""
        if state == KVPoll.Failed:
            try:
                transfer.failure_exception()
            except fork.EmbeddingTransferError as e:
                text = e.failure_reason
        for _ in range(2):  # the fork frees in several places
            self.allocator.free(block_indices=indices)
        assert self.allocator.available_size() == 8
        return text


class Ranks:
    """The ranks of one side, forked before they connect, as the fork's
    scheduler processes are. This process is their all-reduce."""

    def __init__(self, side, size, env):
        self.pipes, self.pids = [], []
        for rank in range(size):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                os.environ.update(env)
                self._child(side, rank, size, theirs.makefile("rw"))
            theirs.close()
            self.pipes.append(ours.makefile("rw"))
            self.pids.append(pid)

    @staticmethod
    def _child(side, rank, size, pipe):
        """Commands in, results out; in between its polls go to the parent
        and come back as the least of all ranks'."""
        def say(what, value):
            pipe.write(json.dumps([what, value]) + "\n")
            pipe.flush()

        def least(polls, _group):
            say("polls", polls)
            return json.loads(pipe.readline())
        try:
            one = Rank(side, rank, size, least)
            say("done", None)
            for line in iter(pipe.readline, "null\n"):
                do, args = json.loads(line)
                say("done", getattr(one, do)(*args))
            one.mgr.close()
        except BaseException:
            say("error", traceback.format_exc())
        finally:
            os._exit(0)

    def start(self, do, *args):
        for pipe in self.pipes:
            pipe.write(json.dumps([do, args]) + "\n")
            pipe.flush()

    def turn(self):
        """One all-reduce; the ranks' results if all of them are done."""
        said = [json.loads(p.readline()) for p in self.pipes]
        for what, value in said:
            if what == "error":
                raise AssertionError(value)
        values = [value for _, value in said]
        if all(what == "done" for what, _ in said):
            return values
        for pipe in self.pipes:
            pipe.write(json.dumps([min(p) for p in zip(*values)]) + "\n")
            pipe.flush()
        return None

    def results(self):
        got = self.turn()
        while got is None:
            got = self.turn()
        return got

    def close(self):
        for pipe, pid in zip(self.pipes, self.pids):
            try:
                pipe.write("null\n")
                pipe.close()
            except BrokenPipeError:
                pass  # it was killed
            os.waitpid(pid, 0)


class Fork(Case):
    def start(self, encode=1, language=1, **langd):
        self.e = self.world.encoded(fields=FIELDS)
        self.d = self.world.langd(
            [], fields=FIELDS, control={"allow": ["tcp://127.0.0.1:*"]},
            **langd)
        env = {"MMX_ENCODED_SOCKET": self.e.socket,
               "MMX_LANGD_SOCKET": self.d.socket}
        self.encode = self.side("encode", encode, env)
        self.language = self.side("language", language, env)
        self.address = self.e.address[len("tcp://"):]

    def side(self, name, size, env):
        ranks = Ranks(name, size, env)
        self.world.engines.append(ranks)
        ranks.results()
        return ranks

    def both(self, room, rows, address=None, **encode):
        """Both sides' loops turn at the same time: one in a child of its
        own, since each waits for its ranks in step."""
        self.language.start("language", address or self.address, room, rows)
        self.encode.start("encode", room, rows, *encode.values())
        other = os.fork()
        if other == 0:
            try:
                self.encode.results()
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                os._exit(1)
            os._exit(0)
        got = self.language.results()
        self.assertEqual(os.waitpid(other, 0)[1], 0)
        return got

    def good(self, got, size):
        self.assertEqual(got, [[KVPoll.Success, ""]] * size)

    def test_one_rank_each(self):
        self.start()
        self.good(self.both(7, 500), 1)
        self.good(self.both(8, 2000), 1)  # more than the default grant
        self.good(self.both(9, 2000, ahead=False), 1)
        self.assertEqual(self.d.stats()["rooms_succeeded"], 3)

    def test_two_ranks_feed_four(self):
        self.start(2, 4)
        for room in range(1, 5):
            self.good(self.both(room, 300 * room), 4)
        stats = self.d.stats()
        self.assertEqual(stats["rooms_succeeded"], 4)
        # Once per host, not once per rank.
        row = 4 * (1 + 3) + 2 * HIDDEN * (1 + DEEP)
        self.assertEqual(stats["bytes_moved"], 3000 * row)

    def test_an_abort_fails_every_rank(self):
        self.start(1, 3)
        got = self.both(5, 700, ahead=True, abort=True)
        self.assertEqual([state for state, _ in got], [KVPoll.Failed] * 3)
        # Asked for before or after it had ended: it hears another reason.
        # A rank that had not looked yet fails with the others.
        self.assertRegex(" ".join(text for _, text in got),
                         "aborted|unknown-room")
        self.good(self.both(6, 700), 3)  # life goes on

    def test_warm_up_needs_no_encoder(self):
        self.start(1, 2)
        self.language.start("language", fork.FAKE_HOST + ":1", 3, 0)
        polls = self.language.results
        self.assertEqual([s for s, _ in polls()], [KVPoll.Success] * 2)

    def test_ranks_that_die_leave_nothing(self):
        self.start(1, 2)
        self.language.start("language", self.address, 4, 300)
        eventually(lambda: self.language.turn() or
                   self.d.stats()["rooms_opened"], "it is asked for")
        self.assertNotEqual(*self.d.free())
        for pid in self.language.pids:
            os.kill(pid, signal.SIGKILL)
        self.d.all_free()


class Numbers(Case):
    def test_states_are_the_forks(self):
        for ours, theirs in zip(
                mmx.State, (KVPoll.Failed, KVPoll.Bootstrapping,
                            KVPoll.WaitingForInput, KVPoll.Transferring,
                            KVPoll.Success)):
            self.assertEqual(int(ours), int(theirs))
