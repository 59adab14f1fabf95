"""`gpudiag hang`: look at the ranks of running jobs, and show who waits for whom; `watch_job` for one job."""

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from time import monotonic, sleep

from gpudiag.checks.job.activity import EXITING, LOADER, LOCK, PYTHON
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import is_decided, judge_job, needs_c_functions
from gpudiag.compat import UTC
from gpudiag.errors import GpudiagError, SourceAbsentError, SourceFailedError, UsageError
from gpudiag.installed import install_command, root_command
from gpudiag.model.evidence import ranks_of
from gpudiag.model.finding import Finding, Outcome, worst
from gpudiag.model.job import JOINED, HangReport, Job, JobVerdict, RankSeen
from gpudiag.model.job_state import JobState
from gpudiag.model.reading import Missing
from gpudiag.probe.job.gather import Gathered, gather_looks, join_looks
from gpudiag.probe.job.gpu_use import add_gpu_looks, start_gpu_use
from gpudiag.probe.job.look import Wanted
from gpudiag.probe.job.py_spy import StopWatch, find_py_spy
from gpudiag.probe.job.py_spy import read_native as read_c_functions
from gpudiag.probe.job.pystack import read_native
from gpudiag.probe.job.simulated import read_simulated_jobs
from gpudiag.probe.job.state import read_job_state
from gpudiag.probe.start import SIMULATED
from gpudiag.ranks.environment import RankEnvironment, read_launch
from gpudiag.ranks.launchers import NUMBERING_LAUNCHERS
from gpudiag.runs.hang_meeting import explain_meeting

# What stands still for less than the limit is looked at again after it; from the start to the first look
# takes some time too.
_MARGIN_SECONDS = 0.5
_FURTHER_LOOKS = 3
_FURTHER_APART_SECONDS = 0.3
_WATCH_SECONDS = 5.0  # between two looks at a job that is watched
_NOT_READ = "C functions could not be read"
_MOST_STOPPED = 16  # ranks whose C functions are read
_FURTHER_SECONDS = 1.0  # that further looks take at least
_STOP_SECONDS = 1.5  # that C functions of a rank take at least
_NATIVE_SECONDS = 30.0  # it takes 1 s, and many times that where processes wait for processors


