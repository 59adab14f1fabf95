"""`gpudiag explain`: a finding code, an Xid, an error text, or logs."""

import os
import sys

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import json_option
from gpudiag.errors import ExitStatus

_EXAMPLES = """\b
Examples:
  gpudiag explain gpu.lost     a code that gpudiag reports
  gpudiag explain xid 79       a number from the kernel log
  gpudiag explain train.log    which known failures are in it, and where
  gpudiag explain slurm-42.out rank*.log.gz logs/
  gpudiag explain "RuntimeError: CUDA error: ..."
  dmesg | gpudiag explain -"""


@click.command("explain", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("topic", nargs=-1, required=True, metavar="CODE | xid N | TEXT | FILE.. | FOLDER | -")
@json_option
def explain(topic: tuple[str, ...], as_json: bool) -> ExitStatus:
    """What a finding, an Xid or an error text means, and what to do about it.

    For files, a folder, a text in quotes, or - for standard input: the known failures of torch, NCCL,
    CUDA, the NVIDIA driver, containers, launchers, disks and the kernel that are in them, the likeliest
    cause first; and where none is known, the last exception and your own line of code. Files may be
    compressed. It judges nothing: the exit status is 0 whenever there was an answer.
    """
    from gpudiag.explain.recipe import explain as explain_words
    from gpudiag.model.codec import dumps
    from gpudiag.model.explanation import LogExplanation
    from gpudiag.render.explain_text import render_explanation, render_log_explanation
    from gpudiag.render.style import Style, wants_colour

    answer = explain_words(topic)
    if as_json:
        from gpudiag.model.service import ExplanationDocument

        click.echo(dumps(answer if isinstance(answer, LogExplanation) else ExplanationDocument(answer)))
        return ExitStatus.PASS
    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    if isinstance(answer, LogExplanation):
        click.echo(render_log_explanation(answer, style), nl=False)
    else:
        click.echo(render_explanation(answer, style), nl=False)
    return ExitStatus.PASS
