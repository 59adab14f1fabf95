"""The catalogue of checks as text: what each reads, its level, its limit, and what has confirmed it."""

from collections.abc import Iterable

from gpudiag.checks.catalogue import describe_limits
from gpudiag.checks.registry import Check, Level
from gpudiag.model.number_ranges import count_of
from gpudiag.render.style import PLAIN, Style, wrapped

_INDENT = "    "


def render_checks(checks: Iterable[Check], style: Style = PLAIN) -> str:
    """Every check by level, cheapest level first, at most 80 columns wide."""
    listed = tuple(checks)
    lines: list[str] = []
    for level in Level:
        of_level = [check for check in listed if check.level is level]
        if of_level:
            heading = f"{level.name.lower()}: {count_of(len(of_level), 'check')}"
            lines += ["", style.paint(heading, "bold")] if lines else [style.paint(heading, "bold")]
            lines += [line for check in of_level for line in _entry(check)]
    return "\n".join(lines) + "\n"


def _entry(check: Check) -> list[str]:
    lines = wrapped(f"{check.name}: {check.title}", first="  ", indent=_INDENT)
    facts = (
        ("reads", ", ".join(check.readings).replace("{", "{ ").replace(",", ", ").replace(",  ", ", ")),
        ("limit", describe_limits(check)),
        (
            "confirmed",
            check.confirmed or "unconfirmed: it may warn, and fails only on a fault that NVML itself states",
        ),
    )
    for name, text in facts:
        if text:
            lines += wrapped(f"{name}: {text}", first=_INDENT, indent=f"{_INDENT}  ")
    return lines
