"""`gpudiag run` on real torchrun jobs of gloo ranks: the same output and status, and a verdict that names the
rank.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from gpudiag.explain.answer import explain_logs, open_log

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "run_jobs" / "train.py"
ENDINGS_SCRIPT = SCRIPT.with_name("endings.py")
TUTORIAL = ROOT / "benchmarks" / "tutorials" / "methods.py"
LIMIT_SECONDS = 280
RANKS = 2


@dataclass(frozen=True)
class Way:
    """A job that ends in its way, and what the verdict must say first."""

    kind: str
    code: str
    rank: int | None
    words: str


ENDINGS = (
    Way("raises:1", "job.rank_failed", 1, "ValueError: this batch has no labels at train.py:"),
    Way("exits:0", "job.rank_failed", 0, "ended with exit code 3"),
    Way("killed:1", "job.rank_failed", 1, "was killed by SIGKILL"),
)


def job(script: Path, ranks: int = RANKS) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, str(script)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORK": "0.01", **more}


def watched(verdict: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "gpudiag", "run", "--verdict", str(verdict), *flags, "--"]


def ended(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the runs here leave behind is not this machine's history."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GPUDIAG_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


def test_a_tutorial_prints_what_it_prints_without(folder: Path) -> None:
    verdict = folder / "tutorial.json"
    plain, under = ended(job(TUTORIAL)), ended([*watched(verdict), *job(TUTORIAL)])
    assert (under.returncode, under.stdout) == (plain.returncode, plain.stdout) == (0, plain.stdout)
    document = json.loads(verdict.read_text())
    assert document["outcome"] == "pass"
    assert sorted((one["rank"], one["end"]) for one in document["ranks"]) == [
        (0, "finished"),
        (1, "finished"),
    ]
    assert document["folder"] is None
    assert not verdict.with_suffix(".files").exists()


@pytest.mark.parametrize("way", ENDINGS, ids=lambda way: way.kind)
def test_the_first_rank_that_failed_is_named(way: Way, folder: Path) -> None:
    verdict = folder / f"{way.kind.partition(':')[0]}.json"
    done = ended([*watched(verdict), *job(SCRIPT)], KIND=way.kind, AT_STEP="5", STEPS="20")
    assert done.returncode == 1  # as torchrun ends, whatever its ranks did
    document = json.loads(verdict.read_text())
    first = document["findings"][0]
    assert (first["code"], first["subject"].get("rank")) == (way.code, way.rank), document["headline"]
    assert way.words in first["message"]
    own = [line for line in done.stderr.splitlines() if line.startswith("gpudiag:")]
    assert own[0].startswith(f"gpudiag: FAIL rank {way.rank} failed first")
    assert all(len(line) <= 80 for line in own if str(folder) not in line)


@pytest.mark.parametrize(
    "way",
    [
        Way("key_error", "job.rank_failed", 1, "KeyError: 'dog' at endings.py:"),
        Way("ends_early", "job.rank_left", 1, "left: it ended with exit status 0"),
    ],
    ids=lambda way: way.kind,
)
def test_the_last_words_are_those_of_explain(way: Way, folder: Path) -> None:
    """Of scripts without `record`, whose output goes to a pipe.

    benchmarks/last_words.py tries 14 jobs and all outputs.
    """
    verdict = folder / f"{way.kind}.json"
    done = ended([*watched(verdict), *job(ENDINGS_SCRIPT)], KIND=way.kind, AT_STEP="5")
    assert done.returncode == 1
    first = json.loads(verdict.read_text())["findings"][0]
    assert (first["code"], first["subject"].get("rank")) == (way.code, way.rank), first["message"]
    assert way.words in first["message"]
    assert [path.name for path in folder.glob(f"{way.kind}*")] == [verdict.name]  # and nothing beside it
    for name, data in (("job.log", done.stderr.encode()), ("verdict.json", verdict.read_bytes())):
        told = explain_logs([open_log(name, BytesIO(data))]).verdict
        assert told is not None
        assert told.ranks == (way.rank,), told.sentence
        assert way.words.partition(" at ")[0] in told.sentence


@pytest.mark.each_run
def test_a_stall_is_told_with_rank_and_line_before_the_job_is_killed(folder: Path) -> None:
    verdict = folder / "stall.json"
    command = [*watched(verdict, "--stall-after", "8s", "--on-stall", "kill"), *job(SCRIPT)]
    done = ended(command, KIND="sleeps:1", AT_STEP="15", STEPS="1000")
    assert done.returncode == 1
    first = json.loads(verdict.read_text())["findings"][0]
    assert (first["code"], first["subject"].get("rank")) == ("job.stalled", 1), first["message"]
    assert "in load_batch" in first["message"]
    assert "gpudiag: STALL the job stood still" in done.stderr


def test_a_signal_that_ends_the_job_is_no_fault_of_its_ranks(folder: Path) -> None:
    verdict = folder / "ended.json"
    process = subprocess.Popen(
        [*watched(verdict), *job(SCRIPT)],
        env=environment(STEPS="100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    await_ranks(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1  # torchrun ends its ranks and then itself
    document = json.loads(verdict.read_text())
    assert document["findings"][0]["code"] == "job.interrupted", document["headline"]
    assert [(one["name"], one["passed_on"]) for one in document["signals"]] == [("SIGTERM", True)]


def test_ctrl_c_ends_the_job_as_it_does_without(folder: Path) -> None:
    """SIGINT to the group, as the terminal sends it: torchrun's own words and status, and no process left."""
    verdict = folder / "interrupted.json"
    ends = []
    for command in (job(SCRIPT), [*watched(verdict), *job(SCRIPT)]):
        process = subprocess.Popen(
            command,
            env=environment(STEPS="100000"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            await_ranks(process)
            os.killpg(process.pid, signal.SIGINT)
            _, told = process.communicate(timeout=LIMIT_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        last = [line for line in told.splitlines() if not line.startswith("gpudiag:")][-1:]
        ends.append((process.returncode, [re.sub(r"Process \d+", "Process PID", line) for line in last]))
        with pytest.raises(ProcessLookupError):  # nobody is left in the group
            os.killpg(process.pid, 0)
    assert ends[0] == ends[1]
    assert "SignalException" in ends[1][1][0]
    document = json.loads(verdict.read_text())
    assert document["findings"][0]["code"] == "job.interrupted", document["headline"]
    assert [(one["name"], one["passed_on"]) for one in document["signals"]] == [("SIGINT", False)]


def await_ranks(process: "subprocess.Popen[str]") -> None:
    """Wait until both ranks of the job below that process run their script.

    Not for the first alone: a signal while torchrun starts the others has it leave that one behind.
    """
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        started = 0
        for name in filter(str.isdecimal, os.listdir("/proc")):
            command, parents = _described(name)
            started += command[1:2] == ["-u"] and str(SCRIPT) in command and process.pid in parents
        if started == RANKS:
            return
        time.sleep(0.1)
    raise AssertionError("not all ranks were started")


def _described(name: str) -> tuple[list[str], list[int]]:
    """The words of a process's command, and the processes above it."""
    try:
        words = Path(f"/proc/{name}/cmdline").read_text(errors="replace").split("\0")
        parents: list[int] = []
        pid = int(name)
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            parents.append(pid)
    except OSError:
        return [], []
    return words, parents
