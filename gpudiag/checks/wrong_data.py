"""Wrong data, judged: whose data it is, who saw it, and what kind of fault gives just that."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, Scalar, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.measure import CollectiveMeasurement, Incident, IncidentKind
from gpudiag.units import format_seconds, format_size

COLLECTIVE_CORRUPTED = FindingKind(
    code="collective.corrupted",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning="A collective gave wrong data and said nothing: training on it learns from noise.",
    remedy="Keep this host out of jobs; run it again on fewer ranks to see which device or link it follows.",
    basis=Basis(
        reads="Every element of the timed buffers, against the exact result for a"
        " pattern that depends on rank and offset.",
        limit="None: exact equality; the pattern is chosen so that no rounding can happen.",
        look_also=("gpu.peer_access_broken", "xid.hardware", "cuda.uncorrectable_ecc"),
    ),
)

BARRIER_PASSED = FindingKind(
    code="collective.barrier_passed",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning="A rank came out of a barrier before another one had gone in: it holds nobody back.",
    remedy="Run `gpudiag nccl-test --op barrier` again; if it stays so, try another version of torch or NCCL.",
    basis=Basis(
        reads="The moments right before and right after each timed barrier, on the clock"
        " that all ranks of one machine share.",
        limit="None: no rank may leave before every rank has entered.",
        look_also=("gpudiag nccl-test --op barrier", "collective.corrupted", "NCCL_DEBUG=INFO"),
    ),
)

# What became of one rank's data, by the diagnosis of the rank that saw it.
_FATES: Mapping[str, str] = MappingProxyType(
    {
        "dropped": "is missing",
        "duplicated": "is counted twice",
        "replaced": "stands where another rank's belongs",
        "stale": "is of another round",
        "misplaced": "lies in another block's place",
        "shifted": "arrived at the wrong offset",
    }
)
_EVERYWHERE = "everywhere"


def judge_data(measurement: CollectiveMeasurement) -> list[Finding]:
    """One finding per rank whose data was wrong, or that alone held wrong data, the earliest first.

    Wrong data that every rank holds alike was wrong before or in the reduction: it names no rank.
    """
    corrupted = [incident for incident in measurement.incidents if incident.kind is IncidentKind.CORRUPTED]
    corrupted.sort(key=lambda incident: incident.at_seconds)
    groups: dict[int | str, list[Incident]] = {}
    for incident in corrupted:
        groups.setdefault(_culprit(incident, corrupted, measurement.world_size), []).append(incident)
    findings = [_describe(culprit, seen, measurement) for culprit, seen in groups.items()]
    return [*(findings or _counted_only(measurement)), *_judge_barriers(measurement)]


def _judge_barriers(measurement: CollectiveMeasurement) -> list[Finding]:
    """A finding for the first barrier that was none; later ones say no more."""
    passed = [incident for incident in measurement.incidents if incident.kind is IncidentKind.PASSED]
    findings = []
    for incident in passed[:1]:
        facts = _facts(incident)
        early = f" {format_seconds(float(facts['early_by']))}" if "early_by" in facts else ""
        other = f"rank {facts['before_rank']}" if "before_rank" in facts else "another rank"
        where = f", in iteration {facts['iteration']}" if "iteration" in facts else ""
        message = f"rank {incident.rank} left a barrier{early} before {other} had entered it{where}"
        subject = RankSubject(incident.rank, incident.host)
        findings.append(BARRIER_PASSED.finding(subject, message, *incident.evidence))
    return findings


def _culprit(incident: Incident, corrupted: Sequence[Incident], world_size: int) -> int | str:
    """The rank to name: whose data it is, else who saw it, unless everyone saw the same."""
    facts = _facts(incident)
    if "data_of_rank" in facts and facts["diagnosis"] in _FATES:
        return int(facts["data_of_rank"])
    same = {other.rank for other in corrupted if _signature(other) == _signature(incident)}
    return _EVERYWHERE if len(same) == world_size > 1 else incident.rank


def _signature(incident: Incident) -> tuple[Scalar, ...]:
    facts = _facts(incident)
    names = ("op", "dtype", "size_bytes", "iteration", "first_offset", "last_offset", "xor_mask")
    return tuple(facts.get(name, "") for name in names)


def _describe(culprit: int | str, seen: Sequence[Incident], measurement: CollectiveMeasurement) -> Finding:
    first = seen[0]
    facts = _facts(first)
    ranks = sorted({incident.rank for incident in seen})
    plural = "s" if facts["wrong_elements"] != 1 else ""
    where = (
        f"{facts['op']} {facts['dtype']} of {format_size(int(facts['size_bytes']))}, iteration "
        f"{facts['iteration']}: {facts['wrong_elements']} wrong element{plural} from offset {facts['first_offset']}"
    )
    evidence = (*first.evidence, Evidence("seen_by_ranks", ", ".join(map(str, ranks)), source="timed buffer"))
    return COLLECTIVE_CORRUPTED.finding(
        _subject(culprit, first, measurement), f"{_what(culprit, facts)} after {where}", *evidence
    )


def _what(culprit: int | str, facts: Mapping[str, Scalar]) -> str:
    if culprit == _EVERYWHERE:
        return "every rank holds the same wrong data"
    fate = _FATES.get(str(facts.get("diagnosis")))
    if fate is not None and facts.get("data_of_rank") == culprit:
        return f"the data of rank {culprit} {fate}"
    flipped = " (flipped bits)" if facts.get("diagnosis") == "flipped" else ""
    return f"rank {culprit} holds wrong data{flipped}"


def _subject(culprit: int | str, first: Incident, measurement: CollectiveMeasurement) -> Subject:
    if isinstance(culprit, str):
        return HostSubject(measurement.host)
    hosts = {report.rank: report.host for report in measurement.ranks}
    return RankSubject(culprit, hosts.get(culprit, first.host))


def _counted_only(measurement: CollectiveMeasurement) -> list[Finding]:
    """The finding for wrong data that was counted and that no rank described."""
    wrong = [result for result in measurement.results if result.verified is False and result.elements]
    if not wrong:
        return []
    result = wrong[0]
    message = f"wrong data after {result.op} {result.dtype} of {format_size(result.size_bytes)}"
    evidence = (
        Evidence("size_bytes", result.size_bytes, unit="B", source="timed buffer"),
        Evidence("wrong_elements", str(result.wrong_elements), limit=0, source="timed buffer"),
    )
    return [COLLECTIVE_CORRUPTED.finding(HostSubject(measurement.host), message, *evidence)]


def _facts(incident: Incident) -> dict[str, Scalar]:
    return {fact.name: fact.value for fact in incident.evidence}
