"""What a stub of the service serves: documents made from a simulated machine by the model's own nouns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from gpudiag.checks.links.topology import build_topology
from gpudiag.checks.on_topology import add_verdict
from gpudiag.checks.runner import findings_worst_first
from gpudiag.compat import UTC
from gpudiag.model.codec import dumps, to_document
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.documents import loads
from gpudiag.model.evidence import Evidence, RankSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.history import Baseline, History
from gpudiag.model.host_activity import HostActivity
from gpudiag.model.measure import (
    CollectiveMeasurement,
    CollectiveResult,
    LatenessSeries,
    RankLateness,
    RankReport,
)
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, value_or
from gpudiag.model.report import CollectiveReport, Report
from gpudiag.model.run import EventKind, RankStanding, RunEvent
from gpudiag.model.service import (
    DeviceDocument,
    Findings,
    LastGood,
    Live,
    LiveDevice,
    Processes,
    ProcessUse,
    SamplerState,
    SamplerStatus,
    Sources,
    UserUse,
)
from gpudiag.model.topology import MeasuredLink
from gpudiag.model.training import StepShares, StrategyResult, TrainingReport, Verification
from gpudiag.render.joined_findings import join_findings
from gpudiag.runs.compare import NamedDocument, compare_documents
from gpudiag.runs.instant import judge_snapshot
from tests.cli.simulated import run_gpudiag

THROTTLING = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
SERIES: dict[str, Callable[[Device], Any]] = {
    "utilization_percent": lambda device: device.utilization_percent,
    "memory_used_bytes": lambda device: device.memory_used_bytes,
    "power_draw_watts": lambda device: device.power_draw_watts,
    "temperature_celsius": lambda device: device.temperature_celsius,
    "memory_temperature_celsius": lambda device: device.memory_temperature_celsius,
    "sm_clock_mhz": lambda device: device.sm_clock_mhz,
    "tensor_activity_percent": lambda device: device.tensor_activity_percent,
    "pcie_received_bytes_per_second": lambda device: device.pcie_received_bytes_per_second,
    "pcie_transmitted_bytes_per_second": lambda device: device.pcie_transmitted_bytes_per_second,
    "nvlink_received_bytes_per_second": lambda device: device.nvlink_received_bytes_per_second,
    "nvlink_transmitted_bytes_per_second": lambda device: device.nvlink_transmitted_bytes_per_second,
}
HAS_ACTIVITY = ("hopper", "blackwell")
ACTIVITY_OF_FULL_LOAD = {
    "tensor_activity_percent": 62.0,
    "pcie_received_bytes_per_second": 11.5e9,
    "pcie_transmitted_bytes_per_second": 2.4e9,
    "nvlink_received_bytes_per_second": 182e9,
    "nvlink_transmitted_bytes_per_second": 181e9,
}
_COPIED = tuple(field.name for field in fields(LiveDevice) if field.name in Device.__dataclass_fields__)
HW_THERMAL_BIT = 1 << 6
HOST = HostActivity(
    processors_busy_percent=37.4,
    processors_waiting_percent=0.2,
    load_average=71.5,
    memory_total_bytes=2015 << 30,
    memory_available_bytes=1200 << 30,
    swap_used_bytes=0,
    network_received_bytes_per_second=1.25e9,
    network_transmitted_bytes_per_second=0.4e9,
    disk_read_bytes_per_second=2e7,
    disk_written_bytes_per_second=3.2e8,
    uptime_seconds=12.3 * 86400,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine, judged."""

    snapshot: Snapshot
    report: Report
    findings: tuple[Finding, ...]
    sampler_state: SamplerState = SamplerState.OK
    sampler_reason: str | None = None


