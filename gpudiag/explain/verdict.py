"""What became of a job: which rank failed first, by which line, and which errors only follow from it."""

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from gpudiag.explain.absence import all_ranks, find_other_line, find_waited, last_steps
from gpudiag.explain.event import SKEW, Event, Standing
from gpudiag.explain.event_words import (
    WITHDRAWN,
    clock_of,
    describe_later,
    explanation_of,
    is_of_application,
    is_of_plugin,
    remedy_for,
    sentence_of,
)
from gpudiag.explain.events import events_of
from gpudiag.explain.first_failure import (
    ABORT,
    REPORTS,
    Group,
    beats,
    choose,
    find_first_unknown,
    find_later,
    is_after_error_of_nccl,
    is_bare_exit,
    is_explained_by_absence,
    is_outlived_warning,
    is_weak_word,
    order_of,
)
from gpudiag.explain.identity import Identities, identify
from gpudiag.explain.lines import Level, read_level
from gpudiag.explain.log_facts import LogFacts
from gpudiag.explain.meanings import meaning_of
from gpudiag.explain.no_failure import after_the_end, failure_before, judge_no_failure
from gpudiag.explain.rank_facts import short_host
from gpudiag.explain.topics import explain_failure
from gpudiag.explain.waited import SENTENCES, Waited, WaitedKind
from gpudiag.model.explanation import Echo, Verdict, VerdictKind
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.untrusted_text import mask_text, shorten_text
from gpudiag.reference.failures import failures

MAX_ECHOES = 12  # sorts of them
_NEAR = timedelta(minutes=10)
_STILL = timedelta(minutes=15)  # without a step before a job was ended from outside
_EVERYONE = 0.9
_PEER_SHARE = 0.6  # of the lines of several hosts about lost completions, that name one peer
_OF_GPUS = ("cuda.", "cublas.", "cudnn.", "gpu.", "nvlink.")
_SIGNALS = ("launch.ended_from_outside", "launch.hangup", "launch.interrupted")
_DIFFER = (WaitedKind.OTHER_CALL, WaitedKind.UNDECIDED_CALL)
_LOST = ("rank.connection_lost", "network.connection_refused")


def judge(facts: list[tuple[str, LogFacts]]) -> Verdict:
    """Who failed first, over all logs of a job."""
    job = identify(facts)
    events = events_of(job)
    return after_the_end(job, events, _judge(job, events))


def _judge(job: Identities, events: list[Event]) -> Verdict:
    candidates = [
        event
        for event in events
        if event.standing < Standing.UNKNOWN and not is_explained_by_absence(event, events)
    ]
    root = choose(candidates)
    if root is not None and is_weak_word(root.first):
        waited = (
            find_waited(job, events) if any(event.standing is Standing.ABSENT for event in events) else None
        )
        root = root if waited is None or not beats(waited, root, events) else None
    unknown = find_first_unknown(job, events)
    if root is not None and (is_bare_exit(root.first) or root.first.topic == "rank.crashed"):
        root = None if is_after_error_of_nccl(root, unknown) else root
    if root is not None and root.first.topic == "collective.mismatched":
        waited = (
            find_waited(job, events)
            if any(log.facts.of_ranks.fingerprints for log in job.logs)
            else find_other_line(events, "")
        )
        if waited is not None and waited.kind in _DIFFER:
            return _of_waited(job, events, waited)
        return _of_mismatch(job, events, root)
    if root is not None:
        return _of_root(job, events, root)
    if unknown is not None:
        waited = find_waited(job, events) if unknown.first.topic == "nccl.unhandled" else None
        return (
            _of_root(job, events, unknown)
            if waited is None or not waited.ranks
            else _of_waited(job, events, waited)
        )
    bad = [
        event
        for event in events
        if event.standing in (Standing.UNKNOWN, Standing.ABSENT, Standing.ECHO, Standing.ENDED)
        and not is_outlived_warning(job, event)
        and not _is_farewell(job, event)
    ]
    if not bad and not any(log.facts.record for log in job.logs):
        return judge_no_failure(job, events)
    waited = find_waited(job, events)
    if waited is not None:
        return _of_waited(job, events, waited)
    if not bad:
        return judge_no_failure(job, events)
    return _of_echoes(job, events, bad)


