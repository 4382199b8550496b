"""Stands in for SGLang 0.5.23's module of this name where it is not installed:
names, signatures and what the methods promise, without torch, ZeroMQ and HTTP.
Arrays stand in for tensors."""

from __future__ import annotations

import asyncio
import enum
import threading
import time
import uuid
from concurrent import futures
from http import HTTPStatus

import stand_in_grpc as grpc


class Modality(enum.Enum):
    IMAGE = 1
    VIDEO = 2
    AUDIO = 3


class EncoderBootstrapServer:
    def __init__(self, host, port, urls=None):
        self._urls = urls if urls is not None else []

    def register(self, url: str) -> bool:
        if url not in self._urls:
            self._urls.append(url)
            return True
        return False

    def unregister(self, url: str) -> bool:
        removed = url in self._urls
        if removed:
            self._urls.remove(url)
        return removed

    async def _probe(self, session, url: str) -> bool:
        return session == "well"  # stands for a page /health


def _grpc_encode_request(target, encode_request):
    """Makes a call on a channel; request and answer are not serialised."""
    with grpc.insecure_channel(target) as channel:
        return channel.unary_unary("/sglang.grpc.encoder.SglangEncoder/Encode")(
            encode_request)


class EmbeddingData:
    def __init__(self, req_id, num_parts, part_idx, grid_dim, modality,
                 embedding=None, embedding_shape=None, error_msg=None,
                 error_code=None, **kwargs):
        self.req_id, self.num_parts, self.part_idx = req_id, num_parts, part_idx
        self.grid_dim, self.modality = grid_dim, modality
        self.embedding = embedding
        self.dtype = embedding.dtype if embedding is not None else None
        self.shape = embedding_shape if embedding_shape is not None else \
            list(embedding.shape) if embedding is not None else None
        self.error_msg, self.error_code = error_msg, error_code
        for key, value in kwargs.items():
            setattr(self, key, value)


def create_part_req_id(original_req_id: str, part_idx: int) -> str:
    return f"{original_req_id}_local_part_{part_idx}"


def _aggregate_embedding_part(current, recv_obj, model_type):
    current = current or []
    current.append(recv_obj)
    return current


class WaitingMMRequestStatus(enum.IntEnum):
    FAIL = -1
    PENDING = 0
    SUCCESS = 1
    TIMEOUT = -2


class WaitingMMRequestBase:
    def __init__(self, rid, recv_req, mm_processor, encoder_urls, model_type,
                 host_name, receive_count, embedding_pool=None,
                 zmq_context=None, embedding_port=None,
                 registration_runner=None):
        self.rid, self.recv_req, self.mm_processor = rid, recv_req, mm_processor
        self.encoder_urls, self.model_type = encoder_urls, model_type
        self.num_items_assigned = recv_req.num_items_assigned
        self.recv_embedding_data = None
        self.status = WaitingMMRequestStatus.PENDING
        self.error_msg = self.error_code = None
        self.start_time = time.time()

    def _try_recv_mm_data(self):
        raise NotImplementedError("frames")

    def _fail_and_release(self, error_msg, error_code=None) -> None:
        self.error_msg, self.error_code = error_msg, error_code
        self.status = WaitingMMRequestStatus.FAIL
        self.release_resources()

    def _finish_assemble(self, recv_embedding) -> None:
        self.recv_req.mm_inputs = self.mm_processor(
            recv_embedding, self.recv_embedding_data)
        self.recv_req.input_ids = [1, 2, 3]
        self.status = WaitingMMRequestStatus.SUCCESS

    def _fail_assemble(self, e: Exception) -> None:
        self._fail_and_release(f"Failed to assemble multimodal inputs: {e}")

    def release_resources(self):
        pass


class WaitingZmqRequest(WaitingMMRequestBase):
    def send_encode_request(self):
        raise NotImplementedError("a receive URL")


class WaitingZmqRequestGrpc(WaitingZmqRequest):
    def send_encode_request(self):
        raise NotImplementedError("a receive URL")


class EncoderDispatchErrorReq:
    def __init__(self, rid, error_msg, error_code):
        self.rid, self.text, self.code = rid, error_msg, error_code


