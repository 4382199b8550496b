"""A service manager's socket, which keeps what the daemon says to it, and
when."""

import os
import socket
import threading
import time


class Manager:
    def __init__(self, case):
        """Listens until the case has ended."""
        self.path = os.path.join(case.world.dir, "notify")
        self.heard = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()
        case.addCleanup(self._close)

    def _listen(self):
        while True:
            text = self.socket.recv(4096).decode()
            if not text:
                return
            self.heard.append((time.monotonic(), text))

    def _close(self):
        # A thread that reads a closed socket's number would read from the
        # number's next owner.
        self.socket.shutdown(socket.SHUT_RD)
        self.thread.join()
        self.socket.close()

    def times(self, word):
        return [at for at, text in self.heard if word in text]

    def env(self, watchdog_ms=400):
        return {"NOTIFY_SOCKET": self.path,
                "WATCHDOG_USEC": str(watchdog_ms * 1000)}

    def longest(self, since):
        """Returns the longest time without a beat from `since` until now."""
        beats = self.times("WATCHDOG=1")
        times = [since] + [t for t in beats if t > since] + [time.monotonic()]
        return max(b - a for a, b in zip(times, times[1:]))
