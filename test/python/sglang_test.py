"""The SGLang plugin without a daemon: what it hooks is compared with the
committed table of SGLang's names; a plugin that does not fit is refused as a
whole; aux, secrets, the command line."""

import copy
import http.client
import inspect
import os
import queue
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock
from collections import deque

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# last, so that a real one comes first
sys.path.append(os.path.join(HERE, "engines"))
sys.path.insert(0, os.path.join(ROOT, "test/engines"))

import signatures  # noqa: E402
from sglang.srt import (  # noqa: E402
    plugins, runtime_context, server_args)
from sglang.srt.arg_groups import pd_disaggregation_hook  # noqa: E402
from sglang.srt.disaggregation.encoder import (  # noqa: E402
    receiver, runtime, server)
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

import mmx  # noqa: E402
from mmx import errors  # noqa: E402
from mmx.adapters import (_sglang_common as common,  # noqa: E402
                          _sglang_language as language, sglang)
from mmx.adapters._common import Pooled, deadline, misfit  # noqa: E402
from mmx.adapters._copies import Here  # noqa: E402

PACKAGE = os.path.join(ROOT, "lib/client/python")
ENGINES = os.path.join(HERE, "engines")


TABLES = (sglang.START, sglang.LANGUAGE, sglang.ENCODE, *sglang.GRPC.values())


def names_of(signature):
    """Returns the parameters of a table's signature, as parameters() does."""
    words = signature[signature.index("(") + 1:-1].split(", ")
    words = [w.split("=")[0] for w in words if w]
    return " ".join(words[1:] if signature.startswith("classmethod")
                    else words)