def read_machine(scenario: str) -> Machine:
    """The machine of that scenario as `gpudiag list --sources all` sees it."""
    snapshot = loads(run_gpudiag(scenario, "list", "--sources", "all", "--json", "--deadline", "2").out)
    assert isinstance(snapshot, Snapshot)
    report = judge_snapshot(snapshot)
    findings = tuple(findings_worst_first(report.results))
    silent = [device for device in snapshot.devices if _reason(device) is MissingReason.TIMED_OUT]
    if silent:
        reason = f"GPU {silent[0].id.nvml_index}: nvmlDeviceGetTemperatureV has not come back for 42 s"
        return Machine(snapshot, report, findings, SamplerState.WEDGED, reason)
    nvml = snapshot.source("nvml")
    if nvml.state != "ok":
        state = SamplerState.NO_GPU if nvml.state == "no_devices" else SamplerState.FAILED
        return Machine(snapshot, report, findings, state, nvml.reason)
    return Machine(snapshot, report, findings)


def rack_of(machine: Machine, times: int) -> Machine:
    """A machine with so many times the GPUs."""
    devices = machine.snapshot.devices
    many = tuple(
        replace(
            device,
            id=replace(
                device.id,
                uuid=f"GPU-{place}-{device.id.nvml_index}",
                nvml_index=place * len(devices) + number,
            ),
        )
        for place in range(times)
        for number, device in enumerate(devices)
    )
    return replace(machine, snapshot=replace(machine.snapshot, devices=many))


def _reason(device: Device) -> MissingReason | None:
    return device.responding.reason if isinstance(device.responding, Missing) else None


def live_of(machine: Machine, sequence: int, now: datetime) -> dict[str, Any]:
    """One tick; the readings of busy GPUs move."""
    snapshot = machine.snapshot
    live = Live(
        sequence=sequence,
        at=now,
        host=snapshot.host,
        simulated=snapshot.simulated,
        version="0.1.0",
        driver_version=snapshot.driver_version,
        cuda_driver_version=snapshot.cuda_driver_version,
        verdict=machine.report.verdict.value,
        headline=_headline(snapshot),
        sampler=SamplerStatus(
            state=machine.sampler_state,
            since=now - timedelta(seconds=42),
            interval_seconds=1.0,
            restarts=0,
            stale_after_seconds=5.0,
            reason=machine.sampler_reason,
            wedged_call="nvmlDeviceGetTemperatureV" if machine.sampler_state is SamplerState.WEDGED else None,
            last_good_at=now,
        ),
        sources=snapshot.sources,
        devices=tuple(live_device(device, machine.findings, now, sequence) for device in snapshot.devices),
        findings_version=1,
        finding_count=len(machine.findings),
        findings=machine.findings[:8],
        host_activity=HOST,
        verdict_since=now - timedelta(hours=3),
    )
    return to_document(live)


def _headline(snapshot: Snapshot) -> str:
    lost = sum(device.responding is not True for device in snapshot.devices)
    if not snapshot.devices:
        return "no GPU"
    return (
        f"{len(snapshot.devices) - lost} answer, {lost} do not"
        if lost
        else f"{len(snapshot.devices)} healthy"
    )


def live_device(device: Device, findings: tuple[Finding, ...], now: datetime, sequence: int) -> LiveDevice:
    """The device's row of a tick."""
    about = [finding for finding in findings if getattr(finding.subject, "uuid", None) == device.id.uuid]
    responds = device.responding is True
    moved = moved_device(device, sequence)
    reasons = moved.clocks_event_reasons
    known = () if isinstance(reasons, Missing) else reasons
    last = LastGood(now - timedelta(seconds=42), 97, 68_000_000_000, 64, 640.0, 1980)
    return LiveDevice(
        health=about[0].outcome.value if about else "ok" if responds else "fail",
        finding_codes=tuple(finding.code for finding in about),
        last_good_at=now if responds else last.at,
        throttled=any(reason in THROTTLING for reason in known),
        last_good=None if responds else last,
        **{name: getattr(moved, name) for name in _COPIED},
    )


