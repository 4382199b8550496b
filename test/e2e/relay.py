"""A relay between two ends of connections, which may change their bytes."""

import contextlib
import os
import socket
import threading

from engine import LIMIT
import nets
import wire


def whole(_at, data):
    return data


def cut(place):
    """Returns a change that ends both connections behind byte `place`."""
    def change(at, data):
        return [data[:place - at], None] if place <= at + len(data) else data
    return change


class Relay:
    def __init__(self):
        self.over = False
        self.open = []

    def door(self, at, to, serve, near="", far=""):
        """Accepts connections at one address, connects each to the other
        address, and calls serve(a, b). Namespaces may be named. Returns the
        port."""
        listener = nets.inside(near, lambda: socket.create_server(at))
        self.open.append(listener)
        threading.Thread(target=self.accept, daemon=True, args=(
            listener, to, far, serve)).start()
        return listener.getsockname()[1]

    def accept(self, listener, to, far, serve):
        while not self.over:
            try:
                a, _ = listener.accept()
            except OSError:
                continue
            try:
                b = nets.inside(far, lambda: socket.create_connection(
                    to, LIMIT))
            except OSError:
                a.close()
                continue
            for s in (a, b):
                s.settimeout(None)
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.open.append(s)
            serve(a, b)

    def start(self, a, b, up, down):
        """Carries a's bytes to b, changed by up(at, bytes), and b's to a, by
        down. These return bytes, or a list of pieces, of which None ends both
        connections. When one side ends its bytes the other may still send."""
        for args in ((a, b, up), (b, a, down)):
            threading.Thread(target=self.carry, daemon=True, args=args).start()

    def carry(self, a, b, change):
        at, pieces = 0, []
        with contextlib.suppress(OSError):
            while None not in pieces:
                data = a.recv(65536)
                if not data:
                    b.shutdown(socket.SHUT_WR)
                    return
                pieces = change(at, data)
                if not isinstance(pieces, list):
                    pieces = [pieces]
                at += len(data)
                for piece in pieces:
                    b.sendall(piece or b"")
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.over = True
        for s in self.open:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


class Packets:
    """A relay before a daemon's socket for engines. up and down are called with
    the frames of each packet before it goes on, and may wait."""

    def __init__(self, to, up=lambda frames: None, down=lambda frames: None):
        self.to, self.up, self.down = to, up, down
        self.socket = to + ".relay"
        self.open = []
        self.listener = self.make()
        self.listener.bind(self.socket)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    @staticmethod
    def make():
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def accept(self):
        while True:
            a, b = self.listener.accept()[0], self.make()
            b.connect(self.to)
            self.open += [a, b]
            for args in ((a, b, self.up), (b, a, self.down)):
                threading.Thread(target=self.carry, daemon=True,
                                 args=args).start()

    def cut(self):
        """Ends all connections."""
        for s in self.open:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def carry(a, b, see):
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(a, 1 << 20, 4)
                if not data:
                    break
                see(list(wire.frames(data)))
                socket.send_fds(b, [data], fds)
                for fd in fds:
                    os.close(fd)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_RDWR)