def run_hang(
    pid: int | None = None,
    slurm_job: str | None = None,
    *,
    every: bool = False,
    limits: HangLimits | None = None,
    with_machine: bool = True,
    job_of: int | None = None,
    native: bool = False,
    watch_seconds: float = 0.0,
    deadline_seconds: float | None = None,
) -> HangReport:
    """The verdict on the job of a process, on those of a Slurm job here, or on what there is.

    While it is unknown whether a job hangs it is looked at again for `watch_seconds`; after
    `deadline_seconds` the looks that there are decide. `job_of`: only the job to which that process belongs.

    Raises:
        UsageError: there is no such process or job, it has no ranks, or there are several and none was named.
        SourceAbsentError: py-spy is not installed.
    """
    started = monotonic()
    simulated = read_simulated_jobs()
    if simulated is not None:
        return _judge_simulated(simulated, limits)
    if find_py_spy() is None:
        raise SourceAbsentError(
            "the stacks of other processes are read by py-spy, which is not installed",
            hint=install_command("hang"),
        )
    wanted = Wanted(pid=pid, slurm_job=slurm_job)
    gpus = start_gpu_use()
    until = None if deadline_seconds is None else started + deadline_seconds
    gathered = gather_looks(wanted, deadline_seconds)
    _refuse(gathered, wanted, every=every or job_of is not None)
    jobs = gathered.jobs if job_of is None else _only_that_of(gathered.jobs, job_of)
    jobs = add_gpu_looks(_with_state(jobs), gpus)
    verdicts = _judge_all(jobs, limits, started, watch_seconds, until)
    if native and _is_left(until, _STOP_SECONDS):
        verdicts = [_with_native(verdict, limits) for verdict in verdicts]
    if with_machine and _is_left(until, 3.0):
        verdicts = [explain_meeting(verdict) for verdict in verdicts]
    machine = _look_at_machine(jobs) if with_machine and _is_left(until, 3.0) else ()
    outcome = worst(tuple(verdict.outcome for verdict in verdicts))
    return HangReport(
        outcome,
        socket.gethostname(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        round(monotonic() - started, 2),
        tuple(verdicts),
        machine,
        _notes(verdict.job for verdict in verdicts),
    )


def _judge_simulated(jobs: Sequence[Job], limits: HangLimits | None) -> HangReport:
    """The verdict on the jobs of a simulated machine. Raises UsageError: none stands still there."""
    if not jobs:
        raise UsageError(
            "no job stands still on this simulated machine", hint="gpudiag simulate lists its faults"
        )
    verdicts = tuple(judge_job(job, limits or HangLimits()) for job in jobs)
    return HangReport(
        worst(tuple(verdict.outcome for verdict in verdicts)),
        jobs[0].host,
        datetime.now(UTC).isoformat(timespec="seconds"),
        0.0,
        verdicts,
        notes=(f"SIMULATED {os.environ[SIMULATED]}: a recorded job, no real process was looked at",),
    )


def _only_that_of(jobs: Sequence[Job], pid: int) -> tuple[Job, ...]:
    """The job to which the process belongs. Raises UsageError: it belongs to none of them."""
    for job in jobs:
        below = {child.pid for rank in job.ranks for child in rank.children}
        if pid in below | {rank.pid for rank in job.ranks} | {job.launcher_pid}:
            return (job,)
    found = "; ".join(f"{job.name} (pid {job.ranks[0].pid})" for job in jobs[:8] if job.ranks)
    raise UsageError(f"process {pid} belongs to no job that was found here", hint=f"there is {found}")


def read_hang_launch(variables: Mapping[str, str]) -> RankEnvironment | None:
    """The place that srun or MPI gave this process among several on the job's machines; None where alone.

    RANK and WORLD_SIZE do not count: in a pod every shell has them.
    """
    environment = read_launch(variables)
    return environment if environment is not None and environment.launcher in NUMBERING_LAUNCHERS else None


def look_here(
    slurm_job: str | None,
    *,
    every: bool,
    limits: HangLimits | None,
    native: bool = False,
    watch_seconds: float = 0.0,
    deadline_seconds: float | None = None,
) -> HangReport:
    """As `run_hang`, for one of several machines: where it finds no job, or cannot look, it reports why."""
    started = monotonic()
    try:
        return run_hang(
            None,
            slurm_job,
            every=every,
            limits=limits,
            native=native,
            watch_seconds=watch_seconds,
            deadline_seconds=deadline_seconds,
        )
    except GpudiagError as error:
        why = (
            f"{error.message} ({error.hint})"
            if error.hint and not isinstance(error, UsageError)
            else error.message
        )
        return HangReport(
            Outcome.ERROR,
            socket.gethostname(),
            datetime.now(UTC).isoformat(timespec="seconds"),
            round(monotonic() - started, 2),
            (),
            notes=(why,),
        )


def watch_job(
    pid: int, limits: HangLimits | None = None, add_earlier: Callable[[Job], Job] | None = None
) -> JobVerdict | None:
    """The verdict on a process's job by two looks or three, and those of `add_earlier`.

    It is None where the process has ended.

    Raises:
        SourceFailedError: the processes of this machine could not be listed.
    """
    started = monotonic()
    jobs = _with_state(gather_looks(Wanted(pid=pid)).jobs)
    if add_earlier is not None:
        jobs = tuple(add_earlier(job) for job in jobs)
    return _judge_all(jobs, limits, started)[0] if jobs else None


def _with_state(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs with what their own libraries report, as far as they do."""
    return tuple(replace(job, state=read_job_state(job)) for job in jobs)


def _judge_all(
    jobs: Sequence[Job],
    limits: HangLimits | None,
    started: float,
    watch_seconds: float = 0.0,
    until: float | None = None,
) -> list[JobVerdict]:
    """The verdicts; what the first looks do not decide is looked at again, when the limits have passed."""
    return [_judge(job, limits, started, watch_seconds, until) for job in jobs]


def _is_left(until: float | None, seconds: float) -> bool:
    """Whether so much time is left until then (`time.monotonic`); always where nobody set an end."""
    return until is None or monotonic() + seconds < until


def _judge(
    job: Job, limits: HangLimits | None, started: float, watch_seconds: float, until: float | None = None
) -> JobVerdict:
    """The verdict, after as many looks as it takes: one after each limit, then while the job is watched.

    No look is begun that could not end by `until` (`time.monotonic`).
    """
    limits = limits or HangLimits()
    verdict = judge_job(job, limits)
    for limit in (limits.still, *([limits.loop] if limits.loop > limits.still else [])):
        wait = max(0.0, started + limit + _MARGIN_SECONDS - monotonic())
        if is_decided(verdict, limits) or not _may_change(verdict, limit, limits):
            break
        if not _is_left(until, wait + _FURTHER_SECONDS):
            return verdict
        verdict = _look_again(verdict, limits, started, limit + _MARGIN_SECONDS, until)
        # Only now: it stops the ranks for a moment, and a job that goes on has shown so by its lines.
        verdict = _with_c_functions(verdict, limits, until)
    if verdict.outcome is not Outcome.PASS:
        verdict = _with_c_functions(verdict, limits, until)
    while not is_decided(verdict, limits) and monotonic() - started < watch_seconds:
        wait = min(_WATCH_SECONDS, watch_seconds + started - monotonic())
        verdict = _look_again(verdict, limits, started, monotonic() - started + wait)
    return verdict


def _may_change(verdict: JobVerdict, until: float, limits: HangLimits) -> bool:
    """Whether a look after that limit may decide: the longer one is that of loops alone."""
    computes = (PYTHON, LOCK, EXITING, LOADER)  # by itself, or in a thread or a worker that it waits for
    return until <= limits.still or any(
        place.kind in computes and place.moves for place in verdict.places_of_ranks
    )


def _look_again(
    verdict: JobVerdict,
    limits: HangLimits,
    started: float,
    at_least_seconds: float,
    until: float | None = None,
) -> JobVerdict:
    """The verdict with further looks that long after the start.

    It is the same where the job ended, or time is over.
    """
    sleep(max(0.0, started + at_least_seconds - monotonic()))
    job, at_seconds = verdict.job, monotonic() - started
    # Several, soon after each other: a loop of short waits is seen at another line now and then.
    # One of processes that are joined may be a job of its own, if it is named.
    pid = job.launcher_pid if job.launcher == JOINED else job.ranks[0].pid
    wanted = Wanted(pid=pid, looks=_FURTHER_LOOKS, between_seconds=_FURTHER_APART_SECONDS)
    try:
        again = gather_looks(wanted, None if until is None else until - monotonic()).jobs
    except SourceFailedError:
        if until is None:
            raise
        return verdict
    if not again or (
        until is not None and any(look.state == "?" for rank in again[0].ranks for look in rank.looks)
    ):
        return verdict
    return judge_job(join_looks(job, again[0], at_seconds), limits)


def _with_c_functions(verdict: JobVerdict, limits: HangLimits, until: float | None = None) -> JobVerdict:
    """The verdict with the C functions of ranks of which only processor time moves."""
    job = verdict.job
    state = job.state or JobState()
    if any(_NOT_READ in note for note in state.notes) or not _is_left(until, _STOP_SECONDS):
        return verdict  # once is enough
    seconds = _NATIVE_SECONDS if until is None else min(_NATIVE_SECONDS, until - monotonic())
    doubtful = [rank for rank in job.ranks if needs_c_functions(rank, verdict)][:_MOST_STOPPED]
    if not doubtful:
        return verdict
    with ThreadPoolExecutor(len(doubtful)) as pool:
        answers = list(pool.map(lambda rank: _read_c_functions(rank, seconds), doubtful))
    read = {one.pid: one for one in answers if isinstance(one, RankSeen)}
    notes = tuple(dict.fromkeys(f"{_NOT_READ}: {one.detail}" for one in answers if isinstance(one, Missing)))
    ranks = tuple(read.get(rank.pid, rank) for rank in job.ranks)
    state = replace(state, notes=(*state.notes, *notes))
    return judge_job(replace(job, ranks=ranks, state=state if job.state or notes else None), limits)


def _read_c_functions(rank: RankSeen, timeout_seconds: float) -> RankSeen | Missing:
    look = rank.last
    with StopWatch(rank.pid) as stop:
        functions = read_c_functions(rank.pid, timeout_seconds=timeout_seconds)
    if isinstance(functions, Missing):
        return functions
    threads = tuple(replace(one, native=functions) if one.tid == look.pid else one for one in look.threads)
    seen = replace(look, threads=threads, stopped_seconds=max(0.001, round(stop.seconds, 3)))
    return replace(rank, looks=(*rank.looks[:-1], seen))


def _with_native(verdict: JobVerdict, limits: HangLimits | None) -> JobVerdict:
    """The verdict with the C functions of the blamed ranks, or of the first."""
    blamed = {rank for one in verdict.findings for rank in ranks_of(one.subject)}
    pids = [rank.pid for rank in verdict.job.ranks if rank.rank in blamed]
    pids = pids or [rank.pid for rank in verdict.job.ranks[:1]]
    ranks = tuple(_add_native(rank) if rank.pid in pids[:2] else rank for rank in verdict.job.ranks)
    return judge_job(replace(verdict.job, ranks=ranks), limits)


def _add_native(rank: RankSeen) -> RankSeen:
    look = rank.last
    if (
        look.main is None
        or look.frozen
        or look.traced_by
        or {thread.state for thread in look.threads} & set("DTt")
    ):
        return rank  # pystack would wait for it without end
    functions = read_native(rank.pid)
    words = (functions.detail,) if isinstance(functions, Missing) else functions
    threads = tuple(replace(one, native=words) if one.tid == look.pid else one for one in look.threads)
    return replace(rank, looks=(*rank.looks[:-1], replace(look, threads=threads)))


def _refuse(gathered: Gathered, wanted: Wanted, *, every: bool) -> None:
    jobs = gathered.jobs
    if wanted.slurm_job is not None and not jobs:
        raise UsageError(
            f"no rank of Slurm's job {wanted.slurm_job} is on this machine",
            hint=(
                f"run it where the job runs: `srun --overlap --jobid {wanted.slurm_job} gpudiag hang"
                f" --slurm-job {wanted.slurm_job}`"
            ),
        )
    if wanted.pid is not None and not jobs:
        words, hint = gathered.refusal or (f"no job was found at process {wanted.pid}", "")
        raise UsageError(words, hint=hint)
    if not jobs and gathered.hidden:
        raise SourceFailedError(
            f"no job was found among this user's processes, and {gathered.hidden}"
            " Python processes here may not be read",
            hint=f"`{root_command('hang')}`, or `{root_command('hang PID')}`",
        )
    if not jobs:
        raise UsageError(
            "no job was found on this machine: no process has RANK and WORLD_SIZE, or torch loaded",
            hint=(
                "name a process of it: `gpudiag hang PID`; where it is another"
                f" user's: `{root_command('hang PID')}`"
            ),
        )
    if len(jobs) > 1 and wanted.pid is None and wanted.slurm_job is None and not every:
        listed = "; ".join(f"{job.name} ({_count_ranks(job)})" for job in jobs[:8])
        raise UsageError(
            f"{len(jobs)} jobs are on this machine: {listed}", hint="name one: `gpudiag hang PID`, or `--all`"
        )


def _count_ranks(job: Job) -> str:
    if not job.ranks:
        return "no rank yet"
    return f"{len(job.ranks)} {'rank' if len(job.ranks) == 1 else 'ranks'}, e.g. pid {job.ranks[0].pid}"


def _look_at_machine(jobs: Iterable[Job]) -> tuple[Finding, ...]:
    """What the instant checks and the kernel log show of the machine, where the jobs use GPUs."""
    if not any(rank.gpus for job in jobs for rank in job.ranks) or not os.path.exists("/dev/nvidiactl"):
        return ()
    from gpudiag.probe.inventory import take_snapshot
    from gpudiag.runs.instant import judge_snapshot

    report = judge_snapshot(take_snapshot(deadline_seconds=3.0))
    return tuple(finding for finding in report.findings() if finding.outcome in (Outcome.FAIL, Outcome.WARN))


def _notes(jobs: Iterable[Job]) -> tuple[str, ...]:
    """What the look itself did to the ranks."""
    seen = tuple(jobs)
    stopped = [
        look.pid
        for job in seen
        for rank in job.ranks
        for look in rank.looks
        if "stopped" in str(look.stacks) and isinstance(look.stacks, str)
    ]
    looks = [look for job in seen for rank in job.ranks for look in rank.looks]
    read = {look.pid: look.stopped_seconds for look in looks if look.stopped_seconds}
    if read:
        longest = f"{'' if len(read) == 1 else 'the longest '}for {1000 * max(read.values()):.0f} ms"
        return (
            (
                f"to read C functions, {len(read)}"
                f" {'rank was' if len(read) == 1 else 'ranks were'} stopped once, {longest}"
            ),
        )
    if any(thread.native for look in looks for thread in look.threads):
        return ("pystack stopped the rank with the C functions for about a second",)
    if stopped:
        pids = ", ".join(str(pid) for pid in dict.fromkeys(stopped))
        return (f"to read a whole stack, these processes were stopped for some milliseconds: {pids}",)
    return ("read from outside: no rank was stopped or changed",)
