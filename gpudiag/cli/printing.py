"""How a command prints its result: on standard output, and as a document in `--output FILE`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpudiag.errors import ExitStatus, GpudiagError
from gpudiag.model.finding import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.cli.result_options import Wanted
    from gpudiag.render.style import Style

# Without SKIP: it is a check's outcome and never a verdict.
EXIT_STATUSES = {
    Outcome.PASS: ExitStatus.PASS,
    Outcome.WARN: ExitStatus.PASS,
    Outcome.FAIL: ExitStatus.FAIL,
    Outcome.ERROR: ExitStatus.ERROR,
}


def print_noun(
    noun: Any, wanted: Wanted, render: Callable[[Any, Style], str], status: ExitStatus = ExitStatus.PASS
) -> ExitStatus:
    """The exit status after the noun was printed, as document or by `render`, and kept in `--output`."""
    from gpudiag.model.codec import dumps

    def document() -> str:
        return dumps(noun) + "\n"

    text = document if wanted.as_json else lambda: render(noun, wanted.style())
    return status_with_file(status, kept=print_result(text, document, wanted.output))


def print_result(text: Callable[[], str], document: Callable[[], str], output: Path | None) -> bool:
    """Whether the document is in `output`, if that was given; the text is printed in any case.

    The file comes first, as the reader may go away; a full disk costs the file and one line, nothing else.
    """
    problem = None
    if output is not None:
        from gpudiag.runs.output import write_document

        try:
            write_document(output, document())
        except GpudiagError as error:
            problem = error
    sys.stdout.write(text())
    sys.stdout.flush()
    if problem is not None:
        warn(problem.message)
    return problem is None


def warn(sentence: str) -> None:
    """Print the sentence on standard error."""
    print(f"gpudiag: {sentence}", file=sys.stderr)


def warn_unremembered(warning: str) -> None:
    """Print on standard error why this run is not in the history; nothing where it is."""
    if warning:
        warn(f"{warning}; this run is not remembered (--store names another place)")


def status_with_file(status: ExitStatus, *, kept: bool) -> ExitStatus:
    """The verdict's exit status; ERROR instead where `--output` was not written, except for FAIL."""
    return status if kept or status is ExitStatus.FAIL else ExitStatus.ERROR
