"""`gpudiag explain`: a finding code, an Xid, an error text, or logs."""

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.completion import offer_topics
from gpudiag.cli.printing import print_noun
from gpudiag.cli.result_options import Wanted, result_options
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
@click.argument(
    "topic",
    nargs=-1,
    required=True,
    shell_complete=offer_topics,
    metavar="CODE | xid N | TEXT | FILE.. | FOLDER | -",
)
@result_options(verbose="Of logs: every error, with every line of it.")
def explain(topic: tuple[str, ...], wanted: Wanted) -> ExitStatus:
    """What a finding, an Xid or an error text means, and what to do about it.

    For files, a folder, a text in quotes, or - for standard input: the known failures of torch, NCCL, CUDA,
    the NVIDIA driver, containers, launchers, disks and the kernel that are in them, the likeliest cause
    first; and where none is known, the last exception and your own line of code. Files may be compressed. It
    judges nothing: the exit status is 0 whenever there was an answer; 3: no file could be read.
    """
    from gpudiag.explain.recipe import explain as explain_words
    from gpudiag.model.explanation import LogExplanation
    from gpudiag.model.service import ExplanationDocument
    from gpudiag.render.explain_text import render_explanation, render_log_explanation

    answer = explain_words(topic)
    if isinstance(answer, LogExplanation):
        unread = all(log.refused for log in answer.logs)
        return print_noun(
            answer, wanted, render_log_explanation, ExitStatus.ERROR if unread else ExitStatus.PASS
        )
    return print_noun(ExplanationDocument(answer), wanted, lambda _, style: render_explanation(answer, style))
