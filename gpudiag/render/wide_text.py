"""`gpudiag list --wide`: every reading of every GPU, a block of lines each that fits a screen."""

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Any

from gpudiag.checks.gpu.availability import Candidate
from gpudiag.checks.gpu.state import GpuState, findings_about, judge_state
from gpudiag.model.device import (
    Device,
    EccLocation,
    FabricState,
    GpuProcess,
    MigInstance,
    NvLink,
    PcieErrorCounts,
    PeerAccess,
    RowRemapHistogram,
    Snapshot,
    ThrottleSeconds,
)
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.declaration import Activity, Declared
from gpudiag.reference.reading_names import WHY_MISSING, name_reading
from gpudiag.reference.readings import READINGS, TOPICS
from gpudiag.render.devices_text import (
    describe_free,
    describe_index,
    describe_instance_name,
    describe_memory_gib,
    describe_process,
    describe_state,
    name_gpus,
    simulated_lines,
)
from gpudiag.render.style import PLAIN, Style, sentence, wrapped
from gpudiag.units import JOULES_PER_KWH, format_rate, format_seconds, format_size

_LABEL_WIDTH = 11


def describe_throttle_seconds(times: ThrottleSeconds) -> str:
    """For how long each cause held the clocks back; causes that never did are left out."""
    known = _known(times)
    causes = [f"{name.replace('_', ' ')} {format_seconds(value)}" for name, value in known if value > 0]
    return ", ".join(causes) or "nothing"


def describe_pcie_errors(counts: PcieErrorCounts) -> str:
    """The counts that are not 0, in words."""
    errors = [f"{value} {name.replace('_', ' ')}" for name, value in _known(counts) if value > 0]
    return ", ".join(errors) or "no"


def describe_fabric(fabric: FabricState) -> str:
    """The state of the registration, and the faults that the fabric reports."""
    health = () if isinstance(fabric.health, Missing) else (fabric.health.replace("_", " "),)
    faults = () if isinstance(fabric.faults, Missing) else fabric.faults
    words = (fabric.state.replace("_", " "), fabric.status, *health, *faults)
    return ", ".join(word.replace("_", " ") for word in words)


def describe_peers(peers: tuple[PeerAccess, ...]) -> str:
    """How many other GPUs this one can read directly, and how many of those by NVLink."""
    readable = sum(1 for peer in peers if peer.read == "ok")
    linked = sum(1 for peer in peers if peer.nvlink == "ok")
    return f"reads {readable} of {len(peers)} other GPUs, {linked} by NVLink" if peers else ""


def _known(noun: Any) -> list[tuple[str, Any]]:
    values = ((field.name, getattr(noun, field.name)) for field in fields(noun))
    return [(name, value) for name, value in values if not isinstance(value, Missing)]


def render_wide(
    snapshot: Snapshot,
    findings: tuple[Finding, ...],
    candidates: tuple[Candidate, ...],
    style: Style = PLAIN,
) -> str:
    """A block per GPU with its readings, and last the reasons not to start work on it.

    Unless `style` is verbose, without what is normal or never reported by this kind, which is counted once.
    """
    lines = simulated_lines(snapshot)
    unreported: dict[str, None] = {}
    for device in snapshot.devices:
        block = _Block(device, snapshot.taken_at, verbose=style.verbose)
        lines += [*block.lines(snapshot, findings_about(device, findings), style), ""]
        unreported |= dict.fromkeys(block.unreported)
    lines.append(describe_free(candidates))
    for candidate in candidates:
        if not candidate.free:
            lines += wrapped(
                f"Not free: {name_gpus([candidate.label])}: {', '.join(candidate.against)}.", indent="  "
            )
    if not style.verbose:
        lines += wrapped(_left_out(len(unreported)), indent="  ")
    return "\n".join(lines) + "\n"


def _left_out(unreported: int) -> str:
    also = f", and {unreported} readings that are not reported here" if unreported > 1 else ""
    return f"Left out: normal settings{also}. All of it: gpudiag list --wide --verbose"


