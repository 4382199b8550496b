"""Lets one call of a program fail, of the calls that the program's own code
makes: the page of test/preload/nth_call.c."""

import mmap
import os
import struct
import subprocess

from pair import BUILD

LIBRARY = os.path.join(BUILD, "test", "preload", "nth_call.so")
HELD = struct.Struct("<qq")
FAILED = struct.Struct("<Q40s")
KIND = struct.Struct("<16sQQ")
KINDS_AT = HELD.size + FAILED.size


class Calls:
    """The calls so far of a program that is started with `env`."""

    def __init__(self, path):
        with open(path, "wb") as f:
            f.write(bytes(mmap.PAGESIZE))
        with open(path, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), mmap.PAGESIZE)
        options = os.environ.get("ASAN_OPTIONS", "")
        self.env = {"LD_PRELOAD": LIBRARY, "LD_BIND_NOW": "1",
                    "MMX_NTH": path,
                    "ASAN_OPTIONS": options + ":verify_asan_link_order=0"}

    def close(self):
        self.page.close()

    def _rows(self):
        """(place in the page, kind, calls) of each; a program fills them."""
        for at in range(KINDS_AT, len(self.page), KIND.size):
            name, calls, _ = KIND.unpack_from(self.page, at)
            if not name[0]:
                return
            yield at, name.rstrip(b"\0").decode(), calls

    def kinds(self):
        """The number of calls so far, by kind."""
        return {kind: calls for _, kind, calls in self._rows()}

    def held(self):
        """(allocations, maps) that were taken and not given back."""
        return HELD.unpack_from(self.page)

    def clear(self):
        """Clears the page, as it is before a start."""
        HELD.pack_into(self.page, 0, 0, 0)
        for at, kind, _ in list(self._rows()):
            KIND.pack_into(self.page, at, kind.encode(), 0, 0)

    def fail(self, kind, n):
        """Lets the n-th call of a kind from now on fail, and no other."""
        FAILED.pack_into(self.page, HELD.size, 0, b"")
        for at, name, calls in self._rows():
            struct.pack_into("<Q", self.page, at + KIND.size - 8,
                             calls + n if name == kind else 0)

    def spare(self):
        """Lets no call fail."""
        for at, _, _ in self._rows():
            struct.pack_into("<Q", self.page, at + KIND.size - 8, 0)

    def failed(self):
        """Returns the function that has failed, or "" if none has yet."""
        return FAILED.unpack_from(self.page, HELD.size)[1].strip(
            b"\0").decode()

    def place(self, binary):
        """Returns the function that has failed, and where it was called."""
        at, _ = FAILED.unpack_from(self.page, HELD.size)
        said = subprocess.run(
            ["addr2line", "-s", "-f", "-e", binary, hex(at - 1)],
            capture_output=True, text=True, check=False).stdout.split()
        return " ".join([self.failed(), "in", *said])
