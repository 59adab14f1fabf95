"""Kernel events for tests: made from lines, as the probe makes them."""

from datetime import timedelta

from gpudiag.probe.kernel_lines import parse_kernel_line
from tests.unit.model.nouns import TAKEN_AT

GPU_BUS_IDS = ("0000:19:00", "0000:1a:00", "0000:1b:00", "0000:1c:00")  # as `make_device` numbers them


def event_from(text, minutes_ago=60.0):
    """The event of that line, so many minutes before the snapshot was taken."""
    event = parse_kernel_line(text, TAKEN_AT - timedelta(minutes=minutes_ago))
    assert event is not None, text
    return event


def xid(code, gpu=0, minutes_ago=60.0, rest=""):
    """The event of an Xid on one of the GPUs of `make_device`."""
    return event_from(f"NVRM: Xid (PCI:{GPU_BUS_IDS[gpu]}): {code}, {rest}", minutes_ago)


def recovery(action, gpu=0, minutes_ago=60.0):
    """The event of an Xid 154 that asks for `action`, a number."""
    return xid(154, gpu, minutes_ago, f"GPU recovery action changed from 0x0 (None) to 0x{action:x} (...)")


def sxid(code, link=12, minutes_ago=60.0, severity="Fatal"):
    """The event of an SXid on one link of the first NVSwitch."""
    return event_from(
        f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, {severity}, Link {link}", minutes_ago
    )
