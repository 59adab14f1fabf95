"""Why ranks could not be started, as exceptions with a sentence for the user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpudiag.errors import RankStartError, UsageError
from gpudiag.ranks.evidence import signal_name


@dataclass(frozen=True, slots=True)
class StartFailure:
    """What a template said last: absent, failed, old_python or not_forked; or that it `ended`."""

    kind: str
    facts: dict[str, Any]


def start_error(failure: StartFailure, stderr: str) -> UsageError | RankStartError:
    """The exception for what a template said last; `stderr` is what it wrote there."""
    facts = failure.facts
    if failure.kind == "absent":
        return absent_module(facts["module"])
    if failure.kind == "old_python":
        return UsageError(
            f"ranks need Python 3.11 or later, and this one is {facts['version']}",
            hint="name another interpreter with --python",
        )
    if failure.kind == "failed":
        error = facts["error"]
        return RankStartError(
            f"import {facts['module']} failed: {error['type']}: {error['message']}",
            hint=f"try it by hand: python -c 'import {facts['module']}'",
        )
    if failure.kind == "not_forked":
        return RankStartError(
            f"rank {facts['rank']} could not be started: {facts['reason']}",
            hint="look at the limits on processes and memory: ulimit -u -v, free",
        )
    last_line = stderr.splitlines()[-1] if stderr else "it wrote nothing to standard error"
    return RankStartError(
        f"the process that starts the ranks ended, {_how(facts['exit'])}: {last_line}",
        hint="try it by hand, in this folder: python -c 'import torch'",
    )


def absent_module(name: str) -> UsageError:
    """The exception for a module that ranks need and that the interpreter does not have."""
    hint = "pip install 'gpudiag[torch]'" if name == "torch" else f"pip install {name}"
    return UsageError(f"{name} is not installed, and ranks need it", hint=hint)


def started_twice(rank: int) -> UsageError:
    """The exception for two processes with the same rank in one run."""
    return UsageError(
        f"rank {rank} was started twice in this run",
        hint="give every process its own RANK, or let the launcher do so",
    )


def slow_start(limit_seconds: float, preload: Sequence[str]) -> RankStartError:
    """The exception for an import that does not come to an end."""
    what = preload[0] if preload else "the entry"
    return RankStartError(
        f"importing {what} has not ended within {limit_seconds:.0f} s",
        hint="is the file system with the Python packages slow or hung?",
    )


def _how(exit_status: int | None) -> str:
    if exit_status is None:
        return "nobody knows how"
    return f"killed by {signal_name(-exit_status)}" if exit_status < 0 else f"exit status {exit_status}"
