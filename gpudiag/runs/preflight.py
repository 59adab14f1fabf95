"""The recipe of `gpudiag preflight`: take a snapshot, run the tests, take another, judge, store."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TypeVar

from gpudiag.checks import BUILTIN
from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.gpu.holders import own_pids
from gpudiag.checks.host.network import judge_interfaces, network_loopback
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Check, Level
from gpudiag.checks.runner import run_checks
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.active import ActiveMeasurement, DiskResult
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.documents import from_document
from gpudiag.model.finding import Finding
from gpudiag.model.history import History, KnownGpus
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.model.nearest import did_you_mean
from gpudiag.model.plan import LEVELS, PreflightPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Measures, Report
from gpudiag.model.run import RunEvent
from gpudiag.model.training import StrategyMeasurement
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.start import INSTANT_SECONDS, StartedProbes, start_probes
from gpudiag.runs.events import JUDGE, LOOK, PreflightEvents
from gpudiag.runs.fork_servers import TRAINING_MODULES, ForkServers
from gpudiag.runs.gate import complete_results, is_good_state, judge_results
from gpudiag.runs.placement import Placement, place_tests
from gpudiag.store.baselines import samples_of
from gpudiag.store.history import READ_SECONDS, HistoryKeeper, RunFacts, wait_for_message
from gpudiag.store.history_child import StartedHistory
from gpudiag.store.known_gpus import finish_known_gpus, finish_noting, start_known_gpus, start_noting
from gpudiag.store.state_folder import own_machine_key

# --- the machine to compare with

MAX_BYTES = 64 * 1024**2


def read_expected_machine(path: Path) -> Snapshot:
    """The snapshot in a file that `gpudiag preflight --json` or `gpudiag list --json` wrote.

    Raises:
        UsageError: the file cannot be read, or is neither.
    """
    hint = "make one on a good machine: gpudiag preflight --report json=FILE"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--expect: cannot read {path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"--expect: {path} is too large for a report", hint=hint)
    try:
        noun = from_document(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--expect: {path} is not JSON, or cut short", hint=hint) from error
    except UsageError as error:
        raise UsageError(f"--expect: {path}: {error.message}", hint=hint) from error
    if isinstance(noun, Report):
        return noun.snapshot
    if isinstance(noun, Snapshot):
        return noun
    raise UsageError(f"--expect: {path} is neither a report nor a snapshot", hint=hint)


# --- the recipe

_T = TypeVar("_T")
INSTANT = "instant"
_OF_HISTORY = ("history", "earlier", "baseline", "known_gpus")  # what checks need that the store has
# What checks need that only ranks can measure, and what besides only a test can.
_ON_RANKS = ("collective", "active", "training", "operations", "card_pairs")
_TESTED = (*_ON_RANKS, "disks")
# The driver may have to wake up before that, which takes some seconds without persistence mode.
_AWAKE_SECONDS = 1.0  # at least, once the driver is awake
_WAKE_SECONDS = 5.0
_PATIENT_READ_SECONDS = 6.0  # from the start of the run
_LOOK_SECONDS = 5.0
# Levels that load the GPUs long enough for their own two looks to show more than a stored one.
_OWN_PAIR_LEVELS = LEVELS[2:]


def choose_checks(plan: PreflightPlan) -> tuple[Check, ...]:
    """The checks of the plan, in run order.

    `--only` may name a check of a higher level; it is then run, whatever the level.

    Raises:
        UsageError: no check has that name (the message suggests the nearest), or no check is left.
    """
    for flag, names in (("--only", plan.only), ("--skip", plan.skip)):
        for name in names:
            _require_check(flag, name)
    if plan.only:
        chosen = [check for check in BUILTIN if any(_is_named(check, name) for name in plan.only)]
        within = [check for check in chosen if check.level <= level_of(plan) or check.name in plan.only]
        chosen = within or chosen
    else:
        chosen = [check for check in BUILTIN if check.level <= level_of(plan)]
    chosen = [check for check in chosen if not any(_is_named(check, name) for name in plan.skip)]
    if not chosen:
        raise UsageError("--only and --skip leave no check to run", hint="see `gpudiag preflight --list`")
    return tuple(chosen)


def level_of(plan: PreflightPlan) -> Level:
    """The plan's level, as the checks' `Level`."""
    return Level[plan.level.upper()]


def gathering_level(plan: PreflightPlan, checks: Iterable[Check]) -> str:
    """The level to measure at: the plan's, or the highest of the checks if `--only` names a higher one."""
    return max([level_of(plan), *(check.level for check in checks)]).name.lower()


