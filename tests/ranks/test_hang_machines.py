"""`gpudiag hang` on real jobs of four gloo ranks: on two machines, and with what the job says of itself."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudiag.cli.main import main
from tests.ranks.machines import Machine, four_machines

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(400)]
ROOT = str(Path(__file__).parents[2])
SOON = 200.0

# Rank 2 does not come to the fourth all_reduce. Each rank tells by a file when it is about to wait or to
# sleep.
JOB = """
import sys, time
import torch
import torch.distributed as dist
folder, port = sys.argv[1:]
dist.init_process_group("gloo")
if port != "none":
    from torch.distributed.debug import start_debug_server
    start_debug_server(port=int(port), fetch_timeout=5.0)
tensor = torch.ones(8)
for _ in range(3):
    dist.all_reduce(tensor)
open(f"{folder}/there{dist.get_rank()}", "w").close()
def load_batch():
    time.sleep(1000)
if dist.get_rank() == 2:
    load_batch()
dist.all_reduce(tensor)
"""

# What runs on one machine: torchrun of its two ranks, and once they stand, gpudiag alone and under a
# launcher.
ON_A_MACHINE = """
import os, subprocess, sys, time
from pathlib import Path
node, folder, job_port, look_port = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
wait = lambda names: [time.sleep(0.1) for name in names for _ in iter(lambda: (folder / name).exists(), True)]
place = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2", "--master-addr", "machine1"]
torchrun = [sys.executable, "-m", "torch.distributed.run", *place, "--master-port", job_port]
job = subprocess.Popen([*torchrun, folder / "job.py", folder, "none"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    wait([f"there{rank}" for rank in range(4)])
    time.sleep(4)  # what stands still for less is no hang
    hang = [sys.executable, "-m", "gpudiag", "hang", "--json"]
    with open(folder / f"alone{node}.json", "wb") as out:
        subprocess.run(hang, stdout=out)
    mpirun = {"OMPI_COMM_WORLD_RANK": str(node), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "hang", "MASTER_ADDR": "machine1", "MASTER_PORT": look_port}
    with open(folder / f"together{node}.json", "wb") as out:
        status = subprocess.run(hang, env={**os.environ, **mpirun}, stdout=out).returncode
    (folder / f"status{node}.part").write_text(str(status))
    (folder / f"status{node}.part").rename(folder / f"status{node}")
    wait(["status0", "status1"])
finally:
    job.kill()
    job.wait()
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    with four_machines() as some:
        yield some


def wait_for(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + SOON
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    assert found
    return found


def test_two_machines_give_one_answer_with_a_launcher_and_without(
    machines: list[Machine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "machine.py").write_text(ON_A_MACHINE)
    programs = []
    for node in (0, 1):
        own = tmp_path / f"run{node}"
        own.mkdir()
        variables = {"PYTHONPATH": ROOT, "GLOO_SOCKET_IFNAME": "eth0", "XDG_RUNTIME_DIR": str(own)}
        command = (sys.executable, str(tmp_path / "machine.py"), str(node), str(tmp_path), "29611", "29612")
        programs.append(
            subprocess.Popen(
                machines[node].command(*command),
                env={**os.environ, **variables},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [program.communicate(timeout=SOON)[1] for program in programs]
    assert [(tmp_path / f"status{node}").read_text() for node in (0, 1)] == ["1", "1"], told
    joined = json.loads((tmp_path / "together0.json").read_text())
    assert (tmp_path / "together1.json").read_text() == ""  # rank 0 tells for both
    blamed = joined["jobs"][0]["findings"][0]
    assert (blamed["code"], blamed["subject"]["rank"], blamed["subject"]["host"]) == (
        "hang.sleep",
        2,
        "machine2",
    )
    assert main(["merge", *[str(tmp_path / f"alone{node}.json") for node in (0, 1)], "--json"]) == 1
    merged = json.loads(capsys.readouterr().out)["jobs"][0]["findings"][0]
    assert (merged["code"], merged["subject"]) == (blamed["code"], blamed["subject"])


def test_what_a_real_job_says_of_itself_proves_who_is_missing(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    argv = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    with open(tmp_path / "log", "wb") as log:
        job = subprocess.Popen(
            (*argv, str(tmp_path / "job.py"), str(tmp_path), "0"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(lambda: all((tmp_path / f"there{rank}").exists() for rank in range(4)))
        wait_for(lambda: b"Frontend server started" in (tmp_path / "log").read_bytes())
        time.sleep(4)  # what stands still for less is no hang
        hang = (sys.executable, "-m", "gpudiag", "hang", str(job.pid), "--json")
        looked = subprocess.run(hang, capture_output=True, text=True, timeout=SOON, cwd=ROOT)
    finally:
        job.terminate()
        job.wait(SOON)
    assert looked.returncode == 1, looked.stderr
    verdict = json.loads(looked.stdout)["jobs"][0]
    (finding,) = verdict["findings"]
    assert (finding["code"], finding["subject"]["rank"]) == ("hang.sleep", 2)
    proofs = [one["value"] for one in finding["evidence"] if one["source"] == "flight recorder"]
    assert any("rank 2 has not launched all_reduce number 4" in str(proof) for proof in proofs)
    assert [one["rank"] for one in verdict["job"]["state"]["records"]] != []
