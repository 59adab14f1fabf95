"""Why the ranks of a running job do not meet: causes and words are those of `gpudiag nccl-test`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpudiag.checks.host.network import NAME_LOOPBACK
from gpudiag.checks.job import kinds
from gpudiag.checks.ranks.between_hosts import MEETING_KINDS, MEETING_UNREACHABLE
from gpudiag.checks.ranks.incident_kinds import RANK_NOT_STARTED
from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.checks.ranks.rendezvous import MEETING_FINDINGS
from gpudiag.checks.software.settings import INTERFACE_ABSENT
from gpudiag.model.finding import Finding
from gpudiag.model.job import HangReport, Job, JobVerdict, RankSeen
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import HostAddresses
from gpudiag.model.reading import Missing
from gpudiag.ranks.agents.discovery import Address
from gpudiag.ranks.agents.reach import Obstacle, explain_absence
from gpudiag.ranks.diagnosis.addresses import find_wrong_addresses
from gpudiag.ranks.diagnosis.survey import Survey
from gpudiag.ranks.stages import INIT, RENDEZVOUS
from gpudiag.runs.meeting_look import MeetingLook, look_at_meeting

# Functions of torch in which a rank is that has not met all others yet.
_MEETS_IN = frozenset(
    (
        "init_process_group",
        "rendezvous",
        "_create_c10d_store",
        "_store_based_barrier",
        "_new_process_group_helper",
    )
)
# The findings that these looks may add.
_CAUSES = tuple(
    one.code
    for one in (
        *MEETING_FINDINGS,
        *MEETING_KINDS.values(),
        MEETING_UNREACHABLE,
        RANK_NOT_STARTED,
        INTERFACE_ABSENT,
        NAME_LOOPBACK,
    )
)
_UNEXPLAINED = (kinds.NEVER_JOINED.code, kinds.NOT_YET.code, kinds.ALL_WAIT.code, kinds.UNKNOWN.code)


def explain_meeting(verdict: JobVerdict) -> JobVerdict:
    """The verdict, with why its ranks do not meet if they wait for that and one of them shows it.

    It connects from where the ranks run to where they meet, and does not decide whether it hangs.
    """
    job = verdict.job
    if not any(one.code in _UNEXPLAINED for one in verdict.findings):
        return verdict
    if job.agent is not None and not job.ranks:
        return _explain_agent(verdict, job)
    waiting = [rank for rank in job.ranks if meets(rank)]
    if not waiting or len(waiting) < sum(rank.last.state not in "XZ" for rank in job.ranks):
        return verdict
    first = waiting[0]
    number = 0 if isinstance(first.rank, Missing) else first.rank
    has_rank_0 = any(rank.rank == 0 for rank in job.ranks)
    found = look_at_meeting(first.pid, _point_of(job.master), elsewhere=not has_rank_0)
    if found is None:
        return verdict
    ranks = tuple(replace(rank, addresses=found.addresses) if rank is first else rank for rank in job.ranks)
    verdict = replace(verdict, job=replace(job, ranks=ranks))
    unreached = () if has_rank_0 else _unreached(found, number, job.host)
    own = _own_address(found, number, first, job) if _spans_machines(job, found) else ()
    return _with_causes(verdict, (*own, *unreached))


def explain_machines(report: HangReport, parts: Sequence[HangReport]) -> HangReport:
    """The report on several machines, with the causes that looks and their comparison show."""
    found = [
        one for part in parts for verdict in part.jobs for one in verdict.findings if one.code in _CAUSES
    ]
    jobs = []
    for verdict in report.jobs:
        hosts = {host for host, _ in verdict.job.machines} | {verdict.job.host}
        own = [one for one in found if getattr(one.subject, "host", "") in hosts]
        jobs.append(_with_findings(verdict, own) if own else _compare_machines(verdict))
    return replace(report, jobs=tuple(jobs))


def meets(rank: RankSeen) -> bool:
    """Whether the rank is inside torch's functions that make its first process group."""
    main = rank.last.main
    return main is not None and any(frame.function in _MEETS_IN for frame in main.frames)


def _explain_agent(verdict: JobVerdict, job: Job) -> JobVerdict:
    agent = job.agent
    if agent is None or agent.is_connected or agent.hosts_endpoint or not agent.waits_at:
        return verdict
    found = look_at_meeting(agent.pid, _point_of(agent.endpoint), elsewhere=True)
    return verdict if found is None else _with_causes(verdict, _unreached(found, 0, job.host))


def _point_of(place: str) -> Address | None:
    host, _, port = place.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


def _unreached(found: MeetingLook, rank: int, host: str) -> tuple[Incident, ...]:
    """That this rank does not get to rank 0's machine, in the words for a rank of gpudiag's own."""
    if found.reach is None:
        return ()
    absent = Incident(IncidentKind.NOT_STARTED, 0, host, RENDEZVOUS, 0.0, ())
    return explain_absence((absent,), found.reach, rank, host)


def _spans_machines(job: Job, found: MeetingLook) -> bool:
    """Whether ranks of the job belong to other machines: by its launcher, or as rank 0 is on another one."""
    if job.expected is not None and isinstance(job.world_size, int):
        return job.world_size > len(job.expected)
    own = (Obstacle.OWN_ADDRESS, Obstacle.NO_ADDRESS)
    elsewhere = found.reach is not None and found.reach.obstacle not in own and found.reach.host is not None
    return elsewhere and all(rank.rank != 0 for rank in job.ranks)


def _own_address(found: MeetingLook, rank: int, seen: RankSeen, job: Job) -> tuple[Incident, ...]:
    """That what this host publishes leads nowhere for any other."""
    if found.addresses is None:
        return ()
    hosts = {rank: seen.host or job.host, -1: "the other hosts"}
    survey = _survey(hosts, {rank: found.addresses}, seen)
    return find_wrong_addresses(replace(survey, meets_at={rank: found.own_address}), _symptom(rank))


def _compare_machines(verdict: JobVerdict) -> JobVerdict:
    job = verdict.job
    speakers: dict[str, tuple[int, RankSeen]] = {}
    for rank in job.ranks:
        if isinstance(rank.rank, int) and rank.addresses is not None:
            speakers.setdefault(rank.host, (rank.rank, rank))
    if len(speakers) < 2:
        return verdict
    hosts = {number: host for host, (number, _) in speakers.items()}
    addresses = {number: seen.addresses for number, seen in speakers.values() if seen.addresses is not None}
    first = next(iter(speakers.values()))[1]
    return _with_causes(
        verdict, find_wrong_addresses(_survey(hosts, addresses, first), _symptom(0), compare_networks=True)
    )


def _survey(hosts: Mapping[int, str], addresses: Mapping[int, HostAddresses], first: RankSeen) -> Survey:
    library = "NCCL" if first.gpus else "gloo"
    return Survey(hosts, addresses, meets_at={}, rows={}, library=library)


def _symptom(rank: int) -> Incident:
    return Incident(IncidentKind.STALLED, rank, "", INIT, 0.0, ())


def _with_causes(verdict: JobVerdict, incidents: Sequence[Incident]) -> JobVerdict:
    return _with_findings(verdict, judge_incidents(tuple(incidents), complete=False))


def _with_findings(verdict: JobVerdict, causes: Sequence[Finding]) -> JobVerdict:
    """The verdict with a finding for each cause, first; whether it hangs stays as it was judged."""
    codes = [one.code for one in verdict.findings]
    if not causes or not set(codes) & set(_UNEXPLAINED):
        return verdict
    headline = f"{causes[0].message}; {verdict.headline}"
    return replace(verdict, findings=(*causes, *verdict.findings), headline=headline)
