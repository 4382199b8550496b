"""A DEALER with CURVE for tests, made with libzmq itself: it shows what a
program can do that has keys and is no daemon of ours."""

import ctypes
import ctypes.util

from engine import LIMIT

DEALER, LINGER, RCVTIMEO = 5, 17, 27
PUBLIC, SECRET, SERVER = 48, 49, 50
SNDMORE = 2


def library():
    name = ctypes.util.find_library("zmq") or "libzmq.so.5"
    lib = ctypes.CDLL(name, use_errno=True)
    for call in ("zmq_ctx_new", "zmq_socket"):
        getattr(lib, call).restype = ctypes.c_void_p
    return lib


class Client:
    """A connection under the listener's public key, with a key pair of its
    own."""

    def __init__(self, address, server, pair):
        self.zmq = library()
        self.context = ctypes.c_void_p(self.zmq.zmq_ctx_new())
        self.socket = ctypes.c_void_p(
            self.zmq.zmq_socket(self.context, DEALER))
        self.number(LINGER, 0)
        self.text(SERVER, self.public(server))
        self.text(PUBLIC, self.public(pair))
        self.text(SECRET, pair.encode())
        self.good(self.zmq.zmq_connect(self.socket, address.encode()))

    def good(self, result):
        if result < 0:
            raise OSError(ctypes.get_errno(), "zmq")
        return result

    def public(self, secret):
        out = ctypes.create_string_buffer(41)
        self.good(self.zmq.zmq_curve_public(out, secret.encode()))
        return out.value

    def number(self, option, value):
        value = ctypes.c_int(value)
        self.good(self.zmq.zmq_setsockopt(
            self.socket, option, ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value))))

    def text(self, option, value):
        self.good(self.zmq.zmq_setsockopt(
            self.socket, option, value, ctypes.c_size_t(len(value) + 1)))

    def send(self, data, more=False):
        self.good(self.zmq.zmq_send(self.socket, data,
                                    ctypes.c_size_t(len(data)),
                                    SNDMORE if more else 0))

    def receive(self, seconds=LIMIT):
        """Returns the next message, or None if none comes in time."""
        self.number(RCVTIMEO, int(seconds * 1000))
        got = ctypes.create_string_buffer(65536)
        n = self.zmq.zmq_recv(self.socket, got, ctypes.c_size_t(65536), 0)
        return None if n < 0 else got.raw[:n]

    def close(self):
        self.zmq.zmq_close(self.socket)
        self.zmq.zmq_ctx_term(self.context)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
