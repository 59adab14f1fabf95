"""An explanation as text: one topic, or what was recognised in logs."""

from gpudiag.model.explanation import (
    Explanation,
    LogExplanation,
    LogRead,
    Role,
    Sighting,
    UnknownError,
    Verdict,
    VerdictKind,
)
from gpudiag.render.nccl_text import render_nccl
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped
from gpudiag.render.verdict_text import label_of_frame, render_verdict

TEXT = "text"  # the name of what stood on the command line
_INDENT = "  "
_MOST_OTHERS = 3
_MOST_REFUSED = 5
_LABEL_WIDTH = 11  # of the longest label, "Look also: "
_MAX_NUMBERS = 6  # of line numbers in a heading
_ROLE_COLOURS = {Role.HARDWARE: "red", Role.CAUSE: "yellow", Role.SYMPTOM: "dim"}


def render_explanation(explanation: Explanation, style: Style = PLAIN) -> str:
    """One topic: what it means, what is read, by which limit, what to do, where to look next."""
    heading = wrapped(f"{explanation.topic}: {explanation.title}", indent=_INDENT)
    heading[0] = heading[0].replace(explanation.topic, style.paint(explanation.topic, "bold"), 1)
    return "\n".join([*heading, *_body(explanation)]) + "\n"


def render_log_explanation(log: LogExplanation, style: Style = PLAIN) -> str:
    """What was recognised in logs, the likeliest cause first, each with its lines, cause and fix."""
    if log.verdict is not None and not all(read.name == TEXT for read in log.logs):
        return _render_job(log, log.verdict, style)
    lines: list[str] = []
    for read in log.logs:
        if read.refused:
            lines += wrapped(f"{one_line(read.name)}: not read: {read.refused}.")
    read_logs = [read for read in log.logs if not read.refused]
    if read_logs:
        lines += _summary(log, read_logs)
    has_cause = any(sighting.role is not Role.SYMPTOM for sighting in log.sightings)
    several = len(log.logs) > 1
    causes = [sighting for sighting in log.sightings if sighting.role is not Role.SYMPTOM]
    symptoms = [sighting for sighting in log.sightings if sighting.role is Role.SYMPTOM]
    place = 0
    for sighting in causes:
        place += 1
        lines += ["", *_sighting(place, sighting, style, False, several)]
    for error in log.unknown:
        place += 1
        lines += ["", *_unknown(place, error, style, several)]
    for sighting in symptoms:
        place += 1
        # A failure that another one explains needs no advice of its own.
        lines += ["", *_sighting(place, sighting, style, has_cause or bool(log.unknown), several)]
    if log.nccl is not None:
        lines += ["", *render_nccl(log.nccl, style)]
    return "\n".join(lines) + "\n"


def _render_job(log: LogExplanation, verdict: Verdict, style: Style) -> str:
    """The verdict on a job's logs, what else was recognised in them, and what was not read."""
    lines = render_verdict(verdict, style)
    if verdict.kind is VerdictKind.NOTHING:
        lines += next_lines("gpudiag preflight (this machine)", "gpudiag nccl-test (ranks, network)")
    several, place = len(log.logs) > 1, 0
    for sighting in log.sightings:
        if (
            sighting.role is not Role.SYMPTOM
            and sighting.explanation.topic != verdict.topic
            and place < style.most(_MOST_OTHERS)
        ):
            place += 1
            lines += [
                *(["", "Also in these logs:"] if place == 1 else [""]),
                *_sighting(place, sighting, style, False, several),
            ]
    if log.nccl is not None:
        lines += ["", *render_nccl(log.nccl, style)]
    read = [one for one in log.logs if not one.refused]
    name = one_line(read[0].name) if len(read) == 1 else f"{len(read)} logs"
    count, left_out = sum(one.lines_read for one in read), sum(one.bytes_left_out for one in read)
    left = f"; {left_out:,} bytes before the end were left out" if left_out else ""
    lines += ["", *wrapped(f"Read: {name}, {_lines(count)}{left}." if count else f"{name}: it is empty.")]
    refused = [one for one in log.logs if one.refused]
    for one in refused[: style.most(_MOST_REFUSED)]:
        lines += wrapped(f"{one_line(one.name)}: not read: {one.refused}.")
    unnamed = len(refused) - style.most(_MOST_REFUSED)
    if unnamed > 0:
        lines.append(f"and {unnamed} more files were not read: --verbose names them")
    return "\n".join(lines) + "\n"