def moved_device(device: Device, sequence: int) -> Device:
    """The device some ticks later: what is busy moves a little, within its limits."""
    load = value_or(device.utilization_percent, 0)
    if device.responding is not True:
        return device
    swing = math.sin(sequence / 7 + value_or(device.id.nvml_index, 0))
    # A listing asks for no activity; the service's sampler does, where the GPU has it.
    activity: dict[str, Any] = {
        name: most * load / 100 * (0.9 + 0.1 * swing)
        for name, most in ACTIVITY_OF_FULL_LOAD.items()
        if value_or(device.architecture, "") in HAS_ACTIVITY
    }
    if load < 50:
        return replace(device, **activity)
    return replace(
        device,
        **activity,
        utilization_percent=min(100, max(0, round(load - 6 + 6 * swing))),
        power_draw_watts=round(value_or(device.power_draw_watts, 0.0) + 25 * swing, 1),
        temperature_celsius=value_or(device.temperature_celsius, 60) + round(2 * swing),
    )


def series_of(machine: Machine, start: float, stop: float, uuid: str | None) -> dict[str, Any]:
    """The readings over a range; in the past, the first GPU was slowed down for a while by heat."""
    step = max(1.0, (stop - start) / 600)
    times = [start + step * number for number in range(int((stop - start) / step))]
    devices = []
    for place, device in enumerate(machine.snapshot.devices):
        if uuid not in (None, key_of(device)):
            continue
        moved = [moved_device(device, round(at)) for at in times]
        values = {name: [to_plain(read(one)) for one in moved] for name, read in SERIES.items()}
        middle = (start + stop) / 2
        values["clocks_event_mask"] = [
            float(HW_THERMAL_BIT) if place == 0 and abs(at - middle) < (stop - start) / 12 else 0.0
            for at in times
        ]
        index = to_plain(device.id.nvml_index)
        devices.append(
            {"uuid": key_of(device), "nvml_index": index, "name": to_plain(device.name), "series": values}
        )
    at = datetime.fromtimestamp((start * 3 + stop) / 4, UTC).isoformat()
    event = (
        {"number": 1, "at": at, "kind": "xid", "uuid": devices[-1]["uuid"] if devices else None}
        | {"nvml_index": len(machine.snapshot.devices) - 1, "message": "Xid 94: contained memory error"}
        | {"xid_code": 94, "severity": "warn", "reasons": []}
    )
    return {
        "schema": "gpudiag.series/1",
        "step_seconds": step,
        "resolution_seconds": 1.0,
        "times": times,
        "devices": devices,
        "events": [event],
    }


def key_of(device: Device) -> str:
    """The UUID, or the bus id of a GPU that never answered."""
    return str(value_or(device.id.uuid, value_or(device.id.bus_id, "")))


def to_plain(reading: Any) -> Any:
    """The value, or None where it is missing."""
    return None if isinstance(reading, Missing) else reading


def device_document(machine: Machine, subject: str, sequence: int) -> dict[str, Any] | None:
    """`gpudiag.device/1` of that UUID or index; None where there is none."""
    for device in machine.snapshot.devices:
        if subject in (device.id.uuid, str(device.id.nvml_index)):
            now = datetime.now(UTC)
            row = live_device(device, machine.findings, now, sequence)
            about = tuple(
                one for one in machine.findings if getattr(one.subject, "uuid", "") == device.id.uuid
            )
            return to_document(DeviceDocument(now, machine.snapshot.host, device, row, about))
    return None


