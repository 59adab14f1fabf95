"""The document of a run: what the agent saw, judged, with what the machine and the job's files show."""

import os
import resource
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gpudiag.checks.job.run import (
    RunFacts,
    describe_unseen_ranks,
    judge_run,
    outcome_of_run,
    without_last_moves,
)
from gpudiag.checks.job.shares import measure_shares
from gpudiag.compat import UTC
from gpudiag.errors import GpudiagError
from gpudiag.model.explanation import LogExplanation
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job_run import OWN_PREFIX, JobRun, RankShare, WatchCost
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import mask_words
from gpudiag.probe.job.flight_recorder import DumpRefused, read_dump
from gpudiag.probe.kernel_log.read import read_kernel_log
from gpudiag.runs.job_run.agent import Agent
from gpudiag.runs.job_run.environment import DUMP_NAME
from gpudiag.runs.job_run.process import signal_name
from gpudiag.units import format_seconds

_KERNEL_MARGIN = timedelta(seconds=2)
_LOG_TAIL_BYTES = 16 << 20
_NAN_FOUND = "checkForNaN"  # the kernel that fails, in torch 2.4 to 2.13 (Utils.cu, NanCheck.cu)


@dataclass(frozen=True, slots=True)
class RunStart:
    """What is known of a run as its command is started."""

    command: tuple[str, ...]
    host: str
    run_id: str
    started: datetime
    torch_version: Reading[str]
    variables: Mapping[str, str]
    folder: Path
    outputs: tuple[tuple[Path, int], ...]  # files that the job writes its output to, with their size before
    scratch: str | None = None  # what the names of pipes and of files with exceptions begin with
    nan_check: bool = False


def find_outputs() -> tuple[tuple[Path, int], ...]:
    """Standard output and error, where they are files, with their size now."""
    found: dict[Path, int] = {}
    for descriptor in (1, 2):
        with suppress(OSError):
            seen = os.fstat(descriptor)
            if stat.S_ISREG(seen.st_mode):
                found.setdefault(Path(os.readlink(f"/proc/self/fd/{descriptor}")), seen.st_size)
    return tuple(found.items())


def build_verdict(start: RunStart, agent: Agent, status: int | None) -> JobRun:
    """The document; `status` is the command's wait status, None while it runs."""
    code = None if status is None else os.waitstatus_to_exitcode(status)
    failed = code not in (None, 0)
    records = tuple(one.record() for one in agent.members.all)
    if failed:
        agent.stalls.report_at_end()
    open_stall = agent.stalls.open_stall()
    reported = (*agent.stalls.ended, *((open_stall,) if open_stall is not None else ()))
    stalls = without_last_moves(reported, records, agent.signals, agent.killed)
    explained = _explain(start, agent) if failed else None
    looked_for_cause = failed or any(one.order is not None for one in records) or bool(stalls)
    facts = RunFacts(
        host=start.host,
        started=start.started,
        seconds=(datetime.now(UTC) - start.started).total_seconds(),
        exit_status=0 if code is None else 128 - code if code < 0 else code,
        ranks=records,
        signals=tuple(agent.signals),
        stalls=stalls,
        slow=agent.slow,
        step=agent.step,
        kernel=_read_kernel_log(start) if looked_for_cause else NOT_ASKED,
        glances=sum(len(one.glances) for one in agent.members.all),
        unseen=tuple(agent.unseen),
        command=start.command,
        has_ended=status is not None,
        expected=agent.members.expected,
        world_size=agent.members.world_size,
        last_look=agent.stalls.open_look if status is not None else None,
        log=explained.verdict if explained is not None else None,
        nan_check=start.nan_check,
        last_calls=_last_calls(start.folder) if start.nan_check and failed else {},
        found_nan=start.nan_check and any(_NAN_FOUND in text for text in _outputs(start)),
    )
    findings = judge_run(facts)
    return JobRun(
        outcome=outcome_of_run(facts, findings),
        headline=_headline(facts, findings, running=status is None),
        findings=findings,
        command=tuple(mask_words(start.command)),
        host=start.host,
        run_id=start.run_id,
        started=start.started,
        seconds=round(facts.seconds, 3),
        exit_status=None if code is None else facts.exit_status,
        signal=signal_name(-code) if code is not None and code < 0 else None,
        torch_version=start.torch_version,
        variables=dict(start.variables),
        folder=str(start.folder) if _has_files(start.folder) else None,
        world_size=_world_size(agent),
        ranks=records,
        steps=agent.step,
        shares=_shares(agent),
        stalls=stalls,
        signals=facts.signals,
        kernel=facts.kernel,
        explained=explained,
        cost=_cost(agent),
        unseen=facts.unseen,
    )


