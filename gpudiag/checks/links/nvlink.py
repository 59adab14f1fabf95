"""Checks of NVLinks: links that are down, by model and identical GPUs, and errors on them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.majority import usual_value
from gpudiag.checks.per_device import (
    Gap,
    Pair,
    alike,
    answering,
    conclude,
    judge_devices,
    paired,
    seconds_between,
    too_few_alike,
)
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply
from gpudiag.checks.subjects import device_subject, name_device, short_bus_id
from gpudiag.checks.traces import nvswitches, pci_gpus
from gpudiag.model.context import Context
from gpudiag.model.device import Device, FabricState, NvLink, Snapshot
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.gpu_models import find_links

_MESH_PART = 4  # any four GPUs of a mesh are linked; two need not be
_SOURCE = "nvmlDeviceGetNvLinkState"
_BASIS = Basis(
    reads="nvmlDeviceGetNvLinkState of each link of each GPU, the NVSwitches on the PCI bus, and how many"
    " the model has.",
    limit="the links of the model where its board joins them (SXM, NVL72); for bridged cards their peers",
    look_also=("nvidia-smi nvlink -s", "fabric.not_ready", "xid 74"),
)

_ERRORS_BASIS = Basis(
    reads="nvmlDeviceGetNvLinkErrorCounter, and NVML fields 214 and 220 on NVLink 5, now and in the"
    " earlier snapshot.",
    limit=f"{limits.NVLINK_CRC_PER_SECOND:.0f} CRC errors a second, a bit error rate of"
    f" {limits.NVLINK_BIT_ERROR_RATE:g} (DCGM); no replay or recovery between the readings",
    look_also=("nvidia-smi nvlink -e", "xid 74", "xid 149"),
)

_kind = partial(
    FindingKind,
    category=Category.HW_NVLINK,
    owner=Owner.HARDWARE,
    outcome=Outcome.FAIL,
    stated=True,
    basis=_BASIS,
)
LINK_DOWN = _kind(
    code="nvlink.link_down",
    severity=Severity.ISOLATE,
    meaning="NVLinks that this GPU's model has, or that are up on the identical GPUs beside it, are down.",
    remedy=(
        "[hardware] [reset: Reset all GPUs of the machine together];"
        " if the link stays down, have the GPU or its board replaced."
    ),
)
SHARED_LINKS_DOWN = _kind(
    code="nvlink.shared_links_down",
    severity=Severity.ISOLATE,
    category=Category.HW_NVSWITCH,
    meaning=(
        "Every GPU of the machine has NVLinks down: what they share is at fault, a switch or the baseboard."
    ),
    remedy=(
        "[hardware] [driver] Look for SXids in the kernel log and at the fabric manager's log (in a rack, at"
        " the"
        " switch trays); [reset: reset all GPUs of the machine together]; if the links stay down, have"
        " the switch or the baseboard replaced."
    ),
)
ALL_LINKS_DOWN = _kind(
    code="nvlink.all_links_down",
    severity=Severity.CONFIG,
    owner=Owner.HOST,
    meaning="GPUs that are joined by NVLink have no link up: the fabric is not set up.",
    remedy=(
        "[driver] Start the fabric manager (`systemctl status nvidia-fabricmanager`), whose version must"
        " match the"
        " driver's; in a rack it runs on the switch trays, in a virtual machine on the host."
    ),
)


@dataclass(frozen=True, slots=True)
class _Linked:
    """One GPU's links: those that are up, those that are not, and how many its model has here."""

    device: Device
    up: frozenset[int]
    down: tuple[int, ...]
    wanted: int | None  # None: its model need not have any

    @property
    def is_short(self) -> bool:
        """Whether fewer links are up than its model has here."""
        return self.wanted is not None and len(self.up) < self.wanted


@check(
    "nvlink.state",
    title="every NVLink that the model has, or that peers have up, is up",
    needs=("gpus",),
    reports=(LINK_DOWN, SHARED_LINKS_DOWN, ALL_LINKS_DOWN),
    readings=("nvlinks", "name", "pci_devices (NVSwitches, GPUs)"),
    confirmed="",
)
def nvlink_state(context: Context) -> Judgement:
    """FAIL for links that are down, as one finding where it is every GPU."""
    snapshot = context.snapshot
    gaps = [gap for device in answering(snapshot) for gap in _gaps(snapshot, device)]
    without = {id(gap.device) for gap in gaps if gap.field == "nvlinks"}
    readable = [device for device in answering(snapshot) if id(device) not in without]
    linked = [_linked(snapshot, device) for device in readable if device.mig_mode != "enabled"]
    linked = [one for one in linked if one.up or one.down]
    if not linked:
        return conclude([], 0, gaps) if gaps else does_not_apply("no GPU has NVLinks, or MIG is on")
    if not any(one.up for one in linked) and not any(gap.field != "nvlinks" for gap in gaps):
        return _none_up(snapshot, linked)
    return conclude(_judge(snapshot, linked), len(linked), gaps)


