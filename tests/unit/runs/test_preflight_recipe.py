"""The recipe of preflight on machines that the test makes up: what is held against what, and what is kept."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.errors import RankStartError
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import Outcome
from gpudiag.model.history import History
from gpudiag.model.host import NetworkInterface
from gpudiag.model.host_state import HostState
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.runs import machine_run
from gpudiag.runs import preflight as recipe
from gpudiag.runs.machine_run import Surroundings
from gpudiag.runs.placement import Placement
from gpudiag.runs.preflight import Preflight
from tests.unit.model.nouns import NOT_SUPPORTED, make_device, make_machine, make_snapshot

BOOT = make_machine(boot_id="boot-1")
NOW = make_snapshot(make_device(0), machine=BOOT)
LATER = replace(NOW, taken_at=NOW.taken_at + timedelta(seconds=20))
STORED = replace(NOW, taken_at=NOW.taken_at - timedelta(hours=5))
UNKNOWN_STATE = HostState(**dict.fromkeys(HostState.__dataclass_fields__, NOT_SUPPORTED))
NOBODY = Missing(MissingReason.SOURCE_ABSENT, "nothing stored")


class Keeper:
    """A store that gives one history and keeps what it is given."""

    def __init__(self, history: Any, warning: str = "") -> None:
        self.answer = (history, warning)
        self.written: list[Any] = []

    def read(self, deadline_seconds: float) -> tuple[Any, str]:
        return self.answer

    def write(self, run: Any) -> str:
        self.written.append(run)
        return ""

    def close(self) -> None:
        pass


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a preflight over given looks at the machine.

    Gives the contexts that checks saw, and the keeper.
    """

    def go(
        plan: PreflightPlan, looks: list[Snapshot], history: Any = NOBODY, expected: Any = None, warning=""
    ):
        monkeypatch.setenv("GPUDIAG_STATE_DIR", str(tmp_path))
        keeper, contexts, said = Keeper(history, warning), [], []
        remaining = list(looks)
        monkeypatch.setattr(machine_run, "HistoryKeeper", lambda *_: keeper)
        monkeypatch.setattr(recipe, "take_snapshot", lambda *a, **k: remaining.pop(0))
        monkeypatch.setattr(recipe, "start_probes", lambda *a, **k: type("Started", (), {"nvml": None})())
        real = machine_run.run_checks

        def seeing(context, checks):
            contexts.append(context)
            return real(context, checks)

        monkeypatch.setattr(machine_run, "run_checks", seeing)
        told = {} if expected is None else {"expected_machine": expected}
        with Preflight(plan, Surroundings("store", warn=said.append, **told)) as made:
            report = made.run()
            made.remember()
        return report, contexts[-1], keeper, said

    return go


NO_TESTS = tuple(check.name for check in BUILTIN if {"collective", "active", "training"} & set(check.needs))


def test_a_stored_snapshot_is_what_counters_are_held_against(run):
    history = History("a1", "store", last=STORED)
    _, context, *_ = run(PreflightPlan(skip=NO_TESTS), [NOW, LATER], history)
    assert context.earlier == STORED
    assert context.snapshot.taken_at == LATER.taken_at


def test_after_a_reboot_the_runs_own_two_looks_are_compared(run):
    other_boot = replace(STORED, machine=replace(BOOT, boot_id="boot-0"))
    history = History("a1", "store", last=other_boot)
    _, context, *_ = run(PreflightPlan(skip=NO_TESTS), [NOW, LATER], history)
    assert context.earlier == NOW


def test_a_level_that_loads_the_gpus_compares_its_own_two_looks(run):
    history = History("a1", "store", last=STORED)
    _, context, *_ = run(PreflightPlan(level="standard", skip=NO_TESTS), [NOW, LATER], history)
    assert context.earlier == NOW


def test_level_instant_looks_once(run):
    history = History("a1", "store", last=STORED, good=STORED)
    _, context, *_ = run(PreflightPlan(level="instant"), [NOW], history)
    assert (context.snapshot, context.earlier, context.baseline) == (NOW, STORED, STORED)


def test_an_expected_machine_goes_before_the_history(run):
    good = replace(NOW, driver_version="1.0")
    history = History("a1", "store", good=STORED)
    _, context, *_ = run(PreflightPlan(level="instant"), [NOW], history, expected=good)
    assert context.baseline == good


