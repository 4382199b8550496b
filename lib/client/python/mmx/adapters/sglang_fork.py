"""The SGLang fork with embedding transfer, over mmx: the objects that its
encode and language queues hold, under the fork's own calls.

    fork                               here
    MooncakeEmbeddingManager           MmxEmbeddingManager: one connection
    MooncakeEmbeddingSender            MmxEmbeddingSender: one announced room
    MooncakeEmbeddingReceiver          MmxEmbeddingReceiver: one requested room
    MultimodalDataBuffers              MmxDataBuffers: the pool
    ReqToMetadataIdxAllocator          MmxAllocator: names, no memory
    bootstrap server, heartbeats,      the daemons
    resume, shards, thread pools

bootstrap_room is the room, prompt the storage: every position of the prompt
has a row of each field. "Block indices" are names here: the allocator returns
one number per request, by which the buffers find its room.

Each rank has a manager of its own, all with one session. On either side rank
0 of the host opens rooms and the others attach; only rank 0 of the encode
side writes. Ranks see a state at different moments: poll_and_all_reduce, the
fork's MIN over ranks, stays, and state numbers are made for it. Two of the
daemon's states are hidden from the fork: Bootstrapping, for which it would
wait for a handshake (WaitingForInput is returned at once), and Transferring,
which it takes for a call to resume while here it means that rows are moving.
"""

from __future__ import annotations

import logging
import os
import struct
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import mmx
from mmx import errors

try:
    from sglang.srt.disaggregation.base.conn import (  # type: ignore
        BaseKVManager, BaseKVReceiver, BaseKVSender, KVPoll)
except ImportError as e:
    raise ImportError("mmx.adapters.sglang_fork needs SGLang with "
                      f"disaggregation: {e}") from e

log = logging.getLogger("mmx.sglang")

FAKE_HOST = "2.2.2.2"  # the fork's address for warm-up requests
AUX_INTS = 16  # [0] rows, [1] mrope delta


def layout(hidden: int, deepstack: int = 0) -> str:
    """Returns the fork's buffers as a pool's fields; each mrope plane is a
    field, so that mrope is read as [3, rows]."""
    text = (f"embedding:bf16:{hidden},fill_ids:i32:1,"
            "mrope_t:i32:1,mrope_h:i32:1,mrope_w:i32:1")
    return text + (f",deepstack:bf16:{hidden * deepstack}" if deepstack
                   else "")


class EmbeddingTransferError(Exception):
    def __init__(self, bootstrap_room: int, failure_reason: str) -> None:
        super().__init__(failure_reason)
        self.bootstrap_room = bootstrap_room
        self.failure_reason = failure_reason

    def __str__(self) -> str:
        return (f"EmbeddingTransferError(bootstrap_room="
                f"{self.bootstrap_room}): {self.failure_reason}")


class MmxEmbeddingManager(BaseKVManager):  # type: ignore[misc]
    """A rank's connection. The daemon's YAML has what the fork configures for
    its buffers and sockets; MMX_ENCODED_SOCKET, MMX_LANGD_SOCKET and MMX_POOL
    name the daemon's socket and pool."""

    def __init__(self, args: Any, disaggregation_mode: Any,
                 server_args: Any) -> None:
        mode = str(getattr(disaggregation_mode, "value", disaggregation_mode))
        self.role = "encoded" if mode.lower() == "encode" else "langd"
        self.tp_size = int(getattr(server_args, "tp_size", 1))
        self.rank = int(getattr(args, "engine_rank", 0)) % self.tp_size
        session = str(getattr(server_args, "dist_init_addr", "") or "sglang")
        self.conn = mmx.connect(self.role, session=f"{session}-{self.role}",
                                name=f"sglang-{self.rank}", timeout=10)
        self.pool = self.conn.pool(os.environ.get("MMX_POOL", ""))
        # The fork's addresses of encoders -> names that langd knows.
        self.encoders: Dict[str, str] = {}
        self.slots: Dict[int, "_Transfer"] = {}  # allocator's name -> room
        self.tokens: Dict[int, int] = {}  # allocator's name -> rows

    def step(self) -> None:
        """Steps the connection; once per turn of the scheduler's loop is
        enough."""
        if any(e.link is mmx.Link.UP for e in self.conn.step()):
            self.pool = self.conn.pool(os.environ.get("MMX_POOL", ""),
                                       timeout=1)

    def encoder(self, bootstrap_addr: str) -> str:
        if bootstrap_addr.split(":")[0] == FAKE_HOST:
            return mmx.NULL
        return self.encoders.get(bootstrap_addr, f"tcp://{bootstrap_addr}")

    def close(self) -> None:
        self.conn.close()


