"""The recipe of `gpudiag preflight`: take a snapshot, run the tests, take another, judge, store."""

import os
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import TypeVar

from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.host.network import judge_interfaces, network_loopback
from gpudiag.checks.registry import Check
from gpudiag.model.active import ActiveMeasurement, DiskResult
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.history import History, KnownGpus
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.model.plan import LEVELS, PreflightPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Measures, Report
from gpudiag.model.training import StrategyMeasurement
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.start import INSTANT_SECONDS, StartedProbes, start_probes
from gpudiag.runs.fork_servers import TRAINING_MODULES
from gpudiag.runs.gate import is_good_state
from gpudiag.runs.machine_run import MachineRun, Surroundings, attempt
from gpudiag.runs.placement import Placement
from gpudiag.runs.preflight_plan import choose_checks, gathering_level, wants
from gpudiag.store.baselines import samples_of
from gpudiag.store.history import READ_SECONDS, wait_for_message
from gpudiag.store.known_gpus import finish_known_gpus, finish_noting, start_known_gpus, start_noting
from gpudiag.store.state_folder import own_machine_key

_T = TypeVar("_T")
INSTANT = "instant"
_OF_HISTORY = ("history", "earlier", "baseline", "known_gpus")  # what checks need that the store has
# What checks need that only ranks can measure, and what besides only a test can.
_ON_RANKS = ("collective", "active", "training", "operations", "card_pairs")
_TESTED = (*_ON_RANKS, "disks")
# The driver may have to wake up before that, which takes some seconds without persistence mode.
_AWAKE_SECONDS = 1.0  # at least, once the driver is awake
_WAKE_SECONDS = 5.0
_LOOK_SECONDS = 5.0
# Levels that load the GPUs long enough for their own two looks to show more than a stored one.
_OWN_PAIR_LEVELS = LEVELS[2:]