class _Block:
    """The block of one GPU while it is written."""

    def __init__(self, device: Device, now: datetime, *, verbose: bool) -> None:
        """Write about `device` as it was at `now`."""
        self._device = device
        self._now = now
        self._ordinary = frozenset() if verbose else _ordinary(device)
        self._verbose = verbose
        self._absent: dict[str, list[str]] = {}
        self.unreported: list[str] = []

    def lines(self, snapshot: Snapshot, findings: tuple[Finding, ...], style: Style) -> list[str]:
        """The GPU's name and state, what was found on it, and its readings by topic."""
        device = self._device
        name = "name not known" if isinstance(device.name, Missing) else device.name
        state = judge_state(snapshot, device, findings)
        colour = "bold" if state is GpuState.HEALTHY else "red"
        lines = [style.paint(f"GPU {describe_index(device)}  {name}  {describe_state(state)}", colour)]
        for finding in findings:
            lines += wrapped(f"{sentence(finding.message)}. {finding.remedy}", first="  ", indent="  ")
        for label, readings in TOPICS if device.responding is True else TOPICS[:1]:
            lines += _topic(label, ", ".join(part for part in map(self._describe, readings) if part))
        absences = "; ".join(f"{', '.join(names)} ({why})" for why, names in self._absent.items())
        return [*lines, *_topic("no value", absences)]

    def _describe(self, declared: Declared) -> str:
        """One reading in words; one that is not there is noted under its reason."""
        name = declared.name
        if not declared.words or name in self._ordinary:
            return ""
        reading = _read(self._device, name)
        if not isinstance(reading, Missing):
            return declared.words.format(_value(name, reading, self._now))
        if name in _OF_TWO_LOOKS and reading.reason is MissingReason.NOT_ASKED:
            return ""  # a listing looks once
        if reading.reason in _NEVER_REPORTED and not self._verbose:
            self.unreported.append(name)
        else:
            self._absent.setdefault(WHY_MISSING[reading.reason], []).append(name_reading(name))
        return ""


_NEVER_REPORTED = (
    MissingReason.NOT_SUPPORTED,
    MissingReason.FUNCTION_NOT_FOUND,
    MissingReason.SOURCE_ABSENT,
    MissingReason.NOT_ASKED,
)

# Readings over the time between two looks; a listing looks once.
_OF_TWO_LOOKS = {
    "nvlink_throughput_bytes_per_second",
    *(one.name for one in READINGS if isinstance(one.question, Activity)),
}

# Readings without news: those that equal another one, and those that report nothing wrong. Of a group whose
# words depend on each other, all are left out or none.
_SAME: tuple[dict[str, str], ...] = (
    {"ecc_mode_pending": "ecc_mode"},
    {"mig_mode_pending": "mig_mode"},
    {"gsp_firmware_mode_default": "gsp_firmware_mode"},
    {"power_limit_watts": "power_limit_enforced_watts"},
    {"power_limit_default_watts": "power_limit_enforced_watts"},
    {"graphics_clock_mhz": "sm_clock_mhz", "graphics_clock_max_mhz": "sm_clock_max_mhz"},
    {"graphics_clock_application_default_mhz": "graphics_clock_application_mhz"},
    {"memory_clock_application_default_mhz": "memory_clock_application_mhz"},
    {"pcie_generation_slot_max": "pcie_generation_gpu_max"},
    {"pcie_width_slot_max": "pcie_width_gpu_max"},
)
_FINE: tuple[dict[str, object], ...] = (
    {"inforom_valid": True},
    {"ecc_sram_threshold_exceeded": False},
    {"row_remap_pending": False, "row_remap_failed": False},
    {"page_retirement_pending": False},
    {"memory_unrepairable": False},
    {"memory_channel_repair_pending": False},
    {"tpc_repair_pending": False},
    {"recovery_action": "none"},
    {"vgpu_license": "not_needed"},
    {"encoder_utilization_percent": 0.0, "decoder_utilization_percent": 0.0},
    {"nvlink_transmitted_bytes": 0, "nvlink_received_bytes": 0},
)
# What every GPU of the product has alike.
_OF_THE_PRODUCT = ("pci_subsystem_id", "brand", "cuda_cores", "memory_kind", "memory_bus_width_bits")