def _summary(log: LogExplanation, read_logs: list[LogRead]) -> list[str]:
    count = sum(read.lines_read for read in read_logs)
    name = one_line(read_logs[0].name) if len(read_logs) == 1 else f"{len(read_logs)} logs"
    left_out = sum(read.bytes_left_out for read in read_logs)
    of = f"{_lines(count)}{f' ({left_out:,} bytes before the end were left out)' if left_out else ''}"
    if not count:
        return wrapped(f"{name}: it is empty.")
    known = len(log.sightings)
    if not known and not log.unknown:
        following = next_lines("gpudiag preflight (this machine)", "gpudiag nccl-test (ranks, network)")
        return [*wrapped(f"{name}: no known failure in {of}."), *following]
    found = "1 known failure" if known == 1 else f"{known} known failures, the likeliest cause first"
    if not known:
        found = (
            "an error that gpudiag does not know"
            if len(log.unknown) == 1
            else "errors that gpudiag does not know"
        )
    elif log.unknown:
        found += ", and an error that gpudiag does not know"
    return wrapped(f"{name}: {found}, in {of}")


def _unknown(place: int, error: UnknownError, style: Style, several: bool) -> list[str]:
    where = f"{one_line(error.log)} line {error.line}" if several else f"line {error.line}"
    rank = f", printed by {one_line(error.rank, 60)}" if error.rank else ""
    times = f", {error.count} times" if error.count > 1 else ""
    heading = wrapped(f"{place}. UNKNOWN ({where}{times}{rank})", indent="   ")
    heading[0] = heading[0].replace("UNKNOWN", style.paint("UNKNOWN", "yellow"), 1)
    lines = [*heading, *wrapped(one_line(error.text, 320), first="   | ", indent="   | ")]
    lines += _labelled(label_of_frame(error.where), one_line(error.where, 240))
    lines += _labelled("Means", error.meaning)
    return lines + _labelled(
        "Do", "Read the lines before it; if the job is right, test the machine: `gpudiag preflight`."
    )


def _sighting(place: int, sighting: Sighting, style: Style, brief: bool, several: bool) -> list[str]:
    explanation, role = sighting.explanation, sighting.role.value.upper()
    where = f"{one_line(sighting.log)} {_where(sighting, style)}" if several else _where(sighting, style)
    heading = wrapped(f"{place}. {role} {explanation.topic}: {explanation.title} ({where})", indent="   ")
    heading[0] = heading[0].replace(role, style.paint(role, _ROLE_COLOURS[sighting.role]), 1)
    excerpt = wrapped(one_line(sighting.excerpt, 320), first="   | ", indent="   | ")
    lines = [*heading, *excerpt]
    if sighting.went_on:
        lines += _labelled("But", "the run continued after it")
    if sighting.follows:
        return [*lines, *_labelled("Follows", f"from {sighting.follows}")]
    if brief and not style.verbose:
        return lines
    owner = f"{sighting.owner.value}; written by {sighting.program}" if sighting.owner else ""
    return [
        *lines,
        *_labelled(label_of_frame(sighting.where), one_line(sighting.where, 240)),
        *_labelled("Who", owner),
        *_body(explanation, brief=True),
    ]


def _where(sighting: Sighting, style: Style) -> str:
    numbers = ", ".join(str(number) for number in sighting.lines[: style.most(_MAX_NUMBERS)])
    others = f", also in {len(sighting.other_logs)} more" if sighting.other_logs else ""
    if sighting.count == 1:
        return f"line {numbers}"
    more = sighting.count - len(sighting.lines[: style.most(_MAX_NUMBERS)])
    return f"lines {numbers}" + (f" and {more} more" if more > 0 else "") + others


def _body(explanation: Explanation, *, brief: bool = False) -> list[str]:
    lines: list[str] = []
    lines += _labelled("Cause" if explanation.proof else "Means", explanation.meaning)
    for fact in () if brief else explanation.facts:
        lines += _labelled("" if lines else "Means", fact)
    lines += _labelled("Reads", "" if brief else explanation.reads)
    lines += _labelled("Limit", "" if brief else explanation.limit)
    lines += _labelled("Do", explanation.remedy)
    lines += _labelled("Check", explanation.proof)
    lines += _labelled("Look also", "" if brief else " | ".join(explanation.look_also))
    lines += _labelled("Source", "" if brief else explanation.source)
    for example in () if brief else explanation.examples:
        lines += [
            "",
            f"{_INDENT}{example.title}:",
            *(f"{_INDENT}  {line}".rstrip() for line in example.code.splitlines()),
        ]
    return lines


def _labelled(label: str, text: str) -> list[str]:
    """`text` after its label, wrapped with an indent; empty where there is no text."""
    if not text:
        return []
    first = f"{_INDENT}{label + ':' if label else '':<{_LABEL_WIDTH}}"
    return wrapped(text, first=first, indent=" " * len(first))


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"