def _is_farewell(job: Identities, event: Event) -> bool:
    """Whether a rank warns that it lost another that had ended well: the job logged that it is complete."""
    if event.topic not in _LOST or read_level(event.text) is not Level.WARNING:
        return False
    if any(gone.code for log in job.logs for gone in log.facts.of_ranks.exits):
        return False
    own = job.logs[event.log_number].facts.done_at
    return own < event.line if own else any(log.facts.done_at for log in job.logs)


def _of_root(job: Identities, events: list[Event], root: Group) -> Verdict:
    event = root.first
    everyone = all_ranks(job, events)
    explanation = explanation_of(event)
    kind, ranks, hosts, evidence = _kind(job, events, root, everyone)
    later = find_later(events, root)
    evidence += _details(event)
    evidence += [f"it was raised from {shorten_text(event.origin, 200)}"] if event.origin else []
    others = sorted({host for host in job.hosts.values() if host not in hosts})
    if "No such file or directory" in event.text and len(hosts) == 1 and others:
        evidence.append(
            f"all that lack it are on {hosts[0]}, and not on {', '.join(others[:4])}: is the folder shared?"
        )
    if kind is VerdictKind.STOPPED and ranks:
        waiting = {
            one.rank for one in events if one.standing is Standing.ABSENT and one.rank is not None
        } - set(ranks)
        evidence += [f"{name_ranks(tuple(sorted(waiting)))} then waited for it"] if waiting else []
    return Verdict(
        kind=kind,
        sentence=sentence_of(kind, ranks, hosts, event, explanation),
        ranks=ranks,
        hosts=hosts,
        pod=mask_text(event.pod),
        topic=event.topic,
        log=event.log,
        line=event.line,
        excerpt=mask_text(event.excerpt)[:500],
        where="" if kind is VerdictKind.STOPPED else mask_text(_where(events, root, ranks, hosts)),
        at=clock_of(event.at) if event.at and event.is_exact else "",
        cause=explanation.meaning if explanation else meaning_of(event.text),
        remedy=remedy_for(event, explanation, kind),
        evidence=tuple(
            mask_text(words)
            for words in (
                *evidence,
                *_notes(event),
                *failure_before(events, event.attempt),
                *(describe_later(one) for one in later),
            )
        ),
        driver_errors=_driver_errors(events, event, hosts),
        echoes=_echoes(events, root, later),
    )


def _notes(event: Event) -> tuple[str, ...]:
    """How the time of an event was found, and that the catalogue does not know it."""
    unknown = (
        ("this error is not known here: it is quoted as what came first",)
        if event.standing is Standing.UNKNOWN
        else ()
    )
    return (*((event.note,) if event.note else ()), *unknown)


def _details(event: Event) -> list[str]:
    """What the line itself has in numbers and names.

    An Xid that a device plugin reports is its line, not the kernel's.
    """
    failure = failures().get(WITHDRAWN if is_of_plugin(event) else event.topic)
    detail = failure.detail_of(event.text) if failure is not None else ""
    return [detail] if detail else []


