"""An engine by hand: packets on a daemon's socket, without the client
library."""

import os
import socket

from engine import LIMIT
import wire


def connect(daemon):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(daemon.socket)  # waits while the listener's queue is full
    s.settimeout(LIMIT)
    return s


def hello(session="h", **more):
    return wire.HELLO.encode(1, **{
        "magic": wire.MAGIC, "version_min": 1, "version_max": 1, "cells": 64,
        "name": "hostile", "session": session, **more})


def packet(s):
    """Returns the frames of the next packet; closes its descriptors."""
    got, fds, _, _ = socket.recv_fds(s, wire.PACKET_MAX, 4)
    for fd in fds:
        os.close(fd)
    return list(wire.frames(got)) if got else []


def answer(s):
    """Returns the first frame that comes, or None at the connection's end."""
    return next(iter(packet(s)), None)


def greeted(daemon, **more):
    """Returns a connection that has its WELCOME."""
    s = connect(daemon)
    s.send(hello(**more))
    assert answer(s).message == wire.WELCOME
    return s


def call(s, frames, count=1):
    """Sends frames in one packet and reads `count` answers to them."""
    s.send(frames)
    got = []
    while len(got) < count:
        frames = packet(s)
        assert frames, "the daemon closed the connection"
        got += [f for f in frames if f.message == wire.ANSWER]
    return got


def pool(s, **more):
    """Asks for a pool, the first one unless it is named; returns (values,
    fd)."""
    s.send(wire.POOL.encode(7, **more))
    while True:
        got, fds, _, _ = socket.recv_fds(s, wire.PACKET_MAX, 1)
        assert got, "the daemon closed the connection"
        for frame in wire.frames(got):
            if frame.message == wire.POOL_INFO:
                return frame.values, fds[0]
            assert frame.seq != 7, frame


def open_rooms(s, count, first=1):
    """Announces rooms of one row each in the cells from 0 on."""
    for at in range(0, count, 100):
        some = range(at, min(at + 100, count))
        for got in call(s, b"".join(wire.ANNOUNCE.encode(
                i + 10, room=first + i, cell=i, tag=i + 1, storage=1,
                max_rows=1, total=1) for i in some), len(some)):
            assert got.values["err"] == 0, got


def release_rooms(s, count):
    for at in range(0, count, 100):
        some = range(at, min(at + 100, count))
        call(s, b"".join(wire.RELEASE.encode(
            i + 10, cell=i, tag=i + 1, rows=wire.ALL) for i in some),
            len(some))
