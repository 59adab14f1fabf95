"""`gpudiag hang` on real jobs under torchrun that know nothing of it.

benchmarks/hang_matrix.py has all kinds of hang.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.model.documents import loads

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]
JOBS = Path(__file__).parents[2] / "benchmarks/hang_jobs"
PATIENCE_SECONDS = 200


@contextmanager
def job(
    script: str, what: str, folder: Path, ranks: int, **variables: str
) -> Iterator["subprocess.Popen[bytes]"]:
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(ranks), "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with open(folder / "log", "wb") as log:
        started = subprocess.Popen(
            [*torchrun, str(JOBS / script), what, str(folder)], stdout=log, stderr=log, env=environment
        )
    try:
        yield started
    finally:
        started.terminate()  # torchrun ends its ranks
        started.wait(PATIENCE_SECONDS)


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    until = monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert process.poll() is None, (path.parent / "log").read_text()
        assert monotonic() < until, f"{path} did not come"
        sleep(0.1)


def look(pid: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main(["hang", str(pid), "--json"])
    out = capsys.readouterr().out
    if status == ExitStatus.USAGE and not out:  # the process has ended since
        return status, {"jobs": []}
    loads(out)
    return status, json.loads(out)


def look_until(
    code: str, process: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The verdict that blames a rank, once the others have come to wait for it."""
    until = monotonic() + PATIENCE_SECONDS
    while True:
        status, document = look(process.pid, capsys)
        verdict: dict[str, Any] = document["jobs"][0]
        if status == ExitStatus.FAIL:
            assert verdict["findings"][0]["code"] == code, verdict["headline"]
            return verdict
        assert monotonic() < until, verdict["headline"]


@pytest.mark.each_run
def test_the_rank_that_reads_a_fifo_is_named_and_goes_on_afterwards(tmp_path, capsys):
    with job("kinds.py", "fifo", tmp_path, 3) as started:
        wait_for(tmp_path / "ready", started)
        verdict = look_until("hang.file", started, capsys)
        assert verdict["findings"][0]["subject"]["rank"] == 2
        line = next(
            n
            for n, text in enumerate((JOBS / "kinds.py").read_text().splitlines(), 1)
            if text.endswith("# fifo")
        )
        assert f"kinds.py:{line} in load" in verdict["headline"]
        assert "all_reduce" in verdict["headline"]
        assert main(["hang", str(started.pid)]) == ExitStatus.FAIL
        text = capsys.readouterr().out
        assert text.startswith("FAIL rank 2 is not in the all_reduce")
        assert all(len(row) <= 80 for row in text.splitlines() if str(tmp_path) not in row), text
        (tmp_path / "batch").write_text("at last")
        assert started.wait(PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text()


def test_a_call_that_one_rank_left_out_is_told_from_one_that_all_wait_in(tmp_path, capsys):
    with job("kinds.py", "exception", tmp_path, 3) as started:
        wait_for(tmp_path / "ready", started)
        verdict = look_until("hang.exception_swallowed", started, capsys)
        assert verdict["findings"][0]["subject"]["rank"] == 2
        assert [place["ranks"] for place in verdict["places"]] == [[2], [0, 1]]


def test_a_healthy_job_is_not_accused_and_ends_with_the_same_parameters(tmp_path, capsys):
    digests = []
    for looks in (4, 0):
        folder = tmp_path / f"with-{looks}-looks"
        folder.mkdir()
        with job("healthy.py", "python", folder, 2, STEPS_TO_RUN="200") as started:
            wait_for(folder / "begun.1", started)
            for _ in range(looks):
                _, document = look(started.pid, capsys) if started.poll() is None else (0, {"jobs": []})
                for verdict in document["jobs"]:
                    # Once its ranks end, it is neither healthy nor hanging.
                    ends = any(word in verdict["headline"] for word in ("ended", "starting or ending"))
                    codes = {finding["code"] for finding in verdict["findings"]}
                    assert verdict["outcome"] in (("pass", "error") if ends else ("pass",)), verdict[
                        "headline"
                    ]
                    assert codes <= ({"hang.unknown"} if ends else set()), verdict["headline"]
            assert started.wait(PATIENCE_SECONDS) == 0, (folder / "log").read_text()
        digests.append((folder / "digest").read_text())
    assert digests[0] == digests[1]
