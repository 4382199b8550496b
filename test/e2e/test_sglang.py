"""The SGLang plugin between real daemons, driven as SGLang 0.5.23 does: a
tokenizer that posts to encoders, encoders on an asyncio loop, and 1 to 4
scheduler ranks. Each rank is a forked process with a connection of its own;
the ranks take the least of their states in every turn of the loop."""

import asyncio
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import types
import zlib
from unittest import mock

import numpy as np
from engine import cut
from pair import LIMIT, Case, eventually
from sglang.srt import runtime_context
from sglang.srt.disaggregation.encoder import receiver, server
from sglang.srt.managers.schedule_batch import (MultimodalDataItem,
                                               MultimodalInputs)
from sglang.srt.plugins.hook_registry import HookRegistry

import mmx
from mmx.adapters import _copies
from mmx.adapters import _sglang_encoder as encoder_side
from mmx.adapters import _sglang_language
from mmx.adapters import sglang as plugin

WIDTH = 32
FIELDS = f"embedding:bf16:{WIDTH}"
URLS = ["http://enc0:30000", "http://enc1:30000"]
GOOD = [1, None, None]  # status, text, HTTP code
SLACK = 1.0  # seconds, for a slow machine
FAILED = int(receiver.WaitingMMRequestStatus.FAIL)


def picture(rid, part, rows):
    """Returns the rows that the encoder makes of a part of a request."""
    some = np.random.default_rng(zlib.crc32(f"{rid}/{part}".encode()))
    return some.integers(0, 2**16, (rows, WIDTH), dtype="u2")


def beside(rid):
    """Returns what SGLang has beside the rows: the times of "video-N"."""
    frames = int(rid.partition("video-")[2] or 0)
    return {"video_timestamps": [[i / 2 for i in range(frames)]]} \
        if frames else {}


class Encoder(server.MMEncoder):
    """An encoder server: its HTTP part is post()."""

    def __init__(self, loop):
        super().__init__()
        self.loop = loop
        # As the installed plugin sets it.
        self.delivery = server.ZmqDelivery(self, cleanup_receive_state=True)
        self.hold = threading.Event()  # while it is clear the ViT runs
        self.hold.set()
        # while it is clear the preprocessor runs
        self.look = threading.Event()
        self.look.set()
        self.wrong = None  # the ViT's error, in place of rows
        self.more = 0  # rows beyond those that the preprocessor has counted
        self.width = WIDTH

    def context(self, rows):
        """Returns what the preprocessor knows of a picture."""
        return types.SimpleNamespace(
            is_health_check=False, items_per_req=[1], token_counts=[rows],
            grid_thw=np.array([[1, 2, rows * 2]]), dtype=None,
            modality=receiver.Modality.IMAGE, width=self.width, aux_data={})

    async def execute(self, request, rows):
        req_id = request["req_id"]
        state = self.req_states[req_id] = server.ReqState(req_id)
        ctx = self.context(rows)
        ctx.aux_data = beside(req_id.split("~")[0])
        if not self.look.is_set():
            await asyncio.to_thread(self.look.wait, LIMIT)
        await self._publish_preprocess_metadata(ctx, [request])
        await asyncio.to_thread(self.hold.wait, LIMIT)
        made = None if self.wrong else self.encode(picture(
            req_id.split("~")[0], request["part_idx"], rows + self.more))
        self._stage_embedding_batch([receiver.EmbeddingData(
            req_id, request["num_parts"], request["part_idx"], ctx.grid_thw,
            ctx.modality, made, error_msg=self.wrong)])
        await self.send_with_url(req_id)

    def encode(self, rows):
        """Returns what the ViT makes: here the rows themselves."""
        return rows

    def post(self, request, rows):
        """Posts a request; returns the error of the HTTP answer, or None."""
        future = asyncio.run_coroutine_threadsafe(
            self.execute(request, rows), self.loop)
        try:
            future.result(LIMIT)
        except server.MMError as e:
            return types.SimpleNamespace(rid=None, text=str(e),
                                         code=int(e.code))
        return None


class Metric:
    """Stands in for each kind of metric of prometheus_client: prints its
    values."""

    def __init__(self, name, says, labels, **more):
        self.name, self.labelled = name, ()

    def labels(self, *values):
        self.labelled = values
        return self

    def observe(self, value=1):
        with open(os.environ["PROMETHEUS_MULTIPROC_DIR"] + "/said", "a",
                  encoding="ascii") as f:
            f.write(json.dumps([self.name, *self.labelled, value]) + "\n")

    inc = set = observe


