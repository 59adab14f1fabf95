"""What a preflight's command line asks for: which checks, at which level, against which good machine."""

import json
from collections.abc import Iterable
from pathlib import Path

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import Check, Level
from gpudiag.errors import UsageError
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import from_document
from gpudiag.model.nearest import did_you_mean
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.report import Report

MAX_BYTES = 64 * 1024**2


def read_expected_machine(path: Path) -> Snapshot:
    """The snapshot that `preflight --json` or `list --json` wrote. Raises UsageError: none."""
    hint = "make one on a good machine: gpudiag preflight --report json=FILE"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--expect: cannot read {path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"--expect: {path} is too large for a report", hint=hint)
    try:
        noun = from_document(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--expect: {path} is not JSON, or cut short", hint=hint) from error
    except UsageError as error:
        raise UsageError(f"--expect: {path}: {error.message}", hint=hint) from error
    if isinstance(noun, Report):
        return noun.snapshot
    if isinstance(noun, Snapshot):
        return noun
    raise UsageError(f"--expect: {path} is neither a report nor a snapshot", hint=hint)


def choose_checks(plan: PreflightPlan) -> tuple[Check, ...]:
    """The checks of the plan, in run order.

    `--only` may name a check of a higher level; it is then run, whatever the level.

    Raises:
        UsageError: no check has that name (the message suggests the nearest), or no check is left.
    """
    for flag, names in (("--only", plan.only), ("--skip", plan.skip)):
        for name in names:
            _require_check(flag, name)
    if plan.only:
        chosen = [check for check in BUILTIN if any(_is_named(check, name) for name in plan.only)]
        within = [check for check in chosen if check.level <= level_of(plan) or check.name in plan.only]
        chosen = within or chosen
    else:
        chosen = [check for check in BUILTIN if check.level <= level_of(plan)]
    chosen = [check for check in chosen if not any(_is_named(check, name) for name in plan.skip)]
    if not chosen:
        raise UsageError("--only and --skip leave no check to run", hint="see `gpudiag preflight --list`")
    return tuple(chosen)


def level_of(plan: PreflightPlan) -> Level:
    """The plan's level, as the checks' `Level`."""
    return Level[plan.level.upper()]


def gathering_level(plan: PreflightPlan, checks: Iterable[Check]) -> str:
    """The level to measure at: the plan's, or the highest of the checks if `--only` names a higher one."""
    return max([level_of(plan), *(check.level for check in checks)]).name.lower()


def wants(checks: Iterable[Check], *needs: str) -> bool:
    """Whether any of the checks needs any of these."""
    return any(need in check.needs for check in checks for need in needs)


def _is_named(check: Check, name: str) -> bool:
    return name in (check.name, check.name.partition(".")[0])


def _require_check(flag: str, name: str) -> None:
    known = dict.fromkeys(part for check in BUILTIN for part in (check.name, check.name.partition(".")[0]))
    if name in known:
        return
    question = did_you_mean(name, known, "; ")
    raise UsageError(f"{flag}: there is no check {name!r}{question}", hint="see `gpudiag preflight --list`")
