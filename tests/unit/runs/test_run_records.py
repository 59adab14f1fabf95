"""Flight records of a running job, asked for by its ranks' pipes.

The ranks here have the pipe and the dumps, and nothing else.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudiag.runs.job_run.environment import DUMP_NAME, PIPE_FILE
from gpudiag.runs.job_run.look import stream_records

RANK = Path(__file__).with_name("recording_rank.py")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that answer at their pipes."""
    job = {
        **os.environ,
        **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"},
        PIPE_FILE: f"{tmp_path}/pipe-",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/{DUMP_NAME}",
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(RANK)],
            env={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    yield started
    for process in started:
        process.communicate()


def test_the_rank_that_comes_last_is_found_and_no_dump_is_left(
    ranks: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    earlier = tmp_path / f"{DUMP_NAME}7"  # of a rank that is not here: the job's own
    earlier.write_bytes(b"kept")
    sent: list[Any] = []
    stream_records(sent.append, ranks[0].pid, 0.5, str(tmp_path))
    ((kind, late),) = sent
    assert kind == "late"
    assert (late["rank"], late["last"], late["collectives"]) == (1, 60, 60)
    assert late["late_seconds"] == pytest.approx(0.25)
    assert sorted(path.name for path in tmp_path.iterdir()) == [DUMP_NAME + "7", "pipe-0.pipe", "pipe-1.pipe"]
