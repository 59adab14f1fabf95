"""Cases of what happens to ranks, whatever runs on them: deaths, hangs, mismatches, a dead loopback."""

from collections.abc import Callable, Iterator

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from tests.scenarios.situations import Case, Situation
from tests.unit.collectives.measurements import make_incident

# A situation in which that happened to ranks, with or without all that they were to measure.
Run = Callable[[tuple[Incident, ...], bool], Situation]

_NO_ADDRESS = "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: "


def happened(kind: IncidentKind, name: str, value: str, stage: str = "measure") -> Incident:
    """What happened to rank 1, and the fact that shows it."""
    return make_incident(kind, 1, stage=stage, evidence=(Evidence(name, value, source="agent"),))


DIED = happened(IncidentKind.DIED, "signal", "SIGKILL")
DIED_AT_THE_END = happened(IncidentKind.DIED, "signal", "SIGABRT", stage="teardown")
LATE = happened(IncidentKind.LATE, "cause", "compute late")
MISMATCHED = happened(IncidentKind.MISMATCHED, "operation", "broadcast")
STALLED = happened(IncidentKind.STALLED, "operation", "all_reduce")
STOPPED = happened(IncidentKind.STOPPED, "process_state", "T (stopped)")
SILENT = happened(IncidentKind.SILENT, "waited_in", "all_reduce")
START_FAILED = happened(IncidentKind.START_FAILED, "exception", "OSError", stage="import")
ENDED = happened(IncidentKind.ENDED, "waited_in", "all_reduce")
THROTTLED = happened(IncidentKind.THROTTLED, "throttled_periods", "667")
PAUSED = happened(IncidentKind.PAUSED, "process_state", "stopped by a signal")
INTERRUPTED = happened(IncidentKind.INTERRUPTED, "ranks_inside", "0-3")
NOT_STARTED = happened(IncidentKind.NOT_STARTED, "exit_status", "1", stage="import")
UNRESOLVED = happened(IncidentKind.UNREACHED, "obstacle", "no_address", stage="rendezvous")
NO_ANSWER = happened(IncidentKind.UNREACHED, "obstacle", "no_answer", stage="rendezvous")
FOREIGN = happened(IncidentKind.UNREACHED, "obstacle", "foreign_server", stage="rendezvous")
ALONE = happened(IncidentKind.UNREACHED, "obstacle", "refused", stage="rendezvous")
SPLIT = happened(IncidentKind.SPLIT, "uses", "a3:29500", stage="rendezvous")
TIMED_OUT = happened(
    IncidentKind.RAISED,
    "message",
    "The client socket has timed out after 60000ms while trying to connect to (a1, 29500).",
    stage="rendezvous",
)
NO_GPU_MEMORY = happened(
    IncidentKind.RAISED,
    "message",
    "CUDA out of memory. Tried to allocate 256.00 MiB. "
    "GPU 1 has a total capacity of 79.18 GiB of which 12.00 MiB is free.",
    stage="warmup",
)
NO_THREAD = happened(IncidentKind.RAISED, "message", "can't start new thread", stage="import")
CUT_OFF = happened(IncidentKind.CUT_OFF, "not_reached_by", "a1, a3")
PARTED = happened(IncidentKind.PARTED, "one_side", "a1")
NARROWED = happened(IncidentKind.NARROWED, "largest_packet", 1000)
OUTAGE = happened(IncidentKind.OUTAGE, "lasted", 3.0)
LOSSY = happened(IncidentKind.LOSSY, "other_side", "a3")
MISNAMED = happened(IncidentKind.MISNAMED, "own_address", "127.0.1.1", stage="init")
MISADDRESSED = happened(IncidentKind.MISNAMED, "own_address", "10.9.0.3", stage="init")
FILTERED = happened(IncidentKind.FILTERED, "closed_to", "a1, a3", stage="init")
CONFLICTING = happened(IncidentKind.CONFLICTING, "shared_address", "10.9.0.3", stage="init")
VERSION = happened(IncidentKind.SKEWED, "version_of", "torch", stage="import")
VARIABLE = happened(IncidentKind.SKEWED, "variable", "NCCL_ALGO", stage="import")
NO_LOOPBACK = happened(IncidentKind.RAISED, "message", f"{_NO_ADDRESS}lo", stage="init")
NO_SUCH_INTERFACE = happened(IncidentKind.RAISED, "message", f"{_NO_ADDRESS}eth9", stage="init")

# Code, what fires it, its near miss, and whether each of these had measured everything.
_CASES = (
    ("rank.died", DIED, False, DIED_AT_THE_END, True),
    ("rank.teardown", DIED_AT_THE_END, True, DIED_AT_THE_END, False),
    ("rank.stopped", STOPPED, False, SILENT, False),
    ("rank.raised", TIMED_OUT, False, NO_LOOPBACK, False),
    ("rank.out_of_gpu_memory", NO_GPU_MEMORY, False, TIMED_OUT, False),
    ("rank.shortage", NO_THREAD, False, TIMED_OUT, False),
    ("network.wrong_interface", NO_SUCH_INTERFACE, False, NO_LOOPBACK, False),
    ("network.loopback_down", NO_LOOPBACK, False, NO_SUCH_INTERFACE, False),
    ("network.name_is_loopback", MISNAMED, False, NO_SUCH_INTERFACE, False),
    ("network.large_packets_lost", NARROWED, False, PARTED, False),
    ("network.interrupted", OUTAGE, True, CUT_OFF, False),
    ("network.address_not_reached", MISADDRESSED, False, MISNAMED, False),
    ("network.ports_closed", FILTERED, False, CUT_OFF, False),
    ("network.setup_conflict", CONFLICTING, False, FILTERED, False),
    ("network.path_lossy", LOSSY, True, LATE, True),
    ("rank.silent", SILENT, False, STOPPED, False),
    ("rank.start_failed", START_FAILED, False, DIED, False),
    ("rank.ended_early", ENDED, False, SILENT, False),
    ("rank.throttled", THROTTLED, True, LATE, True),
    ("rank.paused", PAUSED, True, STOPPED, True),
    ("collective.interrupted", INTERRUPTED, True, STALLED, True),
    ("rank.not_started", NOT_STARTED, False, DIED, False),
    ("rendezvous.wrong_address", UNRESOLVED, False, TIMED_OUT, False),
    ("rendezvous.unreachable", NO_ANSWER, False, TIMED_OUT, False),
    ("rendezvous.foreign_server", FOREIGN, False, TIMED_OUT, False),
    ("rendezvous.alone", ALONE, False, TIMED_OUT, False),
    ("rendezvous.split", SPLIT, False, TIMED_OUT, False),
    ("network.host_cut_off", CUT_OFF, False, PARTED, False),
    ("network.hosts_parted", PARTED, False, CUT_OFF, False),
    ("rank.versions_differ", VERSION, True, VARIABLE, True),
    ("rank.variables_differ", VARIABLE, True, VERSION, True),
    ("rank.late", LATE, True, STOPPED, True),
    ("collective.stalled", STALLED, False, MISMATCHED, False),
    ("collective.mismatched", MISMATCHED, False, STALLED, False),
)


def rank_cases(check: str, run: Run, without: tuple[str, ...] = ()) -> Iterator[Case]:
    """A case for each code of `gpudiag.checks.ranks.incidents` but those that this check never reports."""
    for code, fault, whole, near, near_whole in _CASES:
        if code not in without:
            yield Case(check, code, run((fault,), whole), run((near,), near_whole))
