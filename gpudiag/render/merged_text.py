"""Many machines' reports as text: the count of each verdict, then each finding once with its machines."""

from collections import Counter

from gpudiag.model.finding import Outcome
from gpudiag.model.report import FindingGroup, MachineVerdict, MergedReport
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

MAX_MACHINES_NAMED = 24  # of one group; `--json` has all
MAX_TEXT_CHARACTERS = 400
# From this share of the machines on, one common cause is likelier than many broken machines.
_COMMON_SHARE = 0.5
_COMMON_MIN_MACHINES = 4

_WORDS = {
    Outcome.PASS: "pass",
    Outcome.WARN: "warn",
    Outcome.FAIL: "fail",
    Outcome.ERROR: "could not be judged",
}


def render_merged(merged: MergedReport, style: Style = PLAIN) -> str:
    """`FAIL 2,000 machines: 1,997 pass; 3 fail`, then the findings with their machines, then unreadable reports."""
    lines = _verdict(merged, style)
    for group in merged.groups:
        lines += ["", *_group(group, len(merged.machines), style)]
    doubtful = [machine for machine in merged.machines if machine.reason is not None]
    if doubtful:
        lines += ["", *_doubtful(doubtful)]
    if merged.repeated:
        named = ", ".join(one_line(place) for place in merged.repeated[:MAX_MACHINES_NAMED])
        more = len(merged.repeated) - MAX_MACHINES_NAMED
        also = f" and {more:,} more" if more > 0 else ""
        lines += ["", *wrapped(f"Counted once, though given again: {named}{also}", indent="  ")]
    if merged.unfit:
        named = ", ".join(one_line(node) for node in merged.unfit[:MAX_MACHINES_NAMED])
        more = len(merged.unfit) - MAX_MACHINES_NAMED
        also = f" and {more:,} more" if more > 0 else ""
        lines += ["", *wrapped(f"To leave out: {named}{also}", indent="  ")]
        if merged.leave_out is not None:
            lines.append(f"  {one_line(merged.leave_out)}")
    if merged.groups:
        lines += ["", *next_lines(f"gpudiag explain {one_line(merged.groups[0].code)}")]
    elif doubtful:
        lines += ["", *next_lines("gpudiag preflight --report json=FILE (on each of these machines)")]
    return "\n".join(lines) + "\n"


def _verdict(merged: MergedReport, style: Style) -> list[str]:
    word = merged.verdict.value.upper()
    counts = Counter(machine.verdict for machine in merged.machines)
    order = (Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.ERROR)
    parts = "; ".join(f"{counts[outcome]:,} {_WORDS[outcome]}" for outcome in order if counts[outcome])
    count = len(merged.machines)
    lines = wrapped(f"{word} {count:,} machine{'s' * (count != 1)}: {parts}", indent="  ")
    lines[0] = style.paint_outcome(lines[0], merged.verdict.value)
    simulated = sum(machine.simulated is not None for machine in merged.machines)
    if simulated:
        lines.append(f"  {simulated:,} of them SIMULATED: no real GPU was read there")
    return lines


def _group(group: FindingGroup, machines: int, style: Style) -> list[str]:
    word = group.outcome.value.upper()
    count = len(group.machines)
    owner = "" if group.owner is None else f" ({group.owner.value})"
    named = " ".join(one_line(name) for name in group.machines[:MAX_MACHINES_NAMED])
    more = f" and {count - MAX_MACHINES_NAMED:,} more" if count > MAX_MACHINES_NAMED else ""
    heading = f"{word} {count:,}: {one_line(group.code)}{owner}: {named}{more}"
    lines = wrapped(heading, indent="  ")
    lines[0] = style.paint_outcome(lines[0], group.outcome.value)
    lines += wrapped(one_line(group.message, MAX_TEXT_CHARACTERS), first="  ", indent="  ")
    lines += wrapped(one_line(group.remedy, MAX_TEXT_CHARACTERS), first="  Do: ", indent="      ")
    if machines >= _COMMON_MIN_MACHINES and count > _COMMON_SHARE * machines:
        lines += wrapped(
            "More than half of the machines have it: look for one common cause (image, driver, fabric, "
            "power) before any of them is drained.",
            first="  ",
            indent="  ",
        )
    return lines


def _doubtful(machines: list[MachineVerdict]) -> list[str]:
    lines = ["Reports that could not be taken as they stand:"]
    for machine in machines[:MAX_MACHINES_NAMED]:
        words = f"{one_line(machine.name, 120)}: {one_line(machine.reason or '', MAX_TEXT_CHARACTERS)}"
        lines += wrapped(words, first="  ", indent="    ")
    if len(machines) > MAX_MACHINES_NAMED:
        lines.append(f"  and {len(machines) - MAX_MACHINES_NAMED:,} more")
    return lines