class Fit(unittest.TestCase):
    def tearDown(self):
        HookRegistry.reset()
        runtime.launch_dp_worker = getattr(
            runtime, "_mmx_launch_dp_worker", runtime.launch_dp_worker)
        os.environ.pop(sglang.ON, None)

    def test_the_tested_release_has_all_that_is_needed(self):
        spec, table = signatures.spec_of("sglang"), \
            signatures.committed("sglang")
        self.assertEqual([w.replace("==", " ") for w in spec.TESTED],
                         list(table))
        self.assertEqual(list(table)[-1], f"sglang {sglang.TESTED}")
        for files in table.values():
            self.assertEqual(set(files), set(spec.NAMES))
            for path, found in files.items():
                for name, what in found.items():
                    self.assertIsNotNone(what, f"{path}: {name}")

    def test_what_is_looked_up_is_what_the_release_has(self):
        files = list(signatures.committed("sglang").values())[-1]
        for names in TABLES:
            for module, wanted in names.items():
                path = module.replace(".", "/") + ".py"
                for name, params in wanted.items():
                    if files[path][name].startswith("= "):
                        continue  # another package's module of this name
                    with self.subTest(f"{module}.{name}"):
                        self.assertEqual(names_of(files[path][name]), params)

    def test_what_stands_in_has_the_same(self):
        for names in TABLES:
            sglang.check(names)

    def test_ours_take_what_theirs_take(self):
        """A class that replaces one of SGLang's takes the same parameters."""
        for ours, theirs in (
                (language.make_waiting(receiver), receiver.WaitingZmqRequest),
                (sglang_encoder().make_delivery(server), server.ZmqDelivery)):
            for name, call in vars(ours).items():
                if inspect.isfunction(call) and hasattr(theirs, name) and \
                        name != "__init__":
                    self.assertEqual(
                        sglang.parameters(call),
                        sglang.parameters(getattr(theirs, name)), name)

    def test_one_that_does_not_fit_is_left_as_it_was(self):
        def fewer(self):
            pass
        for at, name, said in (
                (receiver.WaitingMMRequestBase, "_fail_assemble",
                 r"_fail_assemble takes \(self\)"),
                (receiver, "create_part_req_id", "create_part_req_id takes")):
            before = receiver.WaitingZmqRequest
            with self.subTest(name), \
                    unittest.mock.patch.object(at, name, fewer):
                with self.assertRaisesRegex(sglang.Unfit, said) as caught:
                    sglang.install("language")
                self.assertNotIn("\n", str(caught.exception))
                self.assertIn("nothing was hooked", str(caught.exception))
                self.assertIs(receiver.WaitingZmqRequest, before)
                self.assertEqual(HookRegistry.hooks, {})

    def test_a_name_that_is_gone_and_more(self):
        with unittest.mock.patch.object(server, "MMEncoder", None):
            with self.assertRaisesRegex(
                    sglang.Unfit, "has no MMEncoder._com.*, and 6 more$"):
                sglang.install("encode")
        self.assertEqual(HookRegistry.hooks, {})

    def test_choices_that_are_no_list(self):
        with unittest.mock.patch.object(
                server_args.ServerArgs, "__annotations__", {}):
            with self.assertRaisesRegex(sglang.Unfit, "list of choices"):
                sglang.register()
        self.assertEqual(HookRegistry.hooks, {})

    def test_a_missing_engine_is_named(self):
        got = subprocess.run(
            [sys.executable, "-c",
             "from mmx.adapters import sglang; sglang.register()"],
            capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": PACKAGE})
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr.splitlines()[-1],
                         "Unfit: mmx does not fit this SGLang .*: "
                         "sglang.* cannot be imported")

    # --- the command line -------------------------------------------------
    def start(self, **said):
        args = server_args.ServerArgs(**said)
        plugins.load_plugins()
        return pd_disaggregation_hook.handle_encoder_disaggregation(args)

    def test_another_backend_costs_nothing(self):
        before = receiver.WaitingZmqRequest, server.ZmqDelivery
        self.assertEqual(self.start(encoder_transfer_backend="mooncake"),
                         "mooncake")
        self.assertEqual((receiver.WaitingZmqRequest, server.ZmqDelivery),
                         before)
        self.assertNotIn(sglang.ON, os.environ)
        self.assertEqual(len(HookRegistry.patched), 1)
        self.assertIn("mmx", sglang._choices())

    def test_each_side_gets_its_hooks(self):
        for side, at, name in (("encode", server, "ZmqDelivery"),
                               ("language", receiver, "WaitingZmqRequest")):
            before = getattr(at, name)
            with self.subTest(side):
                self.assertEqual(
                    self.start(encoder_transfer_backend="mmx",
                               encoder_only=side == "encode"),
                    sglang.RIDES_ON)
                self.assertEqual(os.environ[sglang.ON], side)
                self.assertTrue(issubclass(getattr(at, name), before))
                self.assertIsNot(getattr(at, name), before)
            self.tearDown()
            self.assertIs(getattr(at, name), before)

    def test_a_worker_of_the_encoder_loads_it(self):
        os.environ[sglang.ON] = "encode"
        before = server.ZmqDelivery
        sglang.install("encode")
        args = (None, 3, 0, "", "", "")
        HookRegistry.reset()  # the worker is a new process
        self.assertIs(runtime.launch_dp_worker, sglang.launch_dp_worker)
        runtime.launch_dp_worker = runtime._mmx_launch_dp_worker
        self.assertIs(server.ZmqDelivery, before)
        sglang.launch_dp_worker(*args)
        self.assertIsNot(server.ZmqDelivery, before)

    def test_what_does_not_go_together_is_refused(self):
        for why, more in (("one of --attn-dp", {"attn_dp_size": 2,
                                                "attn_cp_size": 2}),
                          ("--tokenizer-worker-num 1",
                           {"tokenizer_worker_num": 2})):
            with self.assertRaisesRegex(ValueError, why):
                self.start(encoder_transfer_backend="mmx", **more)
            self.tearDown()
            self.start(encoder_transfer_backend="mooncake", **more)

    def test_grpc_is_hooked_where_it_is_used(self):
        def hooked():
            found = {t.rsplit(".", 1)[1] for t in HookRegistry.hooks} & {
                "_grpc_encode_request", "add_SGLangEncoderServicer_to_server"}
            self.tearDown()
            return found
        for said in ({"grpc_mode": True}, {"smg_grpc_mode": True}):
            self.start(encoder_transfer_backend="mmx", encoder_only=True,
                       **said)
            self.assertEqual(hooked(), {"add_SGLangEncoderServicer_to_server"})
        with unittest.mock.patch.dict(os.environ, {sglang.MODE: "grpc"}):
            self.start(encoder_transfer_backend="mmx")
            os.environ[sglang.ON] = "language"
            self.assertEqual(hooked(), {"_grpc_encode_request"})
            # Without this class, an SGLang whose class differs is used by
            # HTTP.
            with unittest.mock.patch.object(receiver, "MMReceiverGrpc", None):
                with self.assertRaisesRegex(sglang.Unfit, "MMReceiverGrpc"):
                    self.start(encoder_transfer_backend="mmx")
                self.tearDown()
                del os.environ[sglang.MODE]
                self.start(encoder_transfer_backend="mmx")
        self.assertEqual(hooked(), set())

    def test_a_prefill_server_copies_unless_told_otherwise(self):
        for mode, said, copies in (("null", None, None), ("prefill", None, "1"),
                                   ("prefill", "0", "0")):
            with self.subTest(mode=mode, said=said), \
                    unittest.mock.patch.dict(os.environ):
                os.environ.pop("MMX_SGLANG_COPY", None)
                if said:
                    os.environ["MMX_SGLANG_COPY"] = said
                self.start(encoder_transfer_backend="mmx", language_only=True,
                           disaggregation_mode=mode)
                self.assertEqual(os.environ.get("MMX_SGLANG_COPY"), copies)
            self.tearDown()

    def test_encoders_that_are_left_out_are_refused(self):
        with unittest.mock.patch.dict(
                os.environ, MMX_ENCODERS='{"http://a": "e"}'):
            self.start(encoder_transfer_backend="mmx",
                       encoder_urls=["http://a"])
            self.tearDown()
            with self.assertRaisesRegex(ValueError, "leaves out http://b"):
                self.start(encoder_transfer_backend="mmx",
                           encoder_urls=["http://a", "http://b"])

    def test_a_deadline_that_is_none_is_refused(self):
        for said in ("x", "-1", "0", "inf", "1e9", "5 s"):
            with unittest.mock.patch.dict(os.environ, MMX_DEADLINE_S=said), \
                    self.assertRaisesRegex(ValueError, "MMX_DEADLINE_S is no"):
                self.start(encoder_transfer_backend="mmx")
            self.tearDown()

    def test_a_limit_of_gpu_memory_that_is_none_is_refused(self):
        for said in ("x", "-1", "1.5", "1e9"):
            with unittest.mock.patch.dict(os.environ,
                                          MMX_SGLANG_GPU_MB=said), \
                    self.assertRaisesRegex(ValueError, "MMX_SGLANG_GPU_MB"):
                self.start(encoder_transfer_backend="mmx")
            self.tearDown()

    def test_a_session_that_langd_would_not_take_is_refused(self):
        with unittest.mock.patch.dict(os.environ, MMX_SESSION="s" * 64), \
                self.assertRaisesRegex(ValueError, "MMX_SESSION is longer"):
            self.start(encoder_transfer_backend="mmx")

    def test_encoders_that_are_none_are_refused(self):
        for said in ("{", "[]", '{"http://h:1": 5}', '{"http://h:1": "a b"}'):
            with unittest.mock.patch.dict(os.environ, MMX_ENCODERS=said), \
                    self.assertRaisesRegex(ValueError, "MMX_ENCODERS is no "):
                self.start(encoder_transfer_backend="mmx")
            self.tearDown()