class _Transfer:
    """The common part of sender and receiver: a room of one rank."""

    def __init__(self, mgr: MmxEmbeddingManager, room: int) -> None:
        self.mgr, self.bootstrap_room = mgr, room
        self.shown: Any = None  # Source or Room, once opened
        self.slot = -1
        self.conclude_state: Any = None
        self.text = ""

    @property
    def state(self) -> mmx.State:
        """The daemon's state of the room."""
        return self.shown.state if self.shown else mmx.State.BOOTSTRAPPING

    def _bind(self, indices: Optional[Sequence[int]]) -> None:
        self.slot = indices[0] if indices else -1
        if self.slot >= 0:
            self.mgr.slots[self.slot] = self

    def _fail(self, error: Exception) -> None:
        self.conclude_state = KVPoll.Failed
        self.text = str(error)

    def poll(self) -> Any:
        if self.conclude_state is not None:
            return self.conclude_state
        self.mgr.step()
        if not self.shown:
            return KVPoll.WaitingForInput
        state = self.shown.state
        if state is mmx.State.FAILED:
            self._fail(self.shown.reason or errors.Internal())
        elif state is mmx.State.SUCCESS and self._whole():
            self.conclude_state = KVPoll.Success
        else:
            return KVPoll.WaitingForInput
        return self.conclude_state

    def _whole(self) -> bool:
        return True

    def clear(self) -> None:
        """Releases the room; before its end this aborts it."""
        self.mgr.slots.pop(self.slot, None)
        if self.shown:
            self.shown.release(force=True)
            self.shown = None

    def failure_exception(self) -> None:
        """Raises the failure; also called on ranks that saw none, when
        another rank did."""
        text = self.text
        if self.conclude_state is None:
            self.conclude_state = KVPoll.Failed
            text = "failed on another rank"
        self.clear()
        raise EmbeddingTransferError(self.bootstrap_room, text)

    def abort(self) -> None:
        if self.shown and self.conclude_state is None:
            self.shown.abort(text="aborted by AbortReq")
        self._fail(errors.Aborted("aborted by AbortReq"))


