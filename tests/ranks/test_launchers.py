"""gpudiag's commands as real launchers start them: who was recognised, one report, one exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launchers import command_of
from tests.ranks.nccl_test_command import GPUDIAG, run

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.slow]

SMALL = ("nccl-test", "--backend", "gloo", "--max-bytes", "1K", "--iterations", "3", "--json")


def gpudiag(start: tuple[str, ...], *flags: str) -> tuple[int, Any, str]:
    """Exit status, the one document on standard output, and standard error."""
    completed = run(*start, "-m", "gpudiag", *flags)
    assert not completed.left_behind
    return completed.status, completed.document(), completed.error


@pytest.mark.parametrize("launched_by", ["mpirun", "mpiexec", "srun"], indirect=True)
def test_who_started_the_ranks_is_told_once_and_so_is_the_report(launched_by: str) -> None:
    status, document, error = gpudiag(command_of(launched_by, 3), *SMALL)
    assert (status, document["outcome"], document["launcher"]) == (0, "pass", launched_by)
    assert document["world_size"] == 3
    assert error.count(f"gpudiag: started by {launched_by} (") == 1


@pytest.mark.parametrize("launched_by", ["srun"], indirect=True)
def test_ranks_of_several_nodes_of_slurm_meet_though_no_name_leads_to_one(launched_by: str) -> None:
    start = ("srun", "--immediate=30", "--nodes=4", "--ntasks-per-node=1", sys.executable)
    status, document, error = gpudiag(start, *SMALL)
    assert (status, document["outcome"], document["world_size"]) == (0, "pass", 4)
    assert "4 ranks, rank 0 on 127.0.0.1" in error


@pytest.mark.parametrize("launched_by", ["srun"], indirect=True)
def test_a_preflight_of_several_nodes_is_one_report_and_one_exit_status(launched_by: str) -> None:
    start = ("srun", "--immediate=30", "--nodes=3", "--ntasks-per-node=1", sys.executable)
    flags = ("preflight", "--level", "instant", "--only", "host.disk", "--json")
    status, document, _ = gpudiag(start, *flags)
    assert (document["schema"], len(document["machines"])) == ("gpudiag.merged/1", 3)
    assert status == {"pass": 0, "warn": 0, "fail": 1, "error": 3}[document["verdict"]]


@pytest.mark.parametrize("launched_by", ["srun"], indirect=True)
@pytest.mark.parametrize(("quorum", "status"), [((), 1), (("--quorum", "2"), 0), (("--quorum", "3"), 1)])
def test_the_nodes_to_leave_out_are_named_as_srun_takes_them(
    launched_by: str, quorum: tuple[str, ...], status: int
) -> None:
    """On n02 eight GPUs are expected, which this machine has not."""
    gpus = '[ "$SLURMD_NODENAME" = n02 ] && gpus=8 || gpus=0; exec "$0" -m gpudiag "$@" --expect-gpus $gpus'
    start = ("srun", "--immediate=30", "--nodes=3", "--ntasks-per-node=1", "sh", "-c", gpus, sys.executable)
    completed = run(
        *start, "preflight", "--level", "instant", "--only", "source.nvml,host.disk", "--json", *quorum
    )
    document = completed.document()
    assert (document["verdict"], document["unfit"], document["leave_out"]) == (
        "fail",
        ["n02"],
        "--exclude=n02",
    )
    assert completed.status == status
    assert ("2 machines pass, enough for --quorum 2" in completed.error) == (status == 0)


@pytest.mark.parametrize("launched_by", ["mpirun"], indirect=True)
def test_a_bandwidth_test_runs_once_for_each_machine(launched_by: str) -> None:
    status, document, _ = gpudiag(command_of(launched_by, 2), "bandwidth", "--test", "memory_copy", "--json")
    assert document["schema"] == "gpudiag.report/1"
    assert status == {"pass": 0, "warn": 0, "fail": 1, "error": 3}[document["verdict"]]


@pytest.mark.parametrize("launched_by", ["mpirun"], indirect=True)
def test_training_by_mpirun_is_verified(launched_by: str) -> None:
    flags = ("train", "--backend", "gloo", "--strategy", "ddp", "--steps", "3", "--json")
    status, document, _ = gpudiag(command_of(launched_by, 2), *flags)
    (result,) = document["strategies"]
    assert (status, result["verified"], result["launcher"]) == (0, True, "mpirun")


def test_the_older_launcher_of_torch_hands_on_a_flag_and_is_understood() -> None:
    start = (sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node", "2", "--master-port", "0")
    completed = run(*start, "-m", "gpudiag", *SMALL)
    assert completed.status != 0  # port 0 is no place to meet: told, not hung
    assert "MASTER_PORT is 0" in completed.error
    start = (sys.executable, "-m", "torch.distributed.launch", "--standalone", "--nproc-per-node", "2")
    status, document, _ = gpudiag(start, *SMALL)
    assert (status, document["launcher"], document["world_size"]) == (0, "torchrun", 2)


def test_ranks_that_all_see_device_0_are_told_apart() -> None:
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--virtual-local-rank")
    status, document, _ = gpudiag((*start, "--nproc-per-node", "3"), *SMALL)
    assert (status, document["outcome"], document["world_size"]) == (0, "pass", 3)


def test_flags_may_leave_the_meeting_place_to_the_environment(tmp_path: Any) -> None:
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29588"}
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "gpudiag", *SMALL, "--rank", str(rank)),
                *("--world-size", "2", "--init-method", "env://"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    (document,) = [json.loads(output) for output in outputs if output]
    assert (document["launcher"], document["world_size"]) == ("explicit", 2)


def emitted(form: str, *flags: str) -> str:
    """The job file that the command prints."""
    return run(*GPUDIAG, *flags, "--emit", form).output


@pytest.mark.parametrize("launched_by", ["srun"], indirect=True)
def test_the_emitted_slurm_script_runs_as_printed(launched_by: str, tmp_path: Path) -> None:
    script, result = tmp_path / "job.sh", tmp_path / "result.json"
    script.write_text(emitted("slurm", "--max-bytes", "1K", "--nodes", "2", "--output", str(result)))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sbatch", "--wait", script],
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
        timeout=90,
        capture_output=True,
    )
    (log,) = tmp_path.glob("gpudiag-*.txt")
    document = json.loads(result.read_text())
    assert (done.returncode, document["outcome"], document["world_size"]) == (0, "pass", 2), log.read_text()


@pytest.mark.parametrize("launched_by", ["mpirun"], indirect=True)
def test_the_emitted_mpirun_command_runs_as_printed(launched_by: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(emitted("mpi", "--max-bytes", "1K", "--nodes", "1", "--per-node", "2", "--json"))
    # As root, and on a machine with fewer processors than ranks: that is for the one who starts it to allow.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    allowed["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", script],
        env={**os.environ, **allowed, "PATH": path},
        timeout=90,
        capture_output=True,
        text=True,
    )
    document = json.loads(done.stdout)
    assert (done.returncode, document["launcher"], document["world_size"]) == (0, "mpirun", 2), done.stderr


def test_the_emitted_torchrun_script_runs_on_each_machine(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(emitted("torchrun", "--max-bytes", "1K", "--nodes", "2", "--json"))
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29587"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    processes = [
        subprocess.Popen(
            ["sh", script],
            env={**os.environ, **place, "PATH": path, "NODE_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    (document,) = [json.loads(output) for output, _ in outputs if output]
    assert (document["launcher"], document["world_size"]) == ("torchrun", 2)


@pytest.mark.each_run
@pytest.mark.parametrize("command", ["nccl-test", "bandwidth", "train", "preflight"])
def test_the_emitted_manifest_is_valid(command: str, tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        run(sys.executable, "-m", "gpudiag", command, "--emit", "kubernetes", "--nodes", "4").output
    )
    program = Path(sys.executable).parent / "kubernetes-validate"
    checked = subprocess.run([program, "--strict", manifest], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
