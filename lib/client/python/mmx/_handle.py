"""A handle of the C library: its structs, its calls, and its end. mmx.h says
what they do; package_test.py holds the tables here against it."""

from __future__ import annotations

import ctypes
import os
import types
import weakref
from typing import Any, Dict, NamedTuple, Optional

from . import errors
from ._lib import call

FORKED, SYSTEM = 65, 66  # results beyond those of daemons
UP, DOWN, TICKET, TICKET_LOST = (1 << n for n in (16, 17, 19, 20))
KEEP, OPEN, NO_READERS, ANNOUNCED = 1, 2, 4, 8  # flags
RUNS_MAX = 2048

# Structs: each member with its kind. A number is that of a text's bytes.
_STRUCTS = """
room cell:u32 tag:u32
field name:32 dtype:8 elements:u32 row_bytes:u32 data:u64
pool size:size id:int writable:int block_rows:u32 blocks:u32 bytes:u64
 base:ptr fields_count:u32 name:65 memory:17 layout:1025 fields:field*32 gpu:int
answer size:size number:u32 reason:int a:u32 b:u32 text:ptr text_len:u32
 more:int pool:&pool pool_number:u16 fd:int share:text handle:ptr
 handle_len:u32 gone:int
opt size:size role:int socket:text engine:text session:text cells:u32
 timeout_ms:int why:text why_size:size binding:int no_lend:int
info size:size role:int up:int protocol:u32 epoch:u64 cells:u32 rooms_max:u32
 aux_max:u32 name:65 advertise:129 software:33 refused:int system:int
event what:u32 room:room id:u64 user:ptr state:int reason:int advice:int
 storage:int rows:u32 total:u32 a:u32 b:u32 generation:u64 epoch:u64 aux:ptr
 aux_len:u32 op:text text:text request:text space:int
announce size:size id:u64 pool:int storage:int flags:u32 rows:u32 max_rows:u32
 required_dst:u16 batch:u16 deadline_ms:u32 key:text aux:text aux_len:u32
 user:ptr traceparent:text reference:text
request size:size id:u64 pool:int mode:int storage:int flags:u32 rows:u32
 readers:u16 required_dst:u16 group:u64 group_size:u16 deadline_ms:u32 key:text
 encoder:text user:ptr traceparent:text reference:text
attach size:size id:u64 pool:int rights:int deadline_ms:u32 encoder:text
 user:ptr reference:text
ticket size:size space:int request:text wait_ms:u32 hold_ms:u32 room:room
 user:ptr
state state:int reason:int rows:u32
blocks block:u32 blocks:u32
"""
# Calls: each with the kinds of its arguments; with a colon, that of its result.
_CALLS = """
open &opt &ptr
close &ptr :none
fd ptr
info ptr &info
step ptr &event int
answers ptr &answer
cork ptr
uncork ptr
sent ptr :u32
ask_pool ptr text text
ask_space ptr text u32
ask_ticket ptr int text
query ptr text
announce ptr &announce &room
request ptr &request &room
attach ptr &attach &room
decline ptr text text text
commit ptr room u32 u32
commit_final ptr room u32 u32 u32 text u32
release ptr room u32 u32
abort ptr room int text
poll ptr &room int &state
cell ptr room :ptr
blocks ptr room &int &u32 &blocks int
ticket ptr &ticket
ticket_release ptr int text u32
lend ptr int int
wake ptr :none
bye ptr
end ptr
"""
_kinds: Dict[str, Any] = {
    "int": ctypes.c_int, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64, "size": ctypes.c_size_t, "text": ctypes.c_char_p,
    "ptr": ctypes.c_void_p, "none": None}


def _kind(word: str) -> Any:
    if word.isdigit():
        return ctypes.c_char * int(word)
    name, _, many = word.lstrip("&").partition("*")
    kind = _kinds[name] * int(many) if many else _kinds[name]
    return ctypes.POINTER(kind) if word[0] == "&" else kind


class _Struct(ctypes.Structure):
    def __init__(self, **members: Any) -> None:
        if hasattr(self, "size"):
            members["size"] = ctypes.sizeof(self)
        super().__init__(**members)


for _line in _STRUCTS[1:-1].replace("\n ", " ").split("\n"):
    _name, *_members = _line.split()
    _kinds[_name] = type(f"mmx_{_name}", (_Struct,), {"_fields_": [
        (m.split(":")[0], _kind(m.split(":")[1])) for m in _members]})
new: Any = types.SimpleNamespace(**_kinds)
c: Any = types.SimpleNamespace()
for _line in _CALLS[1:-1].split("\n"):
    _words, _, _result = _line.partition(" :")
    _name, *_members = _words.split()
    setattr(c, _name, call(f"mmx_{_name}", *map(_kind, _members),
                           returns=_kinds[_result or "int"]))


class Taken:
    """What may have a descriptor of its own."""

    fd = -1

    def take_fd(self) -> int:
        """Returns the descriptor, which the caller closes; -1: none."""
        fd, self.fd = self.fd, -1
        return fd

    def __del__(self) -> None:
        if self.fd >= 0:  # the call was given up
            os.close(self.fd)


def _text(said: Optional[bytes]) -> str:
    return (said or b"").decode("utf-8", "replace")


class Offer(Taken):
    """A pool in an answer."""

    def __init__(self, a: Any) -> None:
        p, self.fd, self.gone = a.pool.contents, a.fd, bool(a.gone)
        self.values: Dict[str, Any] = dict(
            pool=a.pool_number, id=p.id, access=p.writable,
            block_rows=p.block_rows, blocks=p.blocks, bytes=p.bytes,
            name=_text(p.name), memory=_text(p.memory), layout=_text(p.layout),
            share=_text(a.share),
            handle=ctypes.string_at(a.handle or 0, a.handle_len),
            fields=[(_text(f.name), _text(f.dtype), f.elements, f.data,
                     f.row_bytes) for f in p.fields[:p.fields_count]])


class Answer(NamedTuple):
    number: int
    reason: int
    a: int
    b: int
    text: bytes
    more: bool
    offer: Optional[Offer]


class Handle:
    """A connection and the maps of its pools refer to this. When none of them
    is left, the C handle is closed: the daemon hears that no row is read any
    more."""

    def __init__(self, role: int, path: str, name: str, session: str,
                 cells: int, lends: bool) -> None:
        self.it, why = ctypes.c_void_p(), ctypes.create_string_buffer(256)
        result = c.open(new.opt(
            role=role, socket=os.fsencode(path), engine=name.encode(),
            session=session.encode(), cells=cells, why_size=len(why),
            why=ctypes.cast(why, ctypes.c_char_p), binding=1,
            no_lend=not lends), self.it)
        if result:
            said = why.value.decode("utf-8", "replace")
            raise OSError(ctypes.get_errno(), said) if result == -SYSTEM \
                else errors.error(-result, said)
        # at exit, the end of the process tells the daemon
        weakref.finalize(self, c.close, self.it).atexit = False

    def answer(self) -> Optional[Answer]:
        """Takes an answer; None: there is none."""
        a = new.answer()
        if c.answers(self.it, a) <= 0:
            return None
        return Answer(a.number, a.reason, a.a, a.b,
                      ctypes.string_at(a.text, a.text_len), bool(a.more),
                      Offer(a) if a.pool else None)
