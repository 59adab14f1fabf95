"""`gpudiag receipt`: whether a receipt is as it was written, and who signed it."""

from pathlib import Path

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.printing import EXIT_STATUSES, print_noun
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus

_EXAMPLES = """\b
Examples:
  gpudiag receipt node17.json
  gpudiag receipt node17.html --signers allowed_signers
  ssh-keygen -Y verify -f allowed_signers -I WHO -n gpudiag-receipt \\
    -s node17.json.sig < node17.json         the same without gpudiag
Exit status: 0 unchanged, 1 changed, or signed by nobody of --signers, 2 usage,
3 the signature could not be verified."""


@click.command("receipt", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("file", type=click.Path(readable=False, path_type=Path), metavar="FILE")
@click.option(
    "--signers",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="Who may sign: OpenSSH's allowed_signers, each line `WHO KEY`.",
)
@result_options(verbose="")
def receipt(file: Path, signers: Path | None, wanted: Wanted) -> ExitStatus:
    """Verify a receipt of `gpudiag preflight --receipt`, document or page: unchanged, and signed by whom.

    Its digest finds every byte that was changed by accident; a change on purpose is found by the signature
    beside the file (FILE.sig), if its key is one of --signers.
    """
    from gpudiag.render.receipt_text import render_receipt_check
    from gpudiag.runs.receipt import look_at_receipt

    found = look_at_receipt(file, signers)
    return print_noun(found, wanted, render_receipt_check, EXIT_STATUSES[found.outcome])
