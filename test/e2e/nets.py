"""Network namespaces in the place of hosts: makes them, links them, and listens
to their packets. Needs root."""

import collections
import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time

E_HOST, L_HOST = "10.213.0.1", "10.213.0.2"
CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
TUN = "/dev/net/tun"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def ip(*words):
    subprocess.run(["ip", *words], check=True, stderr=subprocess.DEVNULL)


def missing():
    """Returns why namespaces cannot be made here, or ""."""
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


def no_wire():
    """Returns why a Wire cannot be made here, or ""."""
    return "" if os.access(TUN, os.R_OK | os.W_OK) else f"no {TUN}"


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
            self.address(name, host)

    def address(self, name, host):
        ip("-n", name, "address", "add", f"{host}/24", "dev", "m0")
        ip("-n", name, "link", "set", "m0", "up")

    def wire(self, a, b, seed=1, **faults):
        """Links the hosts by a Wire, which needs /dev/net/tun."""
        wire = Wire(a, b, seed, **faults)
        for name, host in ((a, E_HOST), (b, L_HOST)):
            self.address(name, host)
        return wire

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
    """Calls `make` in a thread that is inside the namespace, and returns its
    result: a socket stays where it was made. Without a name: here."""
    if not name:
        return make()
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
        """Returns the packets, in their order."""
        self.over = True
        self.thread.join()
        self.socket.close()
        return self.packets


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff


def says(packet):
    """True if a TCP packet carries payload."""
    head = (packet[0] & 15) * 4
    return packet[9] == socket.IPPROTO_TCP and \
        len(packet) > head + (packet[head + 12] >> 4) * 4


def ports(packet):
    if packet[9] != socket.IPPROTO_TCP:
        return set()
    return set(struct.unpack_from(">HH", packet, (packet[0] & 15) * 4))


def reset(packet):
    """Returns a RST for the receiver of a packet, as from the packet's sender.
    The sender learns of the reset when it sends more."""
    head = (packet[0] & 15) * 4
    tcp = packet[head:head + 12] + b"\x50\x14" + bytes(6)
    over = packet[12:20] + struct.pack(">HH", socket.IPPROTO_TCP, len(tcp))
    tcp = tcp[:16] + struct.pack(">H", checksum(over + tcp)) + tcp[18:]
    ip_ = b"\x45" + packet[1:2] + struct.pack(">H", 20 + len(tcp)) \
        + packet[4:10] + bytes(2) + packet[12:20]
    return ip_[:10] + struct.pack(">H", checksum(ip_)) + ip_[12:] + tcp


class Wire:
    """The link of two hosts, m0 of each. The test carries its packets one by
    one; faults are drawn from a seed. Each setting may change while packets
    pass. Rejected: netem, which small kernels do not have."""

    QUEUE_S = 0.2  # packets that would wait longer are lost, as on a slow link

    def __init__(self, a, b, seed, **faults):
        self.draw = random.Random(seed)
        self.delay = self.jitter = 0.0  # seconds, one way: delay +/- jitter
        # Probability of each fault for a packet; reset: only if it has
        # payload.
        self.loss = self.twice = self.flip = self.reset = 0.0
        self.rate = 0  # bytes a second, one way; 0: no limit
        self.deaf = ()  # addresses that no packet reaches
        self.shut = ()  # ports whose packets are lost
        self.did = collections.Counter()
        self.set(**faults)
        self.ends = [inside(name, self.device) for name in (a, b)]
        self.free = [0.0, 0.0]  # when the link can take the next one
        self.last = [0.0, 0.0]
        self.due, self.number, self.over = [], itertools.count(), False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def device():
        fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF,
                    struct.pack("16sH14x", b"m0", IFF_TUN | IFF_NO_PI))
        return fd

    def set(self, **faults):
        for name, value in faults.items():
            if not hasattr(self, name):
                raise TypeError(f"a wire has no {name}")
            setattr(self, name, value)

    def calm(self):
        """Ends all faults."""
        self.set(delay=0, jitter=0, loss=0, twice=0, flip=0, reset=0, rate=0,
                 deaf=(), shut=())

    def drawn(self, what):
        chance = getattr(self, what)
        hit = chance > 0 and self.draw.random() < chance
        self.did[what] += hit
        return hit

    def meet(self, to, packet):
        """Draws what becomes of a packet for this end."""
        now = time.monotonic()
        at = self.free[to] = max(self.free[to], now)
        if packet[0] >> 4 != 4:
            return
        if socket.inet_ntoa(packet[16:20]) in self.deaf:
            self.did["deaf"] += 1
            return
        if self.shut and ports(packet) & set(self.shut):
            self.did["shut"] += 1
            return
        if at - now > self.QUEUE_S:
            self.did["full"] += 1
            return
        if self.drawn("loss"):
            return
        if self.rate:
            self.free[to] += len(packet) / self.rate
        if self.reset and says(packet) and self.drawn("reset"):
            packet = reset(packet)
        if self.drawn("flip"):
            place = self.draw.randrange(20, len(packet))
            packet = packet[:place] \
                + bytes([packet[place] ^ 1 << self.draw.randrange(8)]) \
                + packet[place + 1:]
        for _ in range(1 + self.drawn("twice")):
            at = self.free[to] + self.delay \
                + self.jitter * self.draw.uniform(-1, 1)
            self.did["overtakes"] += at < self.last[to]
            self.last[to] = max(at, self.last[to])
            heapq.heappush(self.due, (at, next(self.number), to, packet))

    def run(self):
        while not self.over:
            wait = self.due[0][0] - time.monotonic() if self.due else 0.1
            ready = select.select(self.ends, [], [], min(max(wait, 0), 0.1))[0]
            for fd in ready:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(64):
                        self.meet(self.ends[0] == fd, os.read(fd, 1 << 16))
            while self.due and self.due[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self.due)
                # not taken by the device: lost
                with contextlib.suppress(OSError):
                    os.write(self.ends[to], packet)

    def close(self):
        self.over = True
        self.thread.join()
        for fd in self.ends:
            os.close(fd)