class MMReceiverBase:
    """Of the tokenizer manager, whose HTTP client is `post`, or of a scheduler
    rank, whose all-reduce is `least`."""

    def __init__(self, encode_urls, post, least=list):
        self.encode_urls, self.post = encode_urls, post
        self.waiting_list, self.least, self.ended = [], least, []

    def _process_waiting_requests(self, recv_reqs):
        if self.waiting_list:
            self.ended += _process_waiting_requests(self.waiting_list,
                                                    self.least)
        return recv_reqs, []

    def _send_encode_request(self, obj, time_stats_json=None,
                             on_dispatch_error=None):
        if obj.rid is None:
            obj.rid = uuid.uuid4().hex
        encode_urls = list(self.encode_urls)
        if not encode_urls:
            return None
        obj.num_items_assigned = {
            Modality.IMAGE: [obj.items[u] for u in range(len(encode_urls))]}
        obj.encoder_urls = encode_urls
        ready = threading.Event()
        thread = threading.Thread(
            target=self._run_encode_in_thread,
            args=(obj.rid, obj.items, "encode", obj.num_items_assigned,
                  encode_urls, time_stats_json, ready, on_dispatch_error),
            daemon=True)
        thread.start()
        self.thread = thread
        return ready

    def _run_encode_in_thread(self, req_id, mm_data, endpoint_encode,
                              num_items_assigned, encode_urls=None,
                              time_stats_json=None,
                              scheduler_dispatch_ready=None,
                              on_dispatch_error=None):
        try:
            error = asyncio.run(self.encode(
                req_id=req_id, mm_data=mm_data, embedding_port=None,
                endpoint_encode=endpoint_encode,
                num_items_assigned=num_items_assigned,
                encode_urls=encode_urls, time_stats_json=time_stats_json))
        except Exception as e:
            error = EncoderDispatchErrorReq(req_id, str(e),
                                            int(HTTPStatus.BAD_GATEWAY))
        if error is not None and on_dispatch_error is not None:
            scheduler_dispatch_ready.wait()
            on_dispatch_error(error)

    def _each(self, num_items_assigned, one):
        """Calls one(part, parts, index of its encoder) for all parts at
        once."""
        parts = [i for i, n in enumerate(
            num_items_assigned[Modality.IMAGE]) if n]
        with futures.ThreadPoolExecutor() as pool:
            return list(pool.map(one, range(len(parts)),
                                 [len(parts)] * len(parts), parts))

    async def encode(self, req_id, mm_data, embedding_port, endpoint_encode,
                     num_items_assigned=None, encode_urls=None,
                     time_stats_json=None):
        error = next(filter(None, self._each(
            num_items_assigned, lambda part, parts, at: self.post(
                encode_urls[at], {
                    "req_id": create_part_req_id(req_id, part),
                    "num_parts": parts, "part_idx": part}))), None)
        if error is not None:
            error.rid = req_id
        return error


class MMReceiverGrpc(MMReceiverBase):
    async def encode(self, req_id, mm_data, embedding_port, endpoint_encode,
                     num_items_assigned=None, encode_urls=None):
        """Sends all parts, which have one id here."""
        self._each(num_items_assigned, lambda part, parts, at:
                   _grpc_encode_request(encode_urls[at][len("grpc://"):], {
                       "req_id": req_id, "num_parts": parts,
                       "part_idx": part}))

    def process_waiting_requests(self, recv_reqs):
        return self._process_waiting_requests(recv_reqs)


class MMReceiverHTTP(MMReceiverBase):
    def process_waiting_requests(self, recv_reqs):
        return self._process_waiting_requests(recv_reqs)


def _process_waiting_requests(waiting_list, least):
    """Does one turn of a rank: the least status of all ranks counts, and one
    rank's text of a failure is given to all."""
    for waiting in waiting_list:
        waiting._try_recv_mm_data()
    held = least([(int(w.status), w.error_msg, w.error_code)
                  for w in waiting_list])
    out, still = [], []
    for waiting, (status, *said) in zip(waiting_list, held):
        if status == WaitingMMRequestStatus.PENDING:
            still.append(waiting)
            continue
        if status != WaitingMMRequestStatus.SUCCESS:
            waiting.error_msg, waiting.error_code = said
            waiting.release_resources()
        out.append((waiting, status))
    waiting_list[:] = still
    return out