def _kind(
    job: Identities, events: list[Event], root: Group, everyone: set[int]
) -> tuple[VerdictKind, tuple[int, ...], tuple[str, ...], list[str]]:
    """The kind of verdict, whom it names, and what else shows it."""
    event, ranks, hosts = root.first, root.ranks, root.hosts
    if event.standing is Standing.OUTSIDE:
        node = failures()[event.topic].values_in(event.text).get("node", "")
        some = ranks if event.topic in _SIGNALS and 0 < len(ranks) < _EVERYONE * len(everyone) else ()
        return VerdictKind.STOPPED, some, (short_host(node),) if node else (), _still(job, event)
    if event.standing is Standing.LINK:
        return VerdictKind.LINK_FAILED, *_link(job, root)
    is_machine = event.standing is Standing.MACHINE or (
        event.is_driver and not is_of_application(event.topic)
    )
    if is_machine or event.topic == "host.out_of_memory_kill":
        ranks, hosts = (
            (event.rank,) if event.rank is not None else (),
            (event.host,) if event.host else hosts[:1],
        )
        ranks = ranks or _ranks_of_machine(job, events, event, hosts)
        hosts = hosts or tuple(job.hosts[rank] for rank in ranks if rank in job.hosts)
        return VerdictKind.MACHINE_FAILED if is_machine else VerdictKind.RANK_FAILED, ranks, hosts, []
    if len(ranks) > 1 and len(ranks) >= _EVERYONE * len(everyone):
        return VerdictKind.ALL_FAILED, ranks, hosts, []
    if len(ranks) > 1 and len(hosts) != 1:
        first = _first_ranks(root)
        more = (
            [f"the same at {name_ranks(tuple(rank for rank in ranks if rank not in first))}"]
            if len(first) < len(ranks)
            else []
        )
        return (
            VerdictKind.RANK_FAILED,
            first,
            tuple(sorted({job.hosts[rank] for rank in first if rank in job.hosts})) or hosts[:1],
            more,
        )
    return VerdictKind.RANK_FAILED, ranks, hosts, []


def _first_ranks(root: Group) -> tuple[int, ...]:
    """The rank that was first by more than clocks may differ; else all of them."""
    dated = [event for event in root.events if event.at and event.is_exact and event.rank is not None]
    if dated and len(dated) == len(root.events):
        near = [event for event in dated if event.at and dated[0].at and event.at <= dated[0].at + SKEW]
        return tuple(sorted({event.rank for event in near if event.rank is not None}))
    return root.ranks


def _link(job: Identities, root: Group) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
    """Between whom the network failed: the peer that several hosts name, else the host that logs it."""
    named: dict[str, set[str]] = defaultdict(set)
    for log in job.logs:
        for _, speaker, address, status in log.facts.of_ranks.peers:
            if status != 5:  # flushed: what was under way when the first one failed
                named[job.addresses.get(address, address)].add(speaker.host or log.host or log.name)
    ranked = sorted(named.items(), key=lambda item: (-len(item[1]), item[0]))
    reporters = {host for hosts in named.values() for host in hosts}
    event = root.first
    if (
        ranked
        and len(ranked[0][1]) > 1
        and len(ranked[0][1]) >= _PEER_SHARE * len(reporters - {ranked[0][0]})
    ):
        return (), (ranked[0][0],), [f"{len(ranked[0][1])} hosts lost their connection to it"]
    peers = tuple(peer for peer, hosts in ranked if event.host in hosts)[:1] or tuple(
        peer for peer, _ in ranked[:1]
    )
    ranks = (event.rank,) if event.rank is not None else ()
    return ranks, tuple(dict.fromkeys(name for name in (event.host, *peers) if name)), []


def _ranks_of_machine(
    job: Identities, events: list[Event], event: Event, hosts: tuple[str, ...]
) -> tuple[int, ...]:
    """The rank whose GPU or process a kernel's line is about."""
    for log in job.logs:
        for line, host, pid, _, _ in log.facts.of_ranks.killed_pids:
            if log.name == event.log and line == event.line:
                host = host or log.host
                rank = job.ranks_of_pids.get((host, pid), job.ranks_of_pids.get(("", pid)))
                if rank is not None:
                    return (rank,)
    bus = re.search(r"(?:PCI:)?(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}):[0-9a-f]{2}", event.text, re.IGNORECASE)
    if bus and hosts and (rank := job.bus_ids.get((hosts[0], f"{bus[1].lower()}000"))) is not None:
        return (rank,)
    process = re.search(r"pid='?(\d+)", event.text)
    if process and (rank := job.ranks_of_pids.get((hosts[0] if hosts else "", int(process[1])))) is not None:
        return (rank,)
    own = [
        other
        for other in events
        if other.rank is not None
        and (other.standing <= Standing.ENDED or other.topic.startswith(_OF_GPUS))
        and not other.is_driver
        and (not hosts or other.host in ("", *hosts))
    ]
    own.sort(key=lambda other: (other.standing is Standing.ENDED, order_of(other)))
    return (own[0].rank,) if own and own[0].rank is not None else ()


