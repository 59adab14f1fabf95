"""A launcher whose numbers disagree with what the scheduler starts."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.launches import Launch, LaunchScript, read_launches
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules.launch_module import commands_of
from gpudiag.model.lint import Severity

_RANKS = ("nproc-per-node",)
_RUN_ELSEWHERE = ("srun", "mpirun", "mpiexec", "ssh", "clush", "parallel", "$LAUNCH", "${LAUNCH", "$RUN")


def _find(program: Program) -> Iterator[Mistake]:
    for step, text in commands_of(program):
        script = read_launches([Line(text, 1)])
        for launch in script.launches:
            for message, advice in _judge(script, launch):
                yield Mistake(step.node, message, "", advice=advice)


def find_commands(lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
    """The launches whose ranks, tasks, GPUs and machines disagree; what a page only shows is a note."""
    script = read_launches(lines)
    for launch in script.launches:
        for message, advice in _judge(script, launch):
            line = next((launch.places[name] for name in _RANKS if name in launch.places), launch.line)
            severity = None if run else Severity.NOTE
            yield Mistake(ast.Pass(), message, "", severity=severity, line=line, advice=advice)
    if "cpus-per-task" in script.directives and not any(_GIVES_CPUS.search(line.text) for line in lines):
        starts = next((line for line in lines if _STARTS_TASKS.match(line.text)), None)
        if starts is not None:
            yield Mistake(
                ast.Pass(),
                "srun gives each task one CPU: since Slurm 22.05 it does not"
                " take --cpus-per-task from sbatch",
                "",
                severity=Severity.NOTE,
                line=starts,
                advice="export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK in front of it",
            )


_STARTS_TASKS = re.compile(r"\s*(?:time\s+)?srun\b.*(?:python|torchrun|accelerate|\.sh\b|\\$)")
_GIVES_CPUS = re.compile(
    r"^(?!\s*#).*(?:cpus-per-task|CPUS_PER_TASK|\s-c[ =]?[\d$]|--exclusive|--exact|cpu-bind)"
)


def _judge(script: LaunchScript, launch: Launch) -> Iterator[tuple[str, str]]:
    """What does not fit, and what to do."""
    given = launch.options.get("nproc-per-node")
    ranks = script.number(given)
    tasks = script.tasks_per_node(launch) if launch.under == "srun" else None
    if tasks is not None and tasks > 1 and (given in ("gpu", "auto") or (ranks or 1) > 1):
        yield (
            (
                f"srun starts {tasks} launchers on each machine, and each of them starts "
                f"{ranks or 'a rank for each GPU'}"
            )
            + (" ranks" if ranks else ""),
            "let srun start one launcher on each machine: --ntasks-per-node=1",
        )
        return
    each = script.number({**script.directives, **launch.under_options}.get("gpus-per-task"))
    if launch.under == "srun" and each is not None and ranks is not None and each < ranks:
        yield (
            f"the launcher starts {ranks} ranks, and Slurm gives its task {_gpus(each)}",
            f"give the one task of each machine all its GPUs: --gpus-per-task={ranks}",
        )
        return
    gpus = script.gpus_per_node(launch)
    if gpus is not None and ranks is not None and ranks > gpus > 0:
        yield (
            f"{ranks} ranks are started on each machine, and the job has {_gpus(gpus)} there",
            f"start one rank for each GPU: --nproc-per-node={gpus}",
        )
        return
    nodes = script.number(script.directives.get("nodes"))
    wanted = script.number(launch.options.get("nnodes"))
    if nodes is not None and nodes > 1 and wanted == nodes and not _reaches_others(script, launch):
        yield (
            f"torchrun waits for {nodes} machines, and the batch script runs on the first one only",
            f"start it on each machine: srun --ntasks-per-node=1 {launch.line.text.strip().split()[0]} ...",
        )


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _reaches_others(script: LaunchScript, launch: Launch) -> bool:
    """Whether srun, ssh or the like runs commands on the other machines, also in a variable or a file."""
    return launch.under is not None or any(word in script.text for word in _RUN_ELSEWHERE)


# Source: torchrun's documentation, Slurm's of srun, and its release notes of 22.05.
RULE = Rule(
    title="ranks, tasks, GPUs and CPUs of a launch do not fit",
    why=(
        "torchrun starts the ranks of a machine, so the scheduler must start one torchrun on each machine, "
        "with all GPUs of it. If srun starts one for each GPU as well, there are eight times too many "
        "ranks: they share GPUs or wait for ports and for each other."
    ),
    find=_find,
    find_commands=find_commands,
)