class Preflight(MachineRun):
    """One preflight of this machine: `run` it, print its report, then `remember` it."""

    _kind = "preflight"

    def __init__(self, plan: PreflightPlan, surroundings: Surroundings) -> None:
        """Start reading the history, as any run on this machine, and the listing's note of the GPUs.

        Raises:
            UsageError: the plan names a check that does not exist.
        """
        self._plan = plan
        self._checks = choose_checks(plan)
        self._level = gathering_level(plan, self._checks)
        if self._level == INSTANT:  # which alone cannot wait for a slow history
            self._read_seconds = READ_SECONDS
        measured = [] if self._level == INSTANT else [need for need in _TESTED if wants(self._checks, need)]
        preload = TRAINING_MODULES if "training" in measured else ()
        super().__init__(surroundings, measured, preload)
        self._noted = start_known_gpus()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child processes."""
        super().__exit__(kind, error, trace)
        self._noted.give_up()

    def remember(self) -> str:
        """Store the run, and note the GPUs of a good one; return a warning, empty if all is well."""
        report = self._report
        if report is None or not self._is_good(report):
            return super().remember()
        noting = start_noting(own_machine_key(), known_gpus_of(report.snapshot))
        warning = super().remember()
        finish_noting(noting)
        return warning

    def _is_good(self, report: Report) -> bool:
        # A PASS of only some checks does not prove the machine good: later runs do not compare with it.
        return not (self._plan.only or self._plan.skip) and is_good_state(report)

    def _lacks(self) -> str:
        left_out = sum(wants((check,), *_OF_HISTORY) for check in self._checks)
        count = "1 check has" if left_out == 1 else f"{left_out} checks have"
        return f": {count} nothing to compare with" if left_out else ""

    def _to_judge(
        self, first: Snapshot, measures: Measures, history: Reading[History]
    ) -> tuple[Context, tuple[Check, ...]]:
        plan = self._plan
        snapshot, earlier = self._pair(first, history, measured=measures != Measures())
        if not isinstance(measures.active, Missing):
            from gpudiag.runs.active import with_neighbours

            measures = with_neighbours(measures, snapshot)
        baseline = self._baseline(history, snapshot.host)
        context = Context(
            snapshot,
            measures,
            expected_gpus=_or_missing(plan.expect_gpus),
            at_least_gpus=_or_missing(plan.at_least_gpus),
            expected_driver=_or_missing(plan.expect_driver),
            least_free_memory=_or_missing(plan.least_free_memory),
            earlier=earlier,
            baseline=baseline,
            # The store may be slow or broken; the listing's own note of the GPUs is not.
            known_gpus=self._known_gpus(baseline, history),
            expected_machine=self._surroundings.expected_machine,
            history=history,
            samples=samples_of(measures),
        )
        return context, self._checks

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
        self._surroundings.announce(describe_disk_cost(len(places)))
        return attempt(lambda: measure_disks(places))

    def _measure_on_ranks(self, snapshot: Snapshot) -> Measures:
        if not wants(self._checks, *_ON_RANKS):
            return Measures()
        plan = self._plan
        expected = _or_missing(plan.at_least_gpus if plan.expect_gpus is None else plan.expect_gpus)
        place = self._place(snapshot, expected, force=plan.force)
        if any(check.name == network_loopback.name for check in self._checks):
            place = _reachable(place, snapshot)
        if isinstance(place, Missing):
            return Measures(place, place, place, place, place)
        collective: Reading[CollectiveMeasurement] = NOT_ASKED
        if wants(self._checks, "collective"):
            collective = attempt(lambda: self._measure_collective(place))
        active: Reading[ActiveMeasurement] = NOT_ASKED
        if wants(self._checks, "active"):
            active = attempt(lambda: self._measure_active(place, snapshot))
        training: Reading[tuple[StrategyMeasurement, ...]] = NOT_ASKED
        if wants(self._checks, "training"):
            training = attempt(lambda: self._measure_training(place))
        operations: Reading[CollectiveMeasurement] = NOT_ASKED
        if wants(self._checks, "operations"):
            operations = attempt(lambda: self._measure_operations(place))
        card_pairs: Reading[CollectiveMeasurement] = NOT_ASKED
        if wants(self._checks, "card_pairs"):
            card_pairs = attempt(lambda: self._measure_card_pairs(place, snapshot))
        return Measures(collective, active, training, operations, card_pairs)

    def _measure_collective(self, place: Placement) -> CollectiveMeasurement:
        from gpudiag.runs.preflight_measures import describe_collective_cost, measure_collective

        self._emitter.enter("collective")
        self._surroundings.announce(describe_collective_cost(place))
        return measure_collective(
            place, self._surroundings.python, self._servers, self._emitter.standings.add
        )

    def _measure_operations(self, place: Placement) -> CollectiveMeasurement:
        from gpudiag.runs.preflight_measures import describe_operations_cost, measure_operations

        self._emitter.enter("operations")
        self._surroundings.announce(describe_operations_cost(place))
        return measure_operations(
            place, self._surroundings.python, self._servers, self._emitter.standings.add
        )

    def _measure_card_pairs(self, place: Placement, snapshot: Snapshot) -> Reading[CollectiveMeasurement]:
        from gpudiag.runs.preflight_measures import (
            describe_card_pairs_cost,
            measure_card_pairs,
            why_no_card_pairs,
        )

        why = why_no_card_pairs(place, snapshot)
        if why is not None:
            return why
        self._emitter.enter("card_pairs")
        self._surroundings.announce(describe_card_pairs_cost(place))
        return measure_card_pairs(
            place, self._surroundings.python, self._servers, self._emitter.standings.add
        )

    def _measure_training(self, place: Placement) -> tuple[StrategyMeasurement, ...]:
        from gpudiag.runs.preflight_measures import describe_training_cost, measure_training

        self._emitter.enter("training")
        self._surroundings.announce(describe_training_cost(place, self._level))
        return measure_training(
            place, self._level, self._surroundings.python, self._servers, self._emitter.standings.add
        )

    def _measure_active(self, place: Placement, snapshot: Snapshot) -> Reading[ActiveMeasurement]:
        from gpudiag.runs.active import plan_active

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
        return self._test(plan, place, self._level)

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


def _reachable(place: Reading[Placement], snapshot: Snapshot) -> Reading[Placement]:
    """The placement, or why ranks could not rendezvous there; that fault's own check reports it."""
    if isinstance(place, Missing) or os.environ.get("GLOO_SOCKET_IFNAME"):
        return place
    if judge_interfaces(snapshot.machine) is None:
        return place
    return Missing(MissingReason.ERROR, f"the loopback interface does not work (see {network_loopback.name})")


def _joined(first: Snapshot, again: Snapshot) -> Snapshot:
    """The second snapshot, with what only the first has: torch, GPUtil, CUDA's numbering."""
    ordinals = {device.id.uuid: device.id.cuda_ordinal for device in first.devices}
    devices = tuple(
        replace(device, id=replace(device.id, cuda_ordinal=ordinals.get(device.id.uuid, NOT_ASKED)))
        for device in again.devices
    )
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


def _comparable(stored: Snapshot, now: Snapshot) -> bool:
    """Whether the two are of the same boot and driver version, so that their counters can be compared."""
    return stored.machine.boot_id == now.machine.boot_id and stored.driver_version == now.driver_version


def _or_missing(value: _T | None) -> Reading[_T]:
    return NOT_ASKED if value is None else value
