"""A translated `nhc.conf` as text: the commands, what each of its checks becomes, and what stays with NHC."""

import textwrap
from collections.abc import Sequence

from gpudiag.model.number_ranges import number_ranges
from gpudiag.reference.nhc import NhcLine, gate_command, measuring_command

_COLUMNS = 80


def render_nhc(name: str, lines: Sequence[NhcLine]) -> str:
    """What to run instead for each target of the file, then its checks with gpudiag's, or why they stay."""
    ours = [line for line in lines if line.known is not None and line.known.checks]
    theirs = [line for line in lines if line not in ours]
    out = [
        f"{name}: {len(lines)} checks. gpudiag has checks for {len(ours)}, and {len(theirs)} stay with NHC.",
        "",
    ]
    for target in dict.fromkeys(line.target for line in ours):
        its = [line for line in ours if line.target == target]
        out += [f"Before each job, on {target}:", f"  {gate_command(its)}"]
        if (measuring := measuring_command(its)) is not None:
            out += [f"Before a machine goes to work, on {target}:", f"  {measuring}"]
    if any(line.known is not None and line.known.needs_good_report for line in ours):
        out += ["good.json is the report of a good machine of this kind:"]
        out += ["  gpudiag preflight --level instant --output good.json"]
    if ours:
        out += ["", "Instead of", *_rows(ours)]
    if theirs:
        out += ["", "Stays with NHC", *_rows(theirs)]
    return "\n".join(out)


def _rows(lines: Sequence[NhcLine]) -> list[str]:
    """Two paragraphs for each check of NHC: its lines, and what gpudiag has."""
    out = []
    for name in dict.fromkeys(line.name for line in lines):
        its = [line for line in lines if line.name == name]
        where = f"line{'s' * (len(its) > 1)} {number_ranges(line.number for line in its)}"
        out.append(f"  {its[0].text if len(its) == 1 else name} ({where})")
        if words := _words(its[0]):
            out.append(textwrap.fill(words, _COLUMNS, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return out


def _words(line: NhcLine) -> str:
    known = line.known
    if known is None:
        return ""
    level = "" if known.level == "instant" else f" (level {known.level})"
    return ": ".join(part for part in (f"{', '.join(known.checks)}{level}", known.words) if part)