def _ordinary(device: Device) -> frozenset[str]:
    """The readings of the GPU without news."""
    groups: list[dict[str, str] | dict[str, object]] = [
        *(
            one
            for one in _SAME
            if all(_read(device, name) == _read(device, like) for name, like in one.items())
        ),
        *(one for one in _FINE if all(_read(device, name) == value for name, value in one.items())),
    ]
    named = (*_OF_THE_PRODUCT, *(name for group in groups for name in group))
    return frozenset(name for name in named if not isinstance(_read(device, name), Missing))


def _read(device: Device, name: str) -> Any:
    return getattr(device.id if name in ("uuid", "bus_id", "cuda_ordinal") else device, name)


def _value(name: str, value: Any, now: datetime) -> str:
    """One reading as text; its unit is in the name, or in the words around it."""
    if isinstance(value, tuple):
        return _TUPLES[name](value, now)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, RowRemapHistogram):
        counts = (value.max_banks, value.high_banks, value.partial_banks, value.low_banks, value.none_banks)
        return "/".join(str(count) for count in counts)
    if type(value) in _NOUNS:
        return _NOUNS[type(value)](value)
    if isinstance(value, str):
        return value.replace("_", " ")
    if name.endswith("_joules"):
        return f"{value / JOULES_PER_KWH:.1f} kWh"
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_bytes_per_second"):
        return format_rate(value)
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def _describe_reasons(reasons: tuple[str, ...], now: datetime) -> str:
    return ", ".join(reason.replace("_", " ") for reason in reasons) or "nothing"


def _describe_locations(locations: tuple[EccLocation, ...], now: datetime) -> str:
    return " ".join(location.location for location in locations) or "no location apart"


def _describe_links(links: tuple[NvLink, ...], now: datetime) -> str:
    if not links:
        return "no link"
    down = " ".join(str(link.link) for link in links if link.active is False)
    unknown = sum(1 for link in links if isinstance(link.active, Missing))
    parts = (
        f"{sum(1 for link in links if link.active is True)} of {len(links)} up",
        f"down: {down}" if down else "",
        f"{unknown} not known" if unknown else "",
        f"{sum(_errors(link) for link in links)} errors",
    )
    return ", ".join(part for part in parts if part)


def _errors(link: NvLink) -> int:
    counters = (link.crc_flit_errors, link.crc_data_errors, link.replay_errors, link.recovery_errors)
    return sum(counter for counter in counters if not isinstance(counter, Missing))


def _describe_instances(instances: tuple[MigInstance, ...], now: datetime) -> str:
    return ", ".join(_describe_instance(instance) for instance in instances)


def _describe_instance(instance: MigInstance) -> str:
    memory = describe_memory_gib(instance.memory_used_bytes, instance.memory_total_bytes)
    parts = (
        describe_instance_name(instance),
        instance.uuid,
        memory if isinstance(memory, Missing) else f"{memory} GiB",
    )
    return " ".join(part for part in parts if not isinstance(part, Missing))


def _describe_processes(processes: tuple[GpuProcess, ...], now: datetime) -> str:
    return ", ".join(_describe_whole(process, now) for process in processes) or "nobody"


def _describe_whole(process: GpuProcess, now: datetime) -> str:
    job = "" if isinstance(process.slurm_job_id, Missing) else f", Slurm job {process.slurm_job_id}"
    return f"{describe_process(process, now)} (pid {process.pid}, {process.kind}{job})"


def _describe_peers(peers: tuple[PeerAccess, ...], now: datetime) -> str:
    return describe_peers(peers)


_NOUNS: dict[type, Callable[[Any], str]] = {
    ThrottleSeconds: describe_throttle_seconds,
    PcieErrorCounts: describe_pcie_errors,
    FabricState: describe_fabric,
}
_TUPLES: dict[str, Callable[[Any, datetime], str]] = {
    "clocks_event_reasons": _describe_reasons,
    "ecc_locations": _describe_locations,
    "nvlinks": _describe_links,
    "mig_instances": _describe_instances,
    "processes": _describe_processes,
    "peers": _describe_peers,
}


def _topic(label: str, text: str) -> list[str]:
    if not text:
        return []
    return wrapped(text, first=f"  {label:{_LABEL_WIDTH}}", indent=" " * (_LABEL_WIDTH + 2))
