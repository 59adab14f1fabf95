"""Commands as jobs of several machines: what shells, Slurm and Kubernetes are given."""

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from gpudiag.render.job_files import JOB_FORMS, JobShape, render_job

ARGUMENTS = ("nccl-test", "--op", "all_reduce", "--output", "a file")
GPUS, CPU = JobShape(4, 8, 8), JobShape(4, 1, 0)


@pytest.mark.parametrize("form", JOB_FORMS)
def test_the_command_is_there_as_it_was_given(form: str) -> None:
    text = render_job(form, ARGUMENTS, GPUS)
    assert shlex.join(ARGUMENTS) in text or all(f'- "{word}"' in text for word in ARGUMENTS)


@pytest.mark.parametrize("form", ["torchrun", "slurm", "mpi"])
@pytest.mark.parametrize("nodes", [1, 2, 40])
def test_scripts_are_shell(form: str, nodes: int, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text(render_job(form, ARGUMENTS, JobShape(nodes, 8, 8)))
    checked = subprocess.run(["sh", "-n", script], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_slurm_gives_each_rank_a_gpu_and_asks_for_none_on_the_cpu() -> None:
    assert "#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n" in render_job("slurm", ARGUMENTS, GPUS)
    assert "gpus" not in render_job("slurm", ARGUMENTS, CPU)


def test_one_process_looks_at_all_gpus_of_a_machine() -> None:
    text = render_job("slurm", ("preflight",), JobShape(2, 1, 8))
    assert "#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n" in text


def test_pods_with_one_rank_need_no_torchrun_and_others_do() -> None:
    _, one = yaml.safe_load_all(render_job("kubernetes", ARGUMENTS, CPU))
    _, eight = yaml.safe_load_all(render_job("kubernetes", ARGUMENTS, GPUS))
    (alone,), (several,) = (job["spec"]["template"]["spec"]["containers"] for job in (one, eight))
    assert alone["command"][0] == "gpudiag"
    assert {"name": "WORLD_SIZE", "value": "4"} in alone["env"]
    assert "resources" not in alone
    assert several["command"][:3] == ["torchrun", "--nnodes=4", "--nproc-per-node=8"]
    assert several["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_the_first_pod_has_the_name_that_the_others_look_for() -> None:
    service, job = yaml.safe_load_all(render_job("kubernetes", ARGUMENTS, GPUS))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    master = next(one["value"] for one in container["env"] if one["name"] == "MASTER_ADDR")
    # A pod of an indexed Job is called JOB-INDEX, under the subdomain that the Service has the name of.
    assert master == f"{job['metadata']['name']}-0.{job['spec']['template']['spec']['subdomain']}"
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