class MmxEmbeddingSender(_Transfer, BaseKVSender):  # type: ignore[misc]
    def __init__(self, mgr: MmxEmbeddingManager, bootstrap_addr: str,
                 bootstrap_room: int, dest_tp_ranks: List[int],
                 pp_rank: int) -> None:
        super().__init__(mgr, bootstrap_room)
        self._held: Dict[str, Any] = {}  # rows until the room has blocks
        self._rows = self._delta = 0
        self._final = False
        self._told = False  # length and aux

    def init(self, embedding_index: Optional[int] = None,
             block_indices: Optional[List[int]] = None,
             mrope_position_delta: Optional[int] = None) -> None:
        """Opens the room before the encoder runs, as the fork does. Length
        and aux travel together, so the length precedes the rows only if the
        delta is passed here; the fork knows it after preprocessing."""
        if block_indices is None and embedding_index is not None:
            block_indices = [embedding_index]
        self._bind(block_indices)
        try:
            if self.mgr.rank == 0:
                rows, delta = self.mgr.tokens[self.slot], mrope_position_delta
                ahead = delta is not None
                self.shown = self.mgr.conn.announce(
                    self.bootstrap_room, self.mgr.pool, rows,
                    rows if ahead else None, storage="prompt",
                    aux=struct.pack("<ii", rows, delta) if ahead else b"")
                self._told = ahead
            else:
                self.shown = self.mgr.conn.attach(
                    self.bootstrap_room, rights=mmx.WATCH, pool=self.mgr.pool)
        except errors.MmxError as e:
            self._fail(e)

    def send(self, kv_indices: Any) -> None:
        """Does nothing: embeddings use send_embedding."""

    def hold(self, fields: Dict[str, Any], delta: int) -> None:
        """Keeps rows of MmxDataBuffers.set_buf until the room has blocks: the
        scheduler's loop must not wait for them."""
        self._held = fields
        self._delta = delta

    def send_embedding(
            self, block_indices: Optional[List[int]] = None,
            last_chunk: bool = True, total_tokens: Optional[int] = None,
            block_size: Optional[int] = None,
            embedding_index: Optional[int] = None, chunk_info: Any = None,
            chunk_infos: Any = None) -> None:
        self._rows = int(total_tokens or 0)
        self._final = last_chunk
        self._write()

    def _write(self) -> None:
        source = self.shown
        if self.mgr.rank != 0 or not source or not self._final or \
                source.may_write < 0 or self.conclude_state is not None:
            return
        try:
            for name, values in self._held.items():
                source[name][0:self._rows] = values
            source.commit(0, self._rows, final=True, aux=b"" if self._told
                          else struct.pack("<ii", self._rows, self._delta))
        except (errors.MmxError, ValueError, TypeError) as e:
            source.abort("internal", str(e)[:200])
            self._fail(e)
        self._held, self._final = {}, False

    def poll(self) -> Any:
        state = super().poll()
        self._write()
        return state if self.conclude_state is None else self.conclude_state


class MmxEmbeddingReceiver(_Transfer, BaseKVReceiver):  # type: ignore[misc]
    def __init__(self, mgr: MmxEmbeddingManager, bootstrap_addr: str,
                 bootstrap_room: Optional[int] = None,
                 data_parallel_rank: Optional[int] = None) -> None:
        super().__init__(mgr, bootstrap_room or 0)
        self.encoder = mgr.encoder(bootstrap_addr)

    def init(self, embedding_indices: Optional[List[int]] = None,
             allocated_tokens: Optional[int] = None) -> None:
        """Rank 0 asks, the others attach, in whatever order they come here.
        allocated_tokens is not needed: langd knows its default and widens."""
        self._bind(embedding_indices)
        conn, pool = self.mgr.conn, self.mgr.pool
        try:
            if self.mgr.rank == 0:
                self.shown = conn.request(
                    self.bootstrap_room, pool, self.encoder,
                    storage="prompt", readers=self.mgr.tp_size - 1)
            else:
                self.shown = conn.attach(self.bootstrap_room, self.encoder,
                                         pool=pool)
        except errors.MmxError as e:
            self._fail(e)

    def resume_transfer(self, embedding_indices: Optional[List[int]] = None,
                        sent_tokens: int = 0,
                        allocated_tokens: int = 0) -> None:
        """Does nothing: langd resumes by itself, and the fork never calls
        this, because it never sees Transferring."""

    def _whole(self) -> bool:
        return bool(self.shown.complete)  # READY has named the runs


class MmxAllocator:
    """ReqToMetadataIdxAllocator's calls. The daemons own the memory: alloc
    names a request, free releases its room's rows."""

    def __init__(self, mgr: MmxEmbeddingManager, size: int = 1024) -> None:
        self.mgr = mgr
        self._names = list(range(size))

    def available_size(self) -> int:
        return len(self._names)

    def alloc(self, num_tokens: int = 0, req_id: Optional[str] = None,
              fake: bool = False) -> Optional[List[int]]:
        if not self._names:
            return None
        name = self._names.pop(0)
        self.mgr.tokens[name] = num_tokens
        return [name]

    def free(self, block_indices: Optional[List[int]] = None,
             req_id: Optional[str] = None, fake: bool = False) -> None:
        """Releases rooms; a second call has no effect, because the fork frees
        in several places."""
        for name in block_indices or ():
            if self.mgr.tokens.pop(name, None) is None:
                continue
            transfer = self.mgr.slots.get(name)
            if transfer:
                transfer.clear()
            self._names.append(name)


