"""Whatever ends a run, nothing of it is left: no process, no directory."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from gpudiag.linux.proc import find_process
from gpudiag.model.measure import IncidentKind
from tests.ranks.launching import LIMIT_SECONDS, Launches, facts, wait_for


def read_event(stream: IO[str] | None) -> dict[str, object]:
    assert stream is not None
    event: dict[str, object] = json.loads(stream.readline())["event"]
    return event


def template_of(launches: Launches) -> int:
    """The template process of the only run: the parent of its ranks."""
    return next(
        pid for pid in launches.processes() if Path(f"/proc/{pid}/comm").read_text() == "gpudiag-templat\n"
    )


def is_stopped(pid: int) -> bool:
    process = find_process(pid)
    return process is not None and process.state == "T"


def directories(launches: Launches) -> list[Path]:
    return list(Path(os.environ["XDG_RUNTIME_DIR"]).glob("gpudiag/*"))


@pytest.mark.sliced
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGQUIT, 131),
        (signal.SIGUSR1, 138),
        (signal.SIGXCPU, 152),
        (signal.SIGABRT, 134),
    ],
)
def test_an_interrupt_ends_every_rank_and_then_the_program(
    launches: Launches, number: signal.Signals, status: int
) -> None:
    with launches.start_program("wait") as program:
        read_event(program.stdout)
        program.send_signal(number)
        program.communicate(timeout=LIMIT_SECONDS)
    assert program.returncode in (status, -number)  # KeyboardInterrupt ends Python by the signal itself
    assert not directories(launches)
    launches.wait_until_gone()


def test_a_signal_that_somebody_ignores_ends_nothing(launches: Launches) -> None:
    with launches.start_program("paced", command=("nohup", sys.executable)) as program:
        read_event(program.stdout)
        program.send_signal(signal.SIGHUP)
        program.communicate(timeout=LIMIT_SECONDS)
    assert program.returncode == 0


def test_an_interrupt_during_the_import_ends_it(launches: Launches) -> None:
    with launches.start_program("wait", preload=["tests.ranks.slow_import"]) as program:
        wait_for(launches.processes, "the template")
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=LIMIT_SECONDS)
    assert not directories(launches)


def test_killing_the_agent_kills_the_ranks_and_the_next_start_cleans_up(launches: Launches) -> None:
    with launches.start_program("wait") as program:
        read_event(program.stdout)
        program.kill()
        program.communicate(timeout=LIMIT_SECONDS)
    launches.wait_until_gone()
    assert len(directories(launches)) == 1
    launches.run("report_environment", world_size=1)
    assert not directories(launches)


def test_killing_the_template_kills_the_ranks_and_is_told(launches: Launches) -> None:
    with launches.start_program("wait") as program:
        for _ in range(3):  # until every rank is there
            read_event(program.stdout)
        os.kill(template_of(launches), signal.SIGKILL)
        output, _ = program.communicate(timeout=LIMIT_SECONDS)
    launches.wait_until_gone()
    incidents = json.loads(output.splitlines()[-1])["run"]["incidents"]
    assert [incident["kind"] for incident in incidents] == ["died"] * 3
    assert {
        "name": "parent_process",
        "value": "killed by SIGKILL",
        "unit": None,
        "limit": None,
        "source": "wait status",
    } in incidents[0]["evidence"]


def test_a_stopped_template_does_not_hide_a_death(launches: Launches) -> None:
    with launches.start_program("wait") as program:
        pid = read_event(program.stdout)["pid"]
        assert isinstance(pid, int)
        os.kill(template_of(launches), signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        output, _ = program.communicate(timeout=LIMIT_SECONDS)
    incidents = json.loads(output.splitlines()[-1])["run"]["incidents"]
    assert [incident["kind"] for incident in incidents] == ["died"]
    launches.wait_until_gone()


def test_a_stopped_rank_dies_with_its_agent(launches: Launches) -> None:
    with launches.start_program("wait", world_size=1, faults=["stop:0@measure"]) as program:
        wait_for(lambda: any(is_stopped(pid) for pid in launches.processes()), "the stop")
        program.kill()
        program.communicate(timeout=LIMIT_SECONDS)
    launches.wait_until_gone()


def test_a_directory_in_use_is_left_alone(launches: Launches) -> None:
    with launches.start_program("wait") as program:
        read_event(program.stdout)
        in_use = directories(launches)
        launches.run("report_environment", world_size=1)
        assert directories(launches) == in_use
        program.terminate()
        program.communicate(timeout=LIMIT_SECONDS)


def test_a_second_interrupt_does_not_disturb_the_end(launches: Launches) -> None:
    with launches.start_program("wait") as program:
        read_event(program.stdout)
        for _ in range(5):
            program.send_signal(signal.SIGINT)
        program.communicate(timeout=LIMIT_SECONDS)
    assert not directories(launches)
    launches.wait_until_gone()


def test_a_fault_leaves_no_process(launches: Launches) -> None:
    run = launches.run("rounds", faults=["stop:0@measure"])
    assert run.incidents[0].kind is IncidentKind.STOPPED
    assert "stopped_for" in facts(run.incidents[0])
    assert launches.processes() == []


def test_output_of_the_program_is_only_its_own(launches: Launches) -> None:
    program = launches.start_program("write_everywhere", world_size=2)
    output, errors = program.communicate(timeout=LIMIT_SECONDS)
    assert errors == ""
    assert [set(json.loads(line)) for line in output.splitlines()] == [{"reporter", "run"}]


@pytest.mark.parametrize("delay_seconds", [0.02, 0.05, 0.08, 0.11, 0.14, 0.18])
def test_killing_the_agent_at_any_moment_leaves_no_process(launches: Launches, delay_seconds: float) -> None:
    with launches.start_program("wait") as program:
        time.sleep(delay_seconds)
        program.kill()
        program.communicate(timeout=LIMIT_SECONDS)
    launches.wait_until_gone()
