"""How a command that looks at one machine ends where a launch has several: one report, one exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpudiag.cli.printing import print_result, status_with_file, warn
from gpudiag.errors import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.cli.result_options import Wanted
    from gpudiag.model.report import MergedReport, Report
    from gpudiag.runs.machines import MachinesLaunch


def await_status(launch: MachinesLaunch) -> ExitStatus:
    """The exit status of all processes, in one that does not look at the machine itself."""
    status = launch.await_verdict()
    if status is None:
        warn("rank 0 sent no verdict, and this rank did not check the machine itself")
    return ExitStatus.ERROR if status is None else status


def share_report(
    launch: MachinesLaunch,
    report: Report,
    own: ExitStatus,
    render: Callable[[], str],
    wanted: Wanted,
    *,
    quorum: int | None = None,
) -> ExitStatus:
    """The exit status of all processes, after rank 0 has printed what all machines reported.

    `own` is the status by this machine's report, and `render` gives that report alone: printed where all
    ranks are on this machine, and where rank 0 accepts no report. Into the file of `wanted` rank 0 writes the
    document of all machines too; with a `quorum` the status is PASS where so many machines pass.
    """
    if launch.is_reporter:
        status = _print_all(launch, report, own, render, wanted, quorum=quorum)
        launch.announce(status)
        return status
    shared = launch.hand_in(report, own)
    if shared is not None:
        return shared
    sys.stdout.write(render())
    sys.stdout.flush()
    warn("rank 0 received no report, so this report covers this machine alone")
    return own if own is ExitStatus.FAIL else ExitStatus.ERROR


def _print_all(
    launch: MachinesLaunch,
    report: Report,
    own: ExitStatus,
    render: Callable[[], str],
    wanted: Wanted,
    *,
    quorum: int | None,
) -> ExitStatus:
    from gpudiag.model.codec import dumps

    if launch.on_one_machine:
        kept = print_result(render, lambda: dumps(report) + "\n", wanted.output)
        return status_with_file(own, kept=kept)
    gathered = launch.gather(report, own, quorum)

    def document() -> str:
        return dumps(gathered.merged) + "\n"

    kept = print_result(
        document if wanted.as_json else lambda: _text(gathered.merged, wanted), document, wanted.output
    )
    if gathered.by_quorum:
        warn(f"exit status 0: {gathered.passed} machines pass, enough for --quorum {quorum}")
    return status_with_file(gathered.status, kept=kept)


def _text(merged: MergedReport, wanted: Wanted) -> str:
    from gpudiag.render.merged_text import render_merged

    return render_merged(merged, wanted.style())
