"""Jobs of a simulated machine: watched as those of a real one are, judged by the same judge, and no real
process is looked at.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpudiag.probe.job import simulated
from gpudiag.runs.node_watch import watch_simulated
from gpudiag.simulate.loader import load_scenario

FOUR = "h100x8+busy:0+busy:1+busy:2+busy:3"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "jobs.json"
    monkeypatch.setenv("GPUDIAG_SIMULATED", "a machine")
    monkeypatch.setenv(simulated.JOBS_FILE, str(path))
    return path


def test_a_machine_without_jobs_of_its_own_has_those_of_the_real_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert simulated.read_simulated_jobs() is None
    file.write_text("[]")
    assert simulated.read_simulated_jobs() == ()
    monkeypatch.delenv("GPUDIAG_SIMULATED")
    assert simulated.read_simulated_jobs() is None


def test_a_job_that_hangs_is_reported_once_and_its_end_too(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = load_scenario(f"{FOUR}+job-hangs").jobs
    looks = iter(["[]", json.dumps(jobs), json.dumps(jobs), "[]", "[]"])
    seen: list[dict[str, Any]] = []
    reader, writer = os.pipe()

    def next_look() -> tuple[Any, ...] | None:
        text = next(looks, None)
        if text is None:
            os.close(writer)  # the service has gone
            return ()
        file.write_text(text)
        return simulated.read_simulated_jobs()

    monkeypatch.setattr("gpudiag.runs.node_watch.read_simulated_jobs", next_look)
    monkeypatch.setattr("gpudiag.runs.node_watch._TICK_SECONDS", 0.0)
    watch_simulated(seen.append, reader)
    os.close(reader)
    assert [message["kind"] for message in seen] == ["jobs", "jobs", "stall", "jobs", "over"]
    assert [len(message["jobs"]) for message in seen if message["kind"] == "jobs"] == [0, 1, 0]
    stall = seen[2]
    assert (stall["name"], stall["ranks"]) == ("torchrun 41100: train.py", 4)
    assert stall["finding"]["code"] == "hang.loader"
    assert stall["stood_seconds"] > 0
