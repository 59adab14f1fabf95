"""What to do about an incident of ranks, where what was seen of it decides."""

import re
from collections.abc import Mapping

from gpudiag.checks.ranks.rendezvous import address_remedy, closed_remedy
from gpudiag.model.evidence import Scalar
from gpudiag.model.measure import Incident, IncidentKind

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