def processes_of(machine: Machine) -> dict[str, Any]:
    """`gpudiag.processes/1`: the second process is an idle holder."""
    now = datetime.now(UTC)
    times = tuple(now.timestamp() - 10.0 * number for number in range(60, 0, -1))
    uses, users = [], {}
    for device in machine.snapshot.devices:
        for process in () if isinstance(device.processes, Missing) else device.processes:
            idle = device.utilization_percent == 0
            since = now - timedelta(minutes=40) if idle else None
            used = value_or(process.memory_used_bytes, 0)
            memory = tuple(None if place < 12 else round(used * min(1.0, place / 20)) for place in range(60))
            busy = None if idle else value_or(device.utilization_percent, 0)
            sm = tuple(
                None if place < 12 or busy is None else max(0, busy - place % 7) for place in range(60)
            )
            uses.append(ProcessUse(device.id.uuid, device.id.nvml_index, process, since, idle, memory, sm))
            before = users.get(value_or(process.user, "?"), UserUse(str(process.user), 0, 0, 0))
            users[before.user] = UserUse(
                before.user, before.memory_used_bytes + used, before.gpu_count + 1, before.process_count + 1
            )
    return to_document(Processes(now, tuple(uses), tuple(users.values()), times))


def sources_of(machine: Machine) -> dict[str, Any]:
    """`gpudiag.sources/1`."""
    one = machine.snapshot
    return to_document(Sources(datetime.now(UTC), one.sources, one.views, one.disagreements, one.torch))


def findings_of(machine: Machine) -> dict[str, Any]:
    """`gpudiag.findings/1`."""
    known = machine.findings
    return to_document(
        Findings(1, machine.report.verdict.value, datetime.now(UTC), known, join_findings(known))
    )


