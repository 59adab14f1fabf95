"""Judges one table of another program's benchmark by its kind; wrong data goes before all speed."""

from collections.abc import Iterable

from gpudiag.checks.benchmarks.collectives import judge_collective
from gpudiag.checks.benchmarks.copies import judge_copies
from gpudiag.checks.benchmarks.kinds import (
    NO_REFERENCE,
    NOT_A_MEASUREMENT,
    RIGHT,
    TOOL_FAILED,
    TOOL_WARNED,
    WRONG_DATA,
)
from gpudiag.checks.benchmarks.point_to_point import judge_latency, judge_messages, judge_point_to_point
from gpudiag.model.benchmark import JudgedTable, MeasuredTable, Metric, TestResult
from gpudiag.model.evidence import Evidence, FileSubject
from gpudiag.model.finding import Finding, Outcome, worst, worst_first
from gpudiag.model.number_ranges import count_of, number_ranges
from gpudiag.model.reading import Missing
from gpudiag.reference.expected_speeds import OtherProgram, find_reported_failure, other_programs
from gpudiag.units import GIB, format_size

PERFTEST, OSU, NCCL_TESTS, DCGM = "perftest", "OSU", "nccl-tests", "dcgmi diag"
OLD_ERROR_COLUMN, NOT_CHECKED = "old_error_column", "not_checked"
FAILED = ("fail", "error")


def judge_table(table: MeasuredTable) -> JudgedTable:
    """The table with its findings, worst first."""
    findings = worst_first(_findings(table))
    outcomes = tuple(finding.outcome for finding in findings if finding.outcome is not Outcome.SKIP)
    return JudgedTable(table, worst(outcomes) if outcomes else Outcome.SKIP, findings)


def overall(tables: Iterable[JudgedTable]) -> Outcome:
    """The worst of all tables; ERROR where not one could be judged."""
    return worst(tuple(judged.outcome for judged in tables))


def _findings(table: MeasuredTable) -> list[Finding]:
    if table.metric is Metric.RESULTS:
        other = next((one for one in other_programs() if one.name == table.tool), None)
        return _judge_results(table) if other is None else [_not_judged(table, other)]
    wrong = _judge_data(table)
    if wrong is not None:
        return [wrong]
    failed = [one for one in table.results if one.status in FAILED]
    if failed:
        subject = FileSubject(table.file, table.line)
        message = f"{table.operation}: {table.tool} stopped: {failed[0].message}"
        return [
            NOT_A_MEASUREMENT.finding(
                subject,
                message,
                remedy="Look for Xids: `gpudiag explain` on the kernel log. Then run it again.",
            )
        ]
    if table.metric is Metric.BUSBW:
        return judge_collective(table)
    if table.metric is Metric.LATENCY:
        return judge_latency(table)
    if table.tool == PERFTEST:
        return judge_messages(table)
    if table.tool.startswith("osu"):
        return judge_point_to_point(table)
    return judge_copies(table)


def _not_judged(table: MeasuredTable, program: OtherProgram) -> Finding:
    message = f"{table.tool}: it measures {program.measures}; gpudiag does not judge it"
    return NO_REFERENCE.finding(FileSubject(table.file, table.line), message, remedy=program.remedy)


