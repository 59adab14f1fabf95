"""The active tests of a preflight: run them on ranks, and put together what the ranks reported."""

import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any, TypeVar

from gpudiag.checks.gpu.holders import computing_on, describe_holders, own_pids
from gpudiag.checks.subjects import name_device
from gpudiag.model.active import (
    DETERMINISM,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    MATMUL,
    MEMORY_COPY,
    MEMORY_PATTERNS,
    PEER_COPY,
    SUSTAINED,
    AbsentProduct,
    ActiveMeasurement,
    ActivePlan,
    BandwidthResult,
    ComputeResult,
    DeterminismResult,
    NotTested,
    PatternResult,
    SustainedResult,
    TelemetryPoint,
    Untested,
)
from gpudiag.model.codec import decode, encode, read_sheet
from gpudiag.model.device import Snapshot
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures
from gpudiag.probe.guard import GuardedChild, start_guarded
from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.diagnosis.view import ViewListener
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, MEASURE, Budgets
from gpudiag.runs.fork_servers import ForkServers
from gpudiag.runs.placement import Placement, why_no_peers
from gpudiag.units import GIB, MIB

_ENTRY = "gpudiag.bandwidth.rank_main:run"
_ACCEPTANCE = (
    "acceptance"  # which repeats the same computation in more types, and all other tests of level long
)
# Each level adds to the tests of the level before it.
_GPU_TESTS = {
    "quick": (MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST, MATMUL),
    "standard": (PEER_COPY, DETERMINISM),
    "long": (MEMORY_PATTERNS, SUSTAINED),
    _ACCEPTANCE: (),
}
_CPU_TESTS = {
    "quick": (),
    "standard": (MEMORY_COPY, DETERMINISM),
    "long": (MEMORY_PATTERNS, SUSTAINED),
    _ACCEPTANCE: (),
}
_RUN_SECONDS = {"quick": 60.0, "standard": 240.0, "long": 5400.0, _ACCEPTANCE: 5400.0}  # at least
_LIMIT_FACTOR = 3.0  # a run may take this many times its expected time: our choice
_GPU_SUSTAINED_SECONDS = 900.0
_ACCEPTANCE_SUSTAINED_SECONDS = 600.0  # so that all of it takes 20 minutes on eight GPUs
_REPEAT_DTYPES = ("float64", "float32", "float16", "bfloat16")
_FLOAT8 = "float8_e4m3fn"
_CPU_SUSTAINED_SECONDS = 60.0
_CPU_PATTERN_SHARE = 0.25  # of the memory that is available, for all ranks together
_CPU_PATTERN_BYTES = 64 * MIB  # of one rank at most: a processor's memory takes long to go through
_STEP_SECONDS = 300.0  # the longest step: one pattern over all of a GPU's memory
# Several readings within the second and a half that a speed is measured in; level long runs for a quarter of
# an hour.
_TELEMETRY_SECONDS = {"quick": 0.2, "standard": 0.2, "long": 1.0, _ACCEPTANCE: 1.0}


class TelemetryReader:
    """Reads every GPU's sensors from its creation until `finish`."""

    def __init__(self, interval_seconds: float, started: float) -> None:
        """Start reading every `interval_seconds`; times count from `started` of `time.monotonic`."""
        self._child: GuardedChild = start_guarded(
            "gpudiag.runs.active:stream_telemetry", interval_seconds, started
        )

    def drain(self) -> None:
        """Receive what was read so far, without waiting, so that the pipe never fills up."""
        while self._child.ending is None:
            ready, _, _ = select.select(self._child.descriptors(), [], [], 0)
            if not ready:
                return
            for descriptor in ready:
                if descriptor in self._child.descriptors():
                    self._child.receive(descriptor)

    def finish(self) -> tuple[TelemetryPoint, ...]:
        """Stop reading; return every point that was read."""
        self.drain()
        self._child.give_up()
        return tuple(
            read_sheet(TelemetryPoint, sheet) for kind, sheet in self._child.messages if kind == "point"
        )