def sglang_encoder():
    from mmx.adapters import _sglang_encoder

    return _sglang_encoder


class Common(unittest.TestCase):
    def data(self, **more):
        return types.SimpleNamespace(**{
            "modality": receiver.Modality.IMAGE, "part_idx": 1,
            "num_parts": 2, "shape": [96, 8],
            "grid_dim": np.array([[1, 16, 24]]), **more})

    def test_aux_travels(self):
        video = {"video_timestamps": [[0.0, 0.5]],
                 "second_per_grid_ts": np.array([0.5]),
                 "original_image_sizes": None}
        said, beside = common.unpack(common.pack(
            self.data(modality=receiver.Modality.VIDEO), video))
        self.assertEqual(said, {"modality": "video", "part": (1, 2),
                                "grid": [[1, 16, 24]]})
        self.assertEqual(beside, {"video_timestamps": [[0.0, 0.5]],
                                  "second_per_grid_ts": [0.5]})

    def test_aux_is_one_that_other_engines_read(self):
        got = mmx.aux.unpack(common.pack(self.data(), {}, mmx.aux.MROPE))
        self.assertEqual(got["grid"], [(1, 16, 24)])
        self.assertEqual((got["rows"], got["merge"]), ([96], 2))
        self.assertEqual(got["flags"], mmx.aux.MROPE)

    def test_the_rows_of_each_picture_of_a_part(self):
        for rows, merge, each in ((30, 2, [24, 6]), (120, 1, [96, 24]),
                                  (31, None, [31])):
            got = mmx.aux.unpack(common.pack(self.data(
                grid_dim=np.array([[1, 8, 12], [1, 4, 6]]),
                shape=[rows, 8]), {}))
            self.assertEqual((got["rows"], got.get("merge")), (each, merge))

    def test_a_model_with_m_rope(self):
        for text, said in (({"rope_parameters": {"mrope_section": [1]}}, True),
                           ({"rope_scaling": None}, False),
                           ({"rope_scaling": {"type": "yarn"}}, False)):
            config = types.SimpleNamespace(
                text_config=types.SimpleNamespace(**text))
            self.assertEqual(common.mrope(config), said)
            self.assertEqual(common.mrope(config.text_config), said)

    def test_lengths_of_audio(self):
        audio = self.data(modality=receiver.Modality.AUDIO,
                          grid_dim=np.array([7, 9]))
        self.assertEqual(common.unpack(common.pack(audio, {}))[0]["grid"],
                         [7, 9])

    def test_what_an_aux_has_no_place_for(self):
        with self.assertRaisesRegex(ValueError, "video_audio_embedding"):
            common.pack(self.data(), {"video_audio_embedding": [1]})
        with self.assertRaisesRegex(errors.TooLarge, "16777216"):
            common.pack(self.data(), {"video_timestamps": ["x" * (17 << 20)]})

    def test_an_aux_that_is_not_ours(self):
        for data in (b"", b"\x80\x04]", mmx.aux.pack(modality="image"),
                     mmx.aux.pack(part=(0, 1)),
                     mmx.aux.pack(modality=9, part=(0, 1)),
                     mmx.aux.pack(modality="image", part=(0, 1),
                                  extra={"run": "this"}),
                     mmx.aux.pack(modality="image", part=(0, 1), flags=6)):
            with self.assertRaises(errors.Malformed):
                common.unpack(data)

    def test_a_pool_that_does_not_fit(self):
        field = types.SimpleNamespace(dtype="bf16", elements=8)
        for same in (None, "torch.bfloat16", np.dtype("u2")):
            self.assertEqual(misfit(field, 8, same), "")
        # Also a dtype that no pool has: its rows have other sizes.
        for other, named in (("torch.float32", "f32"), ("torch.int16", "i16"),
                             ("torch.float64", "float64"),
                             ("torch.complex64", "complex64"),
                             (np.dtype("f8"), "float64")):
            self.assertEqual(misfit(field, 8, other),
                             f"is bf16, the rows are {named}")
        self.assertIn("8 wide, the rows are 9",
                      misfit(field, 9, "torch.bfloat16"))

    def test_secrets(self):
        secret = mmx.secret()
        for req_id in (f"r~{secret.hex()}", f"a~b\n~{secret.hex()}"):
            for part in ("", "_local_part_3"):
                self.assertEqual(common.reference_of(req_id + part),
                                 (mmx.room_id(req_id + part), secret))
        for req_id in ("r", "r~12", f"{secret.hex()}", "r_local_part_0"):
            with self.assertRaises(errors.Malformed):
                common.reference_of(req_id)

    def test_the_daemon_beside_an_encoder(self):
        self.assertEqual(common.encoder_of("http://h:30000"), "tcp://h:7601")
        with unittest.mock.patch.dict(os.environ, {
                "MMX_ENCODERS": '{"http://h:1": "enc0"}'}):
            self.assertEqual(common.encoder_of("http://h:1"), "enc0")
            self.assertEqual(common.encoder_of("http://g:1"), "tcp://g:7601")

    def test_what_an_encoder_may_say_of_its_place(self):
        self.assertEqual(common.reachable("tcp://0.0.0.0:7", "http://h:1"),
                         "tcp://h:7")
        for said in ("", "tcp://h:7 tcp://g:7", "e" * 129, "\x7f", "\udc80"):
            with self.assertRaisesRegex(ValueError, "no address"):
                common.reachable(said, "http://h:1")

    def test_statuses(self):
        self.assertEqual(common.status(TimeoutError()), 504)
        self.assertEqual(common.status(errors.TooLarge()), 413)
        self.assertEqual(common.status(errors.Corrupt()), 500)
        self.assertEqual(common.status(ValueError("no place")), 500)
        every = {e.reason: e for e in errors.BY_NUMBER.values()}
        self.assertLessEqual(set(common.STATUS), set(every))
        # For 500 a router does not ask again.
        again = {r for r, e in every.items()
                 if e.advice in ("retry", "encode-locally")}
        self.assertEqual({r for r in again if common.status(every[r]()) == 500},
                         {"item-mismatch", "corrupt", "internal"})

    def test_the_deadline(self):
        self.assertEqual(deadline(), 60)
        with unittest.mock.patch.dict(os.environ, MMX_DEADLINE_S="0.5"):
            self.assertEqual(deadline(), 0.5)


