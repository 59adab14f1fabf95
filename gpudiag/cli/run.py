"""`gpudiag run`: somebody's job as it is, watched."""

import os
import sys
from pathlib import Path

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.completion import Word
from gpudiag.cli.options import store_option
from gpudiag.errors import UsageError

_ON_STALL = ("report", "kill")
_SEPARATOR = "--"
_EXAMPLES = """\b
Examples:
  gpudiag run -- torchrun --nproc-per-node 8 train.py --lr 1e-4
  srun gpudiag run --verdict run-%h.json -- torchrun ... train.py
  gpudiag run --stall-after 90s --on-stall kill -- python train.py
The job's output is its own; gpudiag's messages go to standard error, with
`gpudiag:` before it. docs/run.md describes what is watched, and how."""


class _CommandBehindSeparator(click.Command):
    """A command whose last arguments are another command, and begin behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the other command off before click reads any of its flags."""
        if _SEPARATOR in args:
            place = args.index(_SEPARATOR)
            ctx.meta["gpudiag.job"] = tuple(args[place + 1 :])
            ctx.meta["gpudiag.flags"] = tuple(args[:place])
            return super().parse_args(ctx, args[:place])
        ctx.ignore_unknown_options = True  # they are the other command's, and `--` is what is missing
        return super().parse_args(ctx, args)


@click.command("run", cls=_CommandBehindSeparator, context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.option(
    "--stall-after",
    metavar="N|SECONDS",
    help=(
        "Report a stall after N of the job's own steps, or after a time such as 90s."
        "  [default: 20 steps, at least 15 s]"
    ),
)
@click.option(
    "--on-stall",
    type=Word(_ON_STALL, "something to do on a stall"),
    default="report",
    show_default=True,
    metavar="WHAT",
    help="Do this on a stall: report; or kill, with SIGTERM after the look and SIGKILL 30 s later.",
)
@click.option(
    "--verdict",
    type=click.Path(readable=False),
    metavar="FILE",
    help="Write the verdict there; %h stands for the host.  [default: gpudiag-run-HOST-TIME-PID.json]",
)
@click.option(
    "--nan-check",
    is_flag=True,
    help=(
        "Let torch end a rank that puts NaN into a collective of NCCL:"
        " TORCH_NCCL_NAN_CHECK, which costs a kernel for each."
    ),
)
@store_option
@click.option("--quiet", is_flag=True, help="Print nothing about a job that ends well, or has no ranks.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENTS]...")
@click.pass_context
def run(
    context: click.Context,
    stall_after: str | None,
    on_stall: str,
    verdict: str | None,
    nan_check: bool,
    store: str | None,
    quiet: bool,
    words: tuple[str, ...],
) -> int:
    """Run a job as it is, and report why it hung, crawled or died.

    COMMAND is whatever starts the job: torchrun, srun, mpirun, accelerate launch, deepspeed, python. It keeps
    its output, its input, its terminal and its signals, and its exit status is the one of this command;
    torch's flight recorder and its ranks' exceptions are switched on for it. An agent beside it sees its
    steps from outside, reports a stall with rank and line, and leaves a verdict in one file. If gpudiag is
    killed, the job continues.
    """
    from gpudiag.checks.job.stall_rule import parse_stall_rule
    from gpudiag.runs.job_run.process import exit_as
    from gpudiag.runs.job_run.recipe import RunPlan, run_job
    from gpudiag.store.state_folder import default_store

    command = _command(context, words)
    plan = RunPlan(
        command=command,
        verdict=_path(verdict),
        rule=parse_stall_rule(stall_after),
        kill_on_stall=on_stall == "kill",
        nan_check=nan_check,
        store=store or default_store(),
        flags=context.meta["gpudiag.flags"],
        quiet=quiet,
    )
    return exit_as(run_job(plan, _Printer(quiet=quiet, kills=plan.kill_on_stall)).wait_status)


def _command(context: click.Context, words: tuple[str, ...]) -> tuple[str, ...]:
    command: tuple[str, ...] = context.meta.get("gpudiag.job", ())
    if words and words[0].startswith("-"):
        raise click.NoSuchOption(words[0].partition("=")[0], ctx=context)
    if words:
        hint = f"such as: gpudiag run -- {' '.join((*words, *command))}"
        raise UsageError("the job's command goes after `--`", hint=hint)
    if not command:
        raise UsageError("there is no command to run", hint="such as: gpudiag run -- torchrun train.py")
    return command


def _path(name: str | None) -> Path | None:
    if name is None:
        return None
    if name == "-":
        raise UsageError(
            "standard output is the job's own, so the verdict needs a file", hint="--verdict FILE"
        )
    return Path(name.replace("%h", os.uname().nodename.partition(".")[0]))


class _Printer:
    """Prints verdicts on standard error."""

    def __init__(self, *, quiet: bool, kills: bool) -> None:
        self._quiet, self._kills = quiet, kills

    def __call__(self, document: object, path: Path, when: str) -> None:
        """Print a stall, or how the job went."""
        from gpudiag.model.finding import Outcome
        from gpudiag.model.job_run import JobRun
        from gpudiag.render.job_run_text import render_job_run, render_stall
        from gpudiag.render.style import Style, wants_colour

        if not isinstance(document, JobRun):
            raise TypeError(f"{document!r} is no verdict")
        if self._quiet and when == "end" and document.outcome in (Outcome.PASS, Outcome.SKIP):
            return
        style = Style(wants_colour(sys.stderr.isatty(), dict(os.environ)))
        if when == "stall":
            text = render_stall(document, str(path), style, kills=self._kills)
        else:
            text = render_job_run(document, "" if when == "unwritten" else str(path), style)
        sys.stderr.write(text)
        sys.stderr.flush()
