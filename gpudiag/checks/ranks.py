"""What happened to ranks, judged: which rank is to blame, on what evidence, and what to do.

The ranks' agents have already told cause from consequence (a survivor whose connection broke is no
incident); here each incident becomes one finding, but for a fault of the host under all
its ranks, which is told once.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpudiag.checks.loopback import LOOPBACK_DOWN, judge_loopback, lacks_loopback
from gpudiag.checks.registry import FindingKind
from gpudiag.model.evidence import HostSubject, RankSubject, Scalar
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.measure import CollectiveMeasurement, Incident, IncidentKind
from gpudiag.units import format_seconds

RANK_DIED = FindingKind(
    code="rank.died",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="A rank's process ended by a signal, or with an exit status and no Python exception.",
    remedy="Read `dmesg -T | tail -50` on that host for the OOM killer, Xid lines and segmentation faults.",
)
RANK_STOPPED = FindingKind(
    code="rank.stopped",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="A rank's process is stopped: a signal (SIGSTOP, SIGTSTP) or a debugger holds it.",
    remedy="Find who stopped it (a scheduler that suspends jobs, a debugger), then `kill -CONT PID`.",
)
RANK_RAISED = FindingKind(
    code="rank.raised",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning="A rank ended with a Python exception that no other rank caused.",
    remedy="Read the exception; for CUDA and NCCL errors, run `gpudiag list --sources all` on that host.",
)
RANK_SILENT = FindingKind(
    code="rank.silent",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The other ranks wait in a collective, or in a later stage, that this rank never reached.",
    remedy="Look at that host: load, memory, a file system that hangs, a process in state D.",
)
RANK_NOT_STARTED = FindingKind(
    code="rank.not_started",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="A rank never came to where the others meet, so nothing could be measured.",
    remedy="See that the same command runs for that rank, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, "
    "and that its host reaches that address.",
)
RANK_TEARDOWN = FindingKind(
    code="rank.teardown",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning="A rank ended badly after its results were complete, while the process group was torn down.",
    remedy="The measurements stand. If it happens again, report it with the versions of torch and NCCL.",
)
RANK_LATE = FindingKind(
    code="rank.late",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.HOST,
    meaning="A rank came to the collectives later than the others, which waited for it.",
    remedy="Look at what that rank waits for (input, a lock), what else runs on its host's processors, and at the "
    "clocks of its GPU.",
)
COLLECTIVE_STALLED = FindingKind(
    code="collective.stalled",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.HOST,
    meaning="Every rank is inside the same collective, alive, and nothing moves: the transport between them hangs.",
    remedy="Check the links between these ranks: network interface, firewall, NVLink, PCIe peer access.",
)
COLLECTIVE_MISMATCHED = FindingKind(
    code="collective.mismatched",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.SOFTWARE,
    meaning="Ranks entered different collectives, or the same one with another size or dtype.",
    remedy="Make every rank call the same collectives in the same order, with the same size and dtype.",
)

RANK_FINDINGS = (
    RANK_DIED,
    RANK_STOPPED,
    RANK_RAISED,
    RANK_SILENT,
    RANK_NOT_STARTED,
    RANK_TEARDOWN,
    RANK_LATE,
    COLLECTIVE_STALLED,
    COLLECTIVE_MISMATCHED,
    LOOPBACK_DOWN,
)

_KINDS: Mapping[IncidentKind, FindingKind] = MappingProxyType(
    {
        IncidentKind.DIED: RANK_DIED,
        IncidentKind.STOPPED: RANK_STOPPED,
        IncidentKind.RAISED: RANK_RAISED,
        IncidentKind.SILENT: RANK_SILENT,
        IncidentKind.NOT_STARTED: RANK_NOT_STARTED,
        IncidentKind.LATE: RANK_LATE,
        IncidentKind.STALLED: COLLECTIVE_STALLED,
        IncidentKind.MISMATCHED: COLLECTIVE_MISMATCHED,
    }
)
_ENDINGS = (IncidentKind.DIED, IncidentKind.RAISED)
_TEARDOWN = "teardown"


def judge_ranks(measurement: CollectiveMeasurement) -> tuple[Finding, ...]:
    """One finding per incident of a rank, the earliest first; corrupted data is judged elsewhere."""
    complete = len(measurement.results) == measurement.sizes_planned
    return judge_incidents(measurement.incidents, complete=complete)


def judge_incidents(incidents: tuple[Incident, ...], *, complete: bool) -> tuple[Finding, ...]:
    """The same for any run on ranks; `complete`: all its results were there before a rank ended badly."""
    in_time = sorted(incidents, key=lambda incident: incident.at_seconds)
    by_rank = (
        _judge_incident(incident, complete=complete)
        for incident in in_time
        if incident.kind in _KINDS and not lacks_loopback(incident)
    )
    return (*judge_loopback(in_time), *by_rank)


def _judge_incident(incident: Incident, *, complete: bool) -> Finding:
    kind = _KINDS[incident.kind]
    if incident.kind in _ENDINGS and incident.stage == _TEARDOWN and complete:
        kind = RANK_TEARDOWN
    subject = (
        HostSubject(incident.host)
        if incident.kind is IncidentKind.STALLED
        else RankSubject(incident.rank, incident.host)
    )
    return kind.finding(subject, _MESSAGES[incident.kind](incident), *incident.evidence)


def _died(incident: Incident) -> str:
    facts = _facts(incident)
    if "signal" in facts:
        how = f"was killed by {facts['signal']}"
    elif "exit_status" in facts:
        how = f"ended with exit status {facts['exit_status']}"
    else:
        how = "ended"
    return f"rank {incident.rank} {how} {_where(incident)}"


def _stopped(incident: Incident) -> str:
    state = _facts(incident).get("process_state", "stopped")
    return f"rank {incident.rank} is {state} {_where(incident)}"


def _raised(incident: Incident) -> str:
    facts = _facts(incident)
    first_line = str(facts.get("message", "")).partition("\n")[0]
    return f"rank {incident.rank} raised {facts.get('exception', 'an exception')} {_where(incident)}: {first_line}"


def _silent(incident: Incident) -> str:
    awaited = _facts(incident).get("waited_in", "a later stage")
    return f"rank {incident.rank} never came to {awaited}, where the others wait; it is {_where(incident)}"


def _not_started(incident: Incident) -> str:
    return f"rank {incident.rank} never came, and the others waited for it"


def _late(incident: Incident) -> str:
    facts = _facts(incident)
    by = f" by {format_seconds(float(facts['late_by']))}" if "late_by" in facts else ""
    why = f": {facts['cause']}" if "cause" in facts else ""
    return f"rank {incident.rank} comes late to the collectives{by}, and the others wait for it{why}"


def _stalled(incident: Incident) -> str:
    facts = _facts(incident)
    inside = facts.get("operation", "the same collective")
    return f"ranks {facts.get('ranks_inside', 'all')} are all inside {inside} and nothing moves"


def _mismatched(incident: Incident) -> str:
    facts = _facts(incident)
    entered = facts.get("operation", "another collective")
    expected = facts.get("expected_operation", "what they agree on")
    return f"rank {incident.rank} entered {entered} where the others entered {expected}"


_MESSAGES: Mapping[IncidentKind, Callable[[Incident], str]] = MappingProxyType(
    {
        IncidentKind.DIED: _died,
        IncidentKind.STOPPED: _stopped,
        IncidentKind.RAISED: _raised,
        IncidentKind.SILENT: _silent,
        IncidentKind.NOT_STARTED: _not_started,
        IncidentKind.LATE: _late,
        IncidentKind.STALLED: _stalled,
        IncidentKind.MISMATCHED: _mismatched,
    }
)


def _where(incident: Incident) -> str:
    """Where a rank was: its stage, and the iteration and the operation, where they are known."""
    facts = _facts(incident)
    iteration = f", iteration {facts['iteration']}" if "iteration" in facts else ""
    operation = f", in {facts['operation']}" if facts.get("inside_operation") and "operation" in facts else ""
    return f"in stage {incident.stage}{iteration}{operation}"


def _facts(incident: Incident) -> dict[str, Scalar]:
    return {fact.name: fact.value for fact in incident.evidence}