def _world_size(agent: Agent) -> Reading[int]:
    size = agent.members.world_size
    return Missing(MissingReason.NOT_SUPPORTED, "no launcher set it") if size is None else size


def _headline(facts: RunFacts, findings: Sequence[Finding], *, running: bool) -> str:
    if findings and findings[0].outcome in (Outcome.FAIL, Outcome.WARN):
        return findings[0].message
    took = format_seconds(facts.seconds)
    ranks = _count_ranks(facts)
    steps = "" if isinstance(facts.step, Missing) else f", steps of {format_seconds(facts.step.seconds)}"
    if running:
        return f"the job has run for {took}; {ranks or 'no rank was seen'}{steps}"
    if not ranks:
        why = describe_unseen_ranks(facts)
        return (
            f"the command ended with exit status 0 after {took}, and nothing was looked"
            f" at: no rank was seen here; {why}"
        )
    return f"the job succeeded after {took}; {ranks}{steps}"


def _count_ranks(facts: RunFacts) -> str:
    """`4 ranks here`; how many of them were seen, where that is fewer; empty for none."""
    count = len({str(one.rank) for one in facts.ranks})
    if count and facts.expected is not None and count < facts.expected:
        return f"{count} of {facts.expected} ranks here were seen"
    return f"{count_of(count, 'rank')} here" if count else ""


def _shares(agent: Agent) -> tuple[RankShare, ...]:
    """Of the ranks as they were started last."""
    members = agent.members.latest
    return measure_shares(
        {one.rank: list(one.coarse) for one in members if one.rank is not None},
        {one.rank: list(one.glances) for one in members if one.rank is not None},
    )


def _read_kernel_log(start: RunStart) -> Reading[tuple[KernelEvent, ...]]:
    """What the kernel logged during the run."""
    events = read_kernel_log().events
    if isinstance(events, Missing):
        return events
    since = start.started - _KERNEL_MARGIN
    return tuple(one for one in events if isinstance(one.at, datetime) and one.at >= since)


def _outputs(start: RunStart) -> tuple[str, ...]:
    """What the job wrote during the run to files, without gpudiag's own lines."""
    texts = (_tail(path, before) for path, before in start.outputs)
    return tuple(
        "".join(line for line in text.splitlines(keepends=True) if not line.startswith(OWN_PREFIX))
        for text in texts
        if text.strip()
    )


def _explain(start: RunStart, agent: Agent) -> LogExplanation | None:
    """What the job's output shows, where that is a file; None where gpudiag cannot read it."""
    from gpudiag.explain.recipe import explain_text

    output = "".join(_outputs(start))
    if not output.strip():
        return None
    try:
        return explain_text(output)
    except (GpudiagError, ValueError, OSError):
        agent.unseen["the job's output could not be explained"] = None
        return None


def _tail(path: Path, before: int) -> str:
    """What was written to a file during the run, the last of it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(min(before, size), size - _LOG_TAIL_BYTES))
            return file.read(_LOG_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _last_calls(folder: Path) -> dict[int, str]:
    """By rank the first collective without an end in its flight record: `all_reduce number 43 of ...`."""
    found = {}
    for path in sorted(folder.glob(f"{DUMP_NAME}*")):
        with suppress(DumpRefused):
            record = read_dump(path)
            if isinstance(record.rank, int) and record.pending:
                call = record.pending[0]
                group = call.group_description or call.group
                found[record.rank] = f"{call.operation} number {call.sequence} of group {group}"
    return found


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _cost(agent: Agent) -> WatchCost:
    own = sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    ranks = [one.fine[-1].ran_seconds for one in agent.members.all if one.fine]
    return WatchCost(
        processor_seconds=round(own, 3),
        ranks_processor_seconds=round(sum(ranks), 3) if ranks else NOT_ASKED,
        looks=agent.looks,
        glances=agent.glances,
    )
