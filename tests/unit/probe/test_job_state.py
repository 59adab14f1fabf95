"""What a job says of itself is read where its environment says that it lies, and nowhere else."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpudiag.model.job import Job, KnownBy, RankSeen
from gpudiag.model.job_state import JobState
from gpudiag.probe.job.find import find_launched_jobs
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.state import read_job_state

RECORDS = Path(__file__).parent / "flight_records" / "skip"
SOON = 30.0

# What the monitor of NCCL's process group does with its pipe: a byte in it, and the dump is written.
ANSWERS_PIPE = """
import os, shutil, sys, time
pipe, source, target = sys.argv[1:]
os.mkfifo(pipe)
reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while True:
    if os.read(reader, 128):
        shutil.copyfile(source, target)
    time.sleep(0.05)
"""
LISTENS = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.probe.ras_server import FakeCommunicator, FakeRank, as_json, ras_server
import os
answer = as_json([FakeCommunicator([FakeRank({"AllReduce": 7}, pid=os.getpid())])])
with ras_server(lambda *_: answer, port=int(sys.argv[2])) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


class Ranks:
    """Processes that stand for ranks: each has the variables that a rank would have."""

    def __init__(self) -> None:
        self.programs: list[subprocess.Popen[str]] = []

    def start(self, rank: int, variables: Mapping[str, str], *argv: str) -> tuple[RankSeen, str]:
        command = [sys.executable, "-c", *argv] if argv else ["sleep", "600"]
        program = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.programs.append(program)
        said = program.stdout.readline().strip() if argv and program.stdout else ""
        while not argv and Path(f"/proc/{program.pid}/comm").read_text().strip() != "sleep":
            time.sleep(0.01)
        return RankSeen(program.pid, rank, rank, KnownBy.ENVIRONMENT, "x", 0.5), said

    def end(self) -> None:
        for program in self.programs:
            program.kill()
            program.communicate()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.end()


def read(*seen: RankSeen) -> JobState:
    return read_job_state(Job("j", "h", "torchrun", None, 4, None, seen), deadline_seconds=SOON)


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_dumps_are_read_where_the_variables_say(name: str, ranks: Ranks, tmp_path: Path) -> None:
    seen = [ranks.start(rank, {name: f"{tmp_path}/trace_"})[0] for rank in (0, 2)]
    for rank in (0, 2):
        (tmp_path / f"trace_{rank}").write_bytes((RECORDS / f"comm_lib_trace_rank_{rank}").read_bytes())
    state = read(*seen)
    assert [(one.rank, len(one.pending)) for one in state.records] == [(0, 1), (2, 0)]
    assert state.notes == ()
    assert all(isinstance(one.dumped_at, float) for one in state.records)


def test_a_dump_from_before_the_rank_and_a_broken_one_are_not_taken(ranks: Ranks, tmp_path: Path) -> None:
    seen = [ranks.start(rank, {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"})[0] for rank in (0, 1)]
    old = tmp_path / "trace_0"
    old.write_bytes((RECORDS / "comm_lib_trace_rank_0").read_bytes())
    os.utime(old, (1, 1))
    (tmp_path / "trace_1").write_bytes(b"\x80\x02cos\nsystem\n.")
    state = read(*seen)
    assert state.records == ()
    assert len(state.notes) == 1
    assert "rank 1" in state.notes[0]
    assert "os.system" in state.notes[0]


def test_a_dump_is_asked_for_by_the_pipe_and_an_earlier_one_is_kept(ranks: Ranks, tmp_path: Path) -> None:
    variables = {
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
    }
    source, target = RECORDS / "comm_lib_trace_rank_2", tmp_path / "trace_2"
    seen, _ = ranks.start(2, variables, ANSWERS_PIPE, f"{tmp_path}/pipe_2.pipe", str(source), str(target))
    state = read(seen)
    assert [(one.rank, len(one.calls)) for one in state.records] == [(2, 6)]
    assert "asked for by the pipes of ranks 2" in state.notes[0]
    target.write_bytes((RECORDS / "comm_lib_trace_rank_0").read_bytes())
    again = read(seen)
    assert [len(one.calls) for one in again.records] == [7]  # that of the timeout, and no new one
    assert again.notes == ()


def test_a_pipe_that_is_none_or_that_nobody_reads_is_left_alone(ranks: Ranks, tmp_path: Path) -> None:
    variables = {
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
    }
    os.mkfifo(tmp_path / "pipe_0.pipe")
    (tmp_path / "pipe_1.pipe").write_text("kept")
    state = read(*[ranks.start(rank, variables)[0] for rank in (0, 1)])
    assert state == JobState()
    assert (tmp_path / "pipe_1.pipe").read_text() == "kept"


def test_ras_is_asked_where_a_rank_listens_and_nobody_else_is(ranks: Ranks) -> None:
    root = str(Path(__file__).parents[3])
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    listens, said = ranks.start(0, {"NCCL_RAS_ADDR": address}, LISTENS, root, address.rpartition(":")[2])
    assert said == address
    (looks,) = read(listens).ras
    assert (looks.address, len(looks.looks)) == (address, 2)
    other, _ = ranks.start(0, {"NCCL_RAS_ADDR": address})
    assert read(other) == JobState()  # a process listens there, and it is no rank of this job
    off, _ = ranks.start(0, {"NCCL_RAS_ADDR": address, "NCCL_RAS_ENABLE": "0"})
    assert read(off) == JobState()


def test_a_job_without_any_of_it_says_nothing(ranks: Ranks, tmp_path: Path) -> None:
    seen, _ = ranks.start(0, {"XDG_CACHE_HOME": str(tmp_path)})
    assert read(seen) == JobState()
    gone = RankSeen(1 << 22, 0, 0, KnownBy.ENVIRONMENT, "x", 0.5)
    assert read(gone) == JobState()


def test_looks_that_a_launcher_starts_beside_a_job_are_no_job() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}

    def process(pid: int, *words: str) -> Process:
        return Process(pid, 1, "S", 1.0, words[0], words, environment=variables, python=True)

    looks = (
        ("/usr/bin/gpudiag", "hang"),
        ("python", "-m", "gpudiag", "hang", "--json"),
        ("timeout", "9", "gpudiag", "hang"),
    )
    for words in looks:
        assert find_launched_jobs({7: process(7, *words)}) == []
    for words in (("python", "train.py", "gpudiag"), ("gpudiag", "train"), ("python", "hang", "gpudiag")):
        assert len(find_launched_jobs({7: process(7, *words)})) == 1
