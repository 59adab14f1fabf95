"""The report for people: what this hardware confirmed, first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gpudiag.model.finding import Outcome
from tools.confirm_on_gpu.report import CheckSeen, Confirmation, Speed, StepSeen

_ORDER = (Outcome.FAIL, Outcome.ERROR, Outcome.WARN, Outcome.PASS, Outcome.SKIP)


def render_report(report: Confirmation) -> str:
    """The whole report as Markdown."""
    parts = [
        *_head(report),
        *_steps(report.steps),
        *_speeds(report.speeds),
        *_checks(report.checks),
        *_readings(report),
        *_not_here(report.not_here),
    ]
    return "\n".join(parts) + "\n"


def _head(report: Confirmation) -> Iterable[str]:
    yield f"# What {report.host} confirmed: {report.outcome.value.upper()}"
    yield ""
    if report.simulated is not None:
        yield f"**SIMULATED {report.simulated}: no real GPU was read, and nothing here confirms hardware.**"
        yield ""
    if not report.finished:
        yield "**Not finished: this report was written on the way, after the last step below.**"
        yield ""
    counted = Counter(gpu.name or "a GPU without a name" for gpu in report.gpus)
    gpus = ", ".join(f"{count} x {name}" for name, count in counted.items()) or "no GPU was listed"
    yield f"{gpus}; driver {report.driver_version or 'unknown'}; torch {report.torch_version or 'not asked'}, CUDA"
    yield f"{report.cuda_runtime_version or 'none'}, NCCL {report.nccl_version or 'none'}; Python {report.python_version};"
    yield f"gpudiag {report.gpudiag_version}; {report.started_at:%Y-%m-%d %H:%M} UTC, {report.seconds:.0f} s."
    yield ""


def _steps(steps: Sequence[StepSeen]) -> Iterable[str]:
    yield "## Steps"
    yield ""
    yield from _table("| step | confirms | | seconds | what was seen |")
    for step in steps:
        yield _row(
            f"`{step.name}`", step.confirms, step.outcome.value.upper(), f"{step.seconds:.1f}", step.sentence
        )
    yield ""
    yield "Commands, run from the source tree; each one's output lies beside this file:"
    yield ""
    for step in steps:
        if step.stdout is not None:
            yield f"- `{step.command}` ({step.stdout}, {step.stderr})"
    yield ""


def _speeds(speeds: Sequence[Speed]) -> Iterable[str]:
    if not speeds:
        return
    yield "## Speeds beside a bare torch loop"
    yield ""
    yield "One GPU, the same sizes, one run after the other. Ratio: gpudiag's median over the loop's median. The loop's"
    yield "spread is its highest round less its lowest, over its median: a ratio within it says nothing. Both put the GPU"
    yield "under the same load for as long; 0.98 and more is as it should be. Best: the best burst, before power limits."
    yield ""
    yield from _table("| | gpudiag | best | bare loop | ratio | the loop's spread | the GPU during it |")
    for speed in speeds:
        scale, unit = (1e12, "TFLOP/s") if speed.unit == "FLOP/s" else (1e9, "GB/s")
        ours, best, theirs = (
            ", ".join(f"{value / scale:.4g}" for value in values) + f" {unit}" if values else "not measured"
            for values in (speed.gpudiag, speed.best, speed.loop)
        )
        ratio = "" if speed.ratio is None else f"{speed.ratio:.3f}"
        spread = "" if speed.loop_spread is None else f"{100 * speed.loop_spread:.1f} %"
        yield _row(speed.name, ours, best, theirs, ratio, spread, speed.meanwhile)
    yield ""


def _checks(checks: Sequence[CheckSeen]) -> Iterable[str]:
    if not checks:
        return
    counts = Counter(check.outcome for check in checks)
    yield "## Checks, and the readings that this hardware confirmed"
    yield ""
    yield (
        ", ".join(f"{counts[outcome]} {outcome.value.upper()}" for outcome in _ORDER if counts[outcome]) + "."
    )
    yield "A reading is confirmed where a GPU gave it; `confirmed by` is what had shown it before this run."
    yield ""
    yield from _table("| check | seen | readings that were there | readings that were not | confirmed by |")
    for check in sorted(checks, key=lambda check: _ORDER.index(check.outcome)):
        seen = check.outcome.value.upper()
        if check.codes:
            seen += f" {', '.join(check.codes)}"
        if check.reason:
            seen += f": {check.reason}"
        missing = ", ".join(f"{name} ({reason})" for name, reason in check.missing.items())
        yield _row(
            f"`{check.check}`", seen, ", ".join(check.read), missing, check.confirmed_before or "nothing"
        )
    yield ""


def _readings(report: Confirmation) -> Iterable[str]:
    if not report.readings:
        return
    yield "## Readings beside nvidia-smi"
    yield ""
    for kind in dict.fromkeys(reading.kind for reading in report.readings):
        counts = Counter(reading.outcome for reading in report.readings if reading.kind == kind)
        yield f"- {kind}: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))
    yield ""
    others = [one for one in report.readings if one.outcome not in ("same", "not_in_capture")]
    if others:
        yield from _table("| GPU | reading | | gpudiag | nvidia-smi |")
        for one in others:
            yield _row(
                str(one.nvml_index), f"`{one.reading}` ({one.kind})", one.outcome, one.ours, one.theirs
            )
        yield ""


def _not_here(lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield "## What this Python lacks"
        yield ""
        yield from (f"- {line}" for line in lines)
        yield ""


def _table(head: str) -> Iterable[str]:
    yield head
    yield "|" + " --- |" * (head.count("|") - 1)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