class MmxDataBuffers:
    """MultimodalDataBuffers' calls, on the daemon's pool."""

    def __init__(self, mgr: MmxEmbeddingManager) -> None:
        self.mgr = mgr
        self.block_size = mgr.pool.block_rows
        self.embedding_dim = mgr.pool.fields["embedding"].elements

    def get_buf_infos(self) -> Tuple[List[int], List[int], List[int]]:
        """Returns nothing: the daemon registers its memory itself."""
        return [], [], []

    def set_buf(self, req: Any) -> None:
        """Keeps embedding, id and mrope position of every position."""
        transfer = self.mgr.slots.get(req.embedding_indices[0])
        if not isinstance(transfer, MmxEmbeddingSender):
            return
        ids = np.asarray(req.fill_ids, dtype="i4").reshape(-1, 1)
        fields = {"embedding": bits(req.embedding), "fill_ids": ids}
        inputs = getattr(req, "multimodal_inputs", None)
        planes = getattr(inputs, "mrope_positions", None)
        delta = getattr(inputs, "mrope_position_delta", 0)
        if planes is None:
            planes = np.zeros((3, len(ids)), dtype="i4")
        for name, plane in zip("thw", np.asarray(planes, dtype="i4")):
            fields[f"mrope_{name}"] = plane.reshape(-1, 1)
        if "deepstack" in self.mgr.pool.fields:
            deep = getattr(req, "deepstack_embedding", None)
            width = self.mgr.pool.fields["deepstack"].elements
            fields["deepstack"] = np.zeros((len(ids), width), "u2") \
                if deep is None else bits(deep)
        transfer.hold(fields, int(np.asarray(delta).reshape(-1)[0]))

    def get_buf(self, block_indices: List[int],
                actual_total_length: Optional[int] = None) \
            -> Tuple[Any, ...]:
        """Returns (embeddings, ids, mrope [3, rows], aux ints), and deepstack
        if the pool has it: rows in place if they lie in one run, else copied.
        Free the indices after prefill has read them."""
        room = self.mgr.slots[block_indices[0]].shown
        total = room.total if actual_total_length is None \
            else actual_total_length

        def rows(name: str) -> Any:
            try:
                return room.view(name, 0, total)
            except mmx.SplitRows:
                return room.gather(name, 0, total)

        mrope = np.concatenate([rows(f"mrope_{p}") for p in "thw"],
                               axis=1).T
        aux = np.zeros(AUX_INTS, dtype="i4")
        aux[0] = total
        if len(room.aux) >= 8:
            aux[0], aux[1] = struct.unpack_from("<ii", room.aux)
        got = (rows("embedding"), rows("fill_ids").reshape(-1), mrope, aux)
        return got + ((rows("deepstack"),)
                      if "deepstack" in self.mgr.pool.fields else ())


def bits(values: Any) -> Any:
    """Returns bf16 as unsigned integers, from torch or numpy."""
    if hasattr(values, "detach"):
        import torch

        values = values.detach().cpu().contiguous()
        if values.dtype == torch.bfloat16:
            return values.view(torch.int16).numpy().view("u2")
        return mmx.bf16(values.float().numpy())
    values = np.asarray(values)
    return values if values.dtype.kind == "u" else mmx.bf16(values)


def poll_and_all_reduce(
        pollers: Sequence[_Transfer], gloo_group: Any,
        least: Optional[Callable[[List[int], Any], List[int]]] = None) \
        -> List[int]:
    """Returns the state that every rank has reached, as the fork's function.
    least: the reduction for groups that are not torch's."""
    polls = [int(p.poll()) for p in pollers]
    if least:
        return least(polls, gloo_group)
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(polls, dtype=torch.uint8, device="cpu")
    dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=gloo_group)
    return [int(v) for v in tensor.tolist()]
