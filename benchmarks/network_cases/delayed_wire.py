"""A wire that delays: a TAP device as a machine's eth0, another at the switch, frames kept between.

    python delayed_wire.py NAMESPACE SWITCH PORT ADDRESS/BITS SECONDS

This kernel has no netem. The wire runs with real-time priority: else its own delay is 10 to 270 ms on a busy
machine. It prints `up` once it carries frames, and does so until it is killed.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 65_600
_CLONE_NEWNET = 0x40000000
_PRIORITY = 50
_SMALLEST_PAUSE_SECONDS = 0.0002


def open_tap(namespace: str, name: str) -> int:
    """The descriptor of a new TAP device in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}", "rb") as there, open("/proc/self/ns/net", "rb") as here:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        # Opened after setns: a descriptor belongs to the namespace in which it was opened.
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
        libc.setns(here.fileno(), _CLONE_NEWNET)
    return descriptor


def carry(one: int, other: int, seconds: float) -> None:
    """Pass frames between the two without end, each after that time."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    poll = select.poll()
    poll.register(one, select.POLLIN)
    poll.register(other, select.POLLIN)
    while True:
        pause = 1.0 if not waiting else max(_SMALLEST_PAUSE_SECONDS, waiting[0][0] - time.monotonic())
        for descriptor, _ in poll.poll(pause * 1000):
            target = other if descriptor == one else one
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame = os.read(descriptor, _FRAME_BYTES)
                    waiting.append((time.monotonic() + seconds, target, frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, target, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # its queue is full: the frame is lost, as on a wire
                os.write(target, frame)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def main() -> None:
    """Put the wire in place of the machine's veth, and carry."""
    namespace, switch, port, address, seconds = sys.argv[1:]
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    _run("ip", "-n", namespace, "link", "delete", "eth0")
    ends = open_tap(namespace, "eth0"), open_tap(switch, port)
    for words in (
        ("-n", switch, "link", "set", port, "master", "br0"),
        ("-n", switch, "link", "set", port, "up"),
        ("-n", namespace, "addr", "add", address, "dev", "eth0"),
        ("-n", namespace, "link", "set", "eth0", "txqueuelen", "10000"),
        ("-n", switch, "link", "set", port, "txqueuelen", "10000"),
        ("-n", namespace, "link", "set", "eth0", "up"),
    ):
        _run("ip", *words)
    print("up", flush=True)
    carry(*ends, float(seconds))


if __name__ == "__main__":
    main()
