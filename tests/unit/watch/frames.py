"""Frames of simulated machines as the view gets them, at a fixed time, with what only the sampler reads."""

from dataclasses import replace
from functools import cache

from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.runner import findings_worst_first
from gpudiag.model.device import GpuProcess, ParentProcess
from gpudiag.model.host_activity import HostActivity
from gpudiag.model.reading import Missing, MissingReason, value_or
from gpudiag.model.service import Findings, Live, LiveDevice, SamplerState
from gpudiag.runs.instant import judge_snapshot
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.service.live import SamplerFacts, build_live
from gpudiag.units import GIB
from gpudiag.watch.frame import Frame, History, key_of_row
from tests.scenarios.situations import look_at_machine

STORY = "h100x8+busy:0+busy:1+hot:5"
LAUNCHER = ParentProcess(41100, "torchrun --nproc-per-node=gpu train.py --config llama-7b.yaml")
_FACTS = SamplerFacts(
    polls=True, paused=False, silent_seconds=None, interval_seconds=2.0, restarts=0, stuck=0, since=None
)
_ABSENT = Missing(MissingReason.SOURCE_ABSENT)
HOST = HostActivity(
    processors_busy_percent=37.4,
    processors_waiting_percent=2.0,
    load_average=71.5,
    memory_total_bytes=2015 * GIB,
    memory_available_bytes=1200 * GIB,
    swap_used_bytes=0,
    network_received_bytes_per_second=1.25e9,
    network_transmitted_bytes_per_second=0.4e9,
    disk_read_bytes_per_second=_ABSENT,
    disk_written_bytes_per_second=3.2e8,
)


def process_of(process: GpuProcess) -> GpuProcess:
    return replace(
        process,
        parents=(LAUNCHER,),
        sm_utilization_percent=91,
        processor_percent=118.2,
        resident_bytes=9 * GIB,
    )


def row_of(row: LiveDevice) -> LiveDevice:
    processes = tuple(map(process_of, value_or(row.processes, ())))
    return replace(row, processes=row.processes if isinstance(row.processes, Missing) else processes)


@cache
def live_of(spec: str) -> tuple[Live, Findings]:
    """A tick of that machine, judged, as of the moment of the look."""
    snapshot = look_at_machine(spec, kernel_log=True)
    report = judge_snapshot(snapshot, checks=GPU_CHECKS)
    findings = Findings(1, report.verdict.value, snapshot.taken_at, findings_worst_first(report.results))
    live = build_live(snapshot, NvmlPicture(), _FACTS, findings, {}, 1)
    sampler = replace(live.sampler, state=SamplerState.OK)
    rows = tuple(map(row_of, live.devices))
    return replace(live, at=snapshot.taken_at, sampler=sampler, devices=rows, host_activity=HOST), findings


def frame_of(spec: str = STORY, name: str = "h100-1") -> Frame:
    """The frame of that machine after 60 ticks whose load rises and falls."""
    live, findings = live_of(spec)
    history = History()
    for tick in range(60):
        rows = tuple(
            replace(row, utilization_percent=tick % 10 * 10) if row.responding is True else row
            for row in live.devices
        )
        history.add(replace(live, devices=rows))
    return Frame(name, live, findings.findings, history.copied(), received_at=now_of(spec))


def now_of(spec: str = STORY) -> float:
    """The Unix time of the look."""
    return live_of(spec)[0].at.timestamp()


def keys_of(frame: Frame) -> list[str]:
    return [] if frame.live is None else [key_of_row(row) for row in frame.live.devices]
