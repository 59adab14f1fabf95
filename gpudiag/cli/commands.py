"""The command tree: only the command that was asked for is imported."""

from dataclasses import dataclass
from importlib import import_module

import click

from gpudiag import __version__
from gpudiag.cli.failures import nearest
from gpudiag.cli.fast_path import collect_from_here
from gpudiag.cli.options import local_rank_option
from gpudiag.cli.signals import raise_again
from gpudiag.errors import ExitStatus, UsageError

HELP_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_EMPTY_HINT = "in a script, `set -u` ends it at a variable that is not set"

_EPILOG = """\b
Exit status: 0 PASS or WARN, 1 FAIL, 2 usage, 3 no verdict, 70 our bug,
130 interrupted, 141 the reader of the output went away, 143 terminated.
Completion: eval "$(_GPUDIAG_COMPLETE=bash_source gpudiag)"  (or zsh_source)
NO_COLOR and FORCE_COLOR are obeyed."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives, and its line in `gpudiag --help`."""

    module: str
    name: str
    summary: str


COMMANDS = {
    "list": LazyCommand(
        "gpudiag.cli.list_devices", "list_devices", "List the GPUs, who uses them, and which are free."
    ),
    "topo": LazyCommand(
        "gpudiag.cli.topo", "topo", "Show how GPUs and network cards are joined, and what stands out."
    ),
    "watch": LazyCommand(
        "gpudiag.cli.watch", "watch", "Watch GPUs, processes and findings live on a terminal."
    ),
    "nccl-test": LazyCommand(
        "gpudiag.cli.nccl_test", "nccl_test", "Verify and time collectives over ranks (GPUs, or CPU)."
    ),
    "bandwidth": LazyCommand(
        "gpudiag.cli.bandwidth", "bandwidth", "Time copies and matrix products on each GPU, verified."
    ),
    "train": LazyCommand(
        "gpudiag.cli.train", "train", "Train a small model under each strategy, and verify the results."
    ),
    "preflight": LazyCommand(
        "gpudiag.cli.preflight",
        "preflight",
        "Check that this machine may train: the gate for CI and prologs.",
    ),
    "run": LazyCommand(
        "gpudiag.cli.run", "run", "Run your job unchanged and watch it: why it hung, slowed or died."
    ),
    "receipt": LazyCommand(
        "gpudiag.cli.receipt", "receipt", "Verify a receipt of a preflight: unchanged, and signed by whom."
    ),
    "compare": LazyCommand(
        "gpudiag.cli.compare", "compare", "Show what differs between two receipts, and which part it is."
    ),
    "merge": LazyCommand("gpudiag.cli.merge", "merge", "Join the reports of many machines."),
    "history": LazyCommand("gpudiag.cli.history", "history", "Show stored runs, baselines and drift."),
    "explain": LazyCommand(
        "gpudiag.cli.explain", "explain", "Explain a finding, an Xid or logs, and what to do."
    ),
    "judge": LazyCommand(
        "gpudiag.cli.judge", "judge", "Judge whether speeds that other programs measured are right."
    ),
    "lint": LazyCommand("gpudiag.cli.lint", "lint", "Find mistakes in training scripts before they run."),
    "hang": LazyCommand("gpudiag.cli.hang", "hang", "Find why a running job hangs: which rank, which line."),
    "serve": LazyCommand(
        "gpudiag.cli.serve", "serve", "Serve the GPUs live: a dashboard, an API, metrics, tests."
    ),
    "doctor": LazyCommand(
        "gpudiag.cli.doctor", "doctor", "Check which parts of gpudiag work here, and what is missing."
    ),
    "deploy": LazyCommand(
        "gpudiag.cli.deploy", "deploy", "Write files for a service, alerts, a dashboard, and gates."
    ),
    "demo": LazyCommand(
        "gpudiag.cli.demo", "demo", "Show gpudiag on a simulated machine on which things go wrong."
    ),
    "simulate": LazyCommand(
        "gpudiag.cli.simulate", "simulate", "Run a program on simulated GPUs, healthy or faulty."
    ),
}


def _refuse_empty(args: list[str]) -> None:
    """Check that a script's `"$JOB"` was set: an empty path would be this folder, an empty job any job.

    Raises:
        UsageError: one of gpudiag's own arguments is empty, or the value of one.
    """
    own = args[: args.index("--")] if "--" in args else args
    if args[0] == "simulate":
        own = own[:2]  # then comes another program's command
    for before, word in zip(["", *own], own, strict=False):
        flag, equals, value = word.partition("=")
        if not word or (flag.startswith("--") and equals and not value):
            place = f"the value of {flag}" if word else f"the argument after {before or 'gpudiag'}"
            raise UsageError(f"{place} is empty: is a variable of the shell not set?", hint=_EMPTY_HINT)


class LazyGroup(click.Group):
    """The `gpudiag` group: knows its commands by name, imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        place = COMMANDS[cmd_name]
        command = getattr(import_module(place.module), place.name)
        raise_again(terminable=cmd_name != "run")  # it waits for signals itself once the job runs
        collect_from_here()
        if not isinstance(command, click.Command):
            raise TypeError(f"{place.module}:{place.name} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name. Raises UsageError: there is none, or an argument is empty."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = nearest(args[0], tuple(COMMANDS))
            raise UsageError(f"there is no command {args[0]!r}{near}", hint="see `gpudiag --help`")
        if not ctx.resilient_parsing:
            _refuse_empty(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what holds for all commands, and where the documentation is."""
        # Reads the distribution's metadata: for help alone.
        from gpudiag.cli.documentation import (
            documentation,
        )

        super().format_epilog(ctx, formatter)
        with formatter.indentation():
            formatter.write_text(f"Documentation: {documentation()}")


@click.group(
    "gpudiag",
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings=HELP_SETTINGS,
    epilog=_EPILOG,
)
@local_rank_option()  # torch.distributed.launch and deepspeed put it before the command
@click.version_option(__version__, "-V", "--version", message="gpudiag %(version)s")
@click.pass_context
def gpudiag(context: click.Context) -> ExitStatus | None:
    """Are the GPUs of this machine fit to train on? If not: which part, why, what to do.

    Without a command: the machine in five lines, with the verdict of the instant checks.
    """
    if context.invoked_subcommand is not None:
        return None
    from gpudiag.cli.overview import overview  # imported late: the other commands do not need it

    collect_from_here()
    return overview(context.obj)
