"""Whom the ranks of a job waited for: by lines of launchers and watchdogs, and by who stays silent."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpudiag.checks.job.differences import Apart
from gpudiag.checks.job.flight_records import judge_records
from gpudiag.explain.event import Event, Standing
from gpudiag.explain.event_times import on_calendar
from gpudiag.explain.identity import Identities, LogOfJob
from gpudiag.explain.progress import step_of
from gpudiag.explain.rank_facts import Absence, Watchdog, short_host
from gpudiag.explain.waited import OF_NOBODY, OF_RENDEZVOUS, Waited, WaitedKind
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.reference.failures import failures

_FEW = 0.34  # of all ranks: more than that are not named as the odd ones
# Collectives of NCCL to which all ranks give tensors of one size, as torch's watchdog names them.
_SAME_SIZE = frozenset(
    ("ALLREDUCE", "ALLREDUCE_COALESCED", "REDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
)
# Whose numbers count by pair, or mean nothing.
_BETWEEN_TWO = frozenset(("SEND", "RECV", "COALESCED", "UNKNOWN"))
_COLLECTIVE = re.compile(r"OpType=(\w+)")
_LOST = "host.ray_node_lost"


def find_waited(job: Identities, events: list[Event]) -> Waited | None:
    """The ranks that others waited for; None if the logs do not show it."""
    for find in _FINDERS:
        waited = find(job, events)
        if waited is not None:
            return waited
    return None


def all_ranks(job: Identities, events: Iterable[Event] = ()) -> set[int]:
    """Every rank of the job that is known of, and those with a smaller number."""
    known = _named_ranks(job, events)
    size = max(job.world_size, max(known, default=-1) + 1)
    return set(range(size)) if size <= 65536 else known


def _named_ranks(job: Identities, events: Iterable[Event]) -> set[int]:
    """Every rank that the logs name."""
    known = {event.rank for event in events if event.rank is not None} | set(job.hosts)
    for log in job.logs:
        shown = log.facts.of_ranks
        known |= {gone.rank for gone in shown.exits if gone.rank is not None} | {
            dog.rank for dog in shown.watchdogs.values()
        }
        known |= {
            rank for line in log.facts.last_lines if (rank := job.rank_of(log, line.speaker)) is not None
        }
        known |= set(log.ranks_of_local.values()) | ({log.rank} if log.rank is not None else set())
        known |= {rank for absence in shown.absences for rank in absence.ranks}
    return known


def _are_known(job: Identities, events: Iterable[Event], silent: set[int], speaking: set[int]) -> bool:
    """Whether there are silent ranks, and not only numbers below that of the one rank that speaks."""
    return bool(silent) and (len(speaking) > 1 or job.world_size > 0 or silent <= _named_ranks(job, events))


def _by_fingerprints(job: Identities, events: list[Event]) -> Waited | None:
    """Of ranks that log what they run, the one that runs something else."""
    logged: dict[int, tuple[str, str, int]] = {}
    for log in job.logs:
        for line, rank, what in log.facts.of_ranks.fingerprints:
            logged.setdefault(rank, (what, log.name, line))
    if len(logged) < 2:
        return None
    kinds = Counter(what for what, _, _ in logged.values())
    if len(kinds) < 2:
        return None
    odd, is_tied = _odd_ones({rank: what for rank, (what, _, _) in logged.items()})
    words = "; ".join(
        f"rank {rank} runs {_short_fingerprint(logged[rank][0])}" for rank in sorted(logged)[:4]
    )
    _, log_name, line = logged[odd[-1]]
    return Waited(odd, words, log_name, line, kind=_kind_of_call(is_tied=is_tied))


def _kind_of_call(*, is_tied: bool) -> WaitedKind:
    return WaitedKind.UNDECIDED_CALL if is_tied else WaitedKind.OTHER_CALL


def _odd_ones(logged: Mapping[int, str | int]) -> tuple[tuple[int, ...], bool]:
    """The ranks that differ from most; all of them, and True, where two answers are equally frequent."""
    counted = Counter(logged.values()).most_common(2)
    is_tied = len(counted) > 1 and counted[0][1] == counted[1][1]
    return tuple(sorted(rank for rank, what in logged.items() if is_tied or what != counted[0][0])), is_tied


def _short_fingerprint(text: str) -> str:
    kind = _COLLECTIVE.search(text)
    shape = re.search(r"TensorShape=(\[[^\]]*\])", text)
    return f"{kind[1] if kind else text[:40]}{f' of {shape[1]}' if shape else ''}"


def _by_names(job: Identities, events: list[Event]) -> Waited | None:
    """The ranks that lines of torch name as missing."""
    complaining = _complaining(events)
    named: dict[int, tuple[str, Absence]] = {}
    all_absences = [(absence, log) for log in job.logs for absence in log.facts.of_ranks.absences]
    all_absences.sort(key=lambda pair: not pair[0].by_rank_0)
    for absence, log in all_absences:
        if named and next(iter(named.values()))[1].by_rank_0 and not absence.by_rank_0:
            break
        for rank in absence.ranks:
            named.setdefault(rank, (log.name, absence))
    if any(absence.joined for absence, _ in all_absences):
        named.pop(0, None)  # it has the store, and waits there itself
    ranks = tuple(sorted(set(named) - complaining)) or tuple(sorted(named)) if named else ()
    if not ranks:
        return None
    name, absence = named[ranks[0]]
    how = f"`{shorten_text(absence.text, 160)}`"
    kind = WaitedKind.NEVER_CAME if absence.at_start else WaitedKind.LATE
    return Waited(ranks, how, name, absence.line, kind=kind)


def _by_watchdogs(job: Identities, events: list[Event]) -> Waited | None:
    """The rank whose last collective is behind the others', or the only rank without a watchdog message."""
    groups: dict[str, dict[int, tuple[Watchdog, str]]] = defaultdict(dict)
    for log in job.logs:
        for (rank, group), dog in log.facts.of_ranks.watchdogs.items():
            groups[group].setdefault(rank, (dog, log.name))
    if not groups:
        return None
    for dogs in sorted(_comparable(groups), key=len, reverse=True):
        waited = _behind(dogs) or _in_another(dogs) or _with_another_size(dogs)
        if waited is not None:
            return waited
    dogs = max(groups.values(), key=len)
    silent = all_ranks(job, events) - {rank for found in groups.values() for rank in found}
    if _are_known(job, events, silent, set(dogs)) and len(silent) <= max(1, _FEW * (len(silent) + len(dogs))):
        dog, name = next(iter(dogs.values()))
        return Waited(
            tuple(sorted(silent)), f"{_ranks(dogs)} timed out in a collective, it did not", name, dog.line
        )
    return None


