"""The table of several watched machines: the worst first, and since when one does not answer."""

from collections.abc import Sequence
from statistics import fmean

from gpudiag.model.reading import Missing
from gpudiag.render.devices_text import NO_VALUE
from gpudiag.units import format_gib, format_seconds
from gpudiag.watch.columns import Column, fit_columns, heading_line, row_line
from gpudiag.watch.frame import Frame
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.view import BOLD, DIM, FAIL, GOOD, ROLE_OF_OUTCOME, Row, Span, Table

_ORDER = {"fail": 0, None: 1, "error": 2, "warn": 3, "pass": 4}


def host_table(frames: Sequence[Frame], words: str, width: int, glyphs: Glyphs, now: float) -> Table:
    """The machines that have all the words in their name, state or users, the worst first."""
    columns = fit_columns(_columns(glyphs, now), width)
    shown = [frame for frame in frames if all(word in _searched(frame) for word in words.lower().split())]
    heading, _ = heading_line(columns)
    rows = [Row(frame.name, (row_line(columns, frame),)) for frame in sorted(shown or frames, key=_place)]
    return Table(heading, tuple(rows))


def _place(frame: Frame) -> tuple[int, str]:
    return _ORDER.get(_verdict(frame), 1), frame.name


def _verdict(frame: Frame) -> str | None:
    """The machine's verdict; None while it does not answer."""
    return None if frame.problem is not None or frame.live is None else frame.live.verdict


def _searched(frame: Frame) -> str:
    live = frame.live
    users = (
        []
        if live is None
        else [
            str(process.user)
            for row in live.devices
            if not isinstance(row.processes, Missing)
            for process in row.processes
            if not isinstance(process.user, Missing)
        ]
    )
    return " ".join([frame.name, "" if live is None else live.headline, *dict.fromkeys(users)]).lower()


def _columns(glyphs: Glyphs, now: float) -> tuple[Column[Frame], ...]:
    return (
        Column("HOST", 12, 1, lambda frame, _: Span(frame.name, BOLD), most=32, weight=1),
        Column("VERDICT", 7, 1, _verdict_cell),
        Column(
            "GPUS",
            4,
            2,
            lambda frame, _: Span("" if frame.live is None else str(len(frame.live.devices))),
            is_right=True,
        ),
        Column("", 8, 4, lambda frame, width: _load_bar(frame, width, glyphs), most=20, weight=1),
        Column("UTIL", 4, 2, _load, is_right=True),
        Column("MEM GiB", 13, 5, _memory, is_right=True),
        Column("POWER kW", 8, 6, _power, is_right=True),
        Column("STATE", 14, 1, lambda frame, _: _state(frame, now), most=200, weight=4),
    )


def _verdict_cell(frame: Frame, _width: int) -> Span:
    verdict = _verdict(frame)
    if verdict is None:
        return Span("?", FAIL)
    return Span(verdict.upper(), ROLE_OF_OUTCOME.get(verdict, FAIL))


def _values(frame: Frame, name: str) -> list[float]:
    # The numbers of a machine that does not answer are old, and its row shows since when.
    rows = () if frame.live is None or frame.problem is not None else frame.live.devices
    readings = (getattr(row, name) for row in rows)
    return [float(reading) for reading in readings if not isinstance(reading, Missing)]


def _load(frame: Frame, _width: int) -> Span:
    values = _values(frame, "utilization_percent")
    return Span(f"{fmean(values):.0f}%") if values else Span(NO_VALUE, DIM)


def _load_bar(frame: Frame, width: int, glyphs: Glyphs) -> Span:
    values = _values(frame, "utilization_percent")
    return Span(glyphs.bar(fmean(values) / 100, width), GOOD) if values else Span("")


def _memory(frame: Frame, _width: int) -> Span:
    used, total = _values(frame, "memory_used_bytes"), _values(frame, "memory_total_bytes")
    return Span(f"{format_gib(sum(used))}/{format_gib(sum(total))}") if total else Span(NO_VALUE, DIM)


def _power(frame: Frame, _width: int) -> Span:
    values = _values(frame, "power_draw_watts")
    return Span(f"{sum(values) / 1000:.2f}") if values else Span(NO_VALUE, DIM)


def _state(frame: Frame, now: float) -> Span:
    if frame.problem is not None:
        since = (
            ""
            if frame.received_at is None
            else f" (last answer {format_seconds(float(round(now - frame.received_at)))} ago)"
        )
        return Span(f"{frame.problem}{since}", FAIL)
    return Span("reading" if frame.live is None else frame.live.headline)
