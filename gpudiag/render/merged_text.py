"""Many machines' reports as text: the count of each verdict, then each finding once with its machines."""

from collections import Counter
from collections.abc import Sequence

from gpudiag.model.finding import Outcome
from gpudiag.model.report import FindingGroup, MachineVerdict, MergedReport
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

MAX_MACHINES_NAMED = 24  # of one group; `--verbose` has all
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
    """`FAIL 2,000 machines: 1,997 pass; 3 fail`, findings with their machines, then unreadable reports."""
    lines = _verdict(merged, style)
    for group in merged.groups:
        lines += ["", *_group(group, len(merged.machines), style)]
    doubtful = [machine for machine in merged.machines if machine.reason is not None]
    if doubtful:
        lines += ["", *_doubtful(doubtful, style)]
    if merged.repeated:
        named = _named(merged.repeated, ", ", style)
        lines += ["", *wrapped(f"Given twice, counted once: {named}", indent="  ")]
    if merged.unfit:
        lines += ["", *wrapped(f"To leave out: {_named(merged.unfit, ', ', style)}", indent="  ")]
        if merged.leave_out is not None:
            lines.append(f"  {one_line(merged.leave_out)}")
    if merged.groups:
        lines += ["", *next_lines(f"gpudiag explain {one_line(merged.groups[0].code)}")]
    elif doubtful:
        lines += ["", *next_lines("gpudiag preflight --report json=FILE (on each of these machines)")]
    return "\n".join(lines) + "\n"


def _named(names: Sequence[str], separator: str, style: Style) -> str:
    """The names, and how many more there are."""
    most = style.most(MAX_MACHINES_NAMED)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(map(one_line, names[:most])) + more


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
    heading = f"{word} {count:,}: {one_line(group.code)}{owner}: {_named(group.machines, ' ', style)}"
    lines = wrapped(heading, indent="  ")
    lines[0] = style.paint_outcome(lines[0], group.outcome.value)
    lines += wrapped(one_line(group.message, MAX_TEXT_CHARACTERS), first="  ", indent="  ")
    lines += wrapped(one_line(group.remedy, MAX_TEXT_CHARACTERS), first="  Do: ", indent="      ")
    if machines >= _COMMON_MIN_MACHINES and count > _COMMON_SHARE * machines:
        lines += wrapped(
            "More than half of the machines have it: look for a common cause (image, driver, fabric,"
            " power) before you drain any of them.",
            first="  ",
            indent="  ",
        )
    return lines


def _doubtful(machines: list[MachineVerdict], style: Style) -> list[str]:
    lines = ["Reports that are damaged or contradict themselves:"]
    for machine in machines[: style.most(MAX_MACHINES_NAMED)]:
        words = f"{one_line(machine.name, 120)}: {one_line(machine.reason or '', MAX_TEXT_CHARACTERS)}"
        lines += wrapped(words, first="  ", indent="    ")
    if len(machines) > style.most(MAX_MACHINES_NAMED):
        lines.append(f"  and {len(machines) - MAX_MACHINES_NAMED:,} more")
    return lines