def _comparable(
    groups: Mapping[str, dict[int, tuple[Watchdog, str]]],
) -> list[dict[int, tuple[Watchdog, str]]]:
    """What can be compared between ranks: collectives of one process group, not what goes between two ranks.

    The line with the operation names no group: where several are named, ranks in it may be of different ones.
    """
    between_two = {
        rank for dogs in groups.values() for rank, (dog, _) in dogs.items() if dog.operation in _BETWEEN_TWO
    }
    unnamed = groups.get("", {})
    named = [dogs for group, dogs in groups.items() if group]
    is_one = len(named) == 1
    joined = [
        {rank: _joined(dog, unnamed[rank], is_one) if rank in unnamed else dog for rank, dog in dogs.items()}
        for dogs in named
    ]
    if is_one:
        joined = [{**unnamed, **joined[0]}]
    return [
        {rank: dog for rank, dog in dogs.items() if rank not in between_two} for dogs in joined or [unnamed]
    ]


def _joined(
    named: tuple[Watchdog, str], unnamed: tuple[Watchdog, str], is_one_group: bool
) -> tuple[Watchdog, str]:
    """What a rank logged of its group, with the operation in which it timed out, if of the same group."""
    (dog, name), (other, _) = named, unnamed
    if dog.work != other.work and not (is_one_group and dog.work < 0):
        return named
    return replace(
        dog, work=other.work, operation=other.operation, elements=other.elements, operation_line=other.line
    ), name


def _behind(dogs: dict[int, tuple[Watchdog, str]]) -> Waited | None:
    for field in ("enqueued", "work"):
        numbers = {rank: getattr(dog, field) for rank, (dog, _) in dogs.items() if getattr(dog, field) >= 0}
        if len(numbers) < 2:
            continue
        counted = Counter(numbers.values())
        usual = max(counted, key=lambda number: (counted[number], number))  # of two ranks, the one ahead
        lowest = min(counted)
        behind = tuple(sorted(rank for rank, number in numbers.items() if number == lowest))
        works = {rank: dog.work for rank, (dog, _) in dogs.items() if dog.work >= 0}
        waited_for = max(works.values(), default=-1)
        if (
            lowest < usual
            and (field == "work" or lowest < waited_for)
            and len(behind) <= max(1, _FEW * len(dogs))
        ):
            dog, name = dogs[behind[0]]
            how = (
                f"its last {'enqueued collective' if field == 'enqueued' else 'collective that timed out'}"
                f" is {lowest}, that of the others {usual}"
            )
            return Waited(behind, how, name, dog.line)
    return None


