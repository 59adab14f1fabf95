"""Incidents of ranks, judged: which rank is to blame, on what evidence, and what to do.

The ranks' agents have already separated cause from consequence (a survivor whose connection broke is no
incident); here each incident becomes one finding, but for a fault of the host under all
its ranks, which is reported once.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpudiag.checks.host.network import LOOPBACK_DOWN, NAME_LOOPBACK, judge_loopback, lacks_loopback
from gpudiag.checks.ranks import incident_kinds as kinds
from gpudiag.checks.ranks.between_hosts import (
    MEETING_SPLIT,
    MEETING_UNREACHABLE,
    NETWORK_HOST_CUT_OFF,
    NETWORK_HOSTS_PARTED,
    NETWORK_INTERRUPTED,
    NETWORK_LARGE_PACKETS_LOST,
    NETWORK_MESSAGES,
    NETWORK_PATH_LOSSY,
    RENDEZVOUS_FINDINGS,
    kind_of_meeting,
)
from gpudiag.checks.ranks.rendezvous import (
    ADDRESS_NOT_REACHED,
    MEETING_FINDINGS,
    PORTS_CLOSED,
    SETUP_CONFLICT,
    address_remedy,
    closed_remedy,
    kind_of,
)
from gpudiag.checks.registry import FindingKind
from gpudiag.checks.software.settings import INTERFACE_ABSENT
from gpudiag.model.evidence import HostSubject, LinkSubject, RankSubject, Scalar, Subject
from gpudiag.model.finding import Finding
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.units import format_seconds, format_size

RANK_FINDINGS = (
    kinds.RANK_DIED,
    kinds.RANK_STOPPED,
    kinds.RANK_RAISED,
    kinds.RANK_OUT_OF_GPU_MEMORY,
    kinds.RANK_SHORTAGE,
    kinds.RANK_SILENT,
    kinds.RANK_ENDED_EARLY,
    kinds.RANK_NOT_STARTED,
    *RENDEZVOUS_FINDINGS,
    NETWORK_HOST_CUT_OFF,
    NETWORK_HOSTS_PARTED,
    NETWORK_LARGE_PACKETS_LOST,
    NETWORK_INTERRUPTED,
    NETWORK_PATH_LOSSY,
    *MEETING_FINDINGS,
    kinds.RANK_VERSIONS_DIFFER,
    kinds.RANK_VARIABLES_DIFFER,
    kinds.RANK_START_FAILED,
    kinds.RANK_TEARDOWN,
    kinds.RANK_LATE,
    kinds.RANK_THROTTLED,
    kinds.RANK_PAUSED,
    kinds.COLLECTIVE_INTERRUPTED,
    kinds.COLLECTIVE_STALLED,
    kinds.COLLECTIVE_MISMATCHED,
    LOOPBACK_DOWN,
    NAME_LOOPBACK,
    INTERFACE_ABSENT,
)

_KINDS: Mapping[IncidentKind, FindingKind] = MappingProxyType(
    {
        IncidentKind.DIED: kinds.RANK_DIED,
        IncidentKind.STOPPED: kinds.RANK_STOPPED,
        IncidentKind.RAISED: kinds.RANK_RAISED,
        IncidentKind.SILENT: kinds.RANK_SILENT,
        IncidentKind.NOT_STARTED: kinds.RANK_NOT_STARTED,
        IncidentKind.UNREACHED: MEETING_UNREACHABLE,
        IncidentKind.SPLIT: MEETING_SPLIT,
        IncidentKind.CUT_OFF: NETWORK_HOST_CUT_OFF,
        IncidentKind.PARTED: NETWORK_HOSTS_PARTED,
        IncidentKind.NARROWED: NETWORK_LARGE_PACKETS_LOST,
        IncidentKind.OUTAGE: NETWORK_INTERRUPTED,
        IncidentKind.MISNAMED: ADDRESS_NOT_REACHED,
        IncidentKind.FILTERED: PORTS_CLOSED,
        IncidentKind.CONFLICTING: SETUP_CONFLICT,
        IncidentKind.LOSSY: NETWORK_PATH_LOSSY,
        IncidentKind.START_FAILED: kinds.RANK_START_FAILED,
        IncidentKind.ENDED: kinds.RANK_ENDED_EARLY,
        IncidentKind.LATE: kinds.RANK_LATE,
        IncidentKind.THROTTLED: kinds.RANK_THROTTLED,
        IncidentKind.SKEWED: kinds.RANK_VERSIONS_DIFFER,
        IncidentKind.PAUSED: kinds.RANK_PAUSED,
        IncidentKind.INTERRUPTED: kinds.COLLECTIVE_INTERRUPTED,
        IncidentKind.STALLED: kinds.COLLECTIVE_STALLED,
        IncidentKind.MISMATCHED: kinds.COLLECTIVE_MISMATCHED,
    }
)
_ENDINGS = (IncidentKind.DIED, IncidentKind.RAISED)
# Of gloo (transport/tcp/device.cc), for the interface that GLOO_SOCKET_IFNAME names; of NCCL (bootstrap.cc).
_NO_INTERFACE = re.compile(r"Unable to find address for: (?P<name>\S+)|Bootstrap : no socket interface found")
_TEARDOWN = "teardown"
_HELD_BACK = "the processor quota of its control group throttles it"
# Incidents for which no single rank is to blame, but the host.
_STALLS = (IncidentKind.STALLED, IncidentKind.INTERRUPTED)
_OF_THE_HOST = (
    *_STALLS,
    IncidentKind.UNREACHED,
    IncidentKind.CUT_OFF,
    IncidentKind.MISNAMED,
    IncidentKind.FILTERED,
    IncidentKind.CONFLICTING,
)
# Incidents of what is between two hosts; and of one host, or of what is between two where there is another
# side.
_OF_A_PATH = (IncidentKind.PARTED, IncidentKind.LOSSY)
_OF_A_LINK = (IncidentKind.NARROWED, IncidentKind.OUTAGE)


def judge_incidents(incidents: tuple[Incident, ...], *, complete: bool) -> tuple[Finding, ...]:
    """One finding per incident of any run on ranks; `complete`: results came before the bad end."""
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
        kind = kinds.RANK_TEARDOWN
    facts = incident.facts
    kind = kind_of(incident) or kind_of_meeting(incident, kind)
    if incident.kind is IncidentKind.SKEWED and "variable" in facts:
        kind = kinds.RANK_VARIABLES_DIFFER
    absent = _NO_INTERFACE.search(str(facts.get("message", "")))
    if incident.kind is IncidentKind.RAISED and absent is not None:
        return INTERFACE_ABSENT.finding(
            HostSubject(incident.host), _no_interface(incident, absent["name"]), *incident.evidence
        )
    subject: Subject
    if incident.kind in _OF_A_PATH or (incident.kind in _OF_A_LINK and "one_side" in facts):
        ends = (str(facts.get("one_side", "the others")), str(facts.get("other_side", incident.host)))
        subject = LinkSubject(ends, incident.host)
    elif incident.kind in (*_OF_THE_HOST, *_OF_A_LINK) or (
        incident.kind is IncidentKind.START_FAILED and "ranks" in facts
    ):
        subject = HostSubject(incident.host)
    else:
        subject = RankSubject(incident.rank, incident.host)
    remedy = own_remedy(incident) or ""
    return kind.finding(subject, _MESSAGES[incident.kind](incident), *incident.evidence, remedy=remedy)


def _died(incident: Incident) -> str:
    facts = incident.facts
    if "oom_killer" in facts or int(facts.get("oom_kills", 0)) > 0:
        limit = facts.get("memory_limit")
        group = facts.get("oom_group")
        of_group = f" of its control group {group}" if group is not None else " of its control group"
        limited = "" if limit is None else f", at the limit{of_group} ({format_size(int(limit))})"
        how = f"was killed by the OOM killer{limited}"
    elif "signal" in facts:
        how = f"was killed by {facts['signal']}"
    elif "exit_status" in facts:
        how = f"ended with exit status {facts['exit_status']}"
    else:
        how = "ended"
    why = describe_debugging(facts) if is_crash_of_debugging(incident) else ""
    return f"rank {incident.rank} {how} {_where(incident)}{why}"


def _stopped(incident: Incident) -> str:
    state = incident.facts.get("process_state", "stopped")
    return f"rank {incident.rank} is {state} {_where(incident)}"


def _raised(incident: Incident) -> str:
    facts = incident.facts
    message = str(facts.get("message", ""))
    first_line = message.partition("\n")[0]
    if PORT_TAKEN.search(message):
        by = f" ({facts['port_taken_by']})" if "port_taken_by" in facts else ""
        port = PORT.search(message)
        which = f"port {port[1]}" if port else "the port"
        return f"rank {incident.rank} cannot listen on the rendezvous port: another process has {which}{by}"
    error = f": {first_line}" if first_line else ", without a message"
    return f"rank {incident.rank} raised {facts.get('exception', 'an exception')} {_where(incident)}{error}"


def _no_interface(incident: Incident, name: str | None) -> str:
    if name is None:
        return (
            f"on {incident.host} NCCL finds no interface that NCCL_SOCKET_IFNAME allows:"
            f" rank {incident.rank} cannot start"
        )
    return (
        f"on {incident.host} GLOO_SOCKET_IFNAME is {name}, and no interface of that name has an address: "
        f"rank {incident.rank} cannot start"
    )


def _silent(incident: Incident) -> str:
    facts = incident.facts
    awaited = facts.get("waited_in", "a later stage")
    held = f", and {_HELD_BACK}" if "throttled_periods" in facts else ""
    return (
        f"rank {incident.rank} never came to {awaited}, where the others wait; it is {_where(incident)}{held}"
    )


def _ended(incident: Incident) -> str:
    facts = incident.facts
    awaited = facts.get("waited_in", "a collective")
    by = f"rank {facts['waiting_rank']}" if "waiting_rank" in facts else "another rank"
    return f"rank {incident.rank} had ended, without an error, while {by} still needed it in {awaited}"


def _throttled(incident: Incident) -> str:
    quota = next((fact for fact in incident.evidence if fact.name == "throttled_periods"), None)
    share = "" if quota is None else f": in {quota.value} of its {quota.limit} periods"
    return f"rank {incident.rank} is slow because {_HELD_BACK}{share}"


def _paused(incident: Incident) -> str:
    facts = incident.facts
    lasted = format_seconds(float(facts.get("lasted", 0.0)))
    state = facts.get("process_state", "held")
    how = f"was {state}" if "waited_in" not in facts else "kept the others waiting"
    return f"rank {incident.rank} {how} for {lasted}{_times(facts)}, and then continued"


def _interrupted(incident: Incident) -> str:
    facts = incident.facts
    lasted = format_seconds(float(facts.get("lasted", 0.0)))
    ranks = str(facts.get("ranks_inside", "all"))
    what = f"rank {ranks} did not move" if ranks.isdecimal() else f"nothing moved between ranks {ranks}"
    return f"{what} for {lasted}{_times(facts)}, and then continued"


def _times(facts: Mapping[str, Scalar]) -> str:
    times = int(facts.get("times", 1))
    return f" at most, {times} times" if times > 1 else ""


def _not_started(incident: Incident) -> str:
    facts = incident.facts
    if "started_twice" in facts:
        return (
            f"rank {incident.rank} never arrived, but two processes were both"
            f" started as {facts['started_twice']}"
        )
    found = f": {facts['found']}" if "found" in facts else ", and the others waited for it"
    return f"rank {incident.rank} never arrived{found}"


def _skewed(incident: Incident) -> str:
    facts = incident.facts
    name, value = facts.get("variable") or facts.get("version_of", "a version"), facts.get("value", "unknown")
    ranks = str(facts.get("ranks", incident.rank))
    who = f"rank {ranks} has" if ranks.isdecimal() else f"ranks {ranks} have"
    return f"{who} {name} {value} where the others have {facts.get('others_have', 'another')}"


def _start_failed(incident: Incident) -> str:
    facts = incident.facts
    who = f"ranks {facts['ranks']}" if "ranks" in facts else f"rank {incident.rank}"
    if "refused" in facts:
        return f"{who} on {incident.host} could not be started: {facts['refused']}"
    module = facts.get("importing", "torch")
    if "exception" in facts:
        first_line = str(facts.get("message", "")).partition("\n")[0]
        why = f"import {module} failed: {facts['exception']}: {first_line}"
    elif "waited_for" in facts:
        why = f"importing {module} has not ended within {format_seconds(float(facts['waited_for']))}"
    elif "not_forked" in facts:
        why = str(facts["not_forked"])
    else:
        how = (
            f"was killed by {facts['signal']}"
            if "signal" in facts
            else f"ended with status {facts.get('exit_status', 'unknown')}"
        )
        why = f"the process that starts them {how}"
    return f"{who} could not be started: {why}"


def _late(incident: Incident) -> str:
    facts = incident.facts
    by = f" by {format_seconds(float(facts['late_by']))}" if "late_by" in facts else ""
    why = f": {facts['cause']}" if "cause" in facts else ""
    return f"rank {incident.rank} is late in the collectives{by}, and the others wait for it{why}"


def _stalled(incident: Incident) -> str:
    facts = incident.facts
    ranks = str(facts.get("ranks_inside", "all"))
    alone = ranks.isdecimal()
    if facts.get("inside_operation", True):
        inside = facts.get("operation", "the same collective")
        who = f"rank {ranks} is" if alone else f"ranks {ranks} are all"
        return f"{who} inside {inside} and nothing moves"
    who = f"rank {ranks} stays" if alone else f"ranks {ranks} stay"
    return f"{who} in stage {incident.stage} and nothing moves"


def _mismatched(incident: Incident) -> str:
    facts = incident.facts
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
        IncidentKind.SKEWED: _skewed,
        IncidentKind.START_FAILED: _start_failed,
        IncidentKind.ENDED: _ended,
        IncidentKind.LATE: _late,
        IncidentKind.THROTTLED: _throttled,
        IncidentKind.PAUSED: _paused,
        IncidentKind.INTERRUPTED: _interrupted,
        IncidentKind.STALLED: _stalled,
        IncidentKind.MISMATCHED: _mismatched,
        **NETWORK_MESSAGES,
    }
)


def _where(incident: Incident) -> str:
    """Where a rank was: its stage, and the iteration and the operation, where they are known."""
    facts = incident.facts
    iteration = f", iteration {facts['iteration']}" if "iteration" in facts else ""
    operation = f", in {facts['operation']}" if facts.get("inside_operation") and "operation" in facts else ""
    return f"in stage {incident.stage}{iteration}{operation}"


# --- what to do, where what was seen of it decides

# Of torch's TCPStore and of the operating system (EADDRINUSE).
PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
PORT = re.compile(r"\bport:? (\d+)")
_PORT_REMEDY = "Give the job another MASTER_PORT, or end the process that listens there: `ss -ltnp` shows it."
_TWICE_REMEDY = "Give every process its own RANK (--rank), or let the launcher do so."
# The kernel's counter did not rise, so that it was not the OOM killer who sent it.
_KILLED_REMEDY = (
    "Find who sent the signal; the kernel's OOM killer did not: a scheduler's limit"
    " (`sacct -o jobid,state,exitcode`, `kubectl get events`), a launcher that cleans up, or a person"
    " (`last -5`, `journalctl -S -1h | grep -i kill`)."
)


def own_remedy(incident: Incident) -> str | None:
    """What to do about this very incident; None where the kind's own remedy fits."""
    facts = incident.facts
    if is_crash_of_debugging(incident):
        return _DEBUG_REMEDY
    if _is_killed_by_nobody_known(incident):
        return _KILLED_REMEDY
    if "hint" in facts:
        return f"{str(facts['hint'])[:1].upper()}{str(facts['hint'])[1:]}."
    if "try_port" in facts:
        return closed_remedy(incident)
    if incident.kind is IncidentKind.MISNAMED:
        return address_remedy(incident)
    if incident.kind is IncidentKind.RAISED and PORT_TAKEN.search(str(facts.get("message", ""))):
        return _PORT_REMEDY
    twice = "started_twice" in facts and incident.kind is IncidentKind.NOT_STARTED
    return _TWICE_REMEDY if twice else None


