"""The ranks of a user's script, judged: did they train together, in one collective, and how did they end?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from gpudiag.checks.ranks.incident_kinds import COLLECTIVE_MISMATCHED
from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.checks.training.exceptions import (
    advise,
    find_meaning,
    is_about_shared_memory,
    join_alike,
    with_meaning,
)
from gpudiag.checks.training.kinds import NOT_PARALLEL, SCRIPT_FAILED, verb
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, about_ranks
from gpudiag.model.finding import Finding
from gpudiag.model.job_state import RecordedCall
from gpudiag.model.measure import Incident
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.script import EXPLANATION, ScriptError, explanation
from gpudiag.model.training import ScriptResult
from gpudiag.units import format_size

_MISMATCH_IN_A_LIBRARY = re.compile(r"Received data size doesn't match|Detected mismatch between collectives")
_RECORDER = "flight recorder"

_WHERE = re.compile(r" in stage \w+(, iteration \d+)?")
_TRACEBACK = "traceback"
# A rank reports its place once a second; until then the place is a line of gpudiag's own.
_OWN = re.compile("/gpudiag/(training|ranks)/")
_NEARLY_FULL = 0.02
_WORKER_GONE = "exited unexpectedly"
_SHM = "/dev/shm"  # noqa: S108 - named, not written to


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks that were in the same collective."""

    call: RecordedCall | None  # None: not known, for the process is gone
    place: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """As `rank 1 was in all_reduce of [1000] at train.py:12`."""
        call = "a smaller collective" if self.call is None else _describe_call(self.call)
        at = f" at {self.place}" if self.place else ""
        return f"{name_ranks(self.ranks)} {verb(self.ranks, 'was', 'were')} in {call}{at}"


def judge_mismatch(
    findings: Sequence[Finding], raised: Mapping[int, ScriptError], words: Sequence[str]
) -> Finding | None:
    """The finding for a rank that was in another collective than the others; None where there was none.

    `findings` are of the ranks that ended badly, `raised` where an exception came to the user's code, by
    rank, `words` what libraries printed.
    """
    if not any(_MISMATCH_IN_A_LIBRARY.search(line) for line in words):
        return None
    died = {
        finding.subject.rank: finding.subject.host
        for finding in findings
        if isinstance(finding.subject, RankSubject)
    }
    groups = _group(raised, tuple(rank for rank in sorted(died) if rank not in raised))
    if len(groups) < 2:
        return None
    odd, *others = groups
    most = max(others, key=lambda group: len(group.ranks))
    alone = len(odd.ranks) < len(most.ranks)
    host = next(iter(died.values()))
    subject = about_ranks(odd.ranks if alone else (), died.get(odd.ranks[0], host) if alone else host)
    ended = [rank for rank in sorted(died) if rank not in raised]
    by = f"; {name_ranks(ended)} {verb(ended, 'was', 'were')} ended because of it" if ended else ""
    facts = [Evidence("in_collective", str(group), source=_RECORDER) for group in groups]
    return COLLECTIVE_MISMATCHED.finding(subject, f"{odd}, while {'; '.join(map(str, others))}{by}", *facts)


def _group(raised: Mapping[int, ScriptError], gone: tuple[int, ...]) -> list[_Group]:
    """Collectives with the ranks that were in them, the fewest ranks first.

    A process that was ended had expected fewer bytes than came, so it was in the smallest of them; where all
    others were in one, in a smaller one.
    """
    ranks: dict[str, list[int]] = {}
    for rank, error in sorted(raised.items()):
        if error.call is not None:
            ranks.setdefault(_describe_call(error.call), []).append(rank)
    groups = [_Group(raised[here[0]].call, raised[here[0]].place, tuple(here)) for here in ranks.values()]
    if len(groups) > 1 and gone:
        smallest = min(groups, key=lambda group: sum(map(prod, group.call.input_sizes)) if group.call else 0)
        joined = _Group(smallest.call, smallest.place, tuple(sorted((*smallest.ranks, *gone))))
        groups = [joined if group is smallest else group for group in groups]
    elif gone and groups:
        groups.append(_Group(None, "", gone))
    return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))


def _describe_call(call: RecordedCall) -> str:
    """As `all_reduce of [1000]`."""
    return f"{call.operation} of {', '.join(str(list(size)) for size in call.input_sizes) or 'nothing'}"


