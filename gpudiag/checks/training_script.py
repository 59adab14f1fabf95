"""The ranks of a user's script, judged: did they train together, did they end, and if they hang, who is odd?"""

from collections.abc import Mapping, Sequence

from gpudiag.checks.ranks import judge_incidents
from gpudiag.checks.training_kinds import NOT_PARALLEL, SCRIPT_FAILED, SCRIPT_HUNG, TIMED_OUT
from gpudiag.checks.training_steps import name_ranks, verb
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject
from gpudiag.model.finding import Finding
from gpudiag.model.training import ScriptResult

_STACKS = "Python stacks"
_SHOWN_GROUPS = 4
_COMMUNICATION = "/torch/distributed/"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")


def judge_script(script: ScriptResult, *, host: str, finished: bool) -> tuple[Finding, ...]:
    """What is wrong with how the ranks ended; `finished`: every rank came to the script's end."""
    findings = [_renamed(finding) for finding in judge_incidents(script.incidents, complete=finished)]
    alone = script.world_size > 1 and finished and all(size <= 1 for size in script.group_world_sizes)
    if alone and not findings:
        evidence = Evidence("process_group", 0, limit=script.world_size, source="init_process_group")
        message = f"each of the {script.world_size} ranks trained by itself: no process group joined them"
        findings.append(NOT_PARALLEL.finding(HostSubject(host), message, evidence))
    return tuple(findings)


def judge_hang(
    stacks: Mapping[int, Sequence[str]], finished: Sequence[int], hosts: Mapping[int, str]
) -> Finding:
    """The finding for ranks none of which moves: `stacks` and `hosts` by rank, the innermost frame first."""
    in_order = _group_by_place(stacks, finished)
    facts = _describe_places(in_order, stacks)
    host = HostSubject(hosts[0])
    place, odd = in_order[0]
    if len(in_order) == 1:
        message = f"all ranks wait at {place}, and nothing moves"
        return SCRIPT_HUNG.finding(host, message, *facts)
    others = in_order[-1]
    message = (
        f"{name_ranks(odd)} {verb(odd, 'is', 'are')} at {place}, while {name_ranks(others[1])} "
        f"{verb(others[1], 'waits', 'wait')} at {others[0]}"
    )
    told_apart = _communicates(others[1], stacks) and not _communicates(odd, stacks)
    equal = len(odd) == len(others[1]) and not told_apart
    subject = RankSubject(odd[0], hosts[odd[0]]) if len(odd) == 1 and not equal else host
    return SCRIPT_HUNG.finding(subject, message, *facts)


def judge_late(
    seconds: float, stacks: Mapping[int, Sequence[str]], finished: Sequence[int], host: str
) -> Finding:
    """The finding for a script whose time was over; `stacks` are those of ranks that stood still then."""
    facts = _describe_places(_group_by_place(stacks, finished), stacks)
    ended = Evidence("ranks_ended", len(finished), source="ranks")
    message = f"the script had not ended after {seconds:.1f} s, when its time was over"
    return TIMED_OUT.finding(HostSubject(host), message, ended, *facts)


def _group_by_place(
    stacks: Mapping[int, Sequence[str]], finished: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Places with the ranks that are there: those that wait for no other rank first, then the fewest."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(own_place(stacks[rank]), []).append(rank)
    if finished:
        groups["the script's end"] = sorted(finished)
    return sorted(
        groups.items(), key=lambda group: (_communicates(group[1], stacks), len(group[1]), group[1])
    )


def _communicates(ranks: Sequence[int], stacks: Mapping[int, Sequence[str]]) -> bool:
    """Whether those ranks are inside a collective, and so wait for ranks that are not."""
    innermost = [stacks[rank][0] for rank in ranks if stacks.get(rank)]
    return bool(innermost) and all(_COMMUNICATION in place for place in innermost)


def _describe_places(
    places: Sequence[tuple[str, list[int]]], stacks: Mapping[int, Sequence[str]]
) -> list[Evidence]:
    facts = [Evidence(name_ranks(ranks), place, source=_STACKS) for place, ranks in places[:_SHOWN_GROUPS]]
    facts += [
        Evidence(f"innermost frame of rank {rank}", stack[0], source=_STACKS)
        for rank, stack in list(stacks.items())[:_SHOWN_GROUPS]
        if stack
    ]
    return facts


def own_place(stack: Sequence[str]) -> str:
    """The innermost place that is not a library's; the innermost of all where there is none."""
    own = [place for place in stack if not any(part in place for part in _LIBRARIES)]
    return (own or list(stack) or ["nowhere"])[0]


def _renamed(finding: Finding) -> Finding:
    """A script that ends itself with a status says so by an exception of Python's, which is no exception to people."""
    facts = {fact.name: fact.value for fact in finding.evidence}
    if facts.get("exception") != "SystemExit":
        return finding
    rank = finding.subject.rank if isinstance(finding.subject, RankSubject) else 0
    message = f"rank {rank} ended the script with status {facts.get('message')}"
    return SCRIPT_FAILED.finding(finding.subject, message, *finding.evidence)