def _in_another(dogs: dict[int, tuple[Watchdog, str]]) -> Waited | None:
    """The ranks that timed out in another operation than most, under the same number."""
    kinds = {rank: dog.operation for rank, (dog, _) in dogs.items() if dog.operation}
    counted = Counter(kinds.values()).most_common()
    if len(counted) < 2:
        return None
    is_tied = counted[0][1] == counted[1][1]
    if is_tied and len({dogs[rank][0].work for rank in kinds}) > 1:
        return None  # under two numbers, two operations are no contradiction
    odd = tuple(sorted(rank for rank, kind in kinds.items() if is_tied or kind != counted[0][0]))
    dog, name = dogs[odd[0]]
    how = (
        (
            f"they timed out in {' and '.join(kind for kind, _ in counted[:4])}, all as"
            f" number {dog.work}{_of_group(dog)}"
        )
        if is_tied
        else f"it timed out in {kinds[odd[0]]}, the others in {counted[0][0]}{_of_group(dog)}"
    )
    sides = tuple(_side(dogs, kinds, kind) for kind, _ in counted[:4])
    kind = _kind_of_call(is_tied=is_tied)
    return Waited(odd, how, name, dog.operation_line or dog.line, kind=kind, sides=sides)


def _side(dogs: Mapping[int, tuple[Watchdog, str]], kinds: Mapping[int, str], kind: str) -> str:
    """The ranks that were in one operation, and the line of the first of them."""
    ranks = sorted(rank for rank, other in kinds.items() if other == kind)
    dog, name = dogs[ranks[0]]
    return f"{name_ranks(tuple(ranks))}: {kind} ({name}:{dog.operation_line or dog.line})"


def _of_group(dog: Watchdog) -> str:
    """The process group in words, where the line gives it a name of its own."""
    named = re.search(r"\(([A-Za-z]\w*)\)", dog.group)
    return f" of the process group {named[1]}" if named and named[1] != "default_pg" else ""


def _with_another_size(dogs: dict[int, tuple[Watchdog, str]]) -> Waited | None:
    """The ranks that gave another number of elements than most to the collective in which they timed out."""
    last = max((dog.work for dog, _ in dogs.values() if dog.elements >= 0), default=-1)
    sizes = {rank: dog.elements for rank, (dog, _) in dogs.items() if dog.elements >= 0 and dog.work == last}
    operations = {dogs[rank][0].operation for rank in sizes}
    if len(set(sizes.values())) < 2 or len(operations) > 1 or not operations <= _SAME_SIZE:
        return None
    odd, is_tied = _odd_ones(sizes)
    dog, name = dogs[odd[0]]
    sides = tuple(
        _side(
            dogs,
            {rank: f"{dog.operation} of {count} elements" for rank, count in sizes.items()},
            f"{dog.operation} of {size} elements",
        )
        for size, _ in Counter(sizes.values()).most_common(4)
    )
    words = "; ".join(
        f"rank {rank} gave {sizes[rank]} elements" for rank in (*odd[:4], *_usual_of(sizes, odd))
    )
    return Waited(
        odd,
        f"in {dog.operation}: {words}",
        name,
        dog.operation_line or dog.line,
        kind=_kind_of_call(is_tied=is_tied),
        sides=sides,
    )


def _usual_of(sizes: Mapping[int, int], odd: Sequence[int]) -> tuple[int, ...]:
    """One of the ranks that are not the odd ones."""
    return tuple(sorted(set(sizes) - set(odd))[:1])


def _by_lines_of_code(job: Identities, events: list[Event]) -> Waited | None:
    """Of ranks that waited in collectives, the one that waited at another line of the script."""
    return find_other_line(events, "imed out")


def find_other_line(events: list[Event], words: str) -> Waited | None:
    """Of ranks whose exceptions have these words, the one that was at another line of the script."""
    waiting = {
        event.rank: event
        for event in events
        if event.standing in (Standing.ABSENT, Standing.ECHO)
        and event.rank is not None
        and event.where
        and words in event.text
    }
    counted = Counter(_place(event) for event in waiting.values()).most_common()
    if len(counted) < 2 or counted[0][1] == counted[1][1] or len(waiting) < 3:
        return None
    odd = tuple(sorted(rank for rank, event in waiting.items() if _place(event) != counted[0][0]))
    event = waiting[odd[0]]
    how = f"it waited at {event.where}, the others at {counted[0][0]}"
    return Waited(odd, how, event.log, event.line, kind=WaitedKind.OTHER_CALL)


