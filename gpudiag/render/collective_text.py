"""The report of an nccl-test run as text: the verdict, what it rests on, what to do next."""

from collections.abc import Sequence

from gpudiag.checks.ranks.collective import COLLECTIVE_SPEED
from gpudiag.checks.ranks.rising_counters import describe_movement
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult, Localisation
from gpudiag.model.operation import BARRIER, OPERATIONS
from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.model.report import CollectiveReport
from gpudiag.reference.software import describe_nccl
from gpudiag.render.report_words import describe_launcher, describe_subject_and_host, finding_lines
from gpudiag.render.style import PLAIN, Column, Style, next_lines, render_table, wrapped
from gpudiag.units import BYTES_PER_GB, format_rate, format_seconds, format_size, significant

SHOWN_SIZES = 6
_SHOWN_GROUPS = 2  # up to this many operations and dtypes, sizes are shown; of more, only the largest
_SMALLEST_RATE = 0.001  # GB/s; below it the time is more useful
_NUMBERS = (
    Column("SIZE", right=True),
    Column("p50", right=True),
    Column("p99", right=True),
    Column("algbw GB/s", right=True),
    Column("busbw GB/s", right=True),
    Column("wrong", right=True),
)
_OPERATION = Column("OPERATION", gives_way=True)

SHOWN_FINDINGS = 3
_NAMED_OPERATIONS = 3

Group = list[CollectiveResult]


def render_results(
    results: Sequence[CollectiveResult], *, all_sizes: bool, style: Style = PLAIN
) -> list[str]:
    """The lines of the tables, and of what they leave out."""
    groups = _groups(results)
    if len(groups) > _SHOWN_GROUPS and not all_sizes:
        table = render_table((_OPERATION, *_NUMBERS), [_summary_row(group) for group in groups])
        in_place = " * in place;" if any(_is_also_in_place(group[0]) for group in groups) else ""
        return [*_with_heading(table, style), f"The largest size of each;{in_place} --all-sizes shows all."]
    lines: list[str] = []
    for group in groups:
        title = [] if len(groups) == 1 else ["", name_group(group[0])]
        shown = group if all_sizes else _spread(group, SHOWN_SIZES)
        lines += [*title, *_with_heading(render_table(_NUMBERS, [_row(result) for result in shown]), style)]
    hidden = len(results) - sum(min(SHOWN_SIZES, len(group)) for group in groups)
    if hidden and not all_sizes:
        lines.append(f"{len(results) - hidden} of {len(results)} sizes; --all-sizes shows all.")
    return lines


def name_group(result: CollectiveResult) -> str:
    """What a table is about: `all_gather float32, in place`."""
    if result.op == BARRIER:
        return result.op
    reduce = "" if isinstance(result.reduce, Missing) else f" {result.reduce}"
    placement = ", in place" if _is_also_in_place(result) else ""
    return f"{result.op}{reduce} {result.dtype}{placement}{', unaligned' if result.unaligned else ''}"


def _is_also_in_place(result: CollectiveResult) -> bool:
    """Whether the result was in place and its operation can run out of place too."""
    return result.in_place and len(OPERATIONS[result.op].placements) > 1


def _groups(results: Sequence[CollectiveResult]) -> list[Group]:
    """The results in groups that differ only in size, in the order of the plan."""
    groups: dict[str, Group] = {}
    for result in results:
        groups.setdefault(name_group(result), []).append(result)
    return list(groups.values())


def _with_heading(table: list[str], style: Style) -> list[str]:
    return [style.paint(table[0], "bold"), *table[1:]]


def _spread(results: Group, count: int) -> Group:
    """At most `count` results, evenly spread, with the first and the last and every wrong one."""
    last = len(results) - 1
    chosen = {round(place * last / (count - 1)) for place in range(count)}
    return [result for place, result in enumerate(results) if place in chosen or result.verified is False]


def _summary_row(group: Group) -> list[str]:
    """The table row of a group's largest size, with the wrong elements of all its sizes."""
    largest = max(group, key=lambda result: result.size_bytes)
    counts = [result.wrong_elements for result in group]
    known = [count for count in counts if not isinstance(count, Missing)]
    return [_short_name(largest), *_row(largest)[:-1], str(sum(known)) if known else "-"]


def _short_name(result: CollectiveResult) -> str:
    """The group's name in a column, without what stands above the table for all groups."""
    if result.op == BARRIER:
        return result.op
    return f"{result.op} {result.dtype}{'*' if _is_also_in_place(result) else ''}"