def wants(checks: Iterable[Check], *needs: str) -> bool:
    """Whether any of the checks needs any of these."""
    return any(need in check.needs for check in checks for need in needs)


def _is_named(check: Check, name: str) -> bool:
    return name in (check.name, check.name.partition(".")[0])


def _require_check(flag: str, name: str) -> None:
    known = dict.fromkeys(part for check in BUILTIN for part in (check.name, check.name.partition(".")[0]))
    if name in known:
        return
    question = did_you_mean(name, known, "; ")
    raise UsageError(f"{flag}: there is no check {name!r}{question}", hint="see `gpudiag preflight --list`")


Announce = Callable[[str], None]


def _ignore(_: str) -> None:
    """Drop the sentence."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What only the caller of a preflight sets: the job's interpreter, the good machine, the store, the patience.

    `deadline_seconds` is the longest wait for an answer of NVML and the host; None: as the level has it. `history` is the
    child that reads this store, where it was started early.
    """

    store: str
    python: str | None = None
    expected_machine: Reading[Snapshot] = NOT_ASKED
    deadline_seconds: float | None = None
    history: StartedHistory | None = None


class Preflight:
    """One preflight of this machine: `run` it, print its report, then `remember` it."""

    def __init__(
        self,
        plan: PreflightPlan,
        surroundings: Surroundings,
        announce: Announce = _ignore,
        warn: Announce = _ignore,
        listener: Callable[[RunEvent], None] | None = None,
    ) -> None:
        """Start reading the history.

        `announce` gets what comes next and its cost, `warn` what went wrong, `listener` each event.

        Raises:
            UsageError: the plan names a check that does not exist.
        """
        self._plan = plan
        self._surroundings = surroundings
        self._announce = announce
        self._warn = warn
        self._checks = choose_checks(plan)
        self._level = gathering_level(plan, self._checks)
        measured = [] if self._level == INSTANT else [need for need in _TESTED if wants(self._checks, need)]
        self._emitter = PreflightEvents(measured, listener)
        self._keeper = HistoryKeeper(surroundings.store, own_machine_key(), surroundings.history)
        self._noted = start_known_gpus()
        self._servers = ForkServers(TRAINING_MODULES if "training" in measured else ())
        self._report: Report | None = None

    def __enter__(self) -> "Preflight":
        """The preflight, with the history being read."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child processes."""
        self._servers.close()
        self._keeper.close()
        self._noted.give_up()

    def run(self, started: StartedProbes | None = None) -> Report:
        """Run, and return the report; `started` are probes that are already running.

        What cannot be examined is in the report, and never an exception.
        """
        self._emitter.enter(LOOK)
        first = self._look(started)
        # The history was read meanwhile; only level instant cannot wait for a slow one.
        patience = READ_SECONDS if self._level == INSTANT else _PATIENT_READ_SECONDS
        history, warning = self._keeper.read(patience)
        if warning:
            left_out = sum(wants((check,), *_OF_HISTORY) for check in self._checks)
            count = "1 check has" if left_out == 1 else f"{left_out} checks have"
            self._warn(f"{warning}; gpudiag continues without it: {count} nothing to compare with")
        try:
            measures = self._measure(first)
        finally:
            self._servers.close()  # before the second look: nothing of ours is on a GPU then
        self._emitter.enter(JUDGE)
        snapshot, earlier = self._pair(first, history, measured=measures != Measures())
        if not isinstance(measures.active, Missing):
            from gpudiag.runs.active import with_neighbours

            active = with_neighbours(measures.active, snapshot, own_pids(measures))
            measures = replace(measures, active=active)
        baseline = self._baseline(history, snapshot.host)
        context = Context(
            snapshot,
            measures,
            expected_gpus=_or_missing(self._plan.expect_gpus),
            at_least_gpus=_or_missing(self._plan.at_least_gpus),
            expected_driver=_or_missing(self._plan.expect_driver),
            least_free_memory=_or_missing(self._plan.least_free_memory),
            earlier=earlier,
            baseline=baseline,
            # The store may be slow or broken; the listing's own note of the GPUs is not.
            known_gpus=self._known_gpus(baseline, history),
            expected_machine=self._surroundings.expected_machine,
            history=history,
            samples=samples_of(measures),
        )
        results = complete_results(self._checks, run_checks(context, self._checks))
        self._report = Report(judge_results(results), results, snapshot, measures)
        self._emitter.emit_report(self._report)
        return self._report

    def remember(self) -> str:
        """Store the run; return a warning for the user, empty if all is well."""
        report = self._report
        if report is None:
            return ""
        # A PASS of only some checks does not prove the machine good: later runs do not compare with it.
        whole = not (self._plan.only or self._plan.skip)
        good = whole and is_good_state(report)
        noting = start_noting(own_machine_key(), known_gpus_of(report.snapshot)) if good else None
        facts = RunFacts(
            report.snapshot,
            "preflight",
            report.verdict.value,
            samples_of(report.measures),
            good=good,
        )
        warning = self._keeper.write(facts)
        if noting is not None:
            finish_noting(noting)
        return warning

    def _look(self, started: StartedProbes | None) -> Snapshot:
        checks = self._checks
        sources = ["nvml"]
        ranks = wants(checks, *_ON_RANKS)
        agreement = any(check.name == "source.agreement" for check in checks)
        if self._level != INSTANT:
            sources += ["gputil"] * agreement
            sources += ["torch"] * (ranks or agreement or wants(checks, "torch"))
        started = started or start_probes(sources)
        deadline = self._surroundings.deadline_seconds
        if deadline is None and self._level == INSTANT:
            deadline = max(INSTANT_SECONDS, _await_driver(started) + _AWAKE_SECONDS)
        return take_snapshot(
            sources,
            deadline or _LOOK_SECONDS,
            python=self._surroundings.python,
            host_state=True,  # also where no check wants it: later runs hold its counters against theirs
            kernel_log=wants(checks, "kernel_log", "xids"),
            started=started,
            ask_torch=self._servers.ask_torch if ranks else None,  # the ranks are forked from what it starts
        )

    def _measure(self, snapshot: Snapshot) -> Measures:
        if self._level == INSTANT or not wants(self._checks, *_TESTED):
            return Measures()
        disks = self._measure_disks(snapshot) if wants(self._checks, "disks") else NOT_ASKED
        return replace(self._measure_on_ranks(snapshot), disks=disks)

    def _measure_disks(self, snapshot: Snapshot) -> Reading[tuple[DiskResult, ...]]:
        from gpudiag.runs.disks import describe_disk_cost, measure_disks, places_to_test

        places = places_to_test(snapshot)
        if isinstance(places, Missing):
            return places
        self._emitter.enter("disks")
        self._announce(describe_disk_cost(len(places)))
        return _attempt(lambda: measure_disks(places))

    def _measure_on_ranks(self, snapshot: Snapshot) -> Measures:
        if not wants(self._checks, *_ON_RANKS):
            return Measures()
        plan = self._plan
        expected = _or_missing(plan.at_least_gpus if plan.expect_gpus is None else plan.expect_gpus)
        findings = _gpu_findings(snapshot, expected)
        place = place_tests(snapshot, findings, expected, force=self._plan.force)
        if any(check.name == network_loopback.name for check in self._checks):
            place = _reachable(place, snapshot)
        if isinstance(place, Missing):
            return Measures(place, place, place, place, place)
        collective: Reading[CollectiveMeasurement] = NOT_ASKED
        if wants(self._checks, "collective"):
            collective = _attempt(lambda: self._measure_collective(place))
        active: Reading[ActiveMeasurement] = NOT_ASKED
        if wants(self._checks, "active"):
            active = _attempt(lambda: self._measure_active(place, snapshot))
        training: Reading[tuple[StrategyMeasurement, ...]] = NOT_ASKED
        if wants(self._checks, "training"):
            training = _attempt(lambda: self._measure_training(place))
        operations: Reading[CollectiveMeasurement] = NOT_ASKED
        if wants(self._checks, "operations"):
            operations = _attempt(lambda: self._measure_operations(place))
        card_pairs: Reading[CollectiveMeasurement] = NOT_ASKED
        if wants(self._checks, "card_pairs"):
            card_pairs = _attempt(lambda: self._measure_card_pairs(place, snapshot))
        return Measures(collective, active, training, operations, card_pairs)

    def _measure_collective(self, place: Placement) -> CollectiveMeasurement:
        from gpudiag.runs.preflight_measures import describe_collective_cost, measure_collective

        self._emitter.enter("collective")
        self._announce(describe_collective_cost(place))
        return measure_collective(place, self._surroundings.python, self._servers)

    def _measure_operations(self, place: Placement) -> CollectiveMeasurement:
        from gpudiag.runs.preflight_measures import describe_operations_cost, measure_operations

        self._emitter.enter("operations")
        self._announce(describe_operations_cost(place))
        return measure_operations(place, self._surroundings.python, self._servers)

    def _measure_card_pairs(self, place: Placement, snapshot: Snapshot) -> Reading[CollectiveMeasurement]:
        from gpudiag.runs.preflight_measures import (
            describe_card_pairs_cost,
            measure_card_pairs,
            why_no_card_pairs,
        )

        why = why_no_card_pairs(place, snapshot)
        if why is not None:
            return Missing(MissingReason.NOT_SUPPORTED, why)
        self._emitter.enter("card_pairs")
        self._announce(describe_card_pairs_cost(place))
        return measure_card_pairs(place, self._surroundings.python, self._servers)

    def _measure_training(self, place: Placement) -> tuple[StrategyMeasurement, ...]:
        from gpudiag.runs.preflight_measures import describe_training_cost, measure_training

        self._emitter.enter("training")
        self._announce(describe_training_cost(place, self._level))
        return measure_training(place, self._level, self._surroundings.python, self._servers)

    def _measure_active(self, place: Placement, snapshot: Snapshot) -> Reading[ActiveMeasurement]:
        from gpudiag.runs.active import describe_cost, measure_active, plan_active

        memory = snapshot.machine.memory_available_bytes
        plan = plan_active(
            self._level,
            place,
            None if isinstance(memory, Missing) else memory,
            self._plan.duration_seconds,
        )
        if plan is None:
            words = f"level {self._level} has no active test for a machine without a GPU"
            return Missing(MissingReason.NOT_SUPPORTED, words)
        self._emitter.enter("active")
        self._announce(describe_cost(plan, place))
        return measure_active(
            plan,
            place,
            self._level,
            python=self._surroundings.python,
            listener=self._emitter.listen_to_tests(plan.tests),
            servers=self._servers,
        )

    def _pair(
        self, first: Snapshot, history: Reading[History], *, measured: bool
    ) -> tuple[Snapshot, Reading[Snapshot]]:
        """The snapshot to judge, and an earlier one to compare its counters with."""
        stored = history if isinstance(history, Missing) else history.last
        if self._level == INSTANT or not wants(self._checks, "earlier"):
            return first, stored
        if not first.devices and not measured:
            return first, stored
        again = take_snapshot(
            ("nvml",),
            self._surroundings.deadline_seconds or _LOOK_SECONDS,
            host_state=True,
            kernel_log=wants(self._checks, "kernel_log", "xids"),
        )
        now = _joined(first, again)
        own_pair = (
            self._level in _OWN_PAIR_LEVELS or isinstance(stored, Missing) or not _comparable(stored, now)
        )
        return now, first if own_pair else stored

    def _known_gpus(self, baseline: Reading[Snapshot], history: Reading[History]) -> Reading[KnownGpus]:
        """The GPUs of the last good run; if the store does not have them, from the listing's own note."""
        if not isinstance(baseline, Missing):
            return known_gpus_of(baseline)
        noted = finish_known_gpus(self._noted)
        return history if isinstance(noted, Missing) and isinstance(history, Missing) else noted

    def _baseline(self, history: Reading[History], host: str) -> Reading[Snapshot]:
        """This machine in its last good run, or as the user recorded it."""
        expected = self._surroundings.expected_machine
        if not isinstance(expected, Missing) and expected.host == host:
            return expected
        return history if isinstance(history, Missing) else history.good


