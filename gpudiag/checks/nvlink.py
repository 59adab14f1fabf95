"""Checks of NVLink: links that are down where others are up, and errors on them."""

from collections.abc import Iterable, Iterator
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.deltas import Pair, paired, seconds_between
from gpudiag.checks.per_device import Gap, alike, answering, conclude, judge_devices
from gpudiag.checks.registry import FindingKind, Judgement, check, does_not_apply
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.checks.traces import nvswitches
from gpudiag.model.context import Context
from gpudiag.model.device import Device, NvLink, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_kind = partial(FindingKind, category=Category.HW_NVLINK, owner=Owner.HARDWARE)
LINK_DOWN = _kind(
    code="nvlink.link_down",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="NVLinks of this GPU are down that are up on the identical GPUs beside it.",
    remedy="Reset all GPUs of the machine together; if the link stays down, have the GPU or its board replaced.",
    stated=True,
)
ALL_LINKS_DOWN = _kind(
    code="nvlink.all_links_down",
    outcome=Outcome.FAIL,
    severity=Severity.CONFIG,
    owner=Owner.HOST,
    meaning="The machine has NVSwitches, and not one NVLink is up.",
    remedy="Start the fabric manager (`systemctl status nvidia-fabricmanager`); its version must be the driver's.",
    stated=True,
)
CRC_ERRORS = _kind(
    code="nvlink.crc_errors",
    outcome=Outcome.WARN,
    severity=Severity.ISOLATE,
    meaning="An NVLink meets transmission errors at a rate that slows it down.",
    remedy="Reset all GPUs of the machine together; if it comes back, have the GPU or its board replaced.",
)
LINK_ERRORS = _kind(
    code="nvlink.errors",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="An NVLink had to repeat packets or to recover since the earlier reading.",
    remedy="Watch it; on repetition reset all GPUs of the machine, and look for Xid 74 or 144 to 150.",
)
RECOVERY_FAILED = _kind(
    code="nvlink.recovery_failed",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    meaning="The driver says that an NVLink could not be recovered after errors.",
    remedy="Drain the machine and reset all of its GPUs together; if it comes back, have the GPU replaced.",
    stated=True,
)
BIT_ERRORS = _kind(
    code="nvlink.bit_error_rate",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The bit error rate of an NVLink, after correction, is above what a good link has.",
    remedy="Watch it under load; have the GPU or its board looked at if collectives are slow.",
)


@check(
    "nvlink.state",
    title="every NVLink that peers have up is up",
    needs=("gpus",),
    reports=(LINK_DOWN, ALL_LINKS_DOWN),
    reads=("nvlinks", "pci_devices (NVSwitches)"),
    limit="the identical GPUs of the machine (a table would fail H100 NVL, which has 12 of 18 links)",
    confirmed="",
)
def nvlink_state(context: Context) -> Judgement:
    """FAIL for links that are down on one GPU and up on its peers, and for NVSwitches without any link up."""
    snapshot = context.snapshot
    linked = [device for device in answering(snapshot) if not isinstance(device.nvlinks, Missing)]
    if linked and not any(_active(device) for device in linked):
        if not nvswitches(snapshot) or any(device.mig_mode == "enabled" for device in linked):
            return does_not_apply("no NVLink is up on any GPU: none is fitted, or MIG is on")
        gaps = [gap for device in linked for gap in _unread(device)]
        if gaps:
            return conclude([], 0, gaps)
        finding = ALL_LINKS_DOWN.finding(
            device_subject(snapshot, linked[0]),
            f"no NVLink is up on any of {len(linked)} GPUs, and NVSwitches are there",
            Evidence("active_links", 0, "links", source="nvmlDeviceGetNvLinkState"),
        )
        return conclude([finding], len(linked), [])
    judgement = judge_devices(snapshot, ("nvlinks",), _judge_links)
    gaps = [gap for device in linked for gap in _unread(device)]
    return conclude(list(judgement.findings), len(linked), gaps) if gaps else judgement


