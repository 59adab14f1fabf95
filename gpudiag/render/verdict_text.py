"""A verdict on a job's logs as text: who failed first and by which line; then what only follows from it."""

import re

from gpudiag.model.explanation import Echo, Verdict, VerdictKind
from gpudiag.model.number_ranges import name_ranks
from gpudiag.render.style import PLAIN, Style, one_line, wrapped

_LABEL_WIDTH = 11
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib(?:64)?/python3")
_MOST_ECHOES = 6
_COLOURS = {VerdictKind.NOTHING: "green", VerdictKind.ONLY_ECHOES: "yellow", VerdictKind.STOPPED: "yellow"}


def render_verdict(verdict: Verdict, style: Style = PLAIN) -> list[str]:
    """The answer first: rank and host, line of the log, the user's own line, cause, what to do.

    The echoes come last.
    """
    lines = wrapped(one_line(verdict.sentence, 560), indent="  ")
    first = lines[0]
    lines[0] = style.paint(first, _COLOURS.get(verdict.kind, "red"))
    if verdict.log:
        at = f", {verdict.at}" if verdict.at else ""
        place = f"{one_line(verdict.log)}:{verdict.line}" if verdict.line else one_line(verdict.log)
        lines += _labelled("Line", f"{place}{at}")
        lines += (
            wrapped(one_line(verdict.excerpt, 320), first="   | ", indent="   | ") if verdict.excerpt else []
        )
    lines += _labelled(label_of_frame(verdict.where), one_line(verdict.where, 240))
    lines += _labelled("Known by", one_line("; ".join(verdict.evidence), 700))
    lines += _labelled("Cause", one_line(verdict.cause, 600))
    lines += _labelled("Driver", one_line("; ".join(verdict.driver_errors[:6]), 400))
    if verdict.kind is not VerdictKind.NOTHING:
        lines += _labelled("Do", one_line(verdict.remedy, 600))
    return lines + _echoes(verdict.echoes, style)


def label_of_frame(where: str) -> str:
    """What an exception's place is called: the user's own line, or the last where all are a library's."""
    return "Raised at" if _LIBRARY.search(where) else "Your line"


def _echoes(echoes: tuple[Echo, ...], style: Style) -> list[str]:
    if not echoes:
        return []
    count = sum(echo.count for echo in echoes)
    lines = ["", f"Consequences, not causes ({count:,} line{'s' if count > 1 else ''}):"]
    for echo in echoes[: style.most(_MOST_ECHOES)]:
        who = f" by {name_ranks(echo.ranks)}" if echo.ranks else ""
        hosts = (
            f" on {', '.join(one_line(host, 40) for host in echo.hosts[:4])}"
            f"{' and more' if len(echo.hosts) > 4 else ''}"
            if echo.hosts
            else ""
        )
        text = f"{echo.count:,} x {one_line(echo.what, 120)}{who}{hosts} ({one_line(echo.log)}:{echo.line})"
        lines += wrapped(text, first="  ", indent="      ")
    left = len(echoes) - style.most(_MOST_ECHOES)
    if left > 0:
        lines.append(f"  and {left} more kinds: --verbose has them")
    return lines


def _labelled(label: str, text: str) -> list[str]:
    first = f"  {label + ':':<{_LABEL_WIDTH}}"
    return wrapped(text, first=first, indent=" " * len(first)) if text else []
