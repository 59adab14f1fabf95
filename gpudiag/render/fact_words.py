"""Facts of the evidence and the launcher in a few words, alike in every report."""

from collections.abc import Sequence
from math import isfinite

from gpudiag.model.evidence import Evidence, Scalar
from gpudiag.model.reading import Missing, Reading
from gpudiag.render.style import wrapped
from gpudiag.units import format_seconds, format_size, significant

_RULED_OUT = "ruled_out"
_STACK = "stack"  # left out: `stuck_at` has the line that matters
# The amount names the unit: `size 64 KiB` and not `size bytes 64 KiB`.
_UNITS_IN_NAMES = (" bytes", " seconds")
# The name is left out where the source already gives it.
_OTHER_NAMES = {"stderr": "standard error"}

# The names in documents are those of `gpudiag.ranks.environment.Launcher`.
_WORDS = {
    "spawn": "gpudiag",
    "variables": "whoever set RANK",
    "explicit": "--rank",
}

# How C++ reports what ended the process, and the lines of its stack.
_THROWN, _FRAME = "what():", "frame #"


def describe_name(fact: Evidence) -> str:
    """What the fact is about: `recovery action`."""
    name = fact.name.replace("_", " ")
    for unit in _UNITS_IN_NAMES if fact.unit in ("B", "s") else ():
        name = name.removesuffix(unit)
    return name


def describe_amount(value: Scalar, unit: str | None) -> str:
    """A value with its unit, as people read it: `20.1 ms`, `64 KiB`, `512 W`, `yes`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"{value} {unit}" if unit else value
    if unit == "s" and isfinite(value):
        return format_seconds(value)
    if unit == "B" and isfinite(value):
        return format_size(value)
    return f"{_number(value)} {unit}" if unit else _number(value)


def describe_limit(fact: Evidence) -> str:
    """`limit 1.06 ms`, `limit 16` beside `8 lanes`; empty where the fact has no limit."""
    unit = fact.unit if fact.unit in ("B", "s") else None
    return "" if fact.limit is None else f"limit {describe_amount(fact.limit, unit)}"


def evidence_lines(evidence: Sequence[Evidence]) -> list[str]:
    """The facts of a finding, a line per source, then what was ruled out; whole stacks are only in --json."""
    by_source: dict[str, list[str]] = {}
    for fact in evidence:
        if fact.name not in (_RULED_OUT, _STACK):
            by_source.setdefault(fact.source, []).append(describe_after_source(fact))
    lines: list[str] = []
    for source, facts in by_source.items():
        lines += wrapped((f"{source}: " if source else "") + ", ".join(facts), first="  ", indent="    ")
    for fact in evidence:
        if fact.name == _RULED_OUT:
            lines += wrapped(f"{fact.value}.", first="  Ruled out: ", indent="    ")
    return lines


def describe_after_source(fact: Evidence) -> str:
    """The fact as it stands after its source; of a long text, such as a stack, the most useful line."""
    value = _telling_line(fact.value) if isinstance(fact.value, str) else fact.value
    name, limit = describe_name(fact), describe_limit(fact)
    named = fact.source.endswith(_OTHER_NAMES.get(name, name))
    words = describe_amount(value, fact.unit) if named else f"{name} {describe_amount(value, fact.unit)}"
    return f"{words} ({limit})" if limit else words


def _telling_line(text: str) -> str:
    """The most useful line: a crash's own words, else the last line that is no quoted code."""
    lines = text.rstrip().split("\n")
    for line in lines:
        if line.startswith("Fatal Python error"):
            return line
        if line.lstrip().startswith(_THROWN):
            return line.partition(_THROWN)[2].strip()
    told = (line for line in reversed(lines) if line[:1].strip() and not line.startswith(_FRAME))
    return next(told, lines[-1].strip())


def _number(value: float) -> str:
    if isinstance(value, int) or not isfinite(value):
        return str(value)
    return f"{value:.0f}" if value == int(value) else significant(value)


def describe_launcher(launcher: Reading[str]) -> str:
    """`ranks by gpudiag`, `ranks by torchrun`; `no ranks` where none were started."""
    return "no ranks" if isinstance(launcher, Missing) else f"ranks by {_WORDS.get(launcher, launcher)}"
