"""The recipe of `gpudiag bandwidth`: find free GPUs, time copies and matrix products, judge, store."""

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from gpudiag.checks import BUILTIN
from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.gpu.holders import own_pids
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Check
from gpudiag.checks.runner import run_checks
from gpudiag.errors import GpudiagError
from gpudiag.model.active import MATMUL, MEMORY_COPY, PEER_COPY, SCALED_DTYPES, ActiveMeasurement, ActivePlan
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.plan import BANDWIDTH_TESTS, BandwidthPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Measures, Report
from gpudiag.model.run import RunEvent
from gpudiag.probe.inventory import take_snapshot
from gpudiag.runs.active import describe_cost, measure_active, with_neighbours
from gpudiag.runs.events import JUDGE, LOOK, PreflightEvents
from gpudiag.runs.fork_servers import ForkServers
from gpudiag.runs.gate import complete_results, judge_results
from gpudiag.runs.placement import Placement, place_tests, why_no_peers
from gpudiag.store.baselines import samples_of
from gpudiag.store.history import HistoryKeeper, RunFacts
from gpudiag.store.state_folder import own_machine_key

Say = Callable[[str], None]

_READ_SECONDS = 6.0  # for the history, from the start of the run
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


class BandwidthRun:
    """One bandwidth run of this machine: `run` it, print its report, then `remember` it."""

    def __init__(
        self,
        plan: BandwidthPlan,
        store: str,
        say: Say,
        warn: Say,
        listener: Callable[[RunEvent], None] | None = None,
        *,
        python: str | None = None,
    ) -> None:
        """Start reading the history.

        `say` gets the next step and its cost, `warn` what went wrong, `listener` each event.
        """
        self._plan = plan
        self._say = say
        self._warn = warn
        self._python = python
        self._emitter = PreflightEvents(("active",), listener)
        self._keeper = HistoryKeeper(store, own_machine_key())
        self._servers = ForkServers()
        self._report: Report | None = None

    def __enter__(self) -> "BandwidthRun":
        """The run, with the history being read."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child processes."""
        self._servers.close()
        self._keeper.close()

    def run(self) -> Report:
        """Run, and return the report; it names what could not be measured, with the reason."""
        self._emitter.enter(LOOK)
        snapshot = take_snapshot(
            ("nvml", "torch"),
            self._plan.deadline_seconds,
            python=self._python,
            kernel_log=True,
            ask_torch=self._servers.ask_torch,
        )
        history, warning = self._keeper.read(_READ_SECONDS)
        if warning:
            self._warn(f"{warning}; gpudiag continues without it")
        try:
            measures = Measures(active=self._measure(snapshot))
        finally:
            self._servers.close()
        if not isinstance(measures.active, Missing) and measures.active.device_kind == "cuda":
            behind = take_snapshot(("nvml",), self._plan.deadline_seconds)
            active = with_neighbours(measures.active, behind, own_pids(measures))
            measures = replace(measures, active=active)
        self._emitter.enter(JUDGE)
        good = history if isinstance(history, Missing) else history.good
        context = Context(
            snapshot,
            measures,
            known_gpus=good if isinstance(good, Missing) else known_gpus_of(good),
            history=history,
            samples=samples_of(measures),
        )
        checks = checks_for(measures.active)
        results = complete_results(checks, run_checks(context, checks))
        self._report = Report(judge_results(results), results, snapshot, measures)
        self._emitter.emit_report(self._report)
        return self._report

    def remember(self) -> str:
        """Store the speeds; return a warning for the user, empty if all is well."""
        report = self._report
        if report is None:
            return ""
        samples = samples_of(report.measures)
        facts = RunFacts(report.snapshot, "bandwidth", report.verdict.value, samples, keep_snapshot=False)
        return self._keeper.write(facts)

    def _measure(self, snapshot: Snapshot) -> Reading[ActiveMeasurement]:
        found = run_checks(Context(snapshot), GPU_CHECKS)
        findings = tuple(finding for result in found for finding in result.findings)
        place = place_tests(snapshot, findings, NOT_ASKED, force=self._plan.force)
        if isinstance(place, Missing):  # whatever the reason: nothing was measured, so nothing passes
            return Missing(MissingReason.ERROR, place.detail)
        plan = plan_tests(self._plan, place)
        if isinstance(plan, Missing):
            return plan
        self._emitter.enter("active")
        self._say(describe_cost(plan, place))
        try:
            return measure_active(
                plan,
                place,
                _LEVEL,
                python=self._python,
                listener=self._emitter.listen_to_tests(plan.tests),
                servers=self._servers,
            )
        except GpudiagError as error:
            hint = f": {error.hint}" if error.hint else ""
            return Missing(MissingReason.ERROR, f"{error.message}{hint}")


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
