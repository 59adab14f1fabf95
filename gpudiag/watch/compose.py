"""From frames and the user's choice to the picture: pure, so that tests read rows without a terminal."""

from collections.abc import Sequence

from gpudiag.watch.choice import Choice
from gpudiag.watch.columns import cut
from gpudiag.watch.finding_table import finding_table
from gpudiag.watch.frame import Frame
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.gpu_table import gpu_table
from gpudiag.watch.host_lines import header_lines
from gpudiag.watch.host_table import host_table
from gpudiag.watch.process_table import process_table
from gpudiag.watch.view import ACCENT, DIM, Line, Span, View

_KEYS = (
    ("q", "quit"),
    ("?", "help"),
    ("Tab", "part"),
    ("/", "filter"),
    ("s", "sort"),
    ("e", "explain"),
    ("h", "hang"),
    ("x", "test"),
    ("k", "signal"),
    ("t", "tree"),
    ("c", "chart"),
    ("Space", "pause"),
)


def compose(frames: Sequence[Frame], choice: Choice, width: int, glyphs: Glyphs, now: float) -> View:
    """The picture in `width` columns; `now` is Unix time, for ages."""
    frame = chosen_frame(frames, choice)
    verdict = None if frame.live is None else frame.live.verdict
    return View(
        header=header_lines(frame, choice, width, glyphs, now),
        hosts=host_table(frames, choice.filter, width, glyphs, now) if len(frames) > 1 else None,
        gpus=gpu_table(frame, choice.chart, width, glyphs, now),
        findings=finding_table(frame.findings, verdict, choice.finding, width, glyphs),
        processes=process_table(frame, choice, width, glyphs, now),
        footer=_footer(choice, width),
    )


def chosen_frame(frames: Sequence[Frame], choice: Choice) -> Frame:
    """The machine that is shown: the chosen one, else the first."""
    return next((frame for frame in frames if frame.name == choice.host), frames[0])


def share_lines(height: int, wanted: Sequence[int], least: Sequence[int], last: int) -> tuple[int, ...]:
    """How many lines each part gets, in order of the picture: its least first, then what it wants.

    The rest is the last one's. `last` is the place of the part that takes what is left over.
    """
    given = [0] * len(wanted)
    left = max(0, height)
    for limits in (least, wanted):
        for place, limit in enumerate(limits):
            more = min(left, max(0, min(limit, wanted[place]) - given[place]))
            given[place] += more
            left -= more
    given[last] += left
    return tuple(given)


def _footer(choice: Choice, width: int) -> Line:
    spans: list[Span] = []
    if choice.filter:
        spans.append(Span(f"filter: {choice.filter}  ", ACCENT))
    if choice.gpu is not None:
        spans.append(Span(f"only GPU {choice.gpu}  ", ACCENT))
    for key, words in _KEYS:
        if sum(len(span.text) for span in spans) + len(key) + len(words) + 3 > width:
            break
        spans += [Span(key, ACCENT), Span(f" {words}  ", DIM)]
    return cut(spans, width)
