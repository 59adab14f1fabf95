"""Kernel events for tests: made from lines, as the probe makes them, and what is found of them."""

from datetime import timedelta

from gpudiag.checks.gpu.xid import judge_faults
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.kernel_log.lines import parse_kernel_line
from gpudiag.reference.xid import xids
from tests.unit.model.nouns import make_device, make_snapshot

FOUR_GPUS = make_snapshot(*(make_device(index) for index in range(4)))


def event_from(text, minutes_ago=60.0, on=FOUR_GPUS):
    """The event of that line, so many minutes before the snapshot `on` was taken."""
    event = parse_kernel_line(text, on.taken_at - timedelta(minutes=minutes_ago))
    assert event is not None, text
    return event


def xid(code, gpu=0, minutes_ago=60.0, rest="", on=FOUR_GPUS):
    """The event of an Xid on one of the GPUs of the snapshot `on`."""
    place = on.devices[gpu].id.bus_id.removeprefix("0000").removesuffix(".0")
    return event_from(f"NVRM: Xid (PCI:{place}): {code}, {rest}", minutes_ago, on)


def recovery(action, gpu=0, minutes_ago=60.0, on=FOUR_GPUS):
    """The event of an Xid 154 that asks for `action`, a number."""
    rest = f"GPU recovery action changed from 0x0 (None) to 0x{action:x} (...)"
    return xid(154, gpu, minutes_ago, rest, on)


def sxid(code, link=12, minutes_ago=60.0, severity="Fatal", on=FOUR_GPUS):
    """The event of an SXid on one link of the first NVSwitch."""
    text = f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, {severity}, Link {link}"
    return event_from(text, minutes_ago, on)


MINUTES_A_DAY = 24 * 60
LOST = Missing(MissingReason.DEVICE_LOST)
FAILING = [code for code, entry in xids().items() if entry.outcome is Outcome.FAIL]


def snapshot_with(recovery_action=None, **values):
    readings = {} if recovery_action is None else {"recovery_action": recovery_action}
    return make_snapshot(*(make_device(index, **readings) for index in range(4)), **values)


def judge(*events, snapshot=None, earlier=()):
    return tuple(finding for _, finding in judge_faults(snapshot or snapshot_with(), events, earlier))


def codes(*events, **keywords):
    return [(finding.code, finding.subject.nvml_index) for finding in judge(*events, **keywords)]


def evidence_of(finding):
    return {item.name: item.value for item in finding.evidence}