def _none_up(snapshot: Snapshot, linked: Sequence[_Linked]) -> Judgement:
    """One finding where links should be up: the fault is in what sets them up, not in the GPUs."""
    if not nvswitches(snapshot) and not any(one.wanted is not None for one in linked):
        return does_not_apply(
            "no NVLink is up on any GPU, and this model works without NVLink: none is fitted"
        )
    if all(_is_joining(one.device) for one in linked):
        return does_not_apply("reported by fabric.not_ready: no GPU is registered with the NVLink fabric")
    why = "NVSwitches are there" if nvswitches(snapshot) else f"{linked[0].device.name} is joined by NVLink"
    message = f"no NVLink is up on any of {len(linked)} GPUs, and {why}"
    evidence = Evidence("active_links", 0, "links", linked[0].wanted, f"{_SOURCE}; limit: model")
    subject = HostSubject(snapshot.host) if len(linked) > 1 else device_subject(snapshot, linked[0].device)
    return conclude([ALL_LINKS_DOWN.finding(subject, message, evidence)], len(linked), [])


def _is_joining(device: Device) -> bool:
    """Whether the driver reports its registration with the fabric as in progress or failed."""
    fabric = device.fabric
    return isinstance(fabric, FabricState) and (
        fabric.state == "in_progress" or (fabric.state == "completed" and fabric.status != "success")
    )


def _judge(snapshot: Snapshot, linked: Sequence[_Linked]) -> list[Finding]:
    shared = len(linked) > 1 and all(one.is_short for one in linked) and _is_shared(linked)
    findings = [_shared(snapshot, linked)] if shared else []
    for one in linked:
        worse = not one.up if shared else one.is_short or _is_below_peers(snapshot, one)
        if worse:
            findings.append(_link_down(snapshot, one))
    return findings


def _is_shared(linked: Sequence[_Linked]) -> bool:
    """Whether the links down are one fault: with two GPUs, only if the same links are down."""
    return len(linked) > 2 or linked[0].down == linked[1].down


def _shared(snapshot: Snapshot, linked: Sequence[_Linked]) -> Finding:
    few, many = min(len(one.down) for one in linked), max(len(one.down) for one in linked)
    counts = f"{few}" if few == many else f"{few} to {many}"
    same = f" ({number_ranges(linked[0].down)})" if len({one.down for one in linked}) == 1 else ""
    far = _common_far_end(linked)
    behind = f"; all lead to the switch at {short_bus_id(far)}" if far is not None else ""
    message = f"all {len(linked)} GPUs have {counts} of {linked[0].wanted} NVLinks down{same}{behind}"
    evidence = Evidence(
        "active_links",
        min(len(one.up) for one in linked),
        "links",
        linked[0].wanted,
        f"{_SOURCE}; limit: model",
    )
    return SHARED_LINKS_DOWN.finding(HostSubject(snapshot.host), message, evidence)


def _common_far_end(linked: Sequence[_Linked]) -> str | None:
    """The one bus id that all links that are down lead to; None where they differ or it is not known."""
    ends = {link.remote_bus_id for one in linked for link in _links(one.device) if link.link in one.down}
    (end,) = ends if len(ends) == 1 else (None,)
    return end if isinstance(end, str) else None


def _link_down(snapshot: Snapshot, one: _Linked) -> Finding:
    name, most = name_device(one.device), _most_of_peers(snapshot, one.device)
    limit = max(most, one.wanted or 0)
    against = "its model has" if one.wanted is not None and one.wanted >= most else "its peers have"
    what = (
        f"all {limit} NVLinks"
        if not one.up
        else f"NVLink {number_ranges(one.down)}"
        if one.down
        else "NVLinks"
    )
    message = f"{name}: {what} down, {len(one.up)} up; {against} {limit} up"
    evidence = Evidence("active_links", len(one.up), "links", limit, f"{_SOURCE}; limit: model, peers")
    return LINK_DOWN.finding(device_subject(snapshot, one.device), message, evidence)


def _is_below_peers(snapshot: Snapshot, one: _Linked) -> bool:
    """Whether links are down here that identical GPUs have up; a card without a bridge is no fault."""
    if not one.up and not nvswitches(snapshot):
        return False
    up_elsewhere = set().union(*(_up(peer) for peer in alike(snapshot, one.device)))
    return bool(up_elsewhere & set(one.down)) and len(one.up) < _most_of_peers(snapshot, one.device)


def _most_of_peers(snapshot: Snapshot, device: Device) -> int:
    return max((len(_up(peer)) for peer in alike(snapshot, device)), default=0)


def _linked(snapshot: Snapshot, device: Device) -> _Linked:
    up, wanted = _up(device), _wanted(snapshot, device)
    listed = {link.link for link in _links(device)}
    absent = set(range(wanted or 0)) - listed  # the driver calls these not supported
    down = sorted({link.link for link in _links(device) if link.active is False} | absent)
    return _Linked(device, frozenset(up), tuple(down), wanted)