def _place(event: Event) -> str:
    return event.where.split(" in ")[0]


def _by_count(job: Identities, events: list[Event]) -> Waited | None:
    """How many came to the rendezvous, and which ranks are in no log."""
    for log in job.logs:
        for absence in log.facts.of_ranks.absences:
            if absence.joined and absence.joined[0] < absence.joined[1]:
                came, wanted = absence.joined
                seen = _seen(job, events)
                missing = set(range(wanted)) - seen
                ranks = tuple(sorted(missing)) if len(missing) == wanted - came else ()
                how = f"{came} of {wanted} joined the rendezvous"
                kind = WaitedKind.NEVER_CAME if ranks else WaitedKind.NOT_ALL_CAME
                return Waited(ranks, how, log.name, absence.line, kind=kind)
    return None


def _by_steps(job: Identities, events: list[Event]) -> Waited | None:
    """The rank whose last step, or last line, is behind that of the others."""
    last = last_steps(job)
    complaining = _complaining(events)
    if len(last) < 3:
        return None
    steps = {rank: step for rank, (step, _, _, _) in last.items() if step is not None}
    usual = Counter(steps.values()).most_common(1)[0][0] if steps else 0
    behind = tuple(sorted(rank for rank, step in steps.items() if step < usual and rank not in complaining))
    if behind and len(behind) <= max(1, _FEW * len(last)):
        step, name, line, _ = last[behind[0]]
        return Waited(behind, f"its last step is {step}, that of the others {usual}", name, line)
    return None


def last_steps(job: Identities) -> dict[int, tuple[int | None, str, int, datetime | None]]:
    """The last step that each rank logged: its number, its line, and when."""
    last: dict[int, tuple[int | None, str, int, datetime | None]] = {}
    for log in job.logs:
        for line in log.facts.last_lines:
            rank = job.rank_of(log, line.speaker)
            if rank is not None:
                last[rank] = (
                    step_of(line.body),
                    log.name,
                    line.number,
                    on_calendar(line.at, line.at, line.at) if line.at else None,
                )
    return last


def _by_silence(job: Identities, events: list[Event]) -> Waited | None:
    """The ranks that log nothing while all others log that they waited or lost a connection."""
    everyone, complaining = all_ranks(job, events), _complaining(events)
    silent = everyone - complaining
    if not complaining or len(silent) > max(1, _FEW * len(everyone)):
        return None
    if not _are_known(job, events, silent, complaining):
        return None
    first = next(
        event
        for event in events
        if event.rank in complaining and event.standing in (Standing.ABSENT, Standing.ECHO)
    )
    return Waited(
        tuple(sorted(silent)),
        f"{_ranks(complaining)} waited for others or lost them, it logs nothing",
        first.log,
        first.line,
    )


def _complaining(events: list[Event]) -> set[int]:
    """Ranks whose lines show that they waited for others or lost them."""
    of_others = (Standing.ABSENT, Standing.ECHO)
    return {
        event.rank
        for event in events
        if event.standing in of_others
        and event.rank is not None
        and not event.is_driver
        and event.topic not in ("torchrun.stopped_others", "torchrun.child_failed", "launch.child_failed")
    }


def _by_silent_host(job: Identities, events: list[Event]) -> Waited | None:
    """The host whose logs end without an error while other hosts log that they lost it."""
    bad = [
        event
        for event in events
        if event.standing in (Standing.ABSENT, Standing.ECHO, Standing.ENDED) and event.host
    ]
    complaining, everywhere = (
        {event.host for event in bad},
        {log.host for log in job.logs if log.host and log.facts.record is None},
    )
    silent = tuple(sorted(everywhere - complaining))
    if not complaining or not silent or len(silent) > max(1, _FEW * len(everywhere)):
        return None
    ranks = tuple(sorted(rank for rank, host in job.hosts.items() if host in silent))
    log = next(log for log in job.logs if log.host in silent)
    how = (
        f"the log of {', '.join(silent[:4])} ends without an error"
        f" ({log.name}:{log.facts.lines}), the others lost it"
    )
    return Waited(ranks, how, bad[0].log, bad[0].line, hosts=silent)


