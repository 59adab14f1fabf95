"""The report of an nccl-test run as text: the verdict, what it rests on, what to do next."""

from collections.abc import Sequence

from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject, RankSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.report import CollectiveReport
from gpudiag.render.style import PLAIN, Column, Style, render_table, wrapped
from gpudiag.units import BYTES_PER_GB, format_seconds, format_size, significant

SHOWN_SIZES = 6
SHOWN_FINDINGS = 3
_SMALLEST_RATE = 0.001  # GB/s; below it the time says more

_COLOURS = {Outcome.PASS: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red", Outcome.ERROR: "red"}
_COLUMNS = (
    Column("SIZE", right=True),
    Column("p50", right=True),
    Column("p99", right=True),
    Column("algbw GB/s", right=True),
    Column("busbw GB/s", right=True),
    Column("wrong", right=True),
)


def render_collective(report: CollectiveReport, *, all_sizes: bool = False, style: Style = PLAIN) -> str:
    """The whole report: verdict first, at most 80 columns."""
    lines = [*_verdict_lines(report, style)]
    for place, finding in enumerate(report.findings[:SHOWN_FINDINGS]):
        lines += ["", *_finding_lines(finding, told=place == 0)]
    if len(report.findings) > SHOWN_FINDINGS:
        lines += ["", *_more_findings(report.findings[SHOWN_FINDINGS:])]
    lines += ["", *_measured_lines(report.measurement, all_sizes=all_sizes, style=style)]
    lines += wrapped(f"Next: {_next_command(report)}", indent="      ")
    return "\n".join(lines) + "\n"


def _verdict_lines(report: CollectiveReport, style: Style) -> list[str]:
    word = report.outcome.value.upper()
    simulated = f" SIMULATED {report.simulated}" if report.simulated else ""
    first, *more = wrapped(f"{word}{simulated} {_verdict(report)}", indent="  ")
    return [style.paint(word, _COLOURS[report.outcome]) + first[len(word) :], *more]


def _verdict(report: CollectiveReport) -> str:
    measurement = report.measurement
    injected = ", ".join(fault.specification for fault in measurement.injected)
    prefix = f"(injected: {injected}) " if injected else ""
    if report.findings and report.outcome is not Outcome.PASS:
        return f"{prefix}{report.findings[0].message}"
    only = "CPU ONLY: " if measurement.device_kind == "cpu" else ""
    return f"{prefix}{only}{_what_ran(measurement)}, {_exactness(measurement)}, speed not judged."


def _what_ran(measurement: CollectiveMeasurement) -> str:
    ranks = f"{measurement.world_size} {measurement.backend} rank{'s' * (measurement.world_size != 1)}"
    return f"{_joined([result.op for result in measurement.results])}, {ranks}"


def _exactness(measurement: CollectiveMeasurement) -> str:
    exact = sum(result.verified is True for result in measurement.results)
    sizes = len({result.size_bytes for result in measurement.results})
    if exact == len(measurement.results):
        return f"{sizes} sizes exact"
    return f"{exact} of {len(measurement.results)} results exact"


def _finding_lines(finding: Finding, *, told: bool) -> list[str]:
    """One finding; `told` says that the verdict already gave its message."""
    lines = wrapped(f"{finding.code}: {_subject(finding)}", indent="  ")
    if not told:
        lines += wrapped(finding.message, first="  ", indent="  ")
    by_source: dict[str, list[str]] = {}
    for fact in finding.evidence:
        by_source.setdefault(fact.source, []).append(_fact(fact))
    for source, facts in by_source.items():
        prefix = f"{source}: " if source else ""
        lines += wrapped(prefix + ", ".join(facts), first="  ", indent="    ")
    return lines + wrapped(finding.remedy, first="  Do: ", indent="      ")


def _more_findings(findings: Sequence[Finding]) -> list[str]:
    """One line per code for the findings that are not shown whole."""
    by_code: dict[str, list[str]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(_subject(finding))
    return [
        line
        for code, subjects in by_code.items()
        for line in wrapped(
            f"{len(subjects)} more {code}: {', '.join(subjects)} (--json has all)", indent="  "
        )
    ]


def _subject(finding: Finding) -> str:
    subject = finding.subject
    if isinstance(subject, RankSubject):
        return f"rank {subject.rank} on {subject.host}"
    if isinstance(subject, DeviceSubject):
        return f"GPU {_text(subject.uuid)} on {subject.host}"
    if isinstance(subject, HostSubject):
        return subject.host
    return subject.kind


def _fact(fact: Evidence) -> str:
    """A fact in one line; of a longer text, such as what a rank wrote last, the last line."""
    value = str(fact.value)
    if isinstance(fact.value, bool):
        value = "yes" if fact.value else "no"
    last_line = value.rstrip().rpartition("\n")[2]
    unit = f" {fact.unit}" if fact.unit else ""
    limit = f" (limit {fact.limit})" if fact.limit is not None else ""
    return f"{fact.name.replace('_', ' ')} {last_line}{unit}{limit}"


def _measured_lines(measurement: CollectiveMeasurement, *, all_sizes: bool, style: Style) -> list[str]:
    results, planned = measurement.results, measurement.sizes_planned
    lines = wrapped(_how_measured(measurement))
    if not results:
        return [*lines, f"Nothing was measured before that ({planned} results were planned)."]
    several = len({(result.op, result.dtype, result.reduce) for result in results}) > 1
    for group in _groups(results):
        if several:
            lines += ["", f"{group[0].op} {group[0].dtype} {_text(group[0].reduce)}".rstrip()]
        shown = group if all_sizes else _spread(group, SHOWN_SIZES)
        heading, *rows = render_table(_COLUMNS, [_row(result) for result in shown])
        lines += [style.paint(heading, "bold"), *rows]
    if len(results) < planned:
        lines.append(f"{len(results)} of {planned} planned results were measured before that.")
    elif not all_sizes and len(results) > SHOWN_SIZES:
        lines.append(f"{min(SHOWN_SIZES, len(results))} of {len(results)} sizes; --all-sizes shows all.")
    return lines


def _how_measured(measurement: CollectiveMeasurement) -> str:
    torch = _text(measurement.torch_version)
    nccl = _text(measurement.nccl_version) if measurement.backend == "nccl" else ""
    versions = (f"torch {torch}, " if torch else "") + (f"NCCL {nccl}, " if nccl else "")
    return (
        f"On {measurement.host}: {versions}ranks by {measurement.launcher}, "
        f"{format_seconds(measurement.seconds)}. Times are those of the slowest rank."
    )


def _groups(results: Sequence[CollectiveResult]) -> list[list[CollectiveResult]]:
    """Results of the same operation, dtype and reduction together, in the order of the plan."""
    groups: dict[tuple[str, str, Reading[str]], list[CollectiveResult]] = {}
    for result in results:
        groups.setdefault((result.op, result.dtype, result.reduce), []).append(result)
    return list(groups.values())


def _spread(results: Sequence[CollectiveResult], count: int) -> list[CollectiveResult]:
    """At most `count` results, evenly spread, with the first and the last and every wrong one."""
    last = len(results) - 1
    chosen = {round(place * last / (count - 1)) for place in range(count)}
    return [result for place, result in enumerate(results) if place in chosen or result.verified is False]


def _row(result: CollectiveResult) -> list[str]:
    return [
        format_size(result.size_bytes),
        format_seconds(result.time_p50_seconds),
        format_seconds(result.time_p99_seconds),
        _rate(result.algbw_bytes_per_second),
        _rate(result.busbw_bytes_per_second),
        "-" if isinstance(result.wrong_elements, Missing) else str(result.wrong_elements),
    ]


def _rate(reading: Reading[float]) -> str:
    if isinstance(reading, Missing):
        return "n/a"
    rate = reading / BYTES_PER_GB
    return significant(rate) if rate >= _SMALLEST_RATE else f"<{_SMALLEST_RATE}"


def _text(reading: Reading[str]) -> str:
    return "" if isinstance(reading, Missing) else reading


def _joined(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _next_command(report: CollectiveReport) -> str:
    if report.outcome in (Outcome.FAIL, Outcome.ERROR):
        return "gpudiag list --sources all | gpudiag nccl-test --json --output FILE"
    if report.measurement.device_kind == "cpu":
        return "gpudiag list --sources all | gpudiag nccl-test --inject kill:1@5 (see a fault found)"
    return "gpudiag nccl-test --all-sizes | --inject kill:1@5 (see a fault found)"