def test_a_history_that_cannot_be_read_is_said_once_and_changes_no_verdict(run):
    broken = Missing(MissingReason.SOURCE_ABSENT, "disk on fire")
    with_it, *_ = run(PreflightPlan(level="instant"), [NOW])
    without, _, _, said = run(PreflightPlan(level="instant"), [NOW], broken, warning="disk on fire")
    assert with_it.verdict is without.verdict
    (words,) = said
    assert re.fullmatch(
        r"disk on fire; gpudiag continues without it: [1-9]\d* checks have nothing to compare with", words
    )
    plan = PreflightPlan(level="instant", only=("gpu.count",))
    _, _, _, said = run(plan, [NOW], broken, warning="disk on fire")
    assert said == ["disk on fire; gpudiag continues without it"]


def test_what_was_run_is_remembered_with_its_verdict(run):
    report, _, keeper, _ = run(PreflightPlan(level="instant"), [NOW])
    (facts,) = keeper.written
    assert (facts.kind, facts.outcome, facts.snapshot) == ("preflight", report.verdict.value, NOW)
    assert facts.keep_snapshot


@pytest.mark.parametrize("part", [{"only": ("gpu",)}, {"skip": ("host",)}])
def test_a_part_of_the_checks_is_remembered_with_the_counters_that_later_rates_need(run, part):
    _, _, keeper, _ = run(PreflightPlan(level="instant", **part), [NOW])
    assert keeper.written[0].keep_snapshot
    assert not keeper.written[0].good


def test_every_chosen_check_has_a_result(run):
    plan = PreflightPlan(level="instant")
    report, *_ = run(plan, [NOW])
    assert [result.check for result in report.results] == [check.name for check in recipe.choose_checks(plan)]


def test_ranks_that_cannot_be_started_are_an_error_with_the_cause(run, monkeypatch):
    def refuse(*arguments):
        raise RankStartError("no more processes", hint="ulimit -u")

    monkeypatch.setattr(machine_run, "place_tests", lambda *a, **k: Placement("gloo", 4))
    monkeypatch.setattr("gpudiag.runs.preflight_measures.measure_collective", refuse)
    monkeypatch.setattr("gpudiag.runs.active.measure_active", lambda *a, **k: refuse())
    monkeypatch.setattr("gpudiag.runs.preflight_measures.measure_training", refuse)
    report, *_ = run(PreflightPlan(level="standard"), [NOW, LATER])
    results = {result.check: result for result in report.results}
    for name in ("collective.all_reduce", "compute.determinism", "active.ranks", "train.ddp"):
        assert results[name].outcome is Outcome.ERROR
        assert "no more processes" in (results[name].reason or "")
    assert report.verdict in (Outcome.ERROR, Outcome.FAIL)


def test_ranks_that_could_not_meet_are_not_started_and_the_fault_is_told_once(run, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("ranks were started")

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(machine_run, "place_tests", lambda *a, **k: Placement("gloo", 4))
    for module in ("preflight_measures.measure_collective", "preflight_measures.measure_training"):
        monkeypatch.setattr(f"gpudiag.runs.{module}", refuse)
    down = NetworkInterface("lo", False, True, 65536, NOBODY, ())
    look = replace(NOW, machine=replace(BOOT, interfaces=(down,), state=UNKNOWN_STATE))
    report, *_ = run(PreflightPlan(), [look, look])
    told = [(found.check, one.code) for found in report.results for one in found.findings]
    assert told.count(("network.loopback", "network.loopback_down")) == 1
    results = {result.check: result for result in report.results}
    for name in ("collective.all_reduce", "train.ddp"):
        assert results[name].outcome is Outcome.ERROR
        assert "network.loopback" in (results[name].reason or "")


def test_what_only_the_first_look_asked_for_is_kept_in_the_second(run):
    first = replace(NOW, devices=(replace(NOW.devices[0], id=replace(NOW.devices[0].id, cuda_ordinal=5)),))
    _, context, *_ = run(PreflightPlan(skip=NO_TESTS), [first, LATER])
    assert context.snapshot.devices[0].id.cuda_ordinal == 5
