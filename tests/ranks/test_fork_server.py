"""One import of torch for several sets of ranks: nothing of one set is in the next, and nothing outlives the
command.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudiag.errors import UsageError
from gpudiag.linux.proc import find_process, is_alive
from gpudiag.model.measure import IncidentKind
from gpudiag.probe.guard import collect
from gpudiag.ranks.agents.fork_server import ForkServer
from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.rank_run import RankRun
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, IMPORT, Budgets
from gpudiag.runs.fork_servers import ForkServers
from tests.ranks.launching import LIMIT_SECONDS, ROOT, Launches, facts

pytestmark = pytest.mark.ranks
PROGRAM = ROOT / "tests" / "ranks" / "two_sets_program.py"


NO_TORCH = Path(__file__).with_name("nothing_of_torch")  # importing it is not what most of these test


@pytest.fixture
def server(launches: Launches) -> Iterator[ForkServer]:
    with ForkServer(variables=_variables(launches)) as server:
        yield server


def _variables(launches: Launches, *folders: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (*(folders or (NO_TORCH,)), ROOT)))
    return {"PYTHONPATH": path, "GPUDIAG_TEST_MARK": launches.mark}


def _run_in(variables: dict[str, str], server: ForkServer, **options: Any) -> RankRun:
    return run_ranks(
        "tests.ranks.rank_entries:report_state",
        run_id="test",
        world_size=2,
        arguments={},
        variables=variables,
        server=server,
        **options,
    )


def _results(run: RankRun) -> list[dict[str, Any]]:
    assert not run.incidents, run.incidents
    return [dict(run.results[rank]) for rank in sorted(run.results)]


def test_sets_of_ranks_share_one_import_and_no_state(launches: Launches) -> None:
    with ForkServer(variables=_variables(launches, ROOT)) as server:
        before = _results(launches.run("report_state", 2, server=server, preload=("torch",)))
        assert {one["server"] for one in before} == {server.pid}
        assert all(one["torch_at_start"] for one in before)
        _results(launches.run("change_everything", 2, server=server, preload=("torch",)))
        after = _results(launches.run("report_state", 2, server=server, preload=("torch",)))
    for one in (*before, *after):
        del one["pid"], one["template"]
    assert [_differences(*pair) for pair in zip(before, after, strict=True)] == [[], []]


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, value, after[name]) for name, value in before.items() if value != after[name]]


def test_whatever_ends_one_set_the_next_is_a_fresh_one(launches: Launches, server: ForkServer) -> None:
    killed = launches.run("rounds", faults=["kill:1@measure"], server=server)
    assert [(one.kind, one.rank) for one in killed.incidents] == [(IncidentKind.DIED, 1)]
    stopped = launches.run("rounds", faults=["stop:0@measure"], server=server)
    assert stopped.incidents[0].kind is IncidentKind.STOPPED
    raised = launches.run("raise_on_rank_1", server=server)
    assert raised.incidents[0].kind is IncidentKind.RAISED
    assert launches.processes() == [server.pid]
    for file in launches.folder.iterdir():
        file.unlink()
    assert {one["rank"] for one in _results(launches.run("rounds", server=server))} == {0, 1, 2}


def test_where_the_server_dies_ranks_are_told_dead_and_the_next_set_imports_for_itself(
    launches: Launches,
) -> None:
    with ForkServer(variables=_variables(launches)) as server:
        there: list[Any] = []

        def kill_once_all_are_there(event: Any) -> None:
            there.append(event)
            if len(there) == 3:
                os.kill(server.pid, signal.SIGKILL)

        run = launches.run("wait", server=server, on_event=kill_once_all_are_there)
        assert [one.kind for one in run.incidents] == [IncidentKind.DIED] * 3
        assert facts(run.incidents[0])["parent_process"] == "killed by SIGKILL"
        launches.wait_until_gone()
        assert not server.is_usable
        (again,) = _results(launches.run("report_state", 1, server=server))
        assert again["server"] == os.getpid()  # the parent of a template of its own


def test_a_stopped_server_neither_hides_a_death_nor_outlives_the_run(launches: Launches) -> None:
    with ForkServer(variables=_variables(launches)) as server:

        def stop_and_kill(event: Any) -> None:
            os.kill(server.pid, signal.SIGSTOP)
            os.kill(event.data["pid"], signal.SIGKILL)

        run = launches.run("wait", 1, server=server, on_event=stop_and_kill)
        assert [one.kind for one in run.incidents] == [IncidentKind.DIED]
        launches.wait_until_gone()


def test_a_torch_that_cannot_be_imported_is_told_as_without_a_server(
    launches: Launches, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text('raise OSError("libtorch_cpu.so: cannot open shared object file")\n')
    broken = _variables(launches, tmp_path)
    with ForkServer(variables=broken) as server:
        (incident,) = _run_in(broken, server).incidents
        assert incident.kind is IncidentKind.START_FAILED
        assert facts(incident)["importing"] == "torch"
        assert "libtorch_cpu.so: cannot open" in str(facts(incident))


def test_a_torch_that_crashes_is_told_by_how_it_ended(launches: Launches, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os\nprint('bad CPU', flush=True)\nos.kill(os.getpid(), 11)\n")
    crashing = _variables(launches, tmp_path)
    with ForkServer(variables=crashing) as server:
        (incident,) = _run_in(crashing, server).incidents
        assert (facts(incident)["signal"], facts(incident)["stderr"]) == ("SIGSEGV", "bad CPU")


def test_an_interpreter_that_cannot_serve_is_refused_in_the_same_words(
    launches: Launches, tmp_path: Path
) -> None:
    absent = str(tmp_path / "python")
    with ForkServer(absent) as server, pytest.raises(UsageError, match="No such file"):
        launches.run("report_state", 1, server=server, python=absent)


def test_an_import_that_does_not_end_is_told_and_ended(launches: Launches, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(3600)\n")
    slow = _variables(launches, tmp_path)
    with ForkServer(variables=slow) as server:
        budgets = Budgets({**DEFAULT_STAGE_SECONDS, IMPORT: 0.5})
        (incident,) = _run_in(slow, server, budgets=budgets).incidents
        assert facts(incident)["importing"] == "torch"
        launches.wait_until_gone()


def test_torch_is_asked_in_a_fork_of_the_server_and_answers_as_a_program_does(launches: Launches) -> None:
    with ForkServers() as servers:
        child = servers.ask_torch(os.environ, None)
        collect([(child, child.started_at + LIMIT_SECONDS)])
        assert child.ending == "finished"
        (build,) = [message[1] for message in child.messages if message[0] == "build"]
        assert build["python"] == sys.executable
        server = servers.server(None, start=False)
        assert server is not None
        assert is_alive(server.pid)
        assert not children_of(server.pid)
    assert not is_alive(server.pid)


def children_of(parent: int) -> list[int]:
    """The live processes whose parent that is."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        state = find_process(int(path.name))
        if state is not None and state.parent_pid == parent and is_alive(state.pid):
            found.append(state.pid)
    return found