def topology_of(machine: Machine) -> dict[str, Any]:
    """`gpudiag.topology/1`, with the copies between the halves of the machine measured."""
    topology = build_topology(machine.snapshot)
    half = {device.uuid for device in topology.devices[: len(topology.devices) // 2]}
    measured = MeasuredLink("peer_copy", 3.712e11, "B/s", datetime(2026, 11, 20, 21, 4, 5, tzinfo=UTC))
    links = tuple(
        one if (one.from_uuid in half) == (one.to_uuid in half) else replace(one, measured=measured)
        for one in topology.links
    )
    return to_document(add_verdict(replace(topology, links=links), machine.report.results))


def collective_report(failed: bool) -> dict[str, Any]:
    """An nccl-test that went well, or one in which a rank was killed."""
    sizes = [8 * 4**power for power in range(12)]
    results = tuple(_collective_result(size) for size in sizes[: 5 if failed else None])
    exits = [-9 if failed and rank == 2 else 0 for rank in range(4)]
    ranks = tuple(
        RankReport(rank, rank, "h100-1", 4200 + rank, "measure", end) for rank, end in enumerate(exits)
    )
    measurement = CollectiveMeasurement(
        backend="gloo", world_size=4, launcher="spawn", host="h100-1", torch_version="2.13.0",
        device_kind="cpu",
        nccl_version=NOT_ASKED, results=results, ranks=ranks, incidents=(), injected=(), sizes_planned=12,
        seconds=4.2,
        lateness=NOT_ASKED if failed else lateness_of(4),
    )  # fmt: skip
    outcome = Outcome.FAIL if failed else Outcome.PASS
    return to_document(CollectiveReport(outcome, measurement, (killed_rank(),) if failed else ()))


def result_event(done: int, planned: int) -> dict[str, Any]:
    """`gpudiag.event/1`: the size that was measured last."""
    return to_document(
        RunEvent(EventKind.RESULT, float(done), done, planned, result=_collective_result(8 * 4**done))
    )


def ranks_event(done: int, *, still: bool = False, count: int = 4) -> dict[str, Any]:
    """`gpudiag.event/1`: where the ranks are; `still`: all wait for rank 2."""
    ranks = tuple(
        RankStanding(
            rank=rank,
            host="h100-1",
            life="alive",
            stage="measure",
            iteration=20 * done,
            operation=None if still and rank == 2 else f"all_reduce float32[{2 * 4**done}]",
            waits=still and rank != 2,
            behind=still and rank == 2,
            still_seconds=14.0 if still else 0.0,
        )
        for rank in range(count)
    )
    return to_document(RunEvent(EventKind.RANKS, float(done), done, 6, ranks=ranks))


def lateness_of(count: int) -> LatenessSeries:
    """Rank 2 is late in the second half, and all others now and then."""
    spans = 48

    def late(rank: int, span: int) -> float:
        return (
            0.02 + 0.001 * span if rank == 2 and span > spans / 2 else 0.0004 * ((rank * 7 + span * 3) % 11)
        )

    ranks = (RankLateness(rank, tuple(late(rank, span) for span in range(spans))) for rank in range(count))
    return LatenessSeries(2.5, 0.05, 960, 0.003, tuple(ranks))


def comparison_of(machine: Machine) -> dict[str, Any]:
    """`gpudiag.comparison/1` of this machine's report with one of another driver."""
    before = replace(machine.report, snapshot=replace(machine.snapshot, driver_version="570.86.10"))
    named = [
        NamedDocument(name, dumps(report).encode())
        for name, report in (("run a", before), ("run b", machine.report))
    ]
    return to_document(compare_documents(*named))


def _collective_result(size: int) -> CollectiveResult:
    time = 4e-5 + size / 2e9
    return CollectiveResult(
        op="all_reduce", reduce="sum", dtype="float32", size_bytes=size, elements=size // 4, iterations=20,
        time_p50_seconds=time, time_p99_seconds=time * 1.6, time_average_seconds=time * 1.1,
        algbw_bytes_per_second=size / time, busbw_bytes_per_second=size / time * 1.5, verified=True,
        verified_iterations=20, wrong_elements=0,
    )  # fmt: skip


def killed_rank() -> Finding:
    """What is found where rank 2 was killed."""
    return Finding(
        "rank.died", Outcome.FAIL, Severity.ISOLATE, Category.SW_OTHER, Owner.JOB, RankSubject(2, "h100-1"),
        "rank 2 was killed by SIGKILL in stage measure, iteration 5",
        (Evidence("signal", "SIGKILL", None, None, "wait status"),
            Evidence("iteration", 5, None, None, "rank 2")),
        "Look for the kernel's OOM killer: dmesg | grep -i oom.",
    )  # fmt: skip


def baselines() -> dict[str, Any]:
    """`gpudiag.history/1`: what the machine's all-reduce was before."""
    now = datetime.now(UTC)
    known = []
    for size in [8 * 4**power for power in range(12)]:
        before = 1.15 * size / (4e-5 + size / 2e9) * 1.5
        metric = f"all_reduce.float32.{size}.gloo.4.busbw"
        known.append(Baseline(metric, "B/s", None, before, 5, before, now))
    return to_document(History("h100-1", "sqlite", baselines=tuple(known)))


def training_report() -> dict[str, Any]:
    """Three strategies: one right, one wrong, one that cannot run here."""

    def result(name: str, outcome: Outcome, speed: float) -> StrategyResult:
        passed = outcome is Outcome.PASS
        return StrategyResult(
            strategy=name, kind="data", framework="torch 2.13.0", outcome=outcome, world_size=2,
            workload="regression", dtype="float32", optimizer="sgd", verified=passed,
            verifications=(Verification("gradients", passed, 1e-7, 1e-5),
                Verification("parameters", True, 1e-7, 1e-5)),
            samples_per_second=speed, step_p50_seconds=16 / speed, scaling_efficiency=0.84,
            shares=StepShares(0.04, 0.3, 0.4, 0.1, 0.16), host_memory_bytes=512 * 1024**2,
        )  # fmt: skip

    skipped = StrategyResult(
        "horovod", "data", "horovod", Outcome.SKIP, 2, "regression", "float32", "sgd",
        reason="horovod is not installed", hint="pip install 'gpudiag[horovod]'",
    )  # fmt: skip
    strategies = (result("ddp", Outcome.PASS, 9800), result("fsdp2", Outcome.FAIL, 7200), skipped)
    return to_document(TrainingReport(Outcome.FAIL, "h100-1", strategies, ()))
