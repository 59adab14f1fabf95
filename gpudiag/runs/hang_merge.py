"""Looks at one job on several machines (`gpudiag.hang/1` documents) as one document with one verdict.

Times in a look are relative: clocks need not agree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import judge_job
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode
from gpudiag.model.finding import Outcome, worst
from gpudiag.model.job import HangMachine, HangReport, Job, JobVerdict
from gpudiag.model.job_state import JobState
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing
from gpudiag.runs.hang_meeting import explain_machines
from gpudiag.runs.merge import ReportSource, read_sources

_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


def read_hang_sources(paths: Iterable[str]) -> list[ReportSource] | None:
    """The documents in those files if the first that can be read is of `gpudiag hang`; else None."""
    sources = [source for path in paths for source in read_sources(path)]
    schemas = [_schema(source) for source in sources if not source.reason]
    return sources if schemas and schemas[0] == HangReport.SCHEMA else None


def join_hang_sources(
    sources: Sequence[ReportSource], limits: HangLimits | None = None, *, is_whole: bool = False
) -> HangReport:
    """One report of many machines' looks; a missing or unreadable document is ERROR.

    `is_whole`: every machine of the job is among them, so that a rank that is on none is gone.
    """
    reports: list[HangReport] = []
    machines: list[HangMachine] = []
    for source in sources:
        report = _read(source)
        if isinstance(report, HangReport):
            reports.append(report)
            machines += report.machines or (
                HangMachine(report.host, source.place, report.outcome, _reason(report)),
            )
        else:
            machines.append(report)
    verdicts = [
        _with_absent_ranks(judge_job(job, limits)) if job.machines else judge_job(job, limits)
        for job in join_jobs([one for report in reports for one in _jobs_of(report)], is_whole=is_whole)
    ]
    lost = [Outcome.ERROR for one in machines if one.outcome is Outcome.ERROR and one.reason]
    outcomes = (*(verdict.outcome for verdict in verdicts), *lost)
    return explain_machines(
        HangReport(
            outcome=worst(outcomes),
            host=reports[0].host if reports else "",
            taken_at=max((report.taken_at for report in reports), default=""),
            seconds=max((report.seconds for report in reports), default=0.0),
            jobs=tuple(verdicts),
            machine=tuple(finding for report in reports for finding in report.machine),
            notes=tuple(dict.fromkeys(note for report in reports if report.jobs for note in report.notes)),
            machines=tuple(machines),
        ),
        reports,
    )


def _schema(source: ReportSource) -> object:
    return source.document.get("schema") if isinstance(source.document, dict) else None


def _read(source: ReportSource) -> HangReport | HangMachine:
    if source.reason:
        return HangMachine(source.place, source.place, Outcome.ERROR, source.reason)
    schema = _schema(source)
    if schema != HangReport.SCHEMA:
        what = f"a document of schema {schema!r}" if schema else "not a gpudiag document"
        reason = f"{what}; documents of `gpudiag hang` can be merged only with each other"
        return HangMachine(source.place, source.place, Outcome.ERROR, reason)
    try:
        return decode(HangReport, source.document)
    except UsageError as error:
        return HangMachine(source.place, source.place, Outcome.ERROR, error.message)


def _reason(report: HangReport) -> str:
    """Why a machine's look found no job; empty where it found one."""
    return "" if report.jobs else "; ".join(report.notes) or "no job was found on it"


def _jobs_of(report: HangReport) -> list[Job]:
    """The jobs of one document; each rank with its machine."""
    jobs = []
    for verdict in report.jobs:
        job = verdict.job
        ranks = tuple(replace(rank, host=rank.host or report.host) for rank in job.ranks)
        numbers = tuple(rank.rank for rank in ranks if isinstance(rank.rank, int))
        machines = job.machines or ((report.host, job.expected if job.expected is not None else numbers),)
        jobs.append(replace(job, ranks=ranks, machines=machines))
    return jobs


def join_jobs(jobs: Sequence[Job], *, is_whole: bool = False) -> list[Job]:
    """The jobs, those parts of one job joined that share its meeting place and none of its ranks."""
    groups: list[list[Job]] = []
    for job in jobs:
        fitting = (group for group in groups if _key(group[0]) == _key(job) and _is_apart(group, job))
        group = next(fitting, None)
        if group is None:
            groups.append([job])
        else:
            group.append(job)
    return [_joined(group, is_whole=is_whole) for group in groups]


def _key(job: Job) -> tuple[object, ...]:
    """What all machines of one job have alike."""
    size = None if isinstance(job.world_size, Missing) else job.world_size
    on_one = job.host if job.master.startswith(_LOOPBACK) and not job.slurm_job else ""
    return job.run, job.master, job.slurm_job, size, on_one


def _is_apart(group: Sequence[Job], job: Job) -> bool:
    taken = {rank.rank for one in group for rank in one.ranks if isinstance(rank.rank, int)}
    return all(rank.rank not in taken for rank in job.ranks)


def _joined(group: Sequence[Job], *, is_whole: bool) -> Job:
    first = group[0]
    ranks = tuple(
        sorted((rank for job in group for rank in job.ranks), key=lambda rank: str(rank.rank).zfill(9))
    )
    machines = tuple(place for job in group for place in job.machines)
    expected = sorted({rank for _, some in machines for rank in some})
    if is_whole and isinstance(first.world_size, int):
        expected = list(range(first.world_size))
    states = [job.state for job in group if job.state is not None]
    hosts = list(dict.fromkeys(host for host, _ in machines))
    return replace(
        first,
        name=first.name if len(hosts) == 1 else f"{first.name} on {len(hosts)} machines",
        ranks=ranks,
        expected=tuple(expected) if expected else None,
        machines=machines,
        state=_joined_state(states),
    )


def _joined_state(states: Sequence[JobState]) -> JobState | None:
    if not states:
        return None
    return JobState(
        ras=tuple(looks for state in states for looks in state.ras),
        records=tuple(record for state in states for record in state.records),
        notes=tuple(dict.fromkeys(note for state in states for note in state.notes)),
    )


def _with_absent_ranks(verdict: JobVerdict) -> JobVerdict:
    """The verdict, with the ranks that are on no machine that was looked at."""
    job = verdict.job
    if not isinstance(job.world_size, int) or job.expected is None:
        return verdict
    there = {*job.expected, *(rank.rank for rank in job.ranks if isinstance(rank.rank, int))}
    absent = [rank for rank in range(job.world_size) if rank not in there]
    if not absent:
        return verdict
    are = "is" if len(absent) == 1 else "are"
    note = f"{name_ranks(absent)} {are} on no machine of these documents: run `gpudiag hang --json` there too"
    outcome = verdict.outcome if verdict.outcome is Outcome.FAIL else Outcome.ERROR
    headline = verdict.headline if outcome is Outcome.FAIL else f"unknown: {note}"
    return replace(verdict, outcome=outcome, headline=headline, unseen=(*verdict.unseen, note))