def start_sets(launches: Launches, *entries: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(launches.folder), *entries],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **_variables(launches)},
    )


def read_until(program: "subprocess.Popen[str]", moment: str) -> None:
    assert program.stdout is not None
    while json.loads(program.stdout.readline())["moment"] != moment:
        pass


@pytest.mark.sliced
@pytest.mark.parametrize("moment", ["start", "in 0", "after 0", "in 1"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_whenever_the_command_ends(
    launches: Launches, moment: str, number: signal.Signals
) -> None:
    with start_sets(launches, "report_pid", "wait") as program:
        read_until(program, moment)
        program.send_signal(number)
        program.communicate(timeout=LIMIT_SECONDS)
    launches.wait_until_gone()


@pytest.mark.parametrize(
    ("whom", "dead"), [("gpudiag-torch", 2), ("gpudiag-templat", 2), ("gpudiag-rank0", 1)]
)
def test_killing_any_part_is_told_and_the_command_goes_on(launches: Launches, whom: str, dead: int) -> None:
    with start_sets(launches, "wait", "report_pid") as program:
        read_until(program, "in 0")
        read_until(program, "in 0")  # both ranks
        (victim,) = (pid for pid in launches.processes() if _name(pid) == whom)
        os.kill(victim, signal.SIGKILL)
        output, _ = program.communicate(timeout=LIMIT_SECONDS)
    told = {one["moment"]: one for one in map(json.loads, output.splitlines())}
    assert told["after 0"]["incidents"] == ["died"] * dead
    assert (told["after 1"]["incidents"], told["after 1"]["results"]) == ([], 2)
    launches.wait_until_gone()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
