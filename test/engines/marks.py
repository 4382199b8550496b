"""Times at which an engine did something: its processes write them into the
file MMX_TIMES names. Processes of a host share monotonic time."""

import contextlib
import os
import time


def note(what, identifier):
    line = f"{what} {identifier} {time.monotonic_ns()} {os.getpid()}\n"
    fd = os.open(os.environ["MMX_TIMES"],
                 os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def taken(last=()):
    """Returns {identifier: {mark: time in ns}} and forgets it: the first time
    of each mark, or the last one for marks in `last`."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        with open(os.environ["MMX_TIMES"], encoding="utf-8") as f:
            for line in f:
                what, line = line.split(" ", 1)
                identifier, at, _ = line.rsplit(" ", 2)
                of = found.setdefault(identifier, {})
                if what in last or what not in of:
                    of[what] = int(at)
        os.unlink(os.environ["MMX_TIMES"])
    return found
