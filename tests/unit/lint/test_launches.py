"""Launchers in shell scripts: where machines meet, and whether the numbers fit."""

from gpudiag.lint.linter import lint_files, lint_text
from gpudiag.model.lint import Severity
from tests.walking import walk

BATCH = "#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={tasks}\n#SBATCH --gres=gpu:8\n"
TORCHRUN = "srun torchrun --nnodes={nodes} --nproc-per-node=8 --rdzv-endpoint={host}:29500 train.py\n"


def script(nodes: str = "2", tasks: str = "1", host: str = "$HEAD", before: str = "") -> str:
    """A batch script that starts torchrun on each of its machines."""
    return (
        (BATCH + before + TORCHRUN)
        .replace("{nodes}", nodes)
        .replace("{tasks}", tasks)
        .replace("{host}", host)
    )


MEETS_ON_LOCALHOST = {
    "literal": script(host="localhost"),
    "address": script(host="127.0.0.1"),
    "variable": script(before="HEAD=localhost\n"),
    "exported": script(before='export HEAD="127.0.0.1"\n'),
    "nodes by Slurm": script(host="localhost").replace("--nnodes=2", "--nnodes=$SLURM_NNODES"),
    "nodes by default": script(host="localhost").replace("--nnodes=2", "--nnodes=${NODES:-4}"),
    "elastic": script(host="localhost").replace("--nnodes=2", "--nnodes=1:4"),
    "continued": script(host="localhost").replace(" --rdzv", " \\\n    --rdzv"),
    "in a shell": script(host="localhost")
    .replace("srun torchrun", 'srun bash -c "torchrun')
    .replace("train.py", 'train.py"'),
    "module": script(host="localhost").replace("torchrun", "python -m torch.distributed.run"),
    "underscores": script(host="localhost").replace("--rdzv-endpoint", "--rdzv_endpoint"),
    "blank": script(host="localhost").replace("--rdzv-endpoint=", "--rdzv-endpoint "),
    "static": script(host="localhost").replace("--rdzv-endpoint=localhost:29500", "--master-addr localhost"),
    "environment": f"{BATCH.format(nodes=2, tasks=8)}export MASTER_ADDR=localhost\nsrun python train.py\n",
}
MEETS_WELL = {
    "first machine": script(before='HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'),
    "one machine": script(nodes="1", host="localhost"),
    "unknown": script(host="localhost").replace("--nnodes=2", "--nnodes=$NODES"),
    "a name like it": script(host="localhost-rack-7"),
    "default": f"{BATCH.format(nodes=2, tasks=8)}export MASTER_ADDR=${{MASTER_ADDR:-localhost}}\n"
    "srun python train.py\n",
    "commented": f"# {TORCHRUN.format(nodes=2, host='localhost')}echo\n",
}
DOES_NOT_FIT = {
    "a launcher for each GPU": script(tasks="8"),
    "tasks in all": script().replace("--ntasks-per-node=1", "--ntasks=16"),
    "one GPU a task": script().replace("srun torchrun", "srun --gpus-per-task=1 torchrun"),
    "more ranks than GPUs": script().replace("gpu:8", "gpu:h100:4"),
    "never reaches the second": script().replace("srun ", ""),
}
FITS = {
    "as it should be": script(),
    "fewer ranks than GPUs": script().replace("--nproc-per-node=8", "--nproc-per-node=4"),
    "own option of srun": script(tasks="8").replace("srun ", "srun --ntasks-per-node=1 "),
    "ranks by srun": f"{BATCH.format(nodes=2, tasks=8)}srun python train.py\n",
    "by ssh": script().replace("srun ", "ssh $node "),
    "ranks in a variable": script(tasks="8").replace("--nproc-per-node=8", "--nproc-per-node=$RANKS"),
}


def codes(text: str) -> list[str]:
    """The findings of a shell script."""
    return [f.code for f in lint_text(text, suffix=".sh").findings if f.severity is Severity.FINDING]


@walk(MEETS_ON_LOCALHOST.items(), lambda item: item[0])
def test_several_machines_cannot_meet_on_localhost(item) -> None:
    assert codes(item[1]) == ["lint.rendezvous_localhost"]


@walk([*MEETS_WELL.items(), *FITS.items()], lambda item: item[0])
def test_launches_that_are_right_are_left_alone(item) -> None:
    assert codes(item[1]) == []


@walk(DOES_NOT_FIT.items(), lambda item: item[0])
def test_ranks_tasks_gpus_and_machines_must_fit(item) -> None:
    assert codes(item[1]) == ["lint.launch_counts"]


def test_localhost_as_a_last_resort_is_a_note() -> None:
    text = script(before="HEAD=$(scontrol show hostnames | head -1 || echo localhost)\n")
    [note] = lint_text(text, suffix=".sh").findings
    assert (note.code, note.severity) == ("lint.rendezvous_localhost", Severity.NOTE)


def test_a_page_that_shows_it_has_a_note() -> None:
    page = f"```bash\n{TORCHRUN.format(nodes=2, host='localhost')}```\n"
    [note] = lint_text(page, suffix=".md").findings
    assert (note.code, note.severity, note.line) == ("lint.rendezvous_localhost", Severity.NOTE, 2)


def test_scripts_beside_the_training_script_are_read_with_the_folder(tmp_path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as dist\n")
    (tmp_path / "launch.sbatch").write_text(script(host="localhost"))
    report = lint_files([tmp_path])
    assert [finding.code for finding in report.findings] == ["lint.rendezvous_localhost"]
    assert len(report.files) == 2


def test_a_command_of_python_is_judged_like_that_of_a_shell() -> None:
    text = """
import subprocess

command = ["torchrun", "--nnodes", "2", "--rdzv-endpoint", "localhost:29500"]
subprocess.run([*command, "train.py"], check=True)
"""
    assert [(f.code, f.line) for f in lint_text(text).findings] == [("lint.rendezvous_localhost", 5)]