def judge_script(
    script: ScriptResult,
    *,
    host: str,
    finished: bool,
    raised: Mapping[int, ScriptError] | None = None,
    words: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """Everything wrong with how the ranks ended; `finished`: every rank reached the script's end.

    `raised` has the place in the user's code that each rank's exception reached; `words` are lines of the
    ranks' output in which a library explains what went wrong.
    """
    found = judge_incidents(script.incidents, complete=finished)
    words = tuple(dict.fromkeys((*words, *_printed_elsewhere(script.incidents))))
    reworded = [_in_users_words(finding, raised or {}, words) for finding in found]
    mismatch = judge_mismatch(found, raised or {}, words)
    findings = join_alike(reworded, script.world_size) if mismatch is None else [mismatch]
    if findings and words:
        first = findings[0]
        facts = [explanation(line) for line in words if not _has_line(first, line)]
        findings[0] = replace(first, evidence=(*first.evidence, *facts))
    alone = script.world_size > 1 and finished and all(size <= 1 for size in script.group_world_sizes)
    if alone and not findings:
        evidence = Evidence("process_group", 0, limit=script.world_size, source="init_process_group")
        message = f"each of the {script.world_size} ranks trained by itself: no process group joined them"
        findings.append(NOT_PARALLEL.finding(HostSubject(host), message, evidence))
    return tuple(findings)


def _printed_elsewhere(incidents: Sequence[Incident]) -> list[str]:
    """What libraries printed on ranks whose output went to another process of the launch."""
    facts = (fact for incident in incidents for fact in incident.evidence)
    return [str(fact.value) for fact in facts if fact.name == EXPLANATION]


def _in_users_words(finding: Finding, raised: Mapping[int, ScriptError], words: Sequence[str]) -> Finding:
    """The finding with the user's own line as its place, seconds for iterations, and fitting advice."""
    rank = finding.subject.rank if isinstance(finding.subject, RankSubject) else None
    facts = {fact.name: fact.value for fact in finding.evidence}
    ended = raised.get(rank) if rank is not None else None
    place = ended.place if ended else _users_place(facts)
    if facts.get("exception") == "SystemExit":
        at = f" at {place}" if place else ""
        message = f"rank {rank} ended the script with status {facts.get('message')}{at}"
        return SCRIPT_FAILED.finding(finding.subject, message, *_evidence(finding, ended, None))
    message = _WHERE.sub(f" at {place}" if place else "", finding.message)
    explained = next((line for line in words if "exception" not in facts), None)
    exception, text = str(facts.get("exception", "")), str(facts.get("message", explained or ""))
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Caught "):  # torch's: a worker's exception, raised again here
        message = message.replace(lines[0], f"{lines[0].rstrip('.')}: {lines[-1].strip()}")
    if _WORKER_GONE in text:  # the cause is in the worker's own exception
        text = "\n".join((text, *words))
    memory = ended.shared_memory if ended is not None and is_about_shared_memory(text) else None
    if memory is not None:
        message += f"; {_describe_shared_memory(*memory, was_full='No space' in text)}"
    if explained is not None:
        message += f": {explained}"
    evidence = _evidence(finding, ended, memory)
    meaning = (
        find_meaning(exception, text, ended.stack if ended else ()) if exception and memory is None else None
    )
    if meaning is not None:
        return with_meaning(replace(finding, message=message, evidence=evidence), meaning)
    remedy = advise(exception, text) if exception or explained else finding.remedy
    return replace(finding, message=message, evidence=evidence).with_remedy(remedy)


def _has_line(finding: Finding, line: str) -> bool:
    """Whether a line of output is in the finding already, as the end of a traceback is."""
    values = [str(fact.value) for fact in finding.evidence if fact.name in ("message", "exception")]
    is_quoted = any(fact.name == EXPLANATION and fact.value == line for fact in finding.evidence)
    in_traceback = bool(values) and all(value.partition("\n")[0] in line for value in values)
    return is_quoted or line in finding.message or in_traceback


def _users_place(facts: Mapping[str, object]) -> str | None:
    place = facts.get("place")
    return None if place is None or _OWN.search(str(place)) else str(place)


def _evidence(
    finding: Finding, ended: ScriptError | None, memory: tuple[int, int] | None
) -> tuple[Evidence, ...]:
    """The evidence of a rank of a script: the user's line first, and no iteration, for it has none."""
    facts: list[Evidence] = []
    for fact in finding.evidence:
        if fact.name == "iteration":
            facts.append(Evidence("ran_for", int(fact.value) + 1, unit="s", source=fact.source))
        elif fact.name == "raised_at" and ended is not None:
            facts.append(Evidence("raised_at", ended.place, source=_TRACEBACK))
            if ended.stack and ended.stack[0] != ended.place:
                facts.append(Evidence("inside", ended.stack[0], source=_TRACEBACK))
        elif fact.name != "place" or (ended is None and not _OWN.search(str(fact.value))):
            facts.append(fact)
    if memory is not None:
        total, free = memory
        facts.append(Evidence("shared_memory_free", free, unit="B", limit=total, source=_SHM))
    return tuple(facts)


def _describe_shared_memory(total: int, free: int, *, was_full: bool) -> str:
    if was_full:  # the worker's share may be free again by the time it is measured
        return f"{_SHM} was full: it has {format_size(total)}"
    if free <= _NEARLY_FULL * total:
        return f"{_SHM} is full ({format_size(free)} of {format_size(total)} free)"
    return f"{_SHM} has {format_size(total)}, and {format_size(free)} were free just after"
