"""The vLLM adapter of engines on a GPU, over the driver's double and a
stand-in for torch's streams. No pass waits. Kernels read rows after they are
copied; rooms are released when all ranks have copied their rows; rows are
committed when they are copied. vLLM's newer model runner calls its workers in
passes without work, too; the older one does not."""

import unittest
from unittest import mock

import numpy as np
from fake_vllm import Engine, Request, VllmCase, tensor
from ongpu import PINNED, modules, torch
from ongpu import OnGpu as Pins
from pair import eventually


class OnGpu(Engine):
    """Makes the calls of vLLM's model runners on a GPU. The encoder's kernels
    write rows, the model's read those in its cache."""

    def __init__(self, *how, v2=True, joins=True, **extra):
        self.v2, self.joins = v2, joins
        with modules():
            super().__init__(*how, v2=v2, **extra)
        self.kernels = [torch.Stream() for _ in self.ranks]
        for rank in self.ranks:
            rank.start_worker_services()
        # rows that kernels have read, by name
        self.read = [{} for _ in self.ranks]

    def copies(self, rank=0):
        """Returns the stream of a rank's copies."""
        side = self.ranks[rank]._loader or self.ranks[rank]._saver
        return side.copies._stream

    def run(self, rank, cache, meta, encode):
        number = self.ranks.index(rank)
        pinned = PINNED.values()
        with torch.in_a_pass(self.kernels[number], pinned):
            rank.bind_connector_metadata(meta)
            rank.start_save_caches(encoder_cache=cache)
            rank.start_load_caches(cache)
            for f in encode:
                cache[f.identifier] = torch.written(
                    tensor(f.identifier, f.rows))
                if not self.v2:
                    rank.save_caches(cache, f.identifier)
            if rank._loader:
                done = self.read[number]
                done.update({name: torch.read(rows) for name, rows in
                             cache.items() if name not in done})
            for f in encode if self.v2 else ():
                rank.save_caches(cache, f.identifier)
            return self.end(rank)

    def report(self, said):
        super().report(said if self.joins else said[:1])

    def idle(self):
        """Runs passes without work as long as the connector asks for them. In
        those the older runner calls no hook of a consumer."""
        assert self.scheduler.has_pending_push_work()
        if self.v2 or self.scheduler._producer:
            self.step(Request("none"))

    def settled(self):
        eventually(lambda: not self.scheduler.has_pending_push_work() or
                   self.idle(), "nothing is pending")

    def close(self):
        torch.open_gates()
        super().close()


class OnAGpu(Pins, VllmCase):
    def on_gpu(self, daemon, role, ranks=1, **extra):
        had = len(PINNED)  # pinned by other engines
        engine = OnGpu(daemon, role, ranks, mmx_patience_s=60, **extra)
        self.world.engines.append(engine)
        maps = 1 if role == "producer" else ranks
        eventually(lambda: len(PINNED) >= had + maps, "its pool is pinned")
        return engine

    def consumer_of(self, **extra):
        self.start()
        self.consumer.close()
        self.world.engines.remove(self.consumer)
        self.consumer = self.on_gpu(self.d, "consumer", 2, **extra)

    def producer_of(self, **extra):
        self.start()
        self.producer.close()
        self.world.engines.remove(self.producer)
        self.producer = self.on_gpu(self.e, "producer", 2, **extra)

    def started(self, *pictures):
        """Runs a pass that loads these pictures; returns the request."""
        r = self.hand_over("r", *pictures)
        self.consumer.take(r)
        return r

    def check_read(self, *pictures):
        for stream in self.consumer.kernels:
            stream.synchronize()
        for read in self.consumer.read:
            for name, rows in pictures:
                np.testing.assert_array_equal(read[name], tensor(name, rows))

    def taken(self):
        free, blocks = self.d.free()
        return blocks - free


