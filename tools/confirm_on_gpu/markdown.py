"""The report for people: what this hardware confirmed, first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gpudiag.model.finding import Outcome
from tools.confirm_on_gpu.report import (
    AnonymousConfirmation,
    CallCost,
    CheckSeen,
    Confirmation,
    HangSeen,
    Speed,
    StartTime,
    StepSeen,
)

SHARED_FILE = "anonymous.json"

_ORDER = (Outcome.FAIL, Outcome.ERROR, Outcome.WARN, Outcome.PASS, Outcome.SKIP)


def render_report(report: Confirmation) -> str:
    """The whole report as Markdown."""
    parts = [
        *_head(report),
        *_steps(report.steps),
        *_hangs(report.hangs),
        *_starts(report.starts),
        *_costs(report.costs),
        *_speeds(report.speeds),
        *_checks(report.checks),
        *_readings(report),
        *_not_here(report.not_here),
        *_row_for_the_page(report),
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
    yield (
        f"{gpu_words(report.gpu_names)}; driver {report.driver_version or 'unknown'}; torch"
        f" {report.torch_version or 'not asked'}, CUDA"
    )
    yield (
        f"{report.cuda_runtime_version or 'none'}, NCCL"
        f" {report.nccl_version or 'none'}; Python {report.python_version};"
    )
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
    yield (
        "One GPU, the same sizes, one run after the other. Ratio: gpudiag's median"
        " over the loop's median. The loop's"
    )
    yield (
        "spread is its highest round less its lowest, over its median: a ratio"
        " within it shows nothing. Both put the GPU"
    )
    yield (
        "under the same load for as long; 0.98 and more is as it should be. Best:"
        " the best burst, before power limits."
    )
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


def _hangs(hangs: Sequence[HangSeen]) -> Iterable[str]:
    if hangs:
        yield "## gpudiag hang on jobs of two NCCL ranks on one GPU"
        yield ""
        yield from _table("| rank 1 | right | seconds | steps of the ranks | answer ||")
        words = {True: "yes", False: "NO", None: "not tried"}
        for one in hangs:
            steps = ", ".join(map(str, one.steps))
            yield _row(f"`{one.kind}`", words[one.right], f"{one.seconds:.1f}", steps, one.answer)
        yield ""


def _starts(starts: Sequence[StartTime]) -> Iterable[str]:
    if starts:
        yield "## From start to end"
        yield ""
        yield from _table("| command | median | of a processor | rounds |")
        for one in starts:
            wall, used = (
                "" if seconds is None else f"{1000 * seconds:.0f} ms"
                for seconds in (one.median_seconds, one.processor_seconds)
            )
            yield _row(f"`{one.command}`", wall or f"not run: {one.not_run}", used, str(one.rounds))
        yield ""


def _costs(costs: Sequence[CallCost]) -> Iterable[str]:
    if not costs:
        return
    yield "## What calls into NVML cost"
    yield ""
    yield (
        "How often each kind of look makes the call, the first GPU alone;"
        " sorted by what it adds to a listing."
    )
    yield ""
    yield from _table(
        "| call | in a listing | in a fast tick | in a slow tick | median | longest | of a processor |"
    )
    for one in sorted(costs, key=lambda cost: -cost.of_list * cost.median_seconds):
        times = (one.median_seconds, one.longest_seconds, one.processor_seconds)
        counts = (f"{count:.3g}" for count in (one.of_list, one.of_fast_tick, one.of_slow_tick))
        yield _row(f"`{one.call}`", *counts, *(f"{1e6 * seconds:.0f} us" for seconds in times))
    total = sum(one.of_list * one.median_seconds for one in costs)
    yield ""
    yield f"All calls of a listing: {1000 * total:.1f} ms."
    yield ""


ROW_HEAD = "| date | GPU | driver | torch | NCCL | gpudiag | what passed | what did not |"


def confirmed_row(report: Confirmation | AnonymousConfirmation) -> str:
    """The row for docs/gpu-paths.md's table of confirmed machines, of a report in either form."""
    outcomes = {step.name: step.outcome for step in report.steps}
    passed = [name for name, outcome in outcomes.items() if outcome in (Outcome.PASS, Outcome.WARN)]
    failed = [
        f"{name}: {outcome.value.upper()}" for name, outcome in outcomes.items() if outcome in _ORDER[:2]
    ]
    checks = Counter(check.outcome for check in report.checks)
    counted = [f"{checks[outcome]} {outcome.value.upper()}" for outcome in _ORDER if checks[outcome]]
    same = Counter(one.outcome for one in report.readings)
    words = [", ".join(f"`{name}`" for name in passed)]
    words += [f"{same['same']} of {same.total()} readings as nvidia-smi's"] if same else []
    words += [f"checks: {', '.join(counted)}"] if counted else []
    return _row(
        report.day,
        "SIMULATED" if report.simulated else gpu_words(report.gpu_names),
        report.driver_version or "unknown",
        report.torch_version or "none",
        report.nccl_version or "none",
        report.gpudiag_version,
        "; ".join(words),
        ", ".join(failed) or "nothing",
    )


def gpu_words(names: Counter[str]) -> str:
    """`8x NVIDIA H100 80GB HBM3`."""
    return ", ".join(f"{count}x {name}" for name, count in names.items()) or "none"


def _row_for_the_page(report: Confirmation) -> Iterable[str]:
    yield "## Row for docs/gpu-paths.md"
    yield ""
    yield from _table(ROW_HEAD)
    yield confirmed_row(report)
    yield ""
    yield (
        f"{SHARED_FILE}, beside this file, names neither the machine nor its users:"
        " attach it to an issue (docs/gpu.md)."
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