class Ranks(unittest.TestCase):
    def test_the_least_state_is_what_all_have_reached(self):
        order = ["FAILED", "BOOTSTRAPPING", "WAITING", "TRANSFERRING",
                 "SUCCESS"]
        self.assertEqual([s.name for s in sorted(mmx.State)], order)
        self.assertEqual([int(s) for s in mmx.State], list(range(5)))

    # RULES 7.9
    def test_least_of_all_ranks(self):
        class Waiting:
            def __init__(self, status):
                self.status = receiver.WaitingMMRequestStatus(status)
                self.error_msg = self.error_code = None

            def _try_recv_mm_data(self):
                pass

            def release_resources(self):
                pass
        mine = [Waiting(1), Waiting(1), Waiting(0)]
        theirs = [1, 0, -1]
        ended = receiver._process_waiting_requests(
            mine, lambda held: [(min(h[0], t), "", 0)
                                for h, t in zip(held, theirs)])
        self.assertEqual([status for _, status in ended], [1, -1])
        self.assertEqual(len(mine), 1)


class Turns(unittest.TestCase):
    """A scheduler rank whose connection does nothing."""

    def setUp(self):
        self.lang = language.Lang.__new__(language.Lang)
        Pooled.__init__(self.lang, unittest.mock.Mock(
            connected=True, epoch=1), language.log, ("", ""), "")
        self.lang.conn.send.return_value = types.SimpleNamespace(done=False)
        self.lang.rank = 0
        self.lang.copies, self.lang.begun = Here(), []
        self.receiver = receiver.MMReceiverHTTP([], None)
        language.warn.last.clear()
        one = unittest.mock.patch.object(language.Lang, "one", self.lang)
        one.start()
        self.addCleanup(one.stop)

    def test_the_place_of_a_rank(self):
        """Its number among the ranks that serve the same requests, and among
        those on its host."""
        for (tp, nodes, dp, pp), rank, found in (
                ((4, 1, 1, 1), 3, (4, 1, 3)), ((4, 2, 1, 1), 3, (2, 2, 1)),
                ((4, 1, 2, 1), 3, (2, 1, 1)), ((8, 2, 2, 1), 6, (4, 1, 2)),
                ((8, 4, 2, 1), 6, (2, 2, 0)), ((4, 1, 4, 1), 3, (1, 1, 0)),
                # Stages on hosts of their own, on several hosts, on one host.
                ((4, 2, 1, 2), 3, (4, 1, 3)), ((4, 4, 1, 2), 3, (2, 2, 1)),
                ((8, 2, 2, 4), 6, (4, 1, 2)), ((4, 1, 1, 2), 3, (4, 1, 3))):
            place = types.SimpleNamespace(
                tp_size=tp, tp_rank=rank, nnodes=nodes, attn_dp_enabled=dp > 1,
                attn_tp_size=tp // dp, attn_tp_rank=rank % (tp // dp),
                pp_size=pp)
            with self.subTest(tp=tp, nodes=nodes, dp=dp, pp=pp), \
                    unittest.mock.patch.object(runtime_context, "PLACE",
                                               place), \
                    unittest.mock.patch.object(mmx, "connect"):
                one = language.Lang()
                self.assertEqual((one.ranks, one.hosts, one.rank), found)

    def test_what_fails_in_a_turn_without_requests_is_logged(self):
        with unittest.mock.patch.object(self.lang, "step", side_effect=OSError(
                "no descriptor is free")), \
                self.assertLogs("mmx.sglang", "WARNING") as said:
            for _ in range(1000):  # SGLang's scheduler never sleeps
                language.turned(lambda *_: None, self.receiver, [])
        self.assertEqual(len(said.output), 1)

    def test_what_fails_at_the_first_turn_is_logged(self):
        with unittest.mock.patch.object(language.Lang, "one", None), \
                unittest.mock.patch.object(mmx, "connect", side_effect=OSError(
                    "no descriptor is free")), \
                self.assertLogs("mmx.sglang", "WARNING") as said:
            self.assertEqual(language.turned(
                lambda self, reqs: reqs, self.receiver, [1]), [1])
        self.assertIn("no descriptor", said.output[0])

    def test_without_a_connection_the_request_alone_fails(self):
        one = self.waiting()
        with unittest.mock.patch.object(language.Lang, "one", None), \
                unittest.mock.patch.object(mmx, "connect", side_effect=OSError(
                    "no descriptor is free")):
            self.assertRaises(OSError, one.send_encode_request)
            one.release_resources()

    def waiting(self, url="http://h:1", said="-", secret="ab" * 16, items=1):
        req = types.SimpleNamespace(
            rid="r", input_ids=None,
            num_items_assigned={"IMAGE": [1]} if items else {})
        return language.make_waiting(receiver)(
            "r", req, None, [url, f"mmx:{secret} {said}"], "m", "host", 1)

    def test_what_no_tokenizer_says_is_refused(self):
        """SGLang also takes such a request from a client of its Python
        interface."""
        for how in ({"items": 0}, {"secret": "x" * 32}, {"secret": "ab"}):
            one = self.waiting(**how)
            with self.assertRaisesRegex(errors.Malformed, "request has no"):
                one.send_encode_request()
            one.release_resources()

    def test_a_room_has_a_deadline(self):
        """The client of the package ends the room if langd hangs."""
        with unittest.mock.patch.object(self.lang, "step"), \
                unittest.mock.patch.dict(os.environ, MMX_DEADLINE_S="7"):
            for self.lang.rank, call in ((0, "request"), (1, "attach")):
                self.lang.ranks = self.lang.hosts = 1
                self.waiting().send_encode_request()
                made = getattr(self.lang.conn, call)
                self.assertEqual(made.call_args[1]["deadline"], 7)

    def test_a_pool_that_cannot_be_mapped_fails_the_request(self):
        self.lang.conn.send.return_value = types.SimpleNamespace(
            done=True, error=None, take_fd=lambda: -1, result=lambda: {})
        with unittest.mock.patch.object(
                mmx, "Pool", side_effect=RuntimeError("no driver")), \
                self.assertLogs("mmx.sglang", "ERROR"):
            one = self.waiting()
            one.send_encode_request()
            one._try_recv_mm_data()
        self.assertEqual(one.status, receiver.WaitingMMRequestStatus.FAIL)
        self.assertIn("no driver", one.error_msg)
        self.assertEqual(one.error_code, 500)

    def test_what_fails_in_a_turn_fails_the_request(self):
        one = self.waiting()
        with unittest.mock.patch.object(self.lang, "step",
                                        return_value=None):
            one.send_encode_request()
        with unittest.mock.patch.object(self.lang, "step", side_effect=[
                OSError("no descriptor is free"), None, None]):
            one._try_recv_mm_data()
        self.assertEqual(one.status, receiver.WaitingMMRequestStatus.FAIL)
        self.assertIn("no descriptor", one.error_msg)

    def rank(self, limit):
        """Returns a rank's loads onto a GPU with space for `limit` rows."""
        lang = copy.copy(self.lang)
        lang.begun, lang._limit, lang._left, lang._freed = [], limit, limit, \
            deque()
        lang.rank, lang._readers, lang.copies = 0, [], unittest.mock.Mock(
            later=True, load=lambda items, over, readers: [
                unittest.mock.MagicMock() for _ in items])
        field = mmx.pool.Field("embedding", "u8", 1, 0, 1)
        pool = types.SimpleNamespace(fields={"embedding": field})

        def load(one, rows):
            room = unittest.mock.Mock(pool=pool, readable=rows, aux=b"",
                                      total=rows)
            one.rooms = {0: room}
            return lang.load(one, [[room]]) is not None
        return lang, load

    def test_ranks_that_see_rows_in_another_order(self):
        """Each has space for one of two requests: they must not wait for each
        other for ever."""
        orders, limit = ((0, 1), (1, 0)), 10
        with unittest.mock.patch.object(
                language, "rows_of", lambda field, rooms:
                types.SimpleNamespace(rows=rooms[0].readable)), \
                unittest.mock.patch.object(language.weakref, "finalize"):
            ranks = [self.rank(limit) for _ in orders]
            both = [[types.SimpleNamespace(since=n) for n in range(3)]
                    for _ in ranks]
            got = [[load(ones[n], 8) for n in order] for (_, load), ones, order
                   in zip(ranks, both, orders)]
            # The second rank has both, or the first would need both.
            self.assertEqual(got, [[True, False], [True, True]])
            for (lang, load), ones in zip(ranks, both):
                # the other rank is the last
                self.assertFalse(load(ones[2], 1 + limit - 8))
            for (lang, load), ones in zip(ranks, both):
                lang.let_go(ones[1:])  # all ranks have the first
                lang._freed.append(8)
            self.assertTrue(ranks[0][1](both[0][1], 8))

    def test_a_request_that_ends_waits_for_no_reader(self):
        """One of the other ranks may not have started the request. Only the
        rank that requested the room can say that no reader comes: langd
        refuses it of a reader."""
        for self.lang.rank in (0, 1):
            one = self.waiting()
            with unittest.mock.patch.object(self.lang, "step",
                                            return_value=None):
                one.send_encode_request()
            for made, copied, released, calls in (
                    # rows shown in place
                    (None, False, 0, 1), ({}, True, 0, 1),
                    ({}, True, mmx.wire.ALL, 0), ({}, False, 0, 0)):
                again = copy.copy(one)
                again._made, again._copied = made, copied
                room = unittest.mock.Mock(complete=True, released=released)
                again.rooms = {0: room}
                again.release_resources()
                self.assertEqual(
                    room.release.call_args_list, calls * [unittest.mock.call(
                        force=True, no_readers=self.lang.rank == 0)])
                self.assertFalse(self.lang._unwanted)

    def test_what_another_rank_has_seen_is_told_by_the_first(self):
        fail = "Failed to assemble multimodal inputs: "
        for self.lang.rank, said, word in (
                (1, "mmx: gone: x", None), (0, "mmx: gone: x", "gone"),
                (0, fail + "malformed: x", "malformed"),
                (0, fail + "x", "internal"), (0, "Aborted by user", None)):
            self.lang.metrics = unittest.mock.Mock()
            one = self.waiting()
            with unittest.mock.patch.object(self.lang, "step",
                                            return_value=None):
                one.send_encode_request()
            one.error_msg = said  # SGLang gives the text to all ranks
            with self.assertLogs("mmx.sglang") as lines:
                language.log.info("begin")
                one.release_resources()
            self.assertEqual(len(lines.output), 2 if word else 1, said)
            told = self.lang.metrics.failed.call_args_list
            if word:
                self.assertEqual([c[0][0].reason for c in told], [word])
                self.assertRegex(
                    lines.output[1], f"request r: .* had: {word}: x; mmxctl "
                    "trace ..[0-9a-f]{8}, here and at tcp")

    def test_an_encoder_of_an_odd_name_is_refused(self):
        one = self.waiting(said="e" * 129)
        with self.assertRaisesRegex(errors.Malformed, "no address"):
            one.send_encode_request()
        one.release_resources()


