"""The recipe of `gpudiag bandwidth`: find free GPUs, time copies and matrix products, judge, store."""

from gpudiag.checks import BUILTIN
from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Check
from gpudiag.model.active import MATMUL, MEMORY_COPY, PEER_COPY, SCALED_DTYPES, ActiveMeasurement, ActivePlan
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.history import History
from gpudiag.model.plan import BANDWIDTH_TESTS, BandwidthPlan
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.report import Measures
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.start import StartedProbes
from gpudiag.runs.active import with_neighbours
from gpudiag.runs.machine_run import MachineRun, Surroundings, attempt
from gpudiag.runs.placement import Placement, why_no_peers
from gpudiag.store.baselines import samples_of

_ON_CPU = (MEMORY_COPY, MATMUL)
_LEVEL = "standard"  # whose time limit and telemetry the tests keep to
# Always judged: whether every rank finished, and whether no GPU was left out.
_ALWAYS = ("active.ranks", "active.coverage")
_CHECKS = {
    "memory_copy": ("bandwidth.data", "bandwidth.memory"),
    "host_to_device": ("bandwidth.data", "bandwidth.host_device"),
    "device_to_host": ("bandwidth.data", "bandwidth.host_device"),
    "matmul": ("compute.matmul",),
    "peer_copy": ("bandwidth.data", "bandwidth.peer"),
}


class BandwidthRun(MachineRun):
    """One bandwidth run of this machine: `run` it, print its report, then `remember` its speeds."""

    _kind = "bandwidth"
    _keeps = False

    def __init__(self, plan: BandwidthPlan, surroundings: Surroundings) -> None:
        """Start reading the history, as any run on this machine."""
        super().__init__(surroundings, ("active",))
        self._plan = plan

    def _look(self, started: StartedProbes | None) -> Snapshot:
        return take_snapshot(
            ("nvml", "torch"),
            self._plan.deadline_seconds,
            python=self._surroundings.python,
            kernel_log=True,
            started=started,
            ask_torch=self._servers.ask_torch,
        )

    def _measure(self, snapshot: Snapshot) -> Measures:
        place = self._place(snapshot, force=self._plan.force)
        if isinstance(place, Missing):  # whatever the reason: nothing was measured, so nothing passes
            return Measures(active=Missing(MissingReason.ERROR, place.detail))
        plan = plan_tests(self._plan, place)
        return Measures(
            active=plan if isinstance(plan, Missing) else attempt(lambda: self._test(plan, place, _LEVEL))
        )

    def _to_judge(
        self, first: Snapshot, measures: Measures, history: Reading[History]
    ) -> tuple[Context, tuple[Check, ...]]:
        if not isinstance(measures.active, Missing) and measures.active.device_kind == "cuda":
            measures = with_neighbours(measures, take_snapshot(("nvml",), self._plan.deadline_seconds))
        good = history if isinstance(history, Missing) else history.good
        context = Context(
            first,
            measures,
            known_gpus=good if isinstance(good, Missing) else known_gpus_of(good),
            history=history,
            samples=samples_of(measures),
        )
        return context, checks_for(measures.active)


def plan_tests(plan: BandwidthPlan, place: Placement) -> Reading[ActivePlan]:
    """The tests of the plan that can run there; missing, with the reason, if one named by the user cannot."""
    on_gpu = place.device_kind == "cuda"
    possible: tuple[str, ...] = BANDWIDTH_TESTS if on_gpu else _ON_CPU
    no_peers = why_no_peers(place) if on_gpu else None
    if no_peers is not None:
        possible = tuple(test for test in possible if test != PEER_COPY)
    for test in plan.test:
        if test not in possible:
            if test == PEER_COPY and on_gpu and place.world_size > 1:
                return Missing(MissingReason.ERROR, f"{test} cannot be measured: {no_peers}")
            lacks = "two GPUs that are free" if test == PEER_COPY else "a GPU"
            return Missing(MissingReason.ERROR, f"{test} needs {lacks}, and this machine has none to test")
    tests = tuple(test for test in possible if not plan.test or test in plan.test)
    dtypes = ("float32", "float16", "bfloat16") if on_gpu else ("float32", "bfloat16")
    return ActivePlan(tests, place.device_kind, dtypes, scaled_dtypes=SCALED_DTYPES)


def checks_for(measured: Reading[ActiveMeasurement]) -> tuple[Check, ...]:
    """The checks to run: those of the GPUs in a snapshot, and of every speed that was measured."""
    tests = BANDWIDTH_TESTS if isinstance(measured, Missing) else measured.tests
    names = {*_ALWAYS, *(name for test in tests for name in _CHECKS[test])}
    return (*GPU_CHECKS, *(check for check in BUILTIN if check.name in names))