def _await_driver(started: StartedProbes) -> float:
    """Seconds that the driver took to wake up, at most five; only then a device's deadline starts."""
    child = started.nvml
    if child is not None:
        wait_for_message(child, child.started_at + _WAKE_SECONDS, besides=("asking",))
    return 0.0 if child is None else monotonic() - child.started_at


def _gpu_findings(snapshot: Snapshot, expected: Reading[int]) -> tuple[Finding, ...]:
    """The findings of the instant checks, which show the GPUs that no test may run on."""
    results = run_checks(Context(snapshot, expected_gpus=expected), GPU_CHECKS)
    return tuple(finding for result in results for finding in result.findings)


def _reachable(place: Reading[Placement], snapshot: Snapshot) -> Reading[Placement]:
    """The placement, or why ranks could not rendezvous there; that fault's own check reports it."""
    if isinstance(place, Missing) or os.environ.get("GLOO_SOCKET_IFNAME"):
        return place
    if judge_interfaces(snapshot.machine) is None:
        return place
    return Missing(MissingReason.ERROR, f"the loopback interface does not work (see {network_loopback.name})")


def _attempt(measure: Callable[[], Reading[_T]]) -> Reading[_T]:
    """What was measured, or why that failed, so that a failure does not stop the rest."""
    try:
        return measure()
    except GpudiagError as error:
        hint = f": {error.hint}" if error.hint else ""
        return Missing(MissingReason.ERROR, f"{error.message}{hint}")
    except OSError as error:
        return Missing(MissingReason.ERROR, f"{type(error).__name__}: {error}")


def _joined(first: Snapshot, again: Snapshot) -> Snapshot:
    """The second snapshot, with what only the first has: torch, GPUtil, CUDA's numbering."""
    ordinals = {device.id.uuid: device.id.cuda_ordinal for device in first.devices}
    devices = tuple(_with_ordinal(device, ordinals) for device in again.devices)
    asked_again = {status.name: status for status in again.sources if status.name not in ("gputil", "torch")}
    sources = tuple(asked_again.get(status.name, status) for status in first.sources)
    return replace(
        first,
        taken_at=again.taken_at,
        devices=devices,
        sources=sources,
        machine=again.machine,
        kernel_log=again.kernel_log,
    )


def _with_ordinal(device: Device, ordinals: dict[Reading[str], Reading[int]]) -> Device:
    return replace(device, id=replace(device.id, cuda_ordinal=ordinals.get(device.id.uuid, NOT_ASKED)))


def _comparable(stored: Snapshot, now: Snapshot) -> bool:
    """Whether the two are of the same boot and driver version, so that their counters can be compared."""
    return stored.machine.boot_id == now.machine.boot_id and stored.driver_version == now.driver_version


def _or_missing(value: _T | None) -> Reading[_T]:
    return NOT_ASKED if value is None else value
