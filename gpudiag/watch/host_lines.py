"""The machine beside its GPUs: name and verdict, and what processors, memory, network and disks do."""

from datetime import datetime

from gpudiag.compat import UTC
from gpudiag.model.host_activity import HostActivity
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.service import SamplerState
from gpudiag.render.devices_text import NO_VALUE
from gpudiag.units import format_gib, format_rate, format_seconds
from gpudiag.watch.choice import Choice
from gpudiag.watch.columns import cut, spread
from gpudiag.watch.frame import Frame
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.view import BOLD, DIM, FAIL, GOOD, ROLE_OF_OUTCOME, WARN, Line, Span

_QUIET = (SamplerState.OK, SamplerState.NO_GPU)
_OLD_SECONDS = 10.0  # without news a machine is shown with the age of what is known
_BAR_CELLS = 8


def header_lines(frame: Frame, choice: Choice, width: int, glyphs: Glyphs, now: float) -> tuple[Line, ...]:
    """The first lines: the machine and its verdict, what is wrong with the look, and the host's load."""
    live = frame.live
    lines = [_title(frame, choice, width, now)]
    trouble = _trouble(frame, now)
    if trouble:
        lines.append(cut((Span(trouble, FAIL),), width))
    if live is not None:
        lines.append(_host_line(live.host_activity, width, glyphs))
    return tuple(lines)


def _title(frame: Frame, choice: Choice, width: int, now: float) -> Line:
    live = frame.live
    shown_at = now if live is None else live.at.timestamp()
    clock = datetime.fromtimestamp(shown_at, UTC).strftime("%H:%M:%S UTC")
    left = [Span("PAUSED  ", WARN)] if choice.is_paused else []
    left += [Span(f"{choice.note}  ", WARN)] if choice.note else []
    left += [Span(frame.name, BOLD), Span("  ")]
    if live is None:
        left.append(Span("reading the machine" if frame.problem is None else "no answer", WARN))
        return spread(left, [Span(clock, DIM)], width)
    if live.verdict is not None:
        left += [Span(live.verdict.upper(), ROLE_OF_OUTCOME.get(live.verdict, FAIL)), Span("  ")]
    left.append(Span(live.headline))
    if live.simulated is not None:
        left.append(Span(f"  SIMULATED {live.simulated}", WARN))
    right = []
    if not isinstance(live.driver_version, Missing):
        right.append(Span(f"  driver {live.driver_version}", DIM))
    return spread(left, [*right, Span(f"  {clock}", DIM)], width)


def _trouble(frame: Frame, now: float) -> str:
    """What is wrong with the look itself: no answer, an old one, a call into the driver that hangs."""
    if frame.problem is not None:
        since = (
            ""
            if frame.received_at is None
            else f"; last answer {format_seconds(float(round(now - frame.received_at)))} ago"
        )
        return f"{frame.name}: {frame.problem}{since}"
    live = frame.live
    if live is None or live.sampler.state in _QUIET:
        return ""
    reason = live.sampler.reason or ""
    return f"{live.sampler.state.value}: {reason}" if reason else ""


def _host_line(activity: Reading[HostActivity], width: int, glyphs: Glyphs) -> Line:
    if isinstance(activity, Missing):
        return cut((Span(f"HOST {activity.detail or 'not read yet'}", DIM),), width)
    groups = [
        _processors(activity, glyphs),
        _memory(activity, glyphs),
        _pair(
            "NET",
            glyphs.down,
            activity.network_received_bytes_per_second,
            glyphs.up,
            activity.network_transmitted_bytes_per_second,
        ),
        _pair("DISK", "r", activity.disk_read_bytes_per_second, "w", activity.disk_written_bytes_per_second),
        _load(activity),
    ]
    spans: list[Span] = []
    for group in groups:
        wanted = [*spans, *([Span("  ")] if spans else []), *group]
        if sum(len(span.text) for span in wanted) > width:
            break
        spans = wanted
    return cut(spans, width)


def _processors(activity: HostActivity, glyphs: Glyphs) -> list[Span]:
    busy = activity.processors_busy_percent
    spans = [Span("CPU ", DIM), *_bar(busy, 100.0, glyphs), Span(_percent(busy))]
    waiting = activity.processors_waiting_percent
    if not isinstance(waiting, Missing) and waiting >= 1:
        spans.append(Span(f" +{waiting:.0f}% wait", WARN))
    return spans


def _memory(activity: HostActivity, glyphs: Glyphs) -> list[Span]:
    total, available = activity.memory_total_bytes, activity.memory_available_bytes
    if isinstance(total, Missing) or isinstance(available, Missing):
        return [Span("MEM ", DIM), Span(NO_VALUE)]
    used = total - available
    spans = [
        Span("MEM ", DIM),
        *_bar(used, total, glyphs),
        Span(f"{format_gib(used)}/{format_gib(total)} GiB"),
    ]
    swap = activity.swap_used_bytes
    if not isinstance(swap, Missing) and swap:
        spans.append(Span(f" +{format_gib(swap)} swap", WARN))
    return spans


def _pair(title: str, first: str, one: Reading[float], second: str, other: Reading[float]) -> list[Span]:
    if isinstance(one, Missing) and isinstance(other, Missing):
        return [Span(f"{title} ", DIM), Span(NO_VALUE)]
    return [Span(f"{title} ", DIM), Span(f"{first} {_rate(one)} {second} {_rate(other)}")]


def _load(activity: HostActivity) -> list[Span]:
    load = activity.load_average
    return [Span("LOAD ", DIM), Span(NO_VALUE if isinstance(load, Missing) else f"{load:.2f}")]


def _bar(reading: Reading[float] | Reading[int], whole: float, glyphs: Glyphs) -> list[Span]:
    if isinstance(reading, Missing) or not whole:
        return []
    return [Span(glyphs.bar(reading / whole, _BAR_CELLS), GOOD), Span(" ")]


def _percent(reading: Reading[float]) -> str:
    return NO_VALUE if isinstance(reading, Missing) else f"{reading:.0f}%"


def _rate(reading: Reading[float]) -> str:
    return NO_VALUE if isinstance(reading, Missing) else format_rate(reading)