@check(
    "nvlink.errors",
    title="NVLinks meet no errors",
    needs=("gpus", "earlier"),
    reports=(RECOVERY_FAILED, CRC_ERRORS, LINK_ERRORS, BIT_ERRORS),
    reads=("nvlinks[].crc_*", "replay_errors", "recovery_errors", "recovery_failures", "bit_error_rate"),
    limit=f"{limits.NVLINK_CRC_PER_SECOND:.0f} CRC errors a second, a bit error rate of"
    f" {limits.NVLINK_BIT_ERROR_RATE:g} (DCGM); no replay or recovery between the readings",
)
def nvlink_errors(context: Context) -> Judgement:
    """FAIL for a failed recovery, WARN for errors that were counted between two readings."""
    found = paired(context, "nvlinks")
    if isinstance(found, Judgement):
        return found
    pairs, gaps = found
    seconds = seconds_between(context)
    findings = [finding for pair in pairs for finding in _judge_errors(context.snapshot, pair, seconds)]
    return conclude(findings, len(pairs), gaps)


def _judge_links(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    if device.mig_mode == "enabled":
        return
    if not _active(device) and not nvswitches(snapshot):
        return  # a card without a bridge, beside cards with one
    up_elsewhere = set().union(*(_active(peer) for peer in alike(snapshot, device)))
    most = max((len(_active(peer)) for peer in alike(snapshot, device)), default=0)
    down = sorted((up_elsewhere & _inactive(device)) if len(_active(device)) < most else ())
    if down:
        numbers = ", ".join(map(str, down))
        message = f"{name_device(device)}: NVLink {numbers} down, {len(_active(device))} up; its peers have {most} up"
        evidence = Evidence("active_links", len(_active(device)), "links", most, "NVML; limit: peers")
        yield LINK_DOWN.finding(device_subject(snapshot, device), message, evidence)


def _judge_errors(snapshot: Snapshot, pair: Pair, seconds: float) -> Iterator[Finding]:
    subject = device_subject(snapshot, pair.device)
    for now, before in _same_links(pair):
        name = f"{name_device(pair.device)}: NVLink {now.link}"
        failures = _rise(now, before, ("recovery_failures",))
        crc = _rise(now, before, ("crc_flit_errors", "crc_data_errors")) / seconds
        other = _rise(now, before, ("replay_errors", "recovery_errors"))
        if failures:
            evidence = Evidence("recovery_failures", failures, "errors", 0, "NVML field 214")
            yield RECOVERY_FAILED.finding(subject, f"{name} could not be recovered", evidence)
        elif crc >= limits.NVLINK_CRC_PER_SECOND:
            evidence = Evidence(
                "crc_errors_per_second", crc, "1/s", limits.NVLINK_CRC_PER_SECOND, "NVML; limit: DCGM"
            )
            yield CRC_ERRORS.finding(subject, f"{name} meets {crc:.0f} CRC errors a second", evidence)
        elif other:
            evidence = Evidence(
                "replays_and_recoveries", other, "errors", 0, "nvmlDeviceGetNvLinkErrorCounter"
            )
            yield LINK_ERRORS.finding(subject, f"{name} repeated or recovered {other} times", evidence)
        rate = now.bit_error_rate
        if not isinstance(rate, Missing) and rate > limits.NVLINK_BIT_ERROR_RATE:
            evidence = Evidence(
                "bit_error_rate", rate, None, limits.NVLINK_BIT_ERROR_RATE, "NVML field 220; DCGM"
            )
            yield BIT_ERRORS.finding(subject, f"{name} has a bit error rate of {rate:.1e}", evidence)


def _same_links(pair: Pair) -> Iterator[tuple[NvLink, NvLink]]:
    before = {link.link: link for link in _links(pair.before)}
    yield from ((link, before[link.link]) for link in _links(pair.device) if link.link in before)


def _rise(now: NvLink, before: NvLink, counters: Iterable[str]) -> int:
    """By how much those counters rose together; a counter that began anew, or is not there, counts nothing."""
    rises = ((getattr(now, name), getattr(before, name)) for name in counters)
    return sum(
        max(0, value - was)
        for value, was in rises
        if not isinstance(value, Missing) and not isinstance(was, Missing)
    )


def _unread(device: Device) -> Iterator[Gap]:
    """The links whose state the driver does not give."""
    for link in _links(device):
        if isinstance(link.active, Missing):
            yield Gap(device, f"NVLink {link.link}", link.active)


def _links(device: Device) -> tuple[NvLink, ...]:
    return () if isinstance(device.nvlinks, Missing) else device.nvlinks


def _active(device: Device) -> set[int]:
    return {link.link for link in _links(device) if link.active is True}


def _inactive(device: Device) -> set[int]:
    return {link.link for link in _links(device) if link.active is False}
