"""The place of this process in a launch, by flags and environment, for commands that run on ranks."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpudiag.cli.completion import Word
from gpudiag.cli.options import WholeRange, local_rank_option
from gpudiag.cli.printing import EXIT_STATUSES, print_noun, warn
from gpudiag.errors import ExitStatus, GpudiagError, UsageError
from gpudiag.ranks.agents.file_meeting import place_by_file
from gpudiag.ranks.agents.refusal import require_open_files, share_refusal
from gpudiag.ranks.environment import RankEnvironment, read_claim, read_environment, read_launch
from gpudiag.ranks.launchers import outside_step
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, RENDEZVOUS
from gpudiag.render.job_files import JOB_FORMS, JobShape, render_job

if TYPE_CHECKING:
    from gpudiag.cli.result_options import Wanted
    from gpudiag.model.report import CollectiveReport
    from gpudiag.model.training import TrainingReport
    from gpudiag.render.style import Style
    from gpudiag.runs.nccl_test import NcclTestRun
    from gpudiag.runs.train import TrainingRun

GPUS_PER_MACHINE = 8  # of the machines that most jobs of several machines run on

_Command = TypeVar("_Command", bound=Callable[..., Any])


def launch_options(*, hidden_local_rank: bool = True) -> Callable[[_Command], _Command]:
    """`--rank`, `--world-size`, `--init-method` and `--local-rank`, for launchers that set no variables."""

    def add(command: _Command) -> _Command:
        for option in (
            local_rank_option(hidden=hidden_local_rank),
            click.option(
                "--init-method", metavar="URL", help="With --rank: the rendezvous address, as for torch."
            ),
            click.option("--world-size", type=int, metavar="W", help="With --rank: the number of ranks."),
            click.option(
                "--rank", type=int, metavar="R", help="This process's rank, if your launcher sets no RANK."
            ),
        ):
            command = option(command)
        return command

    return add


def report_ranks(
    run: "NcclTestRun | TrainingRun",
    place: RankEnvironment | None,
    wanted: "Wanted",
    render: "Callable[[Any, Style], str]",
) -> ExitStatus:
    """The exit status of a run on ranks, once it is printed; each machine keeps a copy."""
    status = EXIT_STATUSES[run.report.outcome]
    if run.reporter:
        status = print_noun(run.report, wanted, render, status)
    _keep_report(run.report, place, reporter=run.reporter)
    return status


def _keep_report(
    report: "CollectiveReport | TrainingReport", place: RankEnvironment | None, *, reporter: bool
) -> None:
    """Write this machine's copy of a report over several machines; print where it is if it may differ.

    It does where hosts did not reach each other, or rank 0 was lost.
    """
    from gpudiag.checks.ranks.between_hosts import NETWORK_HOST_CUT_OFF, NETWORK_HOSTS_PARTED
    from gpudiag.runs.machines import keep_own_report

    try:
        kept = keep_own_report(report, place)
    except GpudiagError as error:
        warn(f"{error.message}; this machine keeps no copy of the report")
        return
    if kept is None or place is None:
        return
    cuts = (NETWORK_HOST_CUT_OFF.code, NETWORK_HOSTS_PARTED.code)
    apart = any(finding.code in cuts for finding in report.findings)
    if apart or (reporter and place.rank != 0):
        warn(f"this machine's own report: {kept}; `gpudiag merge` joins it with those of the other hosts")


_SHAPE_FLAGS = {"--nodes": "nodes", "--per-node": "per_node"}
_EMIT_FLAGS = ("--emit", *_SHAPE_FLAGS)


def emit_options(
    nodes_help: str = "With --emit: how many machines.",
) -> Callable[[_Command], _Command]:
    """`--emit FORM` with `--nodes N` and `--per-node N`: the command as a job of several machines."""

    def add(command: _Command) -> _Command:
        for option in (
            click.option(
                "--per-node",
                type=WholeRange(min=1),
                metavar="N",
                help="With --emit: GPUs on each machine, or ranks with --backend gloo.  [default: 8, or 1]",
            ),
            click.option("--nodes", type=WholeRange(min=1), metavar="N", help=nodes_help),
            click.option(
                "--emit",
                type=Word(JOB_FORMS, "a form of job"),
                metavar="FORM",
                help=(
                    "Print this command as a job of several machines, and run"
                    f" nothing: {', '.join(JOB_FORMS)}."
                ),
            ),
        ):
            command = option(command)
        return command

    return add


def emit_job(options: Mapping[str, Any], *, per_machine: bool) -> bool:
    """Whether a job was asked for, and printed instead of anything being run.

    `per_machine`: one process looks at each machine, with all of its GPUs; else there is one for each GPU.

    Raises:
        UsageError: there is no such form, or the flags contradict each other.
    """
    if options["emit"] is None:
        given = [flag for flag, name in _SHAPE_FLAGS.items() if options[name] is not None]
        if given and not (options.get("advise") and given == ["--nodes"]):
            also = " or --advise" if "advise" in options and given[0] == "--nodes" else ""
            raise UsageError(f"{given[0]} is for --emit{also}", hint="a launcher sets the number of ranks")
        return False
    if options["nodes"] is None:
        raise UsageError("--emit needs --nodes N", hint="the number of machines of the job")
    if options.get("nproc") is not None:
        raise UsageError("--nproc is for ranks of this machine", hint="--per-node N is for --emit")
    on_cpu = options.get("backend") == "gloo"
    on_each = options["per_node"] or (1 if on_cpu else GPUS_PER_MACHINE)
    shape = JobShape(options["nodes"], 1 if per_machine else on_each, 0 if on_cpu else on_each)
    sys.stdout.write(render_job(options["emit"], _without_emit(sys.argv[1:]), shape))
    return True


def _without_emit(words: Sequence[str]) -> list[str]:
    """The command line without the flags that ask for the job."""
    kept: list[str] = []
    is_value = False
    for word in words:
        if is_value or word.partition("=")[0] in _EMIT_FLAGS:
            is_value = not is_value and word in _EMIT_FLAGS
        else:
            kept.append(word)
    return kept


def read_place(options: Mapping[str, Any]) -> RankEnvironment | None:
    """This process's place among several; None where nobody gave it one.

    Rank 0 prints on standard error who did.

    Raises:
        UsageError: flags or variables are incomplete, or contradict each other.
    """
    with _shared_refusal(options):
        environment = read_environment(
            os.environ,
            rank=options["rank"],
            world_size=options["world_size"],
            init_method=options["init_method"],
        )
        if environment is not None and environment.world_size > 1:
            require_open_files()
    return _announced(environment, options)


def read_machine_place(options: Mapping[str, Any]) -> RankEnvironment | None:
    """The same for a command that looks at a machine, and can do without a rank."""
    environment = read_launch(
        os.environ,
        rank=options["rank"],
        world_size=options["world_size"],
        init_method=options["init_method"],
    )
    return _announced(environment, options)


@contextlib.contextmanager
def _shared_refusal(options: Mapping[str, Any]) -> Iterator[None]:
    """Let the leader report it if this process cannot take part, and end as the others do.

    Raises:
        SystemExit: the leader reports it, or was not found; the reason is printed before it is looked for.
    """
    try:
        yield
    except GpudiagError as error:
        flags = [options[name] is not None for name in ("rank", "world_size", "init_method")]
        claim = read_claim(os.environ, rank=options["rank"], world_size=options["world_size"])
        if claim is None or (any(flags) and not all(flags)):  # a command line that is not finished
            raise
        warn(f"{error.message}\n  {error.hint}" if error.hint else error.message)
        shared = share_refusal(error, *claim)
        raise SystemExit(ExitStatus.ERROR if shared else error.exit_status) from None


def _announced(environment: RankEnvironment | None, options: Mapping[str, Any]) -> RankEnvironment | None:
    patience = options.get("rendezvous_timeout_seconds") or DEFAULT_STAGE_SECONDS[RENDEZVOUS]
    environment = place_by_file(environment, patience, warn)
    announce_place(environment)
    return environment


def announce_place(environment: RankEnvironment | None) -> None:
    """Print once per launch who started the ranks and how that shows; or what a batch script lacks."""
    if environment is not None:
        if environment.rank == 0:
            warn(environment.describe())
        return
    tasks = outside_step(os.environ)
    if tasks is not None and tasks > 1:
        again = shlex.join(["gpudiag", *sys.argv[1:]])
        warn(
            f"this is the batch script of Slurm job {os.environ['SLURM_JOB_ID']}, and no step of it: "
            f"only this node is tested. For all {tasks} tasks: srun {again}"
        )
