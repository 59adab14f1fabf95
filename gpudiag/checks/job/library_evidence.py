"""Merge the evidence of libraries (RAS, flight records, torch's debug server) into the verdict from looks.

Looks show a rank's line, libraries how far it is in each group. A difference about a rank that looks blame
too proves that finding; one that names a rank where looks found none replaces the vaguer finding. Counts
accuse no job that moves.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpudiag.checks.job import kinds
from gpudiag.checks.job.differences import Apart, Difference
from gpudiag.checks.job.flight_records import judge_records
from gpudiag.checks.job.ras_counts import judge_ras
from gpudiag.checks.registry import FindingKind
from gpudiag.model.evidence import Evidence, Subject, about_ranks, ranks_of
from gpudiag.model.finding import Finding, Outcome, outcome_of_findings, worst_first
from gpudiag.model.job import Job, JobVerdict
from gpudiag.model.reading import Missing

_STILL_SECONDS = 3.0
_KINDS: dict[Apart, FindingKind] = {
    Apart.BEHIND: kinds.NOT_LAUNCHED,
    Apart.ELSEWHERE: kinds.OTHER_COLLECTIVE,
    Apart.OTHER_SIZE: kinds.OTHER_SIZE,
    Apart.CROSSED: kinds.OTHER_COLLECTIVE,
    Apart.GPU: kinds.GPU_WAITS,
    Apart.DEAD: kinds.GONE,
    Apart.UNRESPONSIVE: kinds.UNRESPONSIVE,
    Apart.LEFT: kinds.OTHER_COLLECTIVE,
    Apart.FAILED: kinds.NCCL_ERROR,
    Apart.NONE: kinds.ALL_WAIT,
}
# True of a job whatever moves in it: the calls do not fit, or NCCL itself reports that a rank has failed.
_WHATEVER_MOVES = frozenset((Apart.ELSEWHERE, Apart.OTHER_SIZE, Apart.DEAD, Apart.UNRESPONSIVE, Apart.FAILED))
# Findings of the looks that name no rank, or are not sure of it.
_VAGUE = frozenset(
    (
        kinds.ALL_WAIT.code,
        kinds.NOT_YET.code,
        kinds.CALLS_APART.code,
        kinds.GPU_WAITS.code,
        kinds.UNKNOWN.code,
    )
)


@dataclass(frozen=True, slots=True)
class LibraryEvidence:
    """Differences, those that name a rank first; notes; whether RAS's counts moved, None if unknown."""

    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    moves: bool | None = None

    def find(self, *apart: Apart) -> Difference | None:
        """The first difference of these kinds whose ranks are known to be those of the job."""
        fitting = (one for one in self.differences if one.apart in apart and not one.is_within_group)
        return next(fitting, None)


def add_library_evidence(verdict: JobVerdict, libraries: LibraryEvidence | None = None) -> JobVerdict:
    """The verdict with what RAS, flight records and the debug server show of the job; else as it is."""
    state = verdict.job.state
    if state is None:
        return verdict
    libraries = libraries or judge_libraries(verdict.job)
    notes, moves = libraries.notes, libraries.moves
    findings = list(verdict.findings)
    for difference in libraries.differences:
        if verdict.outcome is Outcome.PASS and difference.apart not in _WHATEVER_MOVES:
            continue  # something of it moves: that somebody is last is no fault
        _add(findings, difference, verdict)
    ordered = worst_first(findings)
    found = outcome_of_findings(ordered)
    outcome = verdict.outcome
    if found is Outcome.FAIL or (found is Outcome.WARN and outcome is Outcome.PASS):
        outcome = found
    changed = ordered != verdict.findings and outcome in (Outcome.FAIL, Outcome.WARN)
    return replace(
        verdict,
        outcome=outcome,
        headline=ordered[0].message if changed else verdict.headline,
        findings=ordered,
        ruled_out=(*verdict.ruled_out, *(["NCCL's counts move from one look to the next"] if moves else [])),
        unseen=tuple(dict.fromkeys((*verdict.unseen, *state.notes, *notes))),
    )


def judge_libraries(job: Job) -> LibraryEvidence:
    """What RAS, flight records and the debug server show of a job; nothing where it has none of them."""
    state = job.state
    if state is None:
        return LibraryEvidence()
    differences: list[Difference] = []
    notes: list[str] = []
    moves: bool | None = None
    by_pid = {rank.pid: rank.rank for rank in job.ranks if not isinstance(rank.rank, Missing)}
    for looks in state.ras:
        ras = judge_ras(looks, job.world_size, by_pid if not job.machines else None)
        differences += ras.differences
        notes += ras.notes
        moves = ras.moves if moves is None else moves or ras.moves is True
    records = judge_records(state.records, job.world_size, still_seconds=_STILL_SECONDS)
    differences += records.differences
    notes += records.notes
    ordered = sorted(differences, key=lambda one: one.apart is Apart.NONE)
    return LibraryEvidence(tuple(ordered), tuple(notes), moves)


def _add(findings: list[Finding], difference: Difference, verdict: JobVerdict) -> None:
    """Put one difference where it belongs among the findings."""
    job = verdict.job
    own = Evidence(difference.source, difference.message, source=difference.source)
    same = next(
        (place for place, one in enumerate(findings) if _blames(one, difference)),
        None,
    )
    if same is not None:
        findings[same] = _with_evidence(findings[same], (own, *difference.evidence))
        return
    vague = next((place for place, one in enumerate(findings) if one.code in _VAGUE), None)
    proves_only = difference.apart is Apart.NONE or verdict.outcome is Outcome.WARN
    if findings and proves_only and difference.apart not in _WHATEVER_MOVES:
        place = 0 if vague is None else vague
        findings[place] = _with_evidence(findings[place], (own, *difference.evidence))
        return
    if difference.apart is Apart.NONE and verdict.outcome is not Outcome.ERROR:
        return  # all equal and still is a job that does something else, as long as stacks do not show more
    evidence = (own, *difference.evidence)
    if vague is not None and difference.apart is not Apart.UNRESPONSIVE:
        evidence = (*evidence, *findings.pop(vague).evidence)
    kind = _KINDS[difference.apart]
    findings.append(kind.finding(_subject(difference, job), difference.message, *_each_once(evidence)))


def _blames(finding: Finding, difference: Difference) -> bool:
    """Whether a finding is about a rank that the difference blames, also if it stands still briefly."""
    if difference.is_within_group or (finding.code in _VAGUE and finding.code != kinds.NOT_YET.code):
        return False
    return not set(ranks_of(finding.subject)).isdisjoint(difference.ranks)


def _subject(difference: Difference, job: Job) -> Subject:
    ranks = () if difference.is_within_group else difference.ranks
    hosts = {job.host_of(rank) for rank in ranks}
    return about_ranks(ranks, hosts.pop() if len(hosts) == 1 else job.host)


def _with_evidence(finding: Finding, more: Iterable[Evidence]) -> Finding:
    return replace(finding, evidence=tuple(_each_once((*finding.evidence, *more))))


def _each_once(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(evidence))