def _is_killed_by_nobody_known(incident: Incident) -> bool:
    """Whether a rank was killed, and what was read of its end rules the OOM killer out."""
    facts = incident.facts
    killed = incident.kind is IncidentKind.DIED and "SIGKILL" in str(facts.get("signal", ""))
    return killed and "oom_killer" not in facts and str(facts.get("oom_kills")) == "0"


_DEBUG_VARIABLE = "TORCH_DISTRIBUTED_DEBUG"
_DEBUG_REMEDY = f"Run it again with {_DEBUG_VARIABLE} unset, or set to INFO."
# With these, four lines are enough: DDP around a layer on gloo.
_CRASHING = re.compile(r"2\.13\.0\b")


def is_crash_of_debugging(incident: Incident) -> bool:
    """Whether a rank crashed while torch compared every collective over the ranks."""
    facts = incident.facts
    crashed = incident.kind is IncidentKind.DIED and "SIGSEGV" in str(facts.get("signal", ""))
    return crashed and _DEBUG_VARIABLE in facts


def describe_debugging(facts: Mapping[str, Scalar]) -> str:
    """That the crash may be torch's own, as it compares collectives."""
    torch = f"torch {facts.get('torch_version', 'of a version that was not read')}"
    known = _CRASHING.match(str(facts.get("torch_version", "")))
    crash = f"{torch} crashes with it in DDP's constructor on gloo" if known else f"{torch} may crash with it"
    return f": {_DEBUG_VARIABLE} is DETAIL, and {crash}"
