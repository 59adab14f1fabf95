"""Which checks a preflight runs, by level and by name, and what must be gathered for them."""

import difflib
from collections.abc import Iterable

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import Check, Level
from gpudiag.errors import UsageError
from gpudiag.model.preflight_plan import PreflightPlan


def choose_checks(plan: PreflightPlan) -> tuple[Check, ...]:
    """The checks of the plan, in run order.

    `--only` may name a check of a higher level; it is then run, whatever the level.

    Raises:
        UsageError: a name that no check has, with the nearest; or no check is left.
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
    """The plan's level, as checks name it."""
    return Level[plan.level.upper()]


def gathering_level(plan: PreflightPlan, checks: Iterable[Check]) -> str:
    """The level of what is measured: the highest of the checks, where `--only` names one above the plan's."""
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
    near = difflib.get_close_matches(name, known, n=1)
    question = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"{flag}: there is no check {name!r}{question}", hint="see `gpudiag preflight --list`")