def _wanted(snapshot: Snapshot, device: Device) -> int | None:
    """How many links the model should have up on this machine; None where it needs none or is not known."""
    links = None if isinstance(device.name, Missing) else find_links(device.name)
    together = max(len(snapshot.devices), len(pci_gpus(snapshot)))
    if links is None or links.wiring == "bridge" or device.mig_mode == "enabled":
        return None
    if links.wiring == "board":
        return links.count if together >= links.gpus else None
    if together >= links.gpus:
        return links.count
    return 1 if together >= _MESH_PART else None


def _gaps(snapshot: Snapshot, device: Device) -> list[Gap]:
    """The links whose state could not be read; a GPU without links gives no gap."""
    if isinstance(device.nvlinks, Missing):
        absent = device.nvlinks.reason is MissingReason.NOT_SUPPORTED
        without = absent and (_wanted(snapshot, device) is not None or device.mig_mode == "enabled")
        return [] if without else [Gap(device, "nvlinks", device.nvlinks)]
    return [
        Gap(device, f"NVLink {link.link}", link.active)
        for link in device.nvlinks
        if isinstance(link.active, Missing)
    ]


def _links(device: Device) -> tuple[NvLink, ...]:
    return () if isinstance(device.nvlinks, Missing) else device.nvlinks


def _up(device: Device) -> set[int]:
    return {link.link for link in _links(device) if link.active is True}


RATE_LOWER = FindingKind(
    code="nvlink.rate_lower",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_NVLINK,
    owner=Owner.HARDWARE,
    meaning=(
        "The NVLinks of a GPU run at a lower rate than those of the identical GPUs"
        " beside it: collectives wait for them."
    ),
    remedy=(
        "[hardware] [reset: Reset all GPUs of the machine together];"
        " if the rate stays lower, have the GPU or its board replaced."
    ),
    basis=Basis(
        reads="The common speed of a GPU's NVLinks, NVML field NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON.",
        limit="what most identical GPUs of this machine have",
        look_also=("nvidia-smi nvlink -s", "gpudiag topo", "nvlink.link_down"),
    ),
)


@check(
    "nvlink.rate",
    title="the NVLinks of identical GPUs run at one rate",
    needs=("gpus",),
    reports=(RATE_LOWER,),
    readings=("nvlink_bytes_per_second",),
)
def nvlink_rate(context: Context) -> Judgement:
    """WARN for a GPU whose links are slower than those of most identical ones."""
    return too_few_alike(context.snapshot, 3) or judge_devices(
        context.snapshot, ("nvlink_bytes_per_second",), _judge_rate
    )


def _judge_rate(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    rate, usual = device.nvlink_bytes_per_second, usual_value(snapshot, device, "nvlink_bytes_per_second")
    if isinstance(rate, Missing) or not isinstance(usual, float) or rate >= usual:
        return
    message = (
        f"{name_device(device)}: its NVLinks run at {rate / 1e9:.1f} GB/s each way, those of"
        f" most GPUs here at {usual / 1e9:.1f}"
    )
    evidence = Evidence("nvlink_bytes_per_second", rate, "B/s", usual, "NVML; limit: peers")
    yield RATE_LOWER.finding(device_subject(snapshot, device), message, evidence)


_error_kind = partial(FindingKind, category=Category.HW_NVLINK, owner=Owner.HARDWARE, basis=_ERRORS_BASIS)
CRC_ERRORS = _error_kind(
    code="nvlink.crc_errors",
    outcome=Outcome.WARN,
    severity=Severity.ISOLATE,
    meaning="An NVLink has transmission errors at a rate that slows it down.",
    remedy=(
        "[hardware] [reset: Reset all GPUs of the machine together];"
        " if it comes back, have the GPU or its board replaced."
    ),
)
LINK_ERRORS = _error_kind(
    code="nvlink.errors",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="An NVLink repeated packets or recovered since the earlier reading.",
    remedy=(
        "Watch it; if it happens again, [reset: reset all GPUs of the machine], and look for Xid 74 or 144"
        " to 150."
    ),
)
RECOVERY_FAILED = _error_kind(
    code="nvlink.recovery_failed",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    meaning="The driver reports that an NVLink could not be recovered after errors.",
    remedy=(
        "[hardware] Drain the machine and [reset: reset all of its GPUs together];"
        " if it comes back, have the GPU replaced."
    ),
    stated=True,
)
BIT_ERRORS = _error_kind(
    code="nvlink.bit_error_rate",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The bit error rate of an NVLink, after correction, is above what a good link has.",
    remedy="Watch it under load; have the GPU or its board examined if collectives are slow.",
)


@check(
    "nvlink.errors",
    title="NVLinks have no errors",
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
            yield CRC_ERRORS.finding(subject, f"{name} has {crc:.0f} CRC errors a second", evidence)
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
    """By how much the counters rose in all; one that was reset or is missing counts as 0."""
    rises = ((getattr(now, name), getattr(before, name)) for name in counters)
    return sum(
        max(0, value - was)
        for value, was in rises
        if not isinstance(value, Missing) and not isinstance(was, Missing)
    )