KINDS = types.SimpleNamespace(Counter=Metric, Gauge=Metric, Histogram=Metric)


def by_mode():
    """Returns SGLang's classes of a receiver and of a waiting request."""
    return (receiver.MMReceiverGrpc, receiver.WaitingZmqRequestGrpc) \
        if by_grpc() else (receiver.MMReceiverHTTP, receiver.WaitingZmqRequest)


def by_grpc():
    return os.environ.get("SGLANG_ENCODER_MM_RECEIVER_MODE") == "grpc"


def hosts():
    """Returns the socket of each host's langd; empty: all is on one host."""
    return os.environ.get("HOSTS", "").split()


class Rank:
    """One scheduler rank and its loop; `least` is its all-reduce."""

    def __init__(self, rank, size, least, group=0, groups=1):
        """group: of attention data parallelism; it has `size` ranks."""
        vars(runtime_context.PLACE).update(
            nnodes=max(1, len(hosts())),
            tp_rank=group * size + rank, tp_size=groups * size,
            attn_dp_enabled=groups > 1, attn_tp_rank=rank, attn_tp_size=size,
            attn_tp_group="its own")
        sys.modules["prometheus_client"] = KINDS
        if "SAID" in os.environ:
            logging.basicConfig(filename=os.environ["SAID"])
        plugin.install("language")
        _sglang_language.PATIENCE_S = float(os.environ["PATIENCE"])
        self.receiver = by_mode()[0]([], None, least)
        self.kept = []  # inputs to which some object still refers

    def idle(self, link):
        """Runs the scheduler's turns until a command comes."""
        while not select.select([link], [], [], 0.01)[0]:
            self.receiver.process_waiting_requests([])
            if runtime_context.PLACE.attn_dp_enabled:
                # SGLang lets the ranks of a group wait for each other in a
                # turn.
                assert self.receiver.tp_group == "its own"

    def processor(self, rid, rows):
        """Returns what SGLang calls to put the rows into the prompt; it checks
        them."""
        def put(embeddings, parts):
            want = np.concatenate([picture(rid, part, rows)
                                   for part in range(len(parts))])
            have = embeddings[receiver.Modality.IMAGE]
            np.testing.assert_array_equal(have.view("u2"), want)
            for at, data in enumerate(parts):
                assert (data.part_idx, data.num_parts) == (at, len(parts))
                assert data.grid_dim.tolist() == [[1, 2, rows * 2]]
                for name, value in beside(rid).items():
                    assert getattr(data, name) == value
            return MultimodalInputs(
                [MultimodalDataItem(precomputed_embeddings=have)])
        return put

    def serve(self, requests, abort=""):
        """Serves requests; returns (status, text, HTTP code) of each. abort:
        the client leaves, "now" or when the "length" is known."""
        waiting, ends = self.receiver.waiting_list, {}
        for r in requests:
            req = types.SimpleNamespace(
                rid=r["rid"], input_ids=None, mm_inputs=None,
                num_items_assigned=r["items"])
            waiting.append(by_mode()[1](
                r["rid"], req, self.processor(r["rid"], r["rows"]), r["urls"],
                "qwen2_vl", "host", 1))
            waiting[-1].send_encode_request()
        order = list(waiting)
        while waiting:
            self.receiver.process_waiting_requests([])
            for w, status in self.receiver.ended:
                # The scheduler counts the tokens of a failed request's prompt.
                assert w.recv_req.input_ids is not None or \
                    w.status != receiver.WaitingMMRequestStatus.FAIL
                ends[id(w)] = [int(status), w.error_msg, w.error_code]
                inputs, w.recv_req.mm_inputs = w.recv_req.mm_inputs, None
                self.kept += [inputs] if "KEEP" in os.environ else []
                if inputs and os.environ.get("KEEP") != "running":
                    inputs.release_features()  # the request has ended
            self.receiver.ended.clear()
            for w in waiting if abort else ():
                if abort == "now" or any(r.total is not None
                                         for r in w.rooms.values()):
                    w._fail_and_release("Aborted by user", error_code=400)
        return [ends[id(w)] for w in order]


