"""Ranks spawned on this machine, without torch: what comes back when all is well and when it is not."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.model.measure import IncidentKind
from gpudiag.model.reading import Missing
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, ENDLESS, STAGES, Budgets
from tests.ranks.launching import Launches, facts
from tools.pythons import find_pythons


def test_every_rank_returns_its_result_and_ends_with_status_0(launches: Launches) -> None:
    seen = []
    run = launches.run("rounds", on_event=seen.append)
    assert run.incidents == ()
    assert {rank: result["rank"] for rank, result in run.results.items()} == {0: 0, 1: 1, 2: 2}
    assert [report.exit for report in run.ranks] == [0, 0, 0]
    assert {report.stage for report in run.ranks} == {"teardown"}
    assert run.reporter
    assert run.launcher == "spawn"
    assert tuple(seen) == run.events
    assert [event.data["finished"] for event in run.events if event.rank == 1] == list(STAGES[1:-1])


def test_ranks_find_their_place_in_the_environment(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run = launches.run("report_environment", world_size=2)
    assert run.results[1] == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.sliced
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("fault", "kind"), [("kill", IncidentKind.DIED), ("stop", IncidentKind.STOPPED)])
def test_a_killed_or_stopped_rank_is_named_with_its_stage(
    launches: Launches, fault: str, kind: IncidentKind, stage: str
) -> None:
    run = launches.run("rounds", faults=[f"{fault}:1@{stage}"])
    assert [(incident.kind, incident.rank, incident.stage) for incident in run.incidents] == [
        (kind, 1, stage)
    ]
    assert run.injected[0].fired


@pytest.mark.sliced
@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_that_stays_out_is_named_with_the_stage_it_missed(launches: Launches, stage: str) -> None:
    run = launches.run("rounds", faults=[f"skip:2@{stage}"])
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.SILENT, 2)]
    assert facts(run.incidents[0])["not_reached"] == f"stage {stage}"


def test_a_rank_that_stays_out_of_an_iteration_is_shown_with_its_stack(launches: Launches) -> None:
    run = launches.run("rounds", faults=["skip:1@2"])
    evidence = facts(run.incidents[0])
    assert evidence["iteration"] == 2
    assert evidence["stuck_at"].endswith("in rounds")
    assert "in stay_out" in evidence["stack"]
    stacks = [report.stack for report in run.ranks]
    assert not any(isinstance(stack, Missing) for stack in stacks)
    assert "in meet" in str(stacks[0])


def test_a_rank_that_enters_something_else_is_named_with_both_sides(launches: Launches) -> None:
    run = launches.run("rounds", faults=["mismatch:2@1"])
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.MISMATCHED, 2)]
    evidence = facts(run.incidents[0])
    assert evidence["operation"] == "barrier uint8[2]"
    assert evidence["expected_operation"] == "barrier uint8[1]"


@pytest.mark.parametrize("stage", ["import", "measure", "teardown"])
def test_a_rank_without_memory_is_told_by_its_exception(launches: Launches, stage: str) -> None:
    run = launches.run("rounds", faults=[f"oom:0@{stage}"])
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.RAISED, 0)]
    assert facts(run.incidents[0])["exception"] == "MemoryError"
    assert run.incidents[0].stage == stage


def test_a_killed_rank_is_shown_with_signal_iteration_and_collective(launches: Launches) -> None:
    run = launches.run("rounds", faults=["kill:2@3"])
    evidence = facts(run.incidents[0])
    assert evidence["signal"] == "SIGKILL"
    assert evidence["iteration"] == 3
    assert evidence["operation"] == "barrier uint8[1]"
    assert evidence["place"].startswith(str(Path(__file__).with_name("rank_entries.py")))
    assert evidence["pid"] == run.ranks[2].pid
    assert run.ranks[2].exit == -9


def test_results_survive_a_death_in_teardown(launches: Launches) -> None:
    run = launches.run("rounds", faults=["kill:0@teardown"])
    assert run.incidents[0].rank == 0
    assert run.results[0]["rank"] == 0


def test_events_of_a_killed_rank_are_kept(launches: Launches) -> None:
    run = launches.run("rounds", faults=["kill:1@verify"])
    assert [event.data["finished"] for event in run.events if event.rank == 1] == list(STAGES[1:-2])


def test_a_rank_that_gpudiag_had_to_kill_has_no_exit_of_its_own(launches: Launches) -> None:
    run = launches.run("rounds", faults=["kill:1@warmup"])
    assert isinstance(run.ranks[0].exit, Missing)


def test_bitflip_is_asked_for_once_on_its_rank(launches: Launches) -> None:
    run = launches.run("rounds", faults=["bitflip:1@2"])
    assert [run.results[rank]["flipped"] for rank in range(3)] == [[], [2], []]
    assert run.injected[0].fired


def test_a_slow_rank_is_late_and_not_an_incident(launches: Launches) -> None:
    run = launches.run("rounds", faults=["slow:2:30"])
    assert run.incidents == ()
    assert run.injected[0].fired


def test_a_fault_beyond_the_last_iteration_is_known_not_to_have_fired(launches: Launches) -> None:
    run = launches.run("rounds", faults=["kill:1@1000"])
    assert run.incidents == ()
    assert not run.injected[0].fired


def test_an_exception_is_the_cause_and_the_lost_connections_are_not(launches: Launches) -> None:
    run = launches.run("raise_on_rank_1")
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.RAISED, 1)]
    evidence = facts(run.incidents[0])
    assert evidence["exception"] == "ValueError"
    assert evidence["message"] == "the data is not there"
    assert evidence["raised_at"].startswith(str(Path(__file__).with_name("rank_entries.py")))
    assert "Traceback" in evidence["stderr"]


def test_lost_connections_alone_are_told_once_by_the_first_rank_that_saw_it(launches: Launches) -> None:
    run = launches.run("lose_connection")
    assert [incident.kind for incident in run.incidents] == [IncidentKind.RAISED]


def test_an_entry_that_cannot_be_imported_is_told_by_rank(launches: Launches) -> None:
    run = launches.run("no_such_module:main", world_size=2)
    assert run.incidents[0].kind is IncidentKind.RAISED
    assert run.incidents[0].stage == "import"
    assert facts(run.incidents[0])["exception"] == "ModuleNotFoundError"


def test_a_rank_that_leaves_without_a_result_has_died(launches: Launches) -> None:
    run = launches.run("exit_early", world_size=1)
    assert run.incidents[0].kind is IncidentKind.DIED
    assert facts(run.incidents[0])["exit_status"] == 0


def test_what_a_rank_writes_is_evidence_and_stays_out_of_our_output(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    run = launches.run("write_everywhere", world_size=1)
    evidence = facts(run.incidents[0])
    assert evidence["exit_status"] == 7
    assert "a line for standard output" in evidence["stderr"]
    assert "as C libraries write it" in evidence["stderr"]
    assert capfd.readouterr() == ("", "")


def test_a_rank_outside_the_collective_is_silent(launches: Launches) -> None:
    run = launches.run("idle_on_rank_1")
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.SILENT, 1)]
    assert facts(run.incidents[0])["waited_in"] == "all_reduce float32[1024] (collective 0)"


def test_a_rank_that_ended_well_before_the_others_is_the_cause(launches: Launches) -> None:
    run = launches.run("end_early_on_rank_1")
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.ENDED, 1)]


@pytest.mark.sliced
def test_a_rank_that_spins_while_the_others_wait_is_told_with_its_line(launches: Launches) -> None:
    run = launches.run("spin_on_rank_1")
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.SILENT, 1)]
    assert "in spin_on_rank_1" in facts(run.incidents[0])["stuck_at"]


class Pause:
    """Stops ranks once all have said their pids, and lets them go on after a while."""

    def __init__(self, ranks: tuple[int, ...], seconds: float) -> None:
        self.ranks, self.seconds = ranks, seconds
        self.pids: dict[int, int] = {}

    def add(self, event: RankEvent) -> None:
        self.pids[event.rank] = event.data["pid"]
        if len(self.pids) == 3:
            threading.Timer(0.3, self._send, (signal.SIGSTOP,)).start()
            threading.Timer(0.3 + self.seconds, self._send, (signal.SIGCONT,)).start()

    def _send(self, number: signal.Signals) -> None:
        for rank in self.ranks:
            os.kill(self.pids[rank], number)


@pytest.mark.parametrize("ranks", [(1,), (0, 1, 2)])
def test_a_pause_that_ends_is_told_with_how_long_it_lasted(
    launches: Launches, ranks: tuple[int, ...]
) -> None:
    run = launches.run("paced", on_event=Pause(ranks, 1.3).add)
    assert len(run.results) == 3
    told = sorted(incident.rank for incident in run.incidents)
    assert told == list(ranks)  # by time: the ranks of one pause are noticed in any order
    assert {incident.kind for incident in run.incidents} == {IncidentKind.PAUSED}
    assert all(facts(incident)["lasted"] >= 1.2 for incident in run.incidents)


def test_what_outlasts_the_time_of_the_run_is_named_when_it_is_over(launches: Launches) -> None:
    budgets = Budgets(run_seconds=5.0, patience=ENDLESS)
    run = launches.run("paced", faults=["stop:1@measure"], budgets=budgets)
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.STOPPED, 1)]
    assert run.seconds > 5.0
    assert not run.timed_out


def test_everybody_inside_is_a_stall(launches: Launches) -> None:
    run = launches.run("stall")
    assert [incident.kind for incident in run.incidents] == [IncidentKind.STALLED]
    assert facts(run.incidents[0])["ranks_inside"] == "0-2"


def test_a_rank_left_behind_in_an_earlier_stage_is_silent(launches: Launches) -> None:
    run = launches.run("stay_in_rendezvous")
    assert [(incident.kind, incident.rank) for incident in run.incidents] == [(IncidentKind.SILENT, 2)]
    assert run.incidents[0].stage == "import"


def test_a_stage_has_a_budget(launches: Launches) -> None:
    budgets = Budgets(stage_seconds={**DEFAULT_STAGE_SECONDS, "measure": 0.5})
    run = launches.run("wait", world_size=2, budgets=budgets)
    assert [incident.kind for incident in run.incidents] == [IncidentKind.STALLED]
    assert not run.timed_out


def test_a_run_has_a_budget_and_nobody_is_to_blame(launches: Launches) -> None:
    run = launches.run("wait", world_size=2, budgets=Budgets(run_seconds=0.5))
    assert run.timed_out
    assert run.incidents == ()


def test_a_module_that_is_not_installed_is_refused_before_anything_starts(launches: Launches) -> None:
    with pytest.raises(UsageError, match="no_such_torch is not installed"):
        launches.run("rounds", preload=("no_such_torch",))


def test_what_may_be_there_is_imported_once_and_what_is_not_costs_nothing(launches: Launches) -> None:
    modules = (
        "no_such_framework",
        "no_such_framework.engine",
        "tests.ranks.broken_import",
        "tests.ranks.once",
    )
    run = launches.run("imported_in", try_preload=modules)
    assert run.incidents == ()
    (imported_in,) = {result["imported_in"] for result in run.results.values()}
    assert imported_in not in {result["here"] for result in run.results.values()}


def test_ranks_are_interpreters_of_their_own_where_an_import_left_forks_without_cuda(
    launches: Launches,
) -> None:
    run = launches.run("imported_in", world_size=2, preload=("tests.ranks.marked_torch", "tests.ranks.once"))
    assert not run.incidents
    results = run.results.values()
    assert len({result["here"] for result in results}) == 2
    assert all(result["imported_in"] == result["here"] for result in results)


def test_an_interpreter_without_torch_is_refused(launches: Launches, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(UsageError, match=f"torch is not installed for {python}") as refused:
        launches.run("rounds", python=python, preload=("torch",))
    assert refused.value.hint == f"{python} -m pip install torch"


def test_an_interpreter_without_gpudiag_runs_ranks(launches: Launches, tmp_path: Path) -> None:
    oldest = next(find_pythons(), Path(sys.executable))  # a user's may be older than ours
    subprocess.run([oldest, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    run = launches.run("report_environment", world_size=2, python=str(tmp_path / "bare" / "bin" / "python"))
    assert run.incidents == ()
    assert len(run.results) == 2


def test_an_interpreter_that_does_not_exist_is_refused(launches: Launches) -> None:
    with pytest.raises(UsageError, match="--python /nowhere/python"):
        launches.run("rounds", python="/nowhere/python")


def test_a_program_that_is_no_interpreter_is_a_failed_start(launches: Launches) -> None:
    run = launches.run("rounds", python="/bin/false")
    assert [(incident.kind, incident.stage) for incident in run.incidents] == [
        (IncidentKind.START_FAILED, "import")
    ]
    assert (facts(run.incidents[0])["exit_status"], facts(run.incidents[0])["ranks"]) == (1, "0-2")


def test_a_broken_torch_is_a_failed_start(launches: Launches, tmp_path: Path) -> None:
    (tmp_path / "broken_torch.py").write_text(
        "raise OSError('libcudart.so.12: cannot open shared object file')\n"
    )
    command = tmp_path / "python"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    command.chmod(0o755)
    run = launches.run("rounds", python=str(command), preload=("broken_torch",))
    assert [incident.kind for incident in run.incidents] == [IncidentKind.START_FAILED]
    assert facts(run.incidents[0])["importing"] == "broken_torch"
    assert "libcudart.so.12" in facts(run.incidents[0])["message"]


def test_a_slow_import_is_a_failed_start(launches: Launches, tmp_path: Path) -> None:
    (tmp_path / "slow_torch.py").write_text("import time\ntime.sleep(60)\n")
    command = tmp_path / "python"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    command.chmod(0o755)
    budgets = Budgets(stage_seconds={**DEFAULT_STAGE_SECONDS, "import": 1.0})
    run = launches.run("rounds", python=str(command), preload=("slow_torch",), budgets=budgets)
    assert [incident.kind for incident in run.incidents] == [IncidentKind.START_FAILED]
    assert facts(run.incidents[0])["importing"] == "slow_torch"


def test_no_descriptor_is_left_open(launches: Launches) -> None:
    launches.run("rounds", world_size=2)
    before = set(os.listdir("/proc/self/fd"))
    launches.run("rounds", world_size=2, faults=["kill:1@measure"])
    assert set(os.listdir("/proc/self/fd")) == before