def _judge_data(table: MeasuredTable) -> Finding | None:
    """Whether a program's own comparison of the data failed; None where it did not, or was not made."""
    wrong = [one for one in table.values if not isinstance(one.wrong, Missing) and one.wrong > 0]
    outside = 0 if isinstance(table.out_of_bounds, Missing) else table.out_of_bounds
    checked_by_tool = [one for one in table.results if one.status == "wrong"]
    if not (wrong or outside or checked_by_tool):
        return None
    subject = FileSubject(table.file, table.line)
    sizes = sorted({one.size_bytes for one in wrong if not isinstance(one.size_bytes, Missing)})
    largest = table.largest()
    words = table.operation
    if (
        OLD_ERROR_COLUMN in table.remarks
        and largest is not None
        and not isinstance(largest.size_bytes, Missing)
    ):
        words += f" {largest.size_bytes} error" if largest.size_bytes >= 4 * GIB else ""
        words = words.replace(str(largest.size_bytes), str(4 * GIB))
    known = find_reported_failure(NCCL_TESTS, words) if table.tool == NCCL_TESTS else None
    where = (
        f" at {format_size(sizes[0])}"
        if len(sizes) == 1
        else f" at {len(sizes)} sizes from {format_size(sizes[0])} on"
        if sizes
        else ""
    )
    if checked_by_tool:
        message = f"{table.operation}: wrong data: {checked_by_tool[0].message}"
    else:
        proof = f"`Out of bounds values : {outside} FAILED`" if outside else "rows with #wrong above 0"
        message = f"{table.operation}: wrong results{where}: {proof}"
    evidence = Evidence(
        "wrong_results",
        max((int(one.wrong) for one in wrong if not isinstance(one.wrong, Missing)), default=outside),
        limit=0,
        source=table.tool,
    )
    if known is not None:
        return TOOL_WARNED.finding(
            subject, f"{message}; {known.means} ({known.source})", evidence, remedy=known.remedy
        )
    return WRONG_DATA.finding(subject, message, evidence)


def _judge_results(table: MeasuredTable) -> list[Finding]:
    """The failures of a diagnostic, without those that are settings or its own faults."""
    subject = FileSubject(table.file, table.line)
    if not table.complete or not table.results:
        message = (
            f"{table.tool}: the output ends before its last test"
            if table.results
            else f"{table.tool}: no test has a result"
        )
        return [
            NOT_A_MEASUREMENT.finding(
                subject, message, remedy=f"Run `{table.tool} -r 2` again, and see its log."
            )
        ]
    findings = [
        _judge_failed(table, name)
        for name in dict.fromkeys(one.name for one in table.results if one.status in (*FAILED, "warn"))
    ]
    ran = [one for one in table.results if one.status != "skip"]
    if not ran:
        message = f"{table.tool}: all {len(table.results)} tests were skipped"
        return [
            NOT_A_MEASUREMENT.finding(
                subject, message, remedy="Run it as root, and see the reason beside each test."
            )
        ]
    if findings:
        return findings
    skipped = len({one.name for one in table.results}) - len({one.name for one in ran})
    left = f"; {skipped} skipped" if skipped else ""
    passed = len({one.name for one in ran})
    evidence = Evidence("tests_passed", passed, source=table.tool)
    return [RIGHT.finding(subject, f"{table.tool}: {count_of(passed, 'test')} passed{left}", evidence)]


def _judge_failed(table: MeasuredTable, name: str) -> Finding:
    failed = [one for one in table.results if one.name == name and one.status in (*FAILED, "warn")]
    subject = FileSubject(table.file, table.line)
    message = next((one.message for one in failed if one.message), "")
    gpus = sorted({one.gpu for one in failed if one.gpu is not None})
    of = f" on GPU {number_ranges(gpus)}" if gpus else ""
    summary = f"{table.tool}: {name} {_worst_word(failed)}{of}" + (f": {message[:300]}" if message else "")
    evidence = Evidence(name, failed[0].status, limit="pass", source=table.tool)
    known = find_reported_failure(table.tool, f"{name} {message}")
    if known is None:
        kind = TOOL_FAILED if any(one.status in FAILED for one in failed) else TOOL_WARNED
        return kind.finding(subject, summary, evidence)
    if known.status == "busy":
        return NOT_A_MEASUREMENT.finding(
            subject, f"{summary}. That is, {known.means}", evidence, remedy=known.remedy
        )
    return TOOL_WARNED.finding(
        subject, f"{summary}. That is, {known.means} ({known.source})", evidence, remedy=known.remedy
    )


def _worst_word(results: list[TestResult]) -> str:
    return "failed" if any(one.status in FAILED for one in results) else "warned"