def joined(said):
    """Returns the least status of the ranks, and the text and code of a rank
    that has one."""
    return [min(s[0] for s in said), *(next(
        (s[at] for s in said if s[at] is not None), None) for at in (1, 2))]


class Ranks:
    """The ranks, forked before they connect, as SGLang's scheduler processes
    are. This process does their all-reduce."""

    def __init__(self, size, env, *group):
        self.pipes, self.pids = [], []
        for rank in range(size):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                os.environ.update(env)
                if hosts():
                    os.environ["MMX_LANGD_SOCKET"] = \
                        hosts()[rank * len(hosts()) // size]
                if rank == int(env.get("APART", -1)):
                    os.environ["MMX_LANGD_SOCKET"] += "-of-another"
                self._child(theirs, rank, size, *group)
            theirs.close()
            self.pipes.append(ours.makefile("rw"))
            self.pids.append(pid)

    @staticmethod
    def _child(link, rank, size, *group):
        pipe = link.makefile("rw")

        def say(what, value):
            pipe.write(json.dumps([what, value]) + "\n")
            pipe.flush()

        def least(mine):
            say("polls", mine)
            return json.loads(pipe.readline())
        try:
            one = Rank(rank, size, least, *group)
            while True:
                one.idle(link)
                line = pipe.readline()
                if not line or line == "null\n":
                    break
                say("done", one.serve(**json.loads(line)))
        except BaseException:
            say("error", traceback.format_exc())
        finally:
            os._exit(0)

    def start(self, **args):
        for pipe in self.pipes:
            pipe.write(json.dumps(args) + "\n")
            pipe.flush()

    def turn(self):
        """Does one all-reduce; returns the ranks' results if all of them are
        done."""
        said = [json.loads(p.readline()) for p in self.pipes]
        for what, value in said:
            if what == "error":
                raise AssertionError(value)
        values = [value for _, value in said]
        if all(what == "done" for what, _ in said):
            return values
        time.sleep(0.002)  # as long as a step of the model
        for pipe in self.pipes:
            pipe.write(json.dumps([joined(p) for p in zip(*values)]) + "\n")
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
                pass  # the rank was killed
            os.waitpid(pid, 0)


class Base(Case):
    """A tokenizer, encoders and ranks."""

    ENCODER = Encoder

    def start(self, ranks=1, encoders=1, fields=FIELDS, patience=LIMIT,
              env=None, groups=1, sources=64, at_langd=None, **langd):
        self.e = [self.world.encoded(name=f"enc{i}", fields=fields,
                                     blocks=sources)
                  for i in range(encoders)]
        self.d = self.world.langd(
            [], fields=at_langd or fields, control={"allow": ["tcp://127.0.0.1:*"]},
            **langd)
        env = {"MMX_LANGD_SOCKET": self.d.socket, "PATIENCE": str(patience),
               "MMX_ENCODERS": json.dumps(
                   {u: e.address for u, e in zip(URLS, self.e)}),
               **(env or {})}
        self.env, self.groups = env, [  # forked before there are threads
            Ranks(ranks, env, n, groups) for n in range(groups)]
        self.ranks = self.groups[0]
        self.world.engines += self.groups
        for side in ("encode", "language"):
            plugin.install(side, by_grpc())
        for name in ("CONNECT_S", "LATER_S"):  # the machine may be slow
            limit = mock.patch.object(encoder_side, name, LIMIT)
            limit.start()
            self.addCleanup(limit.stop)
        self.addCleanup(HookRegistry.reset)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.addCleanup(self.end_loop)
        self.encoders = [self.encoder(e) for e in self.e]
        self.tokenizer = by_mode()[0](URLS[:encoders], self.post)
        self.rows, self.answers = {}, []

    def encoder(self, daemon):
        async def make():
            os.environ["MMX_ENCODED_SOCKET"] = daemon.socket
            made = self.ENCODER(self.loop)
            made.delivery.rooms.conn = await mmx.aconnect("encoded")
            return made
        try:
            return asyncio.run_coroutine_threadsafe(
                make(), self.loop).result(LIMIT)
        finally:
            os.environ.pop("MMX_ENCODED_SOCKET", None)

    def end_encoder(self, encoder):
        asyncio.run_coroutine_threadsafe(
            encoder.delivery.rooms.conn.aclose(), self.loop).result(LIMIT)

    def end_loop(self):
        for e in self.encoders:
            self.end_encoder(e)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def post(self, url, request):
        rid = request["req_id"].split("~")[0]
        return self.encoders[URLS.index(url)].post(request, self.rows[rid])

    def ask(self, rid, rows):
        """Posts a request as the tokenizer does; returns it as the scheduler
        gets it."""
        self.rows[rid] = rows
        obj = types.SimpleNamespace(rid=rid, items=[1] * len(self.encoders))
        self.tokenizer._send_encode_request(
            obj, on_dispatch_error=self.answers.append).set()
        self.posted = self.tokenizer.thread
        return {"rid": rid, "rows": rows, "urls": obj.encoder_urls,
                "items": {"IMAGE": [1] * len(self.encoders)}}

    def serve(self, *requests, **how):
        """Serves requests on every rank; returns the ends of each rank."""
        self.ranks.start(requests=[self.ask(*r) for r in requests], **how)
        got = self.ranks.results()
        return got

    def good(self, *requests):
        for ends in self.serve(*requests):
            self.assertEqual(ends, [GOOD] * len(requests))

    def failed(self, got, code, text):
        """Checks that the requests failed on every rank. SGLang tells all
        ranks the text of those that saw the failure."""
        for end in (end for ends in got for end in ends):
            status, said, http = end
            self.assertEqual(status, FAILED, said)
            self.assertRegex(said, text)
            self.assertEqual(http, code, said)

    def answered(self, code, text):
        """Checks the error that the encoder's HTTP call has returned."""
        got = eventually(lambda: self.answers and self.answers.pop(),
                         "the encoder answers")
        self.assertRegex(got.text, text)
        self.assertEqual(got.code, code)


class Sglang(Base):
    # --- rows -------------------------------------------------------------
    def test_one_rank_and_all_lengths(self):
        self.start()
        for rid, rows in (("a", 1), ("b", 500), ("c", 2000)):
            # the last: more rows than the default grant
            self.good((rid, rows))
        self.good(("b", 500))  # the same id again
        self.assertEqual(self.d.stats()["rooms_succeeded"], 4)

    # RULES 7.9
    def test_four_ranks_and_two_encoders(self):
        self.start(ranks=4, encoders=2)
        sent = 0
        for i in range(1, 4):
            self.good((f"r{i}", 300 * i))
            sent += 2 * 300 * i
        stats = self.d.stats()
        self.assertEqual(stats["rooms_succeeded"], 6)
        # A byte moves once per host, not once per rank.
        self.assertEqual(stats["bytes_moved"], sent * 2 * WIDTH)

    # RULES 5.16
    def test_ranks_on_two_hosts_and_two_encoders(self):
        """The langd of each host is a destination of each room."""
        other = self.world.langd([], "lang1", FIELDS,
                                 control={"allow": ["tcp://127.0.0.1:*"]})
        self.start(ranks=2, encoders=2, env={
            "HOSTS": f"{self.world.dir}/lang0.sock {other.socket}"})
        self.good(("a", 300), ("b", 300))
        for d in (self.d, other):
            self.assertEqual(d.stats()["rooms_succeeded"], 4)
            d.all_free()

    # RULES 7.9
    def test_attention_data_parallelism(self):
        """The ranks of a group get the rows of its requests, once per host. No
        rank waits for ranks of another group."""
        self.start(ranks=2, groups=2)
        for turn in range(3):
            asked = [[self.ask(f"{n}-{turn}-{i}", 300) for i in range(2)]
                     for n in range(2)]
            for group, requests in zip(self.groups, asked):
                group.start(requests=requests)
            for group in self.groups:
                self.assertEqual(group.results(), [[GOOD] * 2] * 2)
        self.assertEqual(self.d.stats()["bytes_moved"], 12 * 300 * 2 * WIDTH)
        self.d.all_free()

    def metadata(self, env):
        """Metadata comes in rows that SGLang does not see."""
        self.start(ranks=2, encoders=2, blocks=512, sources=256, env=env)
        for frames in (10, 4000, 15000, 135000):  # the last: 1 MiB
            self.good((f"video-{frames}", 300))
        self.good(("one", 5), ("video-15001", 7), ("two", 5))
        self.assertEqual(self.d.stats()["rooms_succeeded"], 14)
        self.d.all_free()

    def test_metadata_larger_than_an_aux(self):
        self.metadata({})

    def test_metadata_larger_than_an_aux_and_copies(self):
        self.metadata({"MMX_SGLANG_COPY": "1"})

    def test_what_is_moved_and_fails_is_in_sglangs_metrics(self):
        place = {"PROMETHEUS_MULTIPROC_DIR": self.world.dir}
        with mock.patch.dict(os.environ, place), mock.patch.dict(
                sys.modules, prometheus_client=KINDS):
            self.start(ranks=2, env=place)
            self.addCleanup(encoder_side.Metrics("encode")._made.clear)
            self.good(("a", 300))
            self.encoders[0].wrong = "out of memory"
            self.serve(("b", 300))
            self.encoders[0].more, self.encoders[0].wrong = 1, None
            self.serve(("c", 300))
        with open(self.world.dir + "/said", encoding="ascii") as f:
            said = [json.loads(line) for line in f]
        size, name = 300 * 2 * WIDTH, "sglang:mmx_"
        for side in "encode", "language":
            for what, count in (
                    ([name + "transfer_bytes", side, size], 1),
                    ([name + "failed", side, "internal", 1], 2),
                    ([name + "in_use", side, 1], 1)):
                self.assertEqual(said.count(what), count, (what, said))
            times = [s[2] for s in said
                     if s[:2] == [name + "transfer_seconds", side]]
            self.assertTrue(len(times) == 1 and 0 < times[0] < LIMIT, times)

    def test_many_requests_on_a_small_pool(self):
        self.start(ranks=2, blocks=8, default_blocks=1)
        self.good(*[(f"r{i}", 100) for i in range(32)])

    def test_rows_that_are_copied_hold_no_blocks(self):
        self.start(ranks=2, env={"KEEP": "running", "MMX_SGLANG_COPY": "1"})
        self.good(("r", 300), ("s", 5))
        self.d.all_free()

    def test_rows_of_a_rank_that_reaches_no_langd_hold_no_blocks(self):
        """The first rank has copied the rows by then. It still says that the
        other rank will not read: langd would wait for that rank for
        minutes."""
        self.start(ranks=2, patience=1,  # seconds; a room takes less
                   env={"APART": "1", "MMX_SGLANG_COPY": "1"})
        self.failed(self.serve(("r", 300)), 503, "not-ready")
        self.d.all_free()

    def test_a_request_that_has_ended_holds_no_blocks(self):
        """Also while an object refers to the request, as a cycle does for
        minutes."""
        self.start(ranks=2, env={"KEEP": "ended"})
        self.good(("r", 300), ("s", 5))
        self.d.all_free()

    def test_rows_in_place_hold_theirs(self):
        self.start(env={"KEEP": "running"})
        self.good(("r", 300))
        free, blocks = self.d.free()
        self.assertLess(free, blocks)
        self.ranks.close()  # the process of the ranks ends
        self.world.engines.remove(self.ranks)
        self.d.all_free()

    # RULES 6.7
    def test_rows_stay_where_the_encoder_has_them(self):
        self.start(ranks=2, transfer={"same_host": "lend"},
                   env={"KEEP": "running"})

        def lent():
            self.good((f"r{len(self.rows)}", 300))
            return self.d.stats()["rooms_lent"]
        eventually(lent, "the ranks have mapped the encoder's pool")
        self.assertEqual(self.e[0].show("pools")[0]["lent"], 3)
        self.ranks.close()
        self.world.engines.remove(self.ranks)
        self.e[0].all_free()

    # --- failures ---------------------------------------------------------
    def test_an_encoders_error_reaches_every_rank(self):
        self.start(ranks=3)
        self.encoders[0].wrong = "cannot read the picture"
        self.failed(self.serve(("r", 300)), 500,
                    "internal.*cannot read the picture")
        # An error may have any characters, as names of pictures have.
        self.encoders[0].wrong = "cannot read " + "\u753b" * 300 + "\udc80"
        self.failed(self.serve(("r", 300)), 500,
                    "internal.*cannot read \u753b{30}")
        self.encoders[0].wrong = None
        self.encoders[0].more = 1
        self.failed(self.serve(("r", 300)), 500,
                    "internal: 301 rows, 300 were announced")
        self.encoders[0].more = 0
        self.good(("r", 300))

    def test_a_call_that_sglang_gives_up(self):
        """The language side never hears of the request."""
        self.start()
        encoder = self.encoders[0]
        encoder.send_timeout = 1e6
        self.ask("r", 300)
        sources = encoder.delivery.rooms.sources
        eventually(lambda: any(s.rows == 300 for s in list(sources.values())),
                   "the rows are written")
        for state in list(encoder.req_states.values()):
            state.release_requested = True
        self.posted.join(LIMIT)
        self.assertFalse(self.posted.is_alive())
        self.assertEqual((self.answers, sources), ([], {}))
        self.e[0].all_free()

    def test_an_abort_while_the_encoder_runs(self):
        self.start(ranks=3)
        self.encoders[0].hold.clear()
        # A rank that does not know the length yet only sees the others leave.
        self.failed(self.serve(("r", 300), abort="length"), 400,
                    "Aborted by user|released before it was ready")
        self.d.all_free()
        self.encoders[0].hold.set()
        self.answered(400, "embedding delivery failed: (aborted|declined)")
        self.good(("r", 300))

    def test_an_abort_before_the_encoder_has_announced(self):
        self.start(ranks=2)
        # from the second turn on langd knows the encoder
        for turn in range(4):
            self.encoders[0].look.clear()
            self.failed(self.serve((f"r{turn}", 300), abort="now"),
                        400, "Aborted by user")
            self.d.all_free()
            self.encoders[0].look.set()
            self.answered(400, "delivery failed: (aborted|declined)")
        self.good(("r", 300))

    def test_an_abort_while_the_pool_is_asked_for(self):
        self.start()
        encoder = self.encoders[0]
        rooms, ask = encoder.delivery.rooms, encoder.delivery.rooms.pool
        req_id = "r~" + "ab" * 16

        async def turn():
            asked, go = asyncio.Event(), asyncio.Event()

            async def slow(timeout):
                asked.set()
                await go.wait()
                return await ask(timeout)
            rooms.pool = slow
            encoder.req_states[req_id] = server.ReqState(req_id)
            doing = asyncio.ensure_future(
                encoder._publish_preprocess_metadata(
                    encoder.context(300), [{"req_id": req_id, "part_idx": 0,
                                            "num_parts": 1}]))
            await asked.wait()
            await encoder.release_request(req_id)
            go.set()
            await doing
            return rooms.sources, rooms.refused
        self.assertEqual(asyncio.run_coroutine_threadsafe(
            turn(), self.loop).result(LIMIT), ({}, {}))
        self.e[0].all_free()

    def test_ranks_that_die_leave_nothing(self):
        self.start(ranks=2)
        self.encoders[0].hold.clear()
        self.ranks.start(requests=[self.ask("r", 300)])
        sources = self.encoders[0].delivery.rooms.sources
        eventually(lambda: self.ranks.turn() or
                   any(s.wanted for s in list(sources.values())),
                   "the encoder knows that it is asked for")
        for pid in self.ranks.pids:
            os.kill(pid, signal.SIGKILL)
        self.d.all_free()
        self.encoders[0].hold.set()
        self.answered(502, "engine-lost")

    def die_at(self, step):
        """Cuts the encode engine's connection at this step of a request."""
        rooms = self.encoders[0].delivery.rooms
        announced = rooms._announced

        def ends():
            cut(rooms.conn)

        def announce(*args):
            source = announced(*args)
            granted, commit = source.granted, source.commit

            async def cut_granted(**more):
                await granted(**more)
                ends()

            def cut_written(*_, **__):
                ends()

            def cut_committed(*rows, **more):
                commit(*rows, **more)
                ends()
            if step == "granted":
                source.granted = cut_granted
            else:
                source.commit = cut_written if step == "written" \
                    else cut_committed
            return source
        rooms._announced = announce

    def test_an_encoder_that_dies_at_each_step(self):
        self.start(ranks=2)
        for step in ("granted", "written", "committed"):
            self.die_at(step)
            got = self.serve((step, 300))
            # After the final commit the daemon may serve the rows.
            if step != "committed" or got != [[GOOD], [GOOD]]:
                self.failed(got, 502, "engine-lost|unknown-room")
            self.d.all_free()
            self.posted.join()
            self.end_encoder(self.encoders[0])
            self.encoders[0] = self.encoder(self.e[0])
            self.good((f"after {step}", 300))
        # Blocks of cut connections come back only when their process ends,
        # which is this one.
        self.e[0].kill()

    def test_a_pool_that_is_not_there(self):
        self.start(ranks=2, env={"MMX_POOL": "vat"})
        self.failed(self.serve(("r", 300)), 500, "malformed: no pool `vat`")

    def test_the_encoders_daemon_starts_again(self):
        self.start()
        self.e[0].kill()
        self.ask("r", 300)
        self.answered(503, "daemon-lost|not-ready")
        self.e[0].start()
        conn = self.encoders[0].delivery.rooms.conn
        eventually(lambda: conn.connected, "the encoder is back")
        self.good(("r", 300))

    def test_rows_of_a_run_that_has_ended_stay_out_of_the_next(self):
        """A thread writes the rows while their pool is mapped anew under its
        name."""
        self.start()
        rooms = self.encoders[0].delivery.rooms
        began, go, save = threading.Event(), threading.Event(), \
            _copies.Here.save

        def late(*args):
            began.set()
            go.wait(LIMIT)
            save(*args)
        with mock.patch.object(_copies.Here, "save", late), \
                mock.patch.object(_copies, "HERE_BYTES", 0):
            self.ask("r", 300)
            self.assertTrue(began.wait(LIMIT))
            pool, = rooms.conn._pools.values()
            before = pool.epoch
            self.e[0].kill()
            self.e[0].start()
            eventually(lambda: rooms.conn.connected and pool.epoch != before,
                       "the pool is another run's")
            go.set()
            self.answered(503, "daemon-lost")
        rows = pool.blocks * pool.block_rows
        self.assertFalse(pool.rows("embedding", 0, rows).any())
        self.good(("s", 300))

    def test_langd_is_away_and_comes_back(self):
        self.start(ranks=2, patience=0.3)
        self.d.kill()
        self.encoders[0].hold.clear()
        self.failed(self.serve(("r", 300)), 503, "not-ready")
        self.d.start()
        for state in list(self.encoders[0].req_states.values()):
            state.release_requested = True  # as SGLang's own abort does
        self.encoders[0].hold.set()
        self.posted.join()
        eventually(lambda: self.serve(("s", 300))[0] == [GOOD],
                   "the ranks are back")

    # --- daemons that hang -------------------------------------------------
    def ends(self, call, daemon, deadline):
        """Makes the call while a daemon hangs: it must end by its deadline."""
        os.kill(daemon.pid, signal.SIGSTOP)
        self.addCleanup(lambda: daemon.alive() and
                        os.kill(daemon.pid, signal.SIGCONT))
        began = time.monotonic()
        got = call()
        self.assertLess(time.monotonic() - began, deadline + 1 + SLACK)
        os.kill(daemon.pid, signal.SIGCONT)
        return got

    def test_a_langd_that_hangs(self):
        self.start(ranks=2, env={"MMX_DEADLINE_S": "1"})
        self.good(("r", 300))
        self.failed(self.ends(lambda: self.serve(("s", 300)), self.d, 1), 503,
                    "daemon-silent")
        self.answered(400, "aborted|declined")
        self.d.all_free()
        self.good(("t", 300))

    def test_an_encoders_daemon_that_hangs(self):
        with mock.patch.dict(os.environ, MMX_DEADLINE_S="1"):
            self.start(ranks=2, timeouts={"unreachable": "500ms"})
            self.good(("r", 300))
            self.encoders[0].send_timeout = 1e6

            def asked():
                self.ask("s", 300)
                self.posted.join(LIMIT)
            self.ends(asked, self.e[0], 1)
            self.answered(503, "daemon-silent")
        self.e[0].all_free()
        self.good(("t", 300))

    def test_a_pool_that_is_full_ends_by_the_deadline(self):
        with mock.patch.dict(os.environ, MMX_DEADLINE_S="1"):
            self.start(ranks=2)
            blocks = self.e[0].free()[1]
            other = self.world.engine(self.e[0])
            other.opens(99, blocks * 128)
            self.failed(self.serve(("r", 300)), 504, "timeout|waits for blocks")
            self.answered(504, "delivery failed: timeout")
            other.release(99)
        self.good(("s", 300))

    def test_a_request_that_no_tokenizer_has_marked(self):
        self.start()
        error = self.encoders[0].post(
            {"req_id": "r_local_part_0", "num_parts": 1, "part_idx": 0}, 5)
        self.assertRegex(error.text, "malformed: .*names no secret")