def _by_lost_connections(job: Identities, events: list[Event]) -> Waited | None:
    """The host to which ranks of several others lost their connection, while it logs nothing itself."""
    lost_by: dict[str, set[str]] = defaultdict(set)
    places: dict[str, tuple[str, int]] = {}
    speaking = {event.host for event in events if event.host and event.standing <= Standing.ECHO}
    for log in job.logs:
        for line, speaker, address in log.facts.of_ranks.lost:
            peer = job.addresses.get(address, short_host(address))
            by = job.host_of(log, speaker, job.rank_of(log, speaker))
            if peer and by and peer != by:
                lost_by[peer].add(by)
                places.setdefault(peer, (log.name, line))
    silent = [peer for peer, hosts in lost_by.items() if len(hosts) > 1 and peer not in speaking]
    if len(silent) != 1:
        return None
    peer = silent[0]
    ranks = tuple(sorted(rank for rank, host in job.hosts.items() if host == peer))
    how = f"{len(lost_by[peer])} hosts lost their connection to it, and it logs nothing"
    return Waited(ranks, how, *places[peer], hosts=(peer,))


def _by_rendezvous(job: Identities, events: list[Event]) -> Waited | None:
    """Somebody did not come to the rendezvous, and no line names them."""
    for event in events:
        if event.topic in OF_RENDEZVOUS:
            kind, how = OF_RENDEZVOUS[event.topic]
            return Waited((), f"{how}: `{shorten_text(event.text, 120)}`", event.log, event.line, kind=kind)
    return None


def _by_lost_node(job: Identities, events: list[Event]) -> Waited | None:
    """The node that a line of a cluster's daemon names as lost."""
    for event in events:
        node = failures()[event.topic].values_in(event.excerpt).get("node") if event.topic == _LOST else None
        if node is not None and event.standing is Standing.ABSENT:
            how = f"`{shorten_text(event.text, 160)}`"
            return Waited((), how, event.log, event.line, hosts=(event.host,), kind=WaitedKind.NODE_LOST)
    return None


def _by_nobody(job: Identities, events: list[Event]) -> Waited | None:
    """Something was waited for in vain, and no line names the rank or host."""
    for event in events:
        if event.topic in OF_NOBODY and event.standing is Standing.ABSENT:
            kind = OF_NOBODY[event.topic]
            return Waited((), f"`{event.text[:160]}`", event.log, event.line, kind=kind)
    return None


def _by_flight_records(job: Identities, events: list[Event]) -> Waited | None:
    """By the dumps of flight recorders, the rank that is behind, in another collective, or left no dump."""
    logs = {log.name: log for log in job.logs if log.facts.record is not None}
    records = [
        replace(log.facts.record, rank=_rank_of_record(log))
        for log in logs.values()
        if log.facts.record is not None
    ]
    for difference in judge_records(records).differences:
        if difference.ranks and difference.apart is not Apart.NONE:
            names = (record.source for record in records if record.rank in difference.ranks)
            differs = difference.apart in (Apart.ELSEWHERE, Apart.OTHER_SIZE)
            kind = WaitedKind.OTHER_CALL if differs else WaitedKind.LATE
            return Waited(difference.ranks, difference.message, next(names, next(iter(logs))), 0, kind=kind)
    written = {record.rank for record in records if isinstance(record.rank, int)}
    absent = tuple(
        sorted({rank for record in records for group in record.groups for rank in group.ranks} - written)
    )
    if not absent or len(absent) > max(1, _FEW * (len(absent) + len(written))):
        return None
    return Waited(
        absent, f"{_ranks(written)} wrote a flight recorder's dump, it did not", next(iter(logs)), 0
    )


def _rank_of_record(log: LogOfJob) -> Reading[int]:
    record = log.facts.record
    if record is not None and isinstance(record.rank, int):
        return record.rank
    return (
        log.rank
        if log.rank is not None
        else Missing(MissingReason.SOURCE_ABSENT, "neither the dump nor its path names the rank")
    )


def _seen(job: Identities, events: list[Event]) -> set[int]:
    seen = {event.rank for event in events if event.rank is not None} | {
        log.rank for log in job.logs if log.rank is not None
    }
    for log in job.logs:
        seen |= {
            rank for line in log.facts.last_lines if (rank := job.rank_of(log, line.speaker)) is not None
        }
    return seen


def _ranks(ranks: Iterable[int]) -> str:
    return name_ranks(tuple(sorted(ranks)))


_FINDERS = (
    _by_fingerprints,
    _by_names,
    _by_flight_records,
    _by_watchdogs,
    _by_lines_of_code,
    _by_count,
    _by_steps,
    _by_silence,
    _by_silent_host,
    _by_lost_connections,
    _by_rendezvous,
    _by_lost_node,
    _by_nobody,
)