class Tokenizer(unittest.TestCase):
    def setUp(self):
        sglang.install("language")
        self.addCleanup(HookRegistry.reset)
        self.addCleanup(language.places.clear)
        self.posted, self.errors = [], []

    def ask(self, rid, error=None, urls=("http://a", "http://b")):
        def post(url, request):
            self.posted.append(request["req_id"])
            return error
        obj = types.SimpleNamespace(rid=rid, items=[1, 1])
        tokenizer = receiver.MMReceiverBase(urls, post)
        ready = tokenizer._send_encode_request(
            obj, on_dispatch_error=self.errors.append)
        if ready:
            ready.set()
            tokenizer.thread.join()
        return obj

    def test_an_id_used_twice_is_two_rooms(self):
        first, second = self.ask("r"), self.ask("r")
        self.assertEqual((first.rid, second.rid), ("r", "r"))
        self.assertEqual(len(set(self.posted)), 4)
        for obj, posted in ((first, self.posted[:2]),
                            (second, self.posted[2:])):
            secret, *said = obj.encoder_urls[-1][len("mmx:"):].split(" ")
            self.assertEqual(said, ["-", "-"])  # no encoder has registered
            self.assertEqual(obj.encoder_urls[:-1], ["http://a", "http://b"])
            self.assertEqual(posted, [f"r~{secret}_local_part_{i}"
                                      for i in range(2)])

    def test_where_an_encoder_registered_from_is_filled_in(self):
        for said, place in (("tcp://0.0.0.0:7601", "tcp://a:7601"),
                            ("tcp://[::]:9", "tcp://a:9"),
                            ("tcp://10.0.0.7:7601", "tcp://10.0.0.7:7601")):
            self.assertEqual(common.reachable(said, "http://a:30000"), place)
        self.assertEqual(common.encoder_of("http://a:1", "tcp://b:2"),
                         "tcp://b:2")
        with unittest.mock.patch.dict(os.environ,
                                      MMX_ENCODERS='{"http://a:1": "enc"}'):
            self.assertEqual(common.encoder_of("http://a:1", "tcp://b:2"),
                             "enc")

    def registers(self, *urls, asks=lambda url: "tcp://a:1", turns=1):
        """Returns what registering them returns, the encoders in use after so
        many questions to each, and the threads."""
        threads, used = [], []
        language.warn.last.clear()
        language.asked.clear()
        language.askers.clear()
        self.bootstrap = receiver.EncoderBootstrapServer("", 0, used)
        with unittest.mock.patch.object(
                language.threading, "Thread", lambda **_: types.SimpleNamespace(
                    start=lambda: threads.append(1))), \
                unittest.mock.patch.object(
                    language, "questions",
                    queue.PriorityQueue()) as questions, \
                unittest.mock.patch.object(language.time, "sleep"), \
                unittest.mock.patch.object(language, "said", asks):
            said = [self.bootstrap.register(url) for url in urls]
            for _ in range(turns):
                for _ in range(questions.qsize()):
                    questions.get()[-1]()
        return said, used, len(threads)

    def test_one_that_is_late_keeps_no_other_waiting(self):
        def end():
            raise StopIteration

        with unittest.mock.patch.object(
                language, "questions", queue.PriorityQueue()) as questions, \
                unittest.mock.patch.object(
                    language.time, "sleep",
                    lambda _: language.put(0, end)):
            language.put(time.monotonic() + 1000, self.fail)
            self.assertRaises(StopIteration, language.asks)
            self.assertEqual(questions.qsize(), 1)

    def test_an_encoder_that_is_left_out_does_not_register(self):
        with unittest.mock.patch.dict(
                os.environ, MMX_ENCODERS='{"http://a": "enc0"}'), \
                self.assertLogs("mmx.sglang", "WARNING") as said:
            self.assertEqual(self.registers("http://b", "http://a"),
                             ([False, True], ["http://a"], 1))
        self.assertIn("http://b is none of MMX_ENCODERS", said.output[0])

    def test_encoders_that_register_again_are_asked_once_at_a_time(self):
        asks = unittest.mock.Mock(return_value="tcp://a:1")
        self.assertEqual(self.registers(*["http://a"] * 3, asks=asks),
                         ([True] * 3, ["http://a"], 1))
        self.assertEqual(asks.call_count, 1)
        self.registers("http://a", asks=asks)
        self.assertEqual(asks.call_count, 2)

    def test_who_registers_anything_gets_few_threads_and_lines(self):
        urls = [f"http://{n}" for n in range(500)]
        with self.assertLogs("mmx.sglang", "WARNING") as said:
            got = self.registers(*urls, 5, "x", asks=unittest.mock.Mock(
                side_effect=FileNotFoundError))
        self.assertEqual((got[1], got[2]), ([], language.ASKERS_MAX))
        self.assertEqual(len(said.output), 2)  # one line of each kind
        self.assertEqual(language.asked, {})
        with unittest.mock.patch.object(language, "ASKED_MAX", 400):
            self.assertEqual(self.registers(*urls)[1], urls[100:])

    def test_encoders_that_are_late_are_used(self):
        """Encoders register once, before they serve. The log names each
        once."""
        urls = [f"http://{n}" for n in range(2 * language.ASKERS_MAX)]
        for fault in OSError("503"), http.client.BadStatusLine("x"):
            asks = unittest.mock.Mock(
                side_effect=[fault] * 3 * len(urls) + ["tcp://a:1"] * len(urls))
            with unittest.mock.patch.object(language, "PLACE_S", -1), \
                    unittest.mock.patch.object(language, "warn") as warn:
                self.assertEqual(self.registers(*urls, asks=asks, turns=4)[1],
                                 urls)
            self.assertEqual(warn.call_count, len(urls))

    def test_an_encoder_that_unregisters_is_asked_no_more(self):
        def asks(url):
            self.bootstrap.unregister("http://b")
            self.bootstrap.unregister(url)
            return "tcp://a:1"
        asks = unittest.mock.Mock(side_effect=asks)
        self.assertEqual(self.registers("http://a", "http://b", asks=asks)[1],
                         [])
        self.assertEqual(asks.call_count, 1)

    def test_one_that_registers_again_while_it_says_no_is_asked_again(self):
        """It has started anew, with mmx."""
        def asks(url):
            if answers == ["tcp://a:2"]:
                return answers.pop()
            self.bootstrap.unregister(url)
            self.assertTrue(self.bootstrap.register(url))
            raise answers.pop()
        answers = ["tcp://a:2", FileNotFoundError()]
        self.assertEqual(self.registers("http://a", asks=asks, turns=2)[1],
                         ["http://a"])
        self.assertEqual(language.places["http://a"], "tcp://a:2")

    def test_a_request_without_an_id_gets_one(self):
        self.assertTrue(self.ask(None).rid)

    def test_no_encoder_no_secret(self):
        obj = self.ask("r", urls=())
        self.assertEqual(obj.rid, "r")
        self.assertFalse(hasattr(obj, "encoder_urls"))

    def test_an_encoders_error_is_the_clients_requests(self):
        self.ask("r", types.SimpleNamespace(rid=None))
        self.assertEqual([e.rid for e in self.errors], ["r"])


if __name__ == "__main__":
    unittest.main()
