"""`gpudiag doctor`: what of gpudiag works on this machine."""

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import deadline_option, store_option
from gpudiag.cli.printing import EXIT_STATUSES, print_noun
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus
from gpudiag.runs.doctor import DEADLINE_SECONDS, see_doctor

_EXAMPLES = """\b
Examples:
  gpudiag doctor
  gpudiag doctor --deep                 import torch too, and start CUDA
  gpudiag doctor --python .venv/bin/python   the interpreter of your job
Exit status: 0 all that this machine should be able to do works, 3 something of
it does not. What is optional and not installed, and a GPU, Slurm or Kubernetes
that this machine does not have, are no error."""


@click.command("doctor", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.option("--deep", is_flag=True, help="Import torch and start CUDA, which takes seconds.")
@click.option(
    "--python",
    type=click.Path(readable=False),
    metavar="PATH",
    help="Check the packages of your job's interpreter.",
)
@store_option
@deadline_option(DEADLINE_SECONDS, "; torch has 30 s")
@result_options(verbose="Show what every part answered.")
def doctor(deep: bool, python: str | None, store: str | None, deadline: float, wanted: Wanted) -> ExitStatus:
    """What of gpudiag works on this machine, what is missing, and the command for each.

    Looks at the driver, torch, permissions, folders, extras and launchers; it judges gpudiag's surroundings
    and never a GPU: that is `gpudiag preflight`. It takes a second or two, and nothing is changed.
    """
    from gpudiag.render.doctor_text import render_doctor

    if python is not None:
        from gpudiag.runs.interpreters import find_interpreter

        python = find_interpreter(python, f"--python {python}")
    report = see_doctor(deadline_seconds=deadline, store=store, python=python, deep=deep)
    return print_noun(report, wanted, render_doctor, EXIT_STATUSES[report.outcome])