def _still(job: Identities, event: Event) -> list[str]:
    """Whether the job had long stood still when it was ended."""
    last = [(at, rank) for rank, (_, _, _, at) in last_steps(job).items() if at]
    if not last or not event.at or not event.is_exact:
        return []
    at, _ = max(last)
    stood = event.at - at if at.year == event.at.year else timedelta(0)
    return (
        [f"no step was reported for {int(stood.total_seconds() // 60)} minutes before: it may have hung"]
        if stood > _STILL
        else []
    )


def _where(events: list[Event], root: Group, ranks: tuple[int, ...], hosts: tuple[str, ...]) -> str:
    own = next((event.where for event in root.events if event.where), "")
    if own:
        return own
    near = (
        event for event in events if event.where and event.standing <= Standing.ENDED and event.rank in ranks
    )
    return next((event.where for event in near), "")


def _driver_errors(events: list[Event], root: Event, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Xids of these hosts at that time."""
    near: dict[str, Event] = {}
    for event in events:
        at_that_time = not (event.at and root.at and event.is_exact) or abs(event.at - root.at) <= _NEAR
        if event.is_driver and at_that_time and (not hosts or not event.host or event.host in hosts):
            near.setdefault(f"{event.topic} {event.host}", event)
    return tuple(
        f"{event.topic}{f' on {event.host}' if event.host else ''}"
        f"{f' at {event.at:%H:%M:%S}' if event.at and event.is_exact else ''}"
        f" ({event.log}:{event.line})"
        for event in near.values()
    )


def _echoes(events: list[Event], root: Group | None, later: Sequence[Group] = ()) -> tuple[Echo, ...]:
    groups: dict[str, list[Event]] = defaultdict(list)
    own = {event for group in (*((root,) if root else ()), *later) for event in group.events}
    for event in events:
        if event not in own and event.standing is not Standing.OUTLIVED and not event.is_driver:
            groups[event.shape].append(event)
    echoes = [_echo(sorted(group, key=order_of)) for group in groups.values()]
    return tuple(sorted(echoes, key=lambda echo: -echo.count)[:MAX_ECHOES])


def _echo(group: list[Event]) -> Echo:
    first = group[0]
    explanation = explanation_of(first)
    return Echo(
        what=shorten_text(mask_text(explanation.title if explanation else first.text), 160),
        count=sum(event.count for event in group),
        ranks=tuple(sorted({event.rank for event in group if event.rank is not None})),
        hosts=tuple(sorted({event.host for event in group if event.host})),
        log=first.log,
        line=first.line,
    )


def _of_waited(job: Identities, events: list[Event], waited: Waited) -> Verdict:
    """A verdict on those that the others waited for."""
    hosts = tuple(sorted({job.hosts[rank] for rank in waited.ranks if rank in job.hosts})) or waited.hosts
    who = name_ranks(waited.ranks) if waited.ranks else "host"
    who = who[0].upper() + who[1:]
    on = f" {'on ' if waited.ranks else ''}{', '.join(hosts[:4])}" if hosts else ""
    kind = VerdictKind.RANKS_DIFFER if waited.kind in _DIFFER else VerdictKind.RANK_MISSING
    topic, what = SENTENCES[waited.kind]
    what = what.format(who=f"{who}{on}", are="are" if len(waited.ranks) > 1 else "is")
    failure = explain_failure(failures()[topic])
    last = last_steps(job).get(waited.ranks[0]) if waited.ranks else None
    evidence = [waited.how, *waited.sides]
    if last and last[0] is not None:
        evidence.append(f"the last step of rank {waited.ranks[0]} is {last[0]} ({last[1]}:{last[2]})")
    event = next((event for event in events if event.log == waited.log and event.line == waited.line), None)
    first = event or next(
        (
            event
            for event in events
            if event.log == waited.log and event.standing in (Standing.ABSENT, Standing.ECHO)
        ),
        None,
    )
    return Verdict(
        kind=kind, sentence=f"{what}.", ranks=waited.ranks, hosts=hosts, topic=topic,
        log=waited.log, line=first.line if first else waited.line,
        excerpt=mask_text(first.excerpt)[:500] if first else "",
        where=mask_text(first.where) if first and first.rank in waited.ranks else "",
        cause=failure.meaning, remedy=failure.remedy, evidence=tuple(mask_text(words) for words in evidence),
        driver_errors=_driver_errors(events, first, hosts) if first else (), echoes=_echoes(events, None),
    )  # fmt: skip


def _of_mismatch(job: Identities, events: list[Event], root: Group) -> Verdict:
    """A verdict on collectives that do not fit together, where nothing shows which of them is wrong.

    gloo ends the rank to which more was sent than it has room for: that one, or the sender, is the odd one.
    """
    event, explanation = root.first, explanation_of(root.first)
    sizes = {
        (log.name, line): (came, asked)
        for log in job.logs
        for line, came, asked in log.facts.of_ranks.overflows
    }
    aborted = tuple(
        sorted({one.rank for one in events if one.code == ABORT and one.rank is not None} | set(root.ranks))
    )
    ranks = (
        aborted
        if set(root.ranks) < set(aborted) and sum(one.count for one in root.events) == len(aborted)
        else root.ranks
    )
    who = name_ranks(ranks) if ranks else "a rank"
    on = f" on {', '.join(root.hosts[:4])}" if root.hosts else ""
    came, asked = sizes.get((event.log, event.line), (None, None))
    what = (
        f"{who}{on} had room for {asked} bytes, and another rank sent {came}"
        if came is not None
        else f"{who}{on} reported it"
    )
    return Verdict(
        kind=VerdictKind.RANKS_DIFFER,
        sentence=(
            f"The ranks called different collectives, or one with different sizes: {what}."
            " These logs do not show which of them is wrong."
        ),
        log=event.log,
        line=event.line,
        topic=event.topic,
        excerpt=mask_text(event.excerpt)[:500],
        where=mask_text(event.where),
        cause=explanation.meaning if explanation else "",
        remedy=remedy_for(event, explanation, VerdictKind.RANKS_DIFFER),
        evidence=tuple(mask_text(words) for words in _places_of_others(events, ranks)),
        driver_errors=_driver_errors(events, event, ()),
        echoes=_echoes(events, root),
    )


def _places_of_others(events: list[Event], ranks: tuple[int, ...]) -> list[str]:
    """Where the other ranks were when they lost those of a mismatch: each line of code once."""
    places: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if (
            event.standing in (Standing.ABSENT, Standing.ECHO)
            and event.where
            and event.rank is not None
            and event.rank not in ranks
        ):
            places[event.where].append(event.rank)
    return [
        f"{name_ranks(tuple(sorted(set(who))))} was at {where[:160]}" for where, who in [*places.items()][:4]
    ]


def _of_echoes(job: Identities, events: list[Event], bad: list[Event]) -> Verdict:
    """A verdict on logs in which there is nothing but consequences."""
    first = min(bad, key=lambda event: (event.topic == "torchrun.stopped_others", *order_of(event)))
    of_others = (Standing.ABSENT, Standing.ECHO)
    ranks = tuple(
        sorted(
            {
                event.rank
                for event in bad
                if event.rank is not None and event.standing in of_others and event.topic not in REPORTS
            }
        )
    )
    consequences = (
        f" {name_ranks(ranks)[0].upper()}{name_ranks(ranks)[1:]} only lost other ranks, or waited for them."
        if ranks
        else ""
    )
    explanation = explanation_of(first)
    return Verdict(
        kind=VerdictKind.ONLY_ECHOES,
        sentence=f"What failed first is not in these logs.{consequences}",
        log=first.log,
        line=first.line,
        topic=first.topic,
        excerpt=mask_text(first.excerpt)[:500],
        cause=explanation.meaning if explanation else "",
        remedy=(
            "Give the logs of all ranks and hosts, and the kernel log of each host: `gpudiag explain FOLDER`."
        ),
        driver_errors=_driver_errors(events, first, ()),
        echoes=_echoes(events, None),
    )
