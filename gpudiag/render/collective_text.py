"""The report of an nccl-test run as text: the verdict, what it rests on, what to do next."""

from collections.abc import Sequence

from gpudiag.checks.collective_speed import COLLECTIVE_SPEED
from gpudiag.checks.movements import describe_movement
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject, RankSubject, Subject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.report import CollectiveReport
from gpudiag.render.collective_tables import name_group, render_results
from gpudiag.render.style import PLAIN, Style, wrapped
from gpudiag.units import format_seconds

SHOWN_FINDINGS = 3
_NAMED_OPERATIONS = 3

_RULED_OUT = "ruled_out"
# Evidence with a line of its own; and whole stacks, which are for --json: `stuck_at` says where it is.
_TOLD_OTHERWISE = (_RULED_OUT, "stack")

_COLOURS = {Outcome.PASS: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red", Outcome.ERROR: "red"}


def render_collective(report: CollectiveReport, *, all_sizes: bool = False, style: Style = PLAIN) -> str:
    """The whole report: verdict first, at most 80 columns."""
    lines = [*_verdict_lines(report, style)]
    for place, finding in enumerate(report.findings[:SHOWN_FINDINGS]):
        lines += ["", *_finding_lines(finding, told=place == 0)]
    if len(report.findings) > SHOWN_FINDINGS:
        lines += ["", *_more_findings(report.findings[SHOWN_FINDINGS:])]
    lines += ["", *_measured_lines(report.measurement, all_sizes=all_sizes, style=style)]
    lines += _moved_lines(report.measurement)
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
    return f"{prefix}{only}{_what_ran(measurement)}, {_exactness(measurement)}, {_speed(report)}."


def _speed(report: CollectiveReport) -> str:
    """What can be said of the speed; nothing is said where nothing is known."""
    if report.measurement.ranks_share_gpu:
        return "functional only: the ranks share one GPU"
    judged = [finding for finding in report.findings if finding.code == COLLECTIVE_SPEED.code]
    return "speed as expected" if judged else "speed not judged"


def _what_ran(measurement: CollectiveMeasurement) -> str:
    ranks = f"{measurement.world_size} {measurement.backend} rank{'s' * (measurement.world_size != 1)}"
    names = list(dict.fromkeys(result.op for result in measurement.results))
    ops = ", ".join(names) if len(names) <= _NAMED_OPERATIONS else f"{len(names)} operations"
    return f"{ops}, {ranks}"


def _exactness(measurement: CollectiveMeasurement) -> str:
    """How much of what was measured was also right; sizes where there is one operation and dtype."""
    results = measurement.results
    exact = sum(result.verified is True for result in results)
    one_kind = len({name_group(result) for result in results}) == 1
    what = ("size" if one_kind else "result") + "s" * (len(results) != 1)
    count = f"{exact}" if exact == len(results) else f"{exact} of {len(results)}"
    size = measurement.world_size
    rounded = size & (size - 1) and any(result.reduce == "avg" for result in results)
    return f"{count} {what} {'right within 2 units in the last place' if rounded else 'exact'}"


def _finding_lines(finding: Finding, *, told: bool) -> list[str]:
    """One finding; `told` says that the verdict already gave its message."""
    lines = wrapped(f"{finding.code}: {name_subject(finding.subject)}", indent="  ")
    if not told:
        lines += wrapped(finding.message, first="  ", indent="  ")
    by_source: dict[str, list[str]] = {}
    for fact in finding.evidence:
        if fact.name not in _TOLD_OTHERWISE:
            by_source.setdefault(fact.source, []).append(_fact(fact))
    for source, facts in by_source.items():
        prefix = f"{source}: " if source else ""
        lines += wrapped(prefix + ", ".join(facts), first="  ", indent="    ")
    for fact in finding.evidence:
        if fact.name == _RULED_OUT:
            lines += wrapped(f"{fact.value}.", first="  Ruled out: ", indent="    ")
    return lines + wrapped(finding.remedy, first="  Do: ", indent="      ")


def _more_findings(findings: Sequence[Finding]) -> list[str]:
    """One line per code for the findings that are not shown whole."""
    by_code: dict[str, list[str]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(name_subject(finding.subject))
    return [
        line
        for code, subjects in by_code.items()
        for line in wrapped(
            f"{len(subjects)} more {code}: {', '.join(subjects)} (--json has all)", indent="  "
        )
    ]


def name_subject(subject: Subject) -> str:
    """What a finding is about, in a few words: `rank 2 on a1`."""
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
    elif isinstance(fact.value, float):
        value = f"{fact.value:.6g}"
    last_line = value.rstrip().rpartition("\n")[2]
    unit = f" {fact.unit}" if fact.unit else ""
    limit = f" (limit {fact.limit})" if fact.limit is not None else ""
    return f"{fact.name.replace('_', ' ')} {last_line}{unit}{limit}"


def _measured_lines(measurement: CollectiveMeasurement, *, all_sizes: bool, style: Style) -> list[str]:
    results, planned = measurement.results, measurement.sizes_planned
    lines = wrapped(_how_measured(measurement))
    if not results:
        what = "result was" if planned == 1 else "results were"
        return [*lines, f"Nothing was measured before that ({planned} {what} planned)."]
    lines += render_results(results, all_sizes=all_sizes, style=style)
    if len(results) < planned:
        lines.append(f"{len(results)} of {planned} planned results were measured before that.")
    return lines


def _moved_lines(measurement: CollectiveMeasurement) -> list[str]:
    """The counters that rose during the run, GPU by GPU and host by host."""
    if isinstance(measurement.moved, Missing) or not measurement.moved:
        return []
    by_subject: dict[str, list[str]] = {}
    for movement in measurement.moved:
        by_subject.setdefault(name_subject(movement.subject), []).append(describe_movement(movement))
    told = "; ".join(f"{name}: {', '.join(words)}" for name, words in by_subject.items())
    return wrapped(f"Moved meanwhile: {told}.", indent="  ")


def _how_measured(measurement: CollectiveMeasurement) -> str:
    torch = _text(measurement.torch_version)
    nccl = _text(measurement.nccl_version) if measurement.backend == "nccl" else ""
    versions = (f"torch {torch}, " if torch else "") + (f"NCCL {nccl}, " if nccl else "")
    times = " Times are those of the slowest rank." if measurement.results else ""
    return (
        f"On {measurement.host}: {versions}ranks by {measurement.launcher}, "
        f"{format_seconds(measurement.seconds)}{_verification(measurement)}.{times}"
    )


def _verification(measurement: CollectiveMeasurement) -> str:
    share = measurement.verify_share
    return "" if isinstance(share, Missing) else f", {share:.0%} of the measuring verifies"


def _text(reading: Reading[str]) -> str:
    return "" if isinstance(reading, Missing) else reading


def _next_command(report: CollectiveReport) -> str:
    if report.outcome in (Outcome.FAIL, Outcome.ERROR):
        explain = f"gpudiag explain {report.findings[0].code} | " if report.findings else ""
        return f"{explain}gpudiag list --sources all | gpudiag nccl-test --json --output FILE"
    if report.measurement.device_kind == "cpu":
        return "gpudiag list --sources all | gpudiag nccl-test --inject kill:1@5 (see a fault found)"
    return "gpudiag nccl-test --all-sizes | --inject kill:1@5 (see a fault found)"
