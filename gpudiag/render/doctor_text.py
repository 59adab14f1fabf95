"""The doctor's report as text: what works, what is broken, and the command for all that is missing."""

from gpudiag.model.doctor import CommandState, DoctorPart, DoctorReport, PartState
from gpudiag.model.number_ranges import count_of
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

_HERE = {
    PartState.WORKS: "works",
    PartState.LIMITED: "in part",
    PartState.ABSENT: "not installed",
    PartState.NOT_HERE: "not here",
    PartState.BROKEN: "BROKEN",
}
_ORDER = (PartState.BROKEN, PartState.WORKS, PartState.LIMITED, PartState.ABSENT, PartState.NOT_HERE)
_COLOURS = {PartState.BROKEN: "red", PartState.LIMITED: "yellow"}
_HEADINGS = (
    (PartState.BROKEN, "Should work here, and does not:"),
    (PartState.LIMITED, "Works in part:"),
    (PartState.ABSENT, "Not installed, and needed only for some of what gpudiag does:"),
    (PartState.NOT_HERE, "This machine has none of it:"),
    (PartState.WORKS, "Works:"),
)
_ONLY_VERBOSE = (PartState.NOT_HERE, PartState.WORKS)


def render_doctor(report: DoctorReport, style: Style = PLAIN) -> str:
    """The verdict, each command, then what to fix and to add.

    A verbose style has every part with what was seen.
    """
    lines = [*_verdict(report, style), "", *_commands(report.commands, style)]
    for state, heading in _HEADINGS:
        parts = [part for part in report.parts if part.state is state]
        if not parts:
            continue
        lacked = {name for one in report.commands for name in one.lacks}
        shown = [part for part in parts if style.verbose or state not in _ONLY_VERBOSE or part.name in lacked]
        if not shown:
            lines += ["", *wrapped(f"{heading} {', '.join(part.name for part in parts)}", indent="  ")]
        else:
            lines += ["", style.paint(heading, _COLOURS.get(state, "bold")), *_parts(shown)]
            rest = [part.name for part in parts if part not in shown]
            lines += wrapped(f"and {', '.join(rest)}", first="  ", indent="    ") if rest else []
    if not style.verbose:
        lines += wrapped("What was seen of each: --verbose", indent="  ")
    return "\n".join([*lines, *_next(report)]) + "\n"


def _verdict(report: DoctorReport, style: Style) -> list[str]:
    word = report.outcome.value.upper()
    works = sum(one.state is PartState.WORKS for one in report.commands)
    limited = sum(one.state is PartState.LIMITED for one in report.commands)
    in_part = f", {limited} in part" if limited else ""
    broken = sum(part.state is PartState.BROKEN for part in report.parts)
    brokenness = f"; {count_of(broken, 'part')} broken" if broken else ""
    text = (
        f"{word} {one_line(report.host, 100)}: {works} of {len(report.commands)} commands"
        f" work{in_part}{brokenness} ({report.seconds:.1f} s)"
    )
    lines = wrapped(text, indent="  ")
    lines[0] = style.paint_outcome(lines[0], report.outcome.value)
    if report.simulated is not None:
        lines += wrapped(f"SIMULATED {one_line(report.simulated, 100)}: no real GPU was read", indent="  ")
    return lines + wrapped(f"gpudiag {report.version}; looked at {one_line(report.python)}", indent="  ")


def _commands(commands: tuple[CommandState, ...], style: Style) -> list[str]:
    """The commands that are alike on one line, with the parts that they lack."""
    alike: dict[tuple[PartState, tuple[str, ...]], list[str]] = {}
    for state in _ORDER:
        for one in commands:
            if one.state is state:
                alike.setdefault((state, one.lacks), []).append(one.name)
    lines = []
    for (state, lacks), names in alike.items():
        because = f"  (see {', '.join(lacks)})" if lacks else ""
        word = _HERE[state]
        entry = wrapped(f"{', '.join(names)}{because}", first=f"  {word:15}", indent=" " * 17)
        entry[0] = entry[0].replace(word, style.paint(word, _COLOURS.get(state, "")), 1)
        lines += entry
    return lines


def _parts(parts: list[DoctorPart]) -> list[str]:
    """The parts with what was seen and what to do; those of which both are alike together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        alike.setdefault((part.seen, part.remedy), []).append(part.name)
    lines = []
    for (state, remedy), names in alike.items():
        lines += wrapped(f"{', '.join(names)}: {one_line(state)}", first="  ", indent="    ")
        if remedy:
            lines += wrapped(one_line(remedy), first="    Do: ", indent="        ")
    return lines


def _next(report: DoctorReport) -> list[str]:
    states = {one.name: one.state for one in report.commands}
    if states.get("list") is PartState.NOT_HERE:
        return next_lines("gpudiag simulate h100x8 -- gpudiag", "gpudiag preflight --expect-gpus 0")
    return next_lines("gpudiag", "gpudiag preflight")
