"""The history of a machine as text: what is drifting, its baselines, its last runs, the GPUs it had."""

from datetime import datetime

from gpudiag.model.history import Baseline, History
from gpudiag.model.number_ranges import count_of
from gpudiag.render.style import PLAIN, Column, Style, one_line, render_table, wrapped
from gpudiag.units import format_rate, significant

MAX_RUNS = 10
MAX_BASELINES = 40


def render_history(history: History, style: Style = PLAIN) -> str:
    """The whole page, as wide as the terminal."""
    name = one_line(history.machine, 60)
    if not history.runs:
        lines = wrapped(f"No run of {name} is stored in {history.store}.")
        return "\n".join([*lines, "Next: gpudiag preflight"]) + "\n"
    count = len(history.runs)
    lines = wrapped(f"{name}: {count_of(count, 'run')} in {history.store}")
    lines += ["", *_runs(history, style), *_gpus(history), *_baselines(history, style)]
    return "\n".join([*lines, "Next: gpudiag preflight | gpudiag history --json"]) + "\n"


def _runs(history: History, style: Style) -> list[str]:
    columns = (Column("RUN", right=True), Column("WHEN (UTC)"), Column("KIND"), Column("OUTCOME"))
    rows = [
        (str(run.id), _when(run.at), run.kind, run.outcome.upper())
        for run in history.runs[: style.most(MAX_RUNS)]
    ]
    heading, *lines = render_table(columns, rows)
    painted = [style.paint_outcome(line, run.outcome) for line, run in zip(lines, history.runs, strict=False)]
    more = len(history.runs) - style.most(MAX_RUNS)
    return [heading, *painted, *([f"and {more} earlier: --verbose has all"] if more > 0 else [])]


def _gpus(history: History) -> list[str]:
    if not history.gpus:
        return []
    columns = (Column("GPU"), Column("SLOT"), Column("NAME", gives_way=True), Column("LAST SEEN (UTC)"))
    rows = [
        (gpu.uuid, gpu.bus_id.removeprefix("00000000:"), one_line(gpu.name, 40), _when(gpu.last_seen))
        for gpu in history.gpus
    ]
    return ["", *render_table(columns, rows)]


def _baselines(history: History, style: Style) -> list[str]:
    """A line per metric: its value in good runs and its last one; the largest fall comes first."""
    if not history.baselines:
        return []
    columns = (
        Column("METRIC", gives_way=True),
        Column("GPU"),
        Column("BASELINE", right=True),
        Column("LAST", right=True),
        Column("DRIFT", right=True),
        Column("RUNS", right=True),
    )
    ordered = sorted(history.baselines, key=_drift)
    rows = [
        (
            one.metric,
            (one.device_uuid or "-")[:12],
            _value(one.median, one.unit),
            _value(one.latest, one.unit),
            f"{_drift(one):+.0%}",
            str(one.count),
        )
        for one in ordered[: style.most(MAX_BASELINES)]
    ]
    more = len(ordered) - style.most(MAX_BASELINES)
    return ["", *render_table(columns, rows), *([f"and {more} more: --verbose has all"] if more > 0 else [])]


def _drift(baseline: Baseline) -> float:
    return baseline.latest / baseline.median - 1 if baseline.median else 0.0


def _value(value: float, unit: str) -> str:
    if unit == "B/s":
        return format_rate(value)
    return f"{significant(value / 1e12)} T{unit}" if unit == "FLOP/s" else f"{significant(value)} {unit}"


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
