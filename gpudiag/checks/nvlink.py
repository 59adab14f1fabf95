"""The check of errors on NVLinks; nvlink_state.py has that of links that are down."""

from collections.abc import Iterable, Iterator
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.deltas import Pair, paired, seconds_between
from gpudiag.checks.per_device import conclude
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, NvLink, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_BASIS = Basis(
    reads="nvmlDeviceGetNvLinkErrorCounter, and NVML fields 214 and 220 on NVLink 5, now and in the"
    " earlier snapshot.",
    limit=f"{limits.NVLINK_CRC_PER_SECOND:.0f} CRC errors a second, a bit error rate of"
    f" {limits.NVLINK_BIT_ERROR_RATE:g} (DCGM); no replay or recovery between the readings",
    look_also=("nvidia-smi nvlink -e", "xid 74", "xid 149"),
)
_kind = partial(FindingKind, category=Category.HW_NVLINK, owner=Owner.HARDWARE, basis=_BASIS)
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
    "nvlink.errors",
    title="NVLinks meet no errors",
    needs=("gpus", "earlier"),
    reports=(RECOVERY_FAILED, CRC_ERRORS, LINK_ERRORS, BIT_ERRORS),
    readings=("nvlinks[].crc_*", "replay_errors", "recovery_errors", "recovery_failures", "bit_error_rate"),
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


def _links(device: Device) -> tuple[NvLink, ...]:
    return () if isinstance(device.nvlinks, Missing) else device.nvlinks
