"""Moves a picture between two engines through mmx-encoded and mmx-langd, which
it starts itself, each with a configuration and one key for both, in a folder
of its own.

Five processes: both daemons; an encode engine that cuts the picture into tiles
of 28 x 28 pixels as Qwen2-VL does, one row of 2,352 bf16 values each, and
commits them piece by piece; a language engine that asks for the room without
knowing its length, and puts the picture together again. The rows that arrive
are compared bit for bit with those that were encoded, once for each way that
rows can move.

Neither numpy nor Pillow is used, unless the picture is a file, or the blocks
are on a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from mmap import mmap
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from . import connect, errors
from .pool import Pool
from .rooms import Room, Source

TILE, ROOM, LIMIT = 28, 42, 60  # pixels, room id, seconds
ROW = TILE * TILE * 3  # values of a row
POOL = ("pools[0].name=vit", "pools[0].blocks=64",
        f"pools[0].layout=embedding:bf16:{ROW}")
MAX_ROWS = 64 * 128  # rows of the pool
UCX = {"UCX_HANDLE_ERRORS": "none", "UCX_VFS_ENABLE": "n",
       "UCX_MEM_EVENTS": "n"}  # as in the units
LIBC = ctypes.CDLL(None)
PICTURE = "picture.png"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failure(Exception):
    pass


def with_parent() -> None:
    """Runs in a child before its program starts: asks the kernel to end the
    child when the demo is killed."""
    LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


# --- the picture -----------------------------------------------------------
class Picture(NamedTuple):
    wide: int  # tiles along the width
    high: int
    pixels: bytes  # 3 bytes per pixel, line by line


def draw() -> Picture:
    """Draws a gradient with discs and squares, in which errors are visible."""
    wide, high = 68, 38
    w, h = wide * TILE, high * TILE
    line = bytearray(3 * w)
    line[0::3] = bytes(x * 255 // w for x in range(w))
    slope = bytes(i * 255 // (w + h) for i in range(w + h))
    lines = []
    for y in range(h):
        line[1::3] = bytes([y * 255 // h]) * w
        line[2::3] = slope[y:y + w]
        one = bytearray(line)
        for i in range(12):
            x, up = 110 + i * 152, abs(y - 250 - i % 3 * 280)
            if up < 70:
                half = 70 if i % 2 else int((70 * 70 - up * up) ** 0.5)
                one[3 * (x - half):3 * (x + half)] = \
                    bytes((255 - i * 20, i * 20, 90)) * (2 * half)
        lines.append(bytes(one))
    return Picture(wide, high, b"".join(lines))


def load(path: Optional[str]) -> Picture:
    """Loads a picture, resized as Qwen2-VL does: sides are multiples of 28."""
    if not path:
        return draw()
    from PIL import Image

    image = Image.open(path).convert("RGB")
    w, h = image.size
    scale = min(1.0, (MAX_ROWS * TILE * TILE / (w * h)) ** 0.5)
    wide, high = (max(1, int(n * scale / TILE + (scale == 1) / 2))
                  for n in (w, h))
    image = image.resize((wide * TILE, high * TILE), Image.BICUBIC)
    return Picture(wide, high, image.tobytes())


def save(picture: Picture, path: str) -> None:
    """Writes a picture as PNG."""
    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + \
            struct.pack(">I", zlib.crc32(kind + data))

    w, h = picture.wide * TILE, picture.high * TILE
    lines = b"".join(b"\0" + picture.pixels[y * 3 * w:(y + 1) * 3 * w]
                     for y in range(h))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(
            ">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + part(
                b"IDAT", zlib.compress(lines, 1)) + part(b"IEND", b""))


# 0..255 have at most 8 significant bits: bf16 holds them exactly.
BITS = [struct.pack(">f", value)[:2] for value in range(256)]
UPPER, LOWER = (bytes(b[i] for b in BITS) for i in (0, 1))
VALUES = bytearray(1 << 16)
for _value, _bits in enumerate(BITS):
    VALUES[_bits[0] << 8 | _bits[1]] = _value


def encode_rows(picture: Picture) -> bytes:
    """Returns the tiles as rows of bf16."""
    n, flat = 3 * TILE, []
    for tile in range(picture.high * picture.wide):
        y, x = divmod(tile, picture.wide)
        for line in range(y * TILE, (y + 1) * TILE):
            at = (line * picture.wide + x) * n
            flat.append(picture.pixels[at:at + n])
    values = b"".join(flat)
    rows = bytearray(2 * len(values))
    rows[0::2], rows[1::2] = values.translate(LOWER), values.translate(UPPER)
    return bytes(rows)


def decode_rows(rows: bytes, wide: int, high: int) -> Picture:
    values = bytes(map(VALUES.__getitem__, memoryview(rows).cast("H")))
    n, lines = 3 * TILE, []
    for line in range(high * TILE):
        for x in range(wide):
            tile = line // TILE * wide + x
            at = (tile * TILE + line % TILE) * n
            lines.append(values[at:at + n])
    return Picture(wide, high, b"".join(lines))


# --- rows in a pool, as bytes -----------------------------------------------
def place(pool: Pool, room: Union[Source, Room], first: int,
          end: int) -> List[slice]:
    """Returns where rows lie in the memory of a host pool."""
    field = pool.fields["embedding"]
    return [slice(field.offset + run.place * field.row_bytes,
                  field.offset + (run.place + run.rows) * field.row_bytes)
            for run in room.pieces(first, end)]


def write(source: Source, first: int, end: int, rows: bytes) -> None:
    pool = source.pool
    if not isinstance(pool._map, mmap):
        import numpy as np

        source["embedding"][first:end] = np.frombuffer(
            rows, np.uint16).reshape(end - first, ROW)
        return
    at = 0
    for part in place(pool, source, first, end):
        size = part.stop - part.start
        pool._map[part] = rows[at:at + size]
        at += size


def read(room: Room, rows: int) -> bytes:
    if not isinstance(room.pool._map, mmap):
        return room.gather("embedding").tobytes()
    return b"".join(room.pool._map[part]
                    for part in place(room.pool, room, 0, rows))


# --- the two engines: each a process of its own ------------------------------
def summary(picture: Picture, rows: bytes) -> Dict[str, Any]:
    return {"high": picture.high, "wide": picture.wide,
            "rows": len(rows) // (2 * ROW),
            "rows_sha256": hashlib.sha256(rows).hexdigest(),
            "picture_sha256": hashlib.sha256(picture.pixels).hexdigest()}


def encode(args: argparse.Namespace) -> Dict[str, Any]:
    picture = load(args.image)
    rows, n = encode_rows(picture), picture.wide * picture.high
    with connect("encoded", args.at + "/encoded.sock", name="demo-vit") as conn:
        source = conn.announce(
            ROOM, conn.pool("vit"), n, None if args.resume else n,
            aux=struct.pack("<II", picture.high, picture.wide))
        source.wait_granted(LIMIT)
        for a in range(0, n, 256):  # an encoder's output comes in pieces
            b = min(a + 256, n)
            write(source, a, b, rows[a * 2 * ROW:b * 2 * ROW])
            source.commit(a, b, final=b == n)
        source.wait_done(LIMIT)
        source.release()
    return summary(picture, rows)


def language(args: argparse.Namespace) -> Dict[str, Any]:
    with connect("langd", args.at + "/langd.sock", name="demo-llm") as conn:
        room = conn.request(ROOM, conn.pool("vit"), "encoded-0")
        conn.wait(room.opened, LIMIT)
        print("requested", flush=True)
        room.wait_ready(LIMIT)
        high, wide = struct.unpack("<II", room.aux)
        rows = read(room, room.total or 0)
        room.release()
    picture = decode_rows(rows, wide, high)
    save(picture, os.path.join(args.at, PICTURE))
    return summary(picture, rows)


# --- the stage ---------------------------------------------------------------
def program(args: argparse.Namespace, name: str) -> str:
    """Returns the path of a program: in --programs, this package, or PATH."""
    folder = args.programs or os.path.join(os.path.dirname(__file__), "bin")
    path = shutil.which(name, path=folder)
    if not path and not args.programs:
        path = shutil.which(name)
    if not path:
        raise Failure(f"{name} is neither in {folder} nor in PATH: it comes "
                      "with the wheel of mmx, and with the package mmx")
    return path


class Stage:
    """The running programs, and their folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="mmx-demo-")
        if args.keep:
            print(f"demo: keeps {self.dir}", flush=True)
        self.processes: "Dict[str, subprocess.Popen[str]]" = {}

        # If the demo is ended from outside, it ends its children first; a
        # signal that nohup ignores stays ignored.
        for which in ENDS:
            if signal.getsignal(which) != signal.SIG_IGN:
                signal.signal(which, self.ended)

    def ended(self, number: int, _: Any) -> None:
        """Raises nothing, since Python drops exceptions in a destructor;
        SIG_IGN would make Python complain of a signal that came before."""
        for which in ENDS:
            signal.signal(which, lambda *_: None)
        self.close()
        os._exit(128 + number)

    def start(self, name: str, words: List[str],
              stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        # Blocks signals until the child is among those to be ended.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            with open(os.path.join(self.dir, name + ".log"), "w") as log:
                self.processes[name] = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=log,
                    text=True, env={**os.environ, **UCX},
                    preexec_fn=with_parent)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self.processes[name]

    def configure(self, role: str, *settings: str) -> str:
        """Writes a daemon's configuration and the key of both; returns its
        path."""
        key, path = (os.path.join(self.dir, name)
                     for name in ("fleet.key", role + ".yaml"))
        if not os.path.exists(key):
            subprocess.run([program(self.args, "mmxctl"), "keygen", key],
                           check=True, stdout=subprocess.DEVNULL)
        words = [program(self.args, "mmx-" + role), "--config", os.devnull,
                 "--print-config", "--comments"]
        for setting in (f"control.keys={key}", *POOL, "timeouts.drain=1s",
                        f"socket.path={self.dir}/{role}.sock",
                        f"pools[0].memory={self.args.memory}", *settings):
            words += ["--set", setting]
        with open(path, "w") as f:
            subprocess.run(words, check=True, stdout=f)
        return path

    def daemon(self, role: str, *settings: str) -> None:
        process = self.start(role, [
            program(self.args, "mmx-" + role), "--config",
            self.configure(role, *settings)])
        end = time.monotonic() + LIMIT
        while True:
            if process.poll() is not None:
                raise Failure(f"mmx-{role} ended: {process.returncode}")
            try:
                connect(role, f"{self.dir}/{role}.sock", timeout=0.2).close()
                return
            except errors.DaemonLost:
                if time.monotonic() > end:
                    raise Failure(f"mmx-{role} does not answer") from None

    def engine(self, part: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "mmx", "demo", "--play", part,
                 "--at", self.dir]
        if self.args.image:
            words += ["--image", self.args.image]
        if self.args.resume:
            words += ["--resume"]
        return self.start(part, words, subprocess.PIPE)

    def result(self, part: str) -> Dict[str, Any]:
        process = self.processes[part]
        try:
            out, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Failure(f"the {part} engine hangs") from None
        if process.returncode:
            raise Failure(f"the {part} engine ended: {process.returncode}")
        found: Dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def ctl(self, role: str, what: str) -> Any:
        return json.loads(subprocess.run(
            [program(self.args, "mmxctl"), "--socket",
             f"{self.dir}/{role}.sock", what, "--json"], text=True, check=True,
            stdout=subprocess.PIPE, timeout=LIMIT).stdout)

    def history(self, role: str) -> Dict[str, Any]:
        """Returns the room's row in the history."""
        rows: List[Dict[str, Any]] = [
            r for r in self.ctl(role, "rooms")
            if r["room"] == ROOM and r.get("ended")]
        if not rows:
            raise Failure(f"mmx-{role} does not show the room as ended")
        return rows[-1]

    def kept(self) -> str:
        """Copies the picture out of the folder; returns its path, by default a
        new file that no other user has made."""
        path: str = self.args.picture
        if not path:
            fd, path = tempfile.mkstemp(prefix="mmx-demo-", suffix=".png")
            os.close(fd)
        shutil.copyfile(os.path.join(self.dir, PICTURE), path)
        return path

    def logs(self) -> None:
        for name in sorted(os.listdir(self.dir)):
            if name.endswith(".log"):
                with open(os.path.join(self.dir, name)) as f:
                    text = f.read().rstrip()
                if text:
                    print(f"--- {name}\n{text}")

    def close(self) -> None:
        """Ends all children. May be called again, even during a call."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        if not self.args.keep:
            shutil.rmtree(self.dir, ignore_errors=True)


SENT = "transfer.same_host=off"
WAYS: Dict[str, Tuple[str, ...]] = {
    "copied": (), "sent over TCP": (SENT, "transfer.carrier=tcp"),
    "sent over UCX": (SENT, "transfer.carrier=ucx",
                      "transfer.trusted_network=true")}
NO_UCX = "was built without UCX"
OPENED = ("asked for by the language engine", "first heard of")
STEPS = {
    "init_us": ("init: default rows granted", "init from langd"),
    "length_us": ("length told by encoded", "announced: length goes to langd"),
    "resumed_us": ("last resume: grant widened", "last resume from langd"),
    "first_us": ("first byte landed", "first byte sent"),
    "done_us": ("ready: every row has landed", "done: acknowledged"),
}


def timeline(encoded: Dict[str, Any], langd: Dict[str, Any]) -> None:
    steps = []
    for role, row, which in (("langd", langd, 0), ("encoded", encoded, 1)):
        steps.append((row["opened_ns"], role, OPENED[which]))
        steps += [(row["opened_ns"] + row[key] * 1000, role, text[which])
                  for key, text in STEPS.items() if key in row]
    began = min(at for at, _, _ in steps)
    for at, role, text in sorted(steps):
        print(f"  {(at - began) / 1e6:9.3f} ms  {role:8s} {text}")
    print(f"  {langd['bytes']:,} bytes, resumes {langd['resumes']}, "
          f"blocks {langd['blocks']}")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def play(stage: Stage, way: str) -> str:
    """Moves the picture; returns what moved, or nothing if these programs
    cannot use this way."""
    address = f"tcp://127.0.0.1:{free_port()}"
    said = subprocess.run(
        [program(stage.args, "mmx-encoded"), "--check-config", stage.configure(
            "encoded", f"control.listen={address}", *WAYS[way])],
        text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE).stderr
    if NO_UCX in said:
        return ""
    stage.daemon("encoded", f"control.listen={address}", *WAYS[way])
    stage.daemon("langd", "peers[0].name=encoded-0",
                 f"peers[0].address={address}", *WAYS[way])
    listener = stage.engine("language").stdout
    if not listener or listener.readline() != "requested\n":
        raise Failure("the language engine could not ask for the room")
    stage.engine("encode")
    sent, got = stage.result("encode"), stage.result("language")
    encoded, langd = stage.history("encoded"), stage.history("langd")
    if stage.args.verbose:
        peer = stage.ctl("encoded", "peers")[0]
        print(f"demo, {way} (path {peer['path']}, {peer['transport']}):")
        timeline(encoded, langd)
    for key, value in sent.items():
        if got[key] != value:
            raise Failure(f"{key} sent {value}, received {got[key]}")
    return (f"{sent['wide'] * TILE} x {sent['high'] * TILE} pixels, "
            f"{sent['rows']:,} rows of {ROW:,} bf16, {langd['bytes']:,} bytes, "
            f"bit for bit, sha256 {got['rows_sha256'][:16]}")


def add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("--image", type=os.path.abspath, metavar="FILE",
                   help="default: a picture is drawn")
    p.add_argument("--programs", type=os.path.abspath, metavar="FOLDER",
                   help="of the daemons and mmxctl; default: those of this "
                        "package, then PATH")
    p.add_argument("--keep", action="store_true",
                   help="leave configurations, keys and logs in their folders, "
                        "whose names are printed")
    p.add_argument("--resume", action="store_true",
                   help="the length is known at the last commit only")
    p.add_argument("--memory", default="host", metavar="KIND",
                   help="of the pools: host (the default) or cuda:N")
    p.add_argument("--verbose", action="store_true",
                   help="print when each step happened")
    p.add_argument("--play", choices=("encode", "language"),
                   help=argparse.SUPPRESS)
    p.add_argument("--at", help=argparse.SUPPRESS)
    p.add_argument("--picture", metavar="FILE",
                   help="where the picture goes; default: a new file")


def main(args: argparse.Namespace) -> int:
    if args.play:
        part = {"encode": encode, "language": language}[args.play]
        print(json.dumps(part(args)))
        return 0
    if args.image:
        try:
            from PIL import Image  # noqa: F401
        except ImportError as e:
            print("demo: failed: --image needs the package python3-pil, or "
                  f"pip install pillow: {e}")
            return 1
    done, ways, picture = "", [], ""
    for way in WAYS:
        stage = Stage(args)
        try:
            said = play(stage, way)
            picture = picture or stage.kept()
        except (Failure, OSError, ValueError, KeyError, errors.MmxError,
                subprocess.SubprocessError) as e:
            stage.logs()
            print(f"demo: failed {type(e).__name__}: {way}: {e}")
            return 1
        finally:
            stage.close()
        if said:
            done, ways = said, [*ways, way]
    print(f"demo: ok {done}, {', '.join(ways)}: {picture}")
    return 0
