"""The recipe of a run on this machine: look, measure, judge, report, remember."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, TypeVar

from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Check
from gpudiag.checks.runner import run_checks
from gpudiag.compat import Self
from gpudiag.errors import GpudiagError
from gpudiag.model.active import ActiveMeasurement, ActivePlan
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.history import History
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Measures, Report
from gpudiag.model.run import RunEvent
from gpudiag.probe.start import StartedProbes
from gpudiag.runs.events import JUDGE, LOOK, PreflightEvents
from gpudiag.runs.fork_servers import ForkServers
from gpudiag.runs.gate import complete_results, judge_results
from gpudiag.runs.placement import Placement, place_tests
from gpudiag.store.baselines import samples_of
from gpudiag.store.history import HistoryKeeper, RunFacts
from gpudiag.store.history_child import StartedHistory
from gpudiag.store.state_folder import own_machine_key

_T = TypeVar("_T")
_READ_SECONDS = 6.0  # for the history, from the start of the run


def _ignore(_: str) -> None:
    """Drop the sentence."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the caller of a run sets: store, interpreter, good machine, patience, and who gets which message.

    `deadline_seconds`: the longest wait for NVML and the host (None: the level's); `history`: the child that
    reads this store. `announce` gets what comes next and its cost, `warn` failures, `listener` events.
    """

    store: str
    python: str | None = None
    expected_machine: Reading[Snapshot] = NOT_ASKED
    deadline_seconds: float | None = None
    history: StartedHistory | None = None
    announce: Callable[[str], None] = _ignore
    warn: Callable[[str], None] = _ignore
    listener: Callable[[RunEvent], None] | None = None


class MachineRun(ABC):
    """One run on this machine: `run` it, print its report, then `remember` it; a kind has its own steps."""

    _kind: ClassVar[str]  # the command
    _keeps: ClassVar[bool] = True  # the snapshot, beside what was measured
    _read_seconds = _READ_SECONDS

    def __init__(
        self, surroundings: Surroundings, measured: Sequence[str], preload: Sequence[str] = ()
    ) -> None:
        """Start reading the history.

        `measured` are the steps between the look and the judgement, `preload` the modules that their ranks
        need beside torch.
        """
        self._surroundings = surroundings
        self._emitter = PreflightEvents(measured, surroundings.listener)
        self._keeper = HistoryKeeper(surroundings.store, own_machine_key(), surroundings.history)
        self._servers = ForkServers(preload)
        self._report: Report | None = None

    def __enter__(self) -> Self:
        """The run, with the history being read."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child processes."""
        self._servers.close()
        self._keeper.close()

    def run(self, started: StartedProbes | None = None) -> Report:
        """Run, and return the report; `started` are probes that are already running.

        What cannot be examined is in the report, and never an exception.
        """
        self._emitter.enter(LOOK)
        first = self._look(started)
        history, warning = self._keeper.read(self._read_seconds)  # it was read meanwhile
        if warning:
            self._surroundings.warn(f"{warning}; gpudiag continues without it{self._lacks()}")
        try:
            measures = self._measure(first)
        finally:
            self._servers.close()  # before the next look: nothing of ours is on a GPU then
        self._emitter.enter(JUDGE)
        context, checks = self._to_judge(first, measures, history)
        results = complete_results(checks, run_checks(context, checks))
        self._report = Report(judge_results(results), results, context.snapshot, context.measures)
        self._emitter.emit_report(self._report)
        return self._report

    def remember(self) -> str:
        """Store the run; return a warning for the user, empty if all is well."""
        report = self._report
        if report is None:
            return ""
        samples, good = samples_of(report.measures), self._is_good(report)
        facts = RunFacts(
            report.snapshot, self._kind, report.verdict.value, samples, good=good, keep_snapshot=self._keeps
        )
        return self._keeper.write(facts)

    @abstractmethod
    def _look(self, started: StartedProbes | None) -> Snapshot:
        """The machine before anything is measured."""

    @abstractmethod
    def _measure(self, snapshot: Snapshot) -> Measures:
        """What was measured, or why not."""

    @abstractmethod
    def _to_judge(
        self, first: Snapshot, measures: Measures, history: Reading[History]
    ) -> tuple[Context, tuple[Check, ...]]:
        """All that checks may see, and the checks; after another look at the machine, if needed."""

    def _is_good(self, report: Report) -> bool:
        """Whether later runs are compared with the machine as it is now."""
        return False

    def _lacks(self) -> str:
        """What a run without the history lacks, after a colon; empty for nothing worth a word."""
        return ""

    def _place(
        self, snapshot: Snapshot, expected: Reading[int] = NOT_ASKED, *, force: bool
    ) -> Reading[Placement]:
        """Where tests may run: not on GPUs with a finding of the instant checks."""
        results = run_checks(Context(snapshot, expected_gpus=expected), GPU_CHECKS)
        findings = tuple(finding for result in results for finding in result.findings)
        return place_tests(snapshot, findings, expected, force=force)

    def _test(self, plan: ActivePlan, place: Placement, level: str) -> ActiveMeasurement:
        """What the active tests of the plan measured, with the time limit and telemetry of that level."""
        from gpudiag.runs.active import describe_cost, measure_active

        self._emitter.enter("active")
        self._surroundings.announce(describe_cost(plan, place))
        return measure_active(
            plan,
            place,
            level,
            python=self._surroundings.python,
            listener=self._emitter.listen_to_tests(plan.tests),
            servers=self._servers,
            on_views=self._emitter.standings.add,
        )


def attempt(measure: Callable[[], Reading[_T]]) -> Reading[_T]:
    """What was measured, or why that failed, so that a failure does not stop the rest."""
    try:
        return measure()
    except GpudiagError as error:
        hint = f": {error.hint}" if error.hint else ""
        return Missing(MissingReason.ERROR, f"{error.message}{hint}")
    except OSError as error:
        return Missing(MissingReason.ERROR, f"{type(error).__name__}: {error}")
