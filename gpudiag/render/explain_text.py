"""An explanation as text: one topic, or what was recognised in a log."""

from gpudiag.model.explanation import Explanation, LogExplanation, Role, Sighting
from gpudiag.render.one_line import one_line
from gpudiag.render.style import PLAIN, Style, next_lines, wrapped

_INDENT = "  "
_LABEL_WIDTH = 11  # of the longest label, "Look also: "
_MAX_NUMBERS = 6  # of line numbers in a heading
_ROLE_COLOURS = {Role.HARDWARE: "red", Role.CAUSE: "yellow", Role.SYMPTOM: "dim"}


def render_explanation(explanation: Explanation, style: Style = PLAIN) -> str:
    """One topic: what it means, what is read, by which limit, what to do, where to look next."""
    heading = wrapped(f"{explanation.topic}: {explanation.title}", indent=_INDENT)
    heading[0] = heading[0].replace(explanation.topic, style.paint(explanation.topic, "bold"), 1)
    return "\n".join([*heading, *_body(explanation)]) + "\n"


def render_log_explanation(log: LogExplanation, style: Style = PLAIN) -> str:
    """What was recognised in a log, the likeliest cause first, each with its lines, cause and mend."""
    name = one_line(log.name)
    left_out = f" (of the middle, {log.bytes_left_out:,} bytes were left out)" if log.bytes_left_out else ""
    if not log.sightings:
        words = f"no known failure in {_lines(log.lines_read)}{left_out}" if log.lines_read else "it is empty"
        following = next_lines("gpudiag preflight (this machine)", "gpudiag nccl-test (ranks, network)")
        return "\n".join([*wrapped(f"{name}: {words}."), *following]) + "\n"
    count = len(log.sightings)
    found = "1 known failure" if count == 1 else f"{count} known failures, the likeliest cause first"
    lines = wrapped(f"{name}: {found}, in {_lines(log.lines_read)}{left_out}")
    has_cause = any(sighting.role is not Role.SYMPTOM for sighting in log.sightings)
    for place, sighting in enumerate(log.sightings, start=1):
        # What a cause explains needs no advice of its own.
        brief = has_cause and sighting.role is Role.SYMPTOM
        lines += ["", *_sighting(place, sighting, style, brief)]
    return "\n".join(lines) + "\n"


def _sighting(place: int, sighting: Sighting, style: Style, brief: bool) -> list[str]:
    explanation, role = sighting.explanation, sighting.role.value.upper()
    where = _where(sighting)
    heading = wrapped(f"{place}. {role} {explanation.topic}: {explanation.title} ({where})", indent="   ")
    heading[0] = heading[0].replace(role, style.paint(role, _ROLE_COLOURS[sighting.role]), 1)
    excerpt = wrapped(one_line(sighting.excerpt, 240), first="   | ", indent="   | ")
    if sighting.follows:
        return [*heading, *excerpt, *_labelled("Follows", f"from {sighting.follows}")]
    return [*heading, *excerpt, *([] if brief else _body(explanation, brief=True))]


def _where(sighting: Sighting) -> str:
    numbers = ", ".join(str(number) for number in sighting.lines[:_MAX_NUMBERS])
    if sighting.count == 1:
        return f"line {numbers}"
    more = sighting.count - len(sighting.lines[:_MAX_NUMBERS])
    return f"lines {numbers}" + (f" and {more} more" if more > 0 else "")


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
    return lines + _labelled("Source", "" if brief else explanation.source)


def _labelled(label: str, text: str) -> list[str]:
    """`text` behind its label, wrapped under itself; nothing where there is no text."""
    if not text:
        return []
    first = f"{_INDENT}{label + ':' if label else '':<{_LABEL_WIDTH}}"
    return wrapped(text, first=first, indent=" " * len(first))


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"
