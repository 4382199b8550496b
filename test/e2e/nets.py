"""Network namespaces that stand for hosts: made, linked, listened to. Needs
root."""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading

E_HOST, L_HOST = "10.213.0.1", "10.213.0.2"
CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3


def ip(*words):
    subprocess.run(["ip", *words], check=True, stderr=subprocess.DEVNULL)


def missing():
    """Why namespaces cannot be made here; empty: they can."""
    if os.geteuid() != 0:
        return "not root"
    nets = Nets()
    try:
        nets.link(nets.add("x"), nets.add("y"))
    except (OSError, subprocess.CalledProcessError):
        return "no network namespaces or veth pairs"
    finally:
        nets.close()
    return ""


class Nets:
    """Namespaces with names of this process; removed at the end."""

    def __init__(self):
        self.names = []

    def add(self, name):
        name = f"mmx{os.getpid()}{name}"
        ip("netns", "add", name)
        self.names.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def link(self, a, b):
        """A veth pair; a has the address of encoded's host, b of langd's."""
        ip("link", "add", "m0", "netns", a, "type", "veth", "peer", "name",
           "m0", "netns", b)
        for name, host in ((a, E_HOST), (b, L_HOST)):
            ip("-n", name, "address", "add", f"{host}/24", "dev", "m0")
            ip("-n", name, "link", "set", "m0", "up")

    def close(self):
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)


def enter(name):
    """Moves the calling thread into a namespace."""
    with open(f"/run/netns/{name}", "rb") as f:
        if ctypes.CDLL(None).setns(f.fileno(), CLONE_NEWNET) != 0:
            raise OSError("setns")


def inside(name, make):
    """What `make` returns in a thread that is inside the namespace: a socket
    stays where it was made."""
    got = []

    def run():
        try:
            enter(name)
            got.append(make())
        except OSError as e:
            got.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(got[0], OSError):
        raise got[0]
    return got[0]


class Capture:
    """Every packet that passes m0 of a namespace, until stop()."""

    def __init__(self, name):
        def make():
            s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW,
                              socket.htons(ETH_P_ALL))
            s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            s.bind(("m0", 0))
            s.settimeout(0.5)
            return s
        self.socket = inside(name, make)
        self.packets, self.over = [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            try:
                self.packets.append(self.socket.recv(1 << 18))
            except TimeoutError:
                if self.over:
                    return

    def stop(self):
        """The packets, in their order."""
        self.over = True
        self.thread.join()
        self.socket.close()
        return self.packets
