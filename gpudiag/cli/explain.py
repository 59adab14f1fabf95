"""`gpudiag explain`: a finding code, an Xid, or an error text or log."""

import os
import sys

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.errors import ExitStatus

_EXAMPLES = """\b
Examples:
  gpudiag explain gpu.lost    a code that gpudiag reports
  gpudiag explain xid 79      a number from the kernel log
  gpudiag explain train.log   which known failures are in it, and where
  dmesg | gpudiag explain -"""


@click.command("explain", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("topic", nargs=-1, required=True, metavar="CODE | xid N | FILE | -")
def explain(topic: tuple[str, ...]) -> ExitStatus:
    """What a finding, an Xid or an error text means, and what to do about it.

    For a file, or - for standard input: the known failures of torch, NCCL, CUDA, the NVIDIA driver and
    the kernel that are in it, the likeliest cause first. It judges nothing: the exit status is 0
    whenever there was an answer.
    """
    from gpudiag.model.explanation import LogExplanation
    from gpudiag.render.explain_text import render_explanation, render_log_explanation
    from gpudiag.render.style import Style, wants_colour
    from gpudiag.runs.explain import explain as explain_words

    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    answer = explain_words(topic)
    if isinstance(answer, LogExplanation):
        click.echo(render_log_explanation(answer, style), nl=False)
    else:
        click.echo(render_explanation(answer, style), nl=False)
    return ExitStatus.PASS
