"""How a command that looks at one machine ends where a launch has several: one report, one exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpudiag.cli.printing import print_noun, print_result, status_with_file, warn
from gpudiag.errors import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.cli.result_options import Wanted
    from gpudiag.model.report import Report
    from gpudiag.ranks.environment import RankEnvironment
    from gpudiag.runs.machines import Look, MachinesLaunch


def on_each_machine(
    environment: RankEnvironment, look: Look, test: Callable[[MachinesLaunch], ExitStatus]
) -> ExitStatus:
    """The exit status of all processes: one per machine runs `test`, and the others wait for the verdict."""
    from gpudiag.runs.machines import MachinesLaunch

    with MachinesLaunch(environment, look) as launch:
        if launch.looks:
            return test(launch)
        status = launch.await_verdict()
    if status is None:
        warn("rank 0 sent no verdict, and this rank did not check the machine itself")
    return ExitStatus.ERROR if status is None else status


def share_report(
    launch: MachinesLaunch | None,
    report: Report,
    own: ExitStatus,
    render: Callable[[], str],
    wanted: Wanted,
    *,
    quorum: int | None = None,
) -> ExitStatus:
    """The exit status of all, after rank 0 printed what all machines reported; without a launch `own`.

    `render` gives this machine's report. Rank 0 also writes the document of all machines into the file of
    `wanted`; with a `quorum` the status is PASS where so many machines pass.
    """
    if launch is None:
        return _print_own(report, own, render, wanted)
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
    if launch.on_one_machine:
        return _print_own(report, own, render, wanted)
    from gpudiag.render.merged_text import render_merged

    gathered = launch.gather(report, own, quorum)
    status = print_noun(gathered.merged, wanted, render_merged, gathered.status)
    if gathered.by_quorum:
        warn(f"exit status 0: {gathered.passed} machines pass, enough for --quorum {quorum}")
    return status


def _print_own(report: Report, own: ExitStatus, render: Callable[[], str], wanted: Wanted) -> ExitStatus:
    from gpudiag.render.report_formats import render_json

    return status_with_file(own, kept=print_result(render, lambda: render_json(report), wanted.output))