def _row(result: CollectiveResult) -> list[str]:
    return [
        "-" if result.op == BARRIER else format_size(result.size_bytes),
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


def render_collective(report: CollectiveReport, *, all_sizes: bool = False, style: Style = PLAIN) -> str:
    """The whole report: verdict first, as wide as the terminal."""
    lines = [*_verdict_lines(report, style)]
    most = style.most(SHOWN_FINDINGS)
    for place, finding in enumerate(report.findings[:most]):
        lines += ["", *finding_lines(finding, has_message=place == 0)]
    if len(report.findings) > most:
        lines += ["", *_more_findings(report.findings[most:])]
    lines += ["", *_measured_lines(report.measurement, all_sizes=all_sizes or style.verbose, style=style)]
    lines += _ways_lines(report.measurement)
    lines += _localisation_lines(report.measurement)
    lines += _moved_lines(report.measurement)
    lines += next_lines(*_next_commands(report))
    return "\n".join(lines) + "\n"


def _verdict_lines(report: CollectiveReport, style: Style) -> list[str]:
    word = report.outcome.value.upper()
    simulated = f" SIMULATED {report.simulated}" if report.simulated else ""
    first, *more = wrapped(f"{word}{simulated} {_verdict(report)}", indent="  ")
    return [style.paint_outcome(first, report.outcome.value), *more]


def _verdict(report: CollectiveReport) -> str:
    measurement = report.measurement
    injected = ", ".join(fault.specification for fault in measurement.injected)
    prefix = f"(injected: {injected}) " if injected else ""
    if report.findings and report.outcome is not Outcome.PASS:
        return f"{prefix}{report.findings[0].message}"
    only = "CPU ONLY: " if measurement.device_kind == "cpu" else ""
    return f"{prefix}{only}{_what_ran(measurement)}, {_exactness(measurement)}, {_speed(report)}."


def _speed(report: CollectiveReport) -> str:
    """The sentence about the speed; empty where nothing is known of it."""
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
    """How much of what was measured was right; in sizes where there is one operation and dtype."""
    results = [result for result in measurement.results if result.op != BARRIER]
    if measurement.results and not results:  # it moves no data
        verified = all(result.verified is True for result in measurement.results)
        return "no rank ended early" if verified else "not verified"
    exact = sum(result.verified is True for result in results)
    one_kind = len({name_group(result) for result in results}) == 1
    what = ("size" if one_kind else "result") + "s" * (len(results) != 1)
    count = f"{exact}" if exact == len(results) else f"{exact} of {len(results)}"
    size = measurement.world_size
    rounded = size & (size - 1) and any(result.reduce == "avg" for result in results)
    return f"{count} {what} {'right within 2 units in the last place' if rounded else 'exact'}"


def _more_findings(findings: Sequence[Finding]) -> list[str]:
    """One line per code for the findings that are not shown whole."""
    by_code: dict[str, list[str]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(describe_subject_and_host(finding.subject))
    return [
        line
        for code, subjects in by_code.items()
        for line in wrapped(
            f"{len(subjects)} more {code}: {', '.join(subjects)} (--verbose has all)", indent="  "
        )
    ]


def _measured_lines(measurement: CollectiveMeasurement, *, all_sizes: bool, style: Style) -> list[str]:
    results, planned = measurement.results, measurement.sizes_planned
    lines = wrapped(_how_measured(measurement))
    if not results:
        what = "result was" if planned == 1 else "results were"
        return [*lines, f"Nothing was measured before that ({planned} {what} planned)."]
    lines += render_results(results, all_sizes=all_sizes, style=style)
    if len(results) < planned:
        lines.append(f"{len(results)} of {planned} planned results were measured before that.")
    if measurement.sizes_left_out:
        slowest = max(results, key=lambda result: result.time_p50_seconds)
        lines += wrapped(
            f"{measurement.sizes_left_out} of {planned + measurement.sizes_left_out} sizes"
            f" were left out: {slowest.op} of {format_size(slowest.size_bytes)} takes"
            f" {format_seconds(slowest.time_p50_seconds)} between these hosts."
            " `--iterations 5` measures all of them."
        )
    return lines


def _moved_lines(measurement: CollectiveMeasurement) -> list[str]:
    """The counters that rose during the run, GPU by GPU and host by host."""
    if isinstance(measurement.moved, Missing) or not measurement.moved:
        return []
    by_subject: dict[str, list[str]] = {}
    for movement in measurement.moved:
        by_subject.setdefault(describe_subject_and_host(movement.subject), []).append(
            describe_movement(movement)
        )
    counts = "; ".join(f"{name}: {', '.join(words)}" for name, words in by_subject.items())
    return wrapped(f"Counters that rose during the run: {counts}.", indent="  ")


def _ways_lines(measurement: CollectiveMeasurement) -> list[str]:
    """Whether graphs and buffers were those that were asked for."""
    lines: list[str] = []
    for what, found in (
        (f"{measurement.buffers} buffers", measurement.buffers),
        ("CUDA graphs", measurement.graph),
    ):
        if not isinstance(found, Missing):
            lines += wrapped(f"Operations ran with {what}.", indent="  ")
        elif found != NOT_ASKED:
            name = (
                "Buffers were plain" if found is measurement.buffers else "Operations ran without CUDA graphs"
            )
            lines += wrapped(f"{name}: {found.detail}.", indent="  ")
    return lines


def _localisation_lines(measurement: CollectiveMeasurement) -> list[str]:
    """What exchanges between pairs of nodes showed, or why there were none where they were asked for."""
    found = measurement.localisation
    if isinstance(found, Missing):
        return wrapped(f"Localisation: not done: {found.detail}.", indent="  ") if found.detail else []
    pairs = len(found.nodes) * (len(found.nodes) - 1) // 2
    links = f"all {pairs}" if found.links == pairs else f"{found.links} of {pairs}"
    usual = found.usual_bytes_per_second
    speed = "" if isinstance(usual, Missing) else f", usually {format_rate(usual)}"
    stand_out = len(found.suspects) or "none"
    words = (
        f"Localisation: {len(found.nodes)} nodes, {links} pairs in {found.rounds} rounds, "
        f"{format_seconds(found.seconds)}{speed}: {stand_out} stand{'s' * (stand_out == 1)} out."
    )
    return wrapped(f"{words}{_labels(found)}", indent="  ")


def _labels(found: Localisation) -> str:
    """Where the labels came from; without them, what they would give where not all pairs were measured."""
    if found.labels == NOT_ASKED:
        all_pairs = len(found.nodes) * (len(found.nodes) - 1) // 2
        if found.links >= all_pairs:
            return ""
        return (
            " A bad pair is found only if its two nodes met. With the leaves of the nodes (--labels FILE)"
            " bad uplinks and paths between switches are found too."
        )
    if isinstance(found.labels, Missing):
        return f" Without labels: {found.labels.detail}."
    return f" Labels: {found.labels}."


def _how_measured(measurement: CollectiveMeasurement) -> str:
    torch = "" if isinstance(measurement.torch_version, Missing) else measurement.torch_version
    loaded, built = measurement.nccl_version, measurement.nccl_built_version
    nccl = describe_nccl(loaded, built) if measurement.backend == "nccl" else ""
    versions = (f"torch {torch}, " if torch else "") + (f"{nccl}, " if nccl else "")
    return (
        f"On {measurement.host}: {versions}{describe_launcher(measurement.launcher)}, "
        f"{format_seconds(measurement.seconds)}{_verification(measurement)}.{_times(measurement)}"
    )


def _verification(measurement: CollectiveMeasurement) -> str:
    share = measurement.verify_share
    if isinstance(share, Missing) or all(
        isinstance(result.verified, Missing) for result in measurement.results
    ):
        return ""
    return f", verifying took {share:.0%} of the measuring"


def _times(measurement: CollectiveMeasurement) -> str:
    """The table's title: the operation if there is one, else what all of them have in common."""
    results = measurement.results
    if not results:
        return ""
    if len({name_group(result) for result in results}) == 1:
        return f" Times of {name_group(results[0])} are those of the slowest rank."
    reductions = {result.reduce for result in results if not isinstance(result.reduce, Missing)}
    reduce = f", reductions are {', '.join(sorted(reductions))}" if reductions else ""
    unaligned = ", buffers are unaligned" if any(result.unaligned for result in results) else ""
    return f" Times are those of the slowest rank{reduce}{unaligned}."


def _next_commands(report: CollectiveReport) -> list[str]:
    if report.outcome in (Outcome.FAIL, Outcome.ERROR):
        explain = [f"gpudiag explain {finding.code}" for finding in report.findings[:1]]
        return [*explain, "gpudiag list --sources all", "gpudiag nccl-test --json --output FILE"]
    if report.measurement.device_kind == "cpu":
        return [
            "gpudiag list --sources all",
            "gpudiag nccl-test --inject kill:1@5 (see a fault found)",
        ]
    return ["gpudiag nccl-test --all-sizes", "--inject kill:1@5 (see a fault found)"]