class Consumer(OnAGpu):
    PICTURES = ("cat", 300), ("dog", 129), ("fox", 5)

    def test_kernels_read_rows_after_their_copies(self):
        self.consumer_of()
        gates = [self.consumer.copies(rank).gate() for rank in (0, 1)]
        batches = self.batches()
        r = self.started(*self.PICTURES)
        self.assertEqual(self.batches() - batches, 2)
        for gate in gates:
            gate.set()
        self.check_read(*self.PICTURES)
        self.consumer.settled()
        self.d.all_free()
        self.consumer.finish(r)

    def test_a_room_is_released_when_the_last_rank_has_copied_it(self):
        self.consumer_of()
        gates = [self.consumer.copies(rank).gate() for rank in (0, 1)]
        r = self.started(("cat", 300))
        for gate in reversed(gates):
            for _ in range(3):
                self.consumer.idle()
            self.assertEqual(self.taken(), 3)
            gate.set()
            self.consumer.copies(gates.index(gate)).synchronize()
        self.consumer.settled()
        self.d.all_free()
        self.check_read(("cat", 300))
        self.consumer.finish(r)

    def test_an_executor_that_passes_on_one_ranks_reports(self):
        self.consumer_of(joins=False)
        gate = self.consumer.copies(0).gate()
        r = self.started(("cat", 300))
        self.consumer.idle()
        self.assertEqual(self.taken(), 3)
        gate.set()
        self.consumer.settled()
        self.d.all_free()
        self.consumer.finish(r)

    def test_the_older_runner_reports_with_its_pass(self):
        """A pass without work would call no hook."""
        self.consumer_of(v2=False)
        report, arrived = self.consumer.report, []
        self.consumer.report = arrived.append
        gates = [self.consumer.copies(rank).gate() for rank in (0, 1)]
        r = self.started(("cat", 300))
        self.assertEqual(self.taken(), 3)
        for gate in gates:
            gate.set()
        self.check_read(("cat", 300))  # the output of the pass is there
        report(*arrived)
        self.assertFalse(self.consumer.scheduler.has_pending_push_work())
        self.d.all_free()
        self.consumer.finish(r)

    def test_a_pool_is_pinned_once(self):
        """In each rank, langd's and the encoder's."""
        self.consumer_of()
        for turn in range(3):
            r = self.started((f"cat{turn}", 300))
            self.consumer.settled()
            self.consumer.finish(r)
            eventually(lambda: self.consumer.step(Request("none")) or
                       len(PINNED) == 4, "they are pinned")
        self.consumer.close()
        self.world.engines.remove(self.consumer)
        self.consumer = None
        self.assertEqual(len(PINNED), 0)


class Producer(OnAGpu):
    def encoding(self, *pictures):
        """Runs a pass that encodes these pictures; returns the consumer's
        request."""
        r = Request("r", *pictures)
        self.producer.take(r)
        there = Request("r", *pictures)
        there.ec_transfer_params = self.producer.finish(r)
        return there

    def held_back(self, gate):
        r = self.encoding(("cat", 300), ("dog", 129))
        for _ in range(3):
            self.producer.idle()
        self.assertFalse(self.consumer.ready(r))
        source = self.producer.scheduler._producer.left[0][1]
        self.assertEqual(source.rows, 0)
        gate.set()
        self.producer.settled()
        self.fetch(r)
        self.assertEqual(self.producer.encoded, ["cat", "dog"])

    def test_rows_are_committed_when_they_are_copied(self):
        self.producer_of()
        self.held_back(self.producer.copies().gate())

    def test_and_by_the_older_runner(self):
        self.producer_of(v2=False)
        self.held_back(self.producer.copies().gate())

    def test_rows_are_copied_after_the_kernels_that_write_them(self):
        self.producer_of()
        self.held_back(self.producer.kernels[0].gate())

    def test_a_pass_waits_for_no_daemon(self):
        self.producer_of()
        self.producer.ranks[0].settings.worker_wait = 1e6
        r, there = Request("r", ("cat", 300)), Request("r", ("cat", 300))
        self.producer.admit(r)
        with self.e.stopped():
            self.producer.step(r)
        # vLLM may have evicted the rows by then
        self.producer.caches[0].clear()
        there.ec_transfer_params = self.producer.finish(r)
        self.producer.settled()
        self.fetch(there)
        self.assertEqual(self.producer.encoded, ["cat"])

    def test_a_gpu_without_memory_costs_its_picture(self):
        self.producer_of()
        with mock.patch.object(torch.Tensor, "contiguous",
                               side_effect=RuntimeError("out of memory")), \
                self.assertLogs("vllm.mmx", "WARNING") as said:
            self.encoding(("cat", 300))
            self.producer.settled()
        self.assertIn("cat: not saved: out of memory", said.output[0])
        self.e.all_free()
        there = self.encoding(("dog", 300))
        self.producer.settled()
        self.fetch(there)

    def test_an_aborted_requests_blocks_are_free_after_the_copy(self):
        self.producer_of()
        gate = self.producer.copies().gate()
        r = Request("r", ("cat", 300))
        self.producer.take(r)

        # blocks may come after the pass, which does not wait for them
        def begun():
            self.producer.step(Request("other"))
            return self.producer.ranks[0]._saver._written
        eventually(begun, "the copy is begun")
        r.status = "FINISHED_ABORTED"
        self.producer.finish(r)
        self.producer.step(Request("other"))
        free, blocks = self.e.free()
        self.assertEqual(blocks - free, 3)
        gate.set()
        self.producer.copies().synchronize()
        self.producer.step(Request("other"))
        self.e.all_free()


if __name__ == "__main__":
    unittest.main()