def stream_telemetry(emit: Callable[[Any], None], interval_seconds: float, started: float) -> None:
    """In a guarded child, until it is killed: emit every GPU's sensors, one message per GPU and reading.

    Sensors alone, as each call takes the driver's lock; a thread per GPU, so that one that hangs delays no
    other.
    """
    from gpudiag.probe.nvml.library import load_pynvml

    pynvml = load_pynvml()
    pynvml.nvmlInit()
    threads = [
        Thread(target=_watch_gpu, args=(emit, pynvml, index, interval_seconds, started), daemon=True)
        for index in range(pynvml.nvmlDeviceGetCount())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _watch_gpu(
    emit: Callable[[Any], None], pynvml: Any, index: int, interval_seconds: float, started: float
) -> None:
    from gpudiag.probe.nvml.ask import Ask, DeviceSheet
    from gpudiag.probe.nvml.device import read_sensors

    ask = Ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    uuid = ask.text("nvmlDeviceGetUUID")
    while True:
        due = time.monotonic() + interval_seconds
        sheet = DeviceSheet()
        read_sensors(ask, sheet)
        at_seconds = time.monotonic() - started
        emit(("point", {"at_seconds": at_seconds, "device_uuid": uuid, **sheet.document()}))
        time.sleep(max(0.0, due - time.monotonic()))


_Timed = TypeVar("_Timed", BandwidthResult, ComputeResult)
_RESULTS: Mapping[str, type] = {
    "bandwidth": BandwidthResult,
    "compute": ComputeResult,
    "determinism": DeterminismResult,
    "patterns": PatternResult,
    "sustained": SustainedResult,
    "not_tested": NotTested,
    "absent_products": AbsentProduct,
}


def plan_active(
    level: str,
    placement: Placement,
    memory_available_bytes: int | None,
    sustained_seconds: float | None = None,
) -> ActivePlan | None:
    """The tests of that level for that placement; None if it has none.

    `sustained_seconds` is the duration of the sustained load, if the user sets it.
    """
    on_gpu = placement.device_kind == "cuda"
    by_level = _GPU_TESTS if on_gpu else _CPU_TESTS
    levels = tuple(by_level)
    if level not in levels:
        return None
    tests = tuple(test for name in levels[: levels.index(level) + 1] for test in by_level[name])
    if why_no_peers(placement) is not None:
        tests = tuple(test for test in tests if test != PEER_COPY)
    if not tests:
        return None
    accepts = level == _ACCEPTANCE
    float8 = (_FLOAT8,) if placement.float8 or not on_gpu else ()
    repeat_dtypes = (*_REPEAT_DTYPES, *float8) if accepts else ()
    if on_gpu:
        usual = _ACCEPTANCE_SUSTAINED_SECONDS if accepts else _GPU_SUSTAINED_SECONDS
        return ActivePlan(
            tests,
            "cuda",
            ("float32", "float16", "bfloat16"),
            1.5,
            None,
            sustained_seconds or usual,
            repeat_dtypes=repeat_dtypes,
        )
    per_rank = int((memory_available_bytes or GIB) * _CPU_PATTERN_SHARE / placement.world_size)
    return ActivePlan(
        tests,
        "cpu",
        ("float32", "bfloat16"),
        1.0,
        min(_CPU_PATTERN_BYTES, per_rank),
        sustained_seconds or _CPU_SUSTAINED_SECONDS,
        repeat_dtypes=repeat_dtypes,
    )


def describe_cost(plan: ActivePlan, placement: Placement) -> str:
    """What the tests cost, in one sentence for the user before they start."""
    who = "GPU" if plan.device_kind == "cuda" else "CPU rank"
    names = ", ".join(test.replace("_", " ") for test in plan.tests)
    count = f"{placement.world_size} {who}{'s' * (placement.world_size > 1)}"
    extra = ""
    if SUSTAINED in plan.tests:
        seconds = plan.sustained_seconds
        extra = (
            f"; full load for {seconds:.0f} s" if seconds < 120 else f"; full load for {seconds / 60:.0f} min"
        )
    if MEMORY_PATTERNS in plan.tests:
        extra += (
            "; most of the free GPU memory" if plan.device_kind == "cuda" else "; a quarter of free memory"
        )
    return f"{names} on {count}: about {expected_seconds(plan, placement.world_size):.0f} s{extra}"


def expected_seconds(plan: ActivePlan, world_size: int) -> float:
    """About how many seconds the tests take; GPUs, and pairs, copy one after the other."""
    on_gpu = plan.device_kind == "cuda"
    seconds = {
        MEMORY_COPY: 2.0,
        HOST_TO_DEVICE: 2.0 * world_size + 2.0,
        DEVICE_TO_HOST: 2.0 * world_size + 2.0,
        MATMUL: 2.5 * (len(plan.dtypes) + len(plan.scaled_dtypes)),
        PEER_COPY: 0.5 * world_size * (world_size - 1),
        DETERMINISM: (plan.repeat_seconds + 0.2) * 3 * len(plan.repeat_dtypes or plan.dtypes),
        MEMORY_PATTERNS: 120.0 if on_gpu else 30.0,
        SUSTAINED: plan.sustained_seconds,
    }
    start = 10.0 if on_gpu else 5.0
    return start + sum(seconds[test] for test in plan.tests)


def limit_seconds(plan: ActivePlan, level: str, world_size: int) -> float:
    """The most seconds that the tests may take; it grows with the number of GPUs."""
    return max(_RUN_SECONDS[level], _LIMIT_FACTOR * expected_seconds(plan, world_size))


def measure_active(
    plan: ActivePlan,
    placement: Placement,
    level: str,
    *,
    python: str | None = None,
    faults: Sequence[Fault] = (),
    listener: Callable[[RankEvent], None] | None = None,
    servers: ForkServers | None = None,
    on_views: ViewListener | None = None,
) -> ActiveMeasurement:
    """What the ranks measured, and what happened to them; one of `servers` forks them, where given.

    `listener` gets what they emit, `on_views` where they are.

    Raises:
        UsageError: `python` cannot run ranks, or has no torch.
        LaunchError: the ranks could not be started.
    """
    started = time.monotonic()
    telemetry = TelemetryReader(_TELEMETRY_SECONDS[level], started) if plan.device_kind == "cuda" else None

    def add(event: RankEvent) -> None:
        if telemetry is not None:
            telemetry.drain()
        if listener is not None:
            listener(event)

    points: tuple[TelemetryPoint, ...] = ()
    try:
        run = run_ranks(
            _ENTRY,
            run_id="active tests",
            world_size=placement.world_size,
            arguments=encode(replace(plan, numa_nodes=_numa_nodes(placement))),
            budgets=Budgets(
                {**DEFAULT_STAGE_SECONDS, MEASURE: _STEP_SECONDS},
                limit_seconds(plan, level, placement.world_size),
            ),
            faults=faults,
            on_event=add,
            on_views=on_views,
            python=python,
            variables=placement.variables,
            server=None if servers is None else servers.server(python),
        )
    finally:
        points = telemetry.finish() if telemetry is not None else ()
    return _measurement(run, plan, placement, points, started)


def with_neighbours(measures: Measures, snapshot: Snapshot) -> Measures:
    """The measures, with the GPUs of the active tests marked that others compute on now, behind the tests."""
    measured, own = measures.active, own_pids(measures)
    if isinstance(measured, Missing):
        return measures
    known = {one.device_uuid for one in measured.shared}
    tested = {copy.device_uuid for copy in measured.bandwidth} | {one.device_uuid for one in measured.compute}
    came = []
    for device in snapshot.devices:
        if device.id.uuid in tested - known and computing_on(device, own):
            reason = f"it is in use since the tests began: {describe_holders(device, snapshot.taken_at, own)}"
            came.append(Untested(device.id.uuid, name_device(device), reason, in_use=True))
    return replace(measures, active=replace(measured, shared=(*measured.shared, *came)))


def _measurement(
    run: RankRun,
    plan: ActivePlan,
    placement: Placement,
    points: tuple[TelemetryPoint, ...],
    started: float,
) -> ActiveMeasurement:
    results: dict[str, list[Any]] = {kind: [] for kind in _RESULTS}
    finished: dict[str, set[int]] = {test: set() for test in plan.tests}
    for event in run.events:
        kind = event.data.get("kind")
        if kind in results:
            results[kind].append(decode(_RESULTS[kind], event.data))
        elif kind == "done":
            finished[event.data["test"]].add(event.rank)
    for timed in ("bandwidth", "compute"):
        results[timed] = [_counted_from(started, result) for result in results[timed]]
    versions = (result.get("torch_version") for result in run.results.values())
    nobody = Missing(MissingReason.ERROR, "no rank finished")
    return ActiveMeasurement(
        device_kind=plan.device_kind,
        world_size=run.world_size,
        host=run.host,
        torch_version=next((str(version) for version in versions if version), nobody),
        tests=plan.tests,
        done=tuple(test for test in plan.tests if len(finished[test]) == run.world_size),
        telemetry=points,
        ranks=run.ranks,
        incidents=run.incidents,
        untested=placement.untested,
        shared=placement.shared,
        seconds=run.seconds,
        timed_out=run.timed_out,
        **{kind: tuple(found) for kind, found in results.items()},
    )


def _counted_from(started: float, result: _Timed) -> _Timed:
    """The result with its times, which a rank gives by `time.monotonic`, on the telemetry's clock."""
    times = {
        name: value - started
        for name in ("began_seconds", "ended_seconds")
        if not isinstance(value := getattr(result, name), Missing)
    }
    return replace(result, **times)


def _numa_nodes(placement: Placement) -> tuple[int | None, ...]:
    """The NUMA node of each rank's GPU, by local rank; empty on the CPU."""
    nodes = (device.numa_node for device in placement.devices)
    return tuple(None if isinstance(node, Missing) else node for node in nodes)
