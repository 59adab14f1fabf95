"""Two answers of NCCL's RAS, judged: who is behind, gone, silent or elsewhere where nothing moves.

RAS counts launches, not completions: only what stands still between two answers and is lower is suspect. All
equal is a hang of all, or other work, which stacks decide. It may call a job OK after its own timeout
(NVIDIA/nccl#1730).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudiag.checks.job.differences import Apart, Difference, has, name_many, wait
from gpudiag.checks.training.kinds import verb
from gpudiag.model.evidence import Evidence
from gpudiag.model.job_state import RasCommunicator, RasLook, RasLooks, RasRank, RasStatus
from gpudiag.model.reading import Reading

SOURCE = "NCCL RAS"
_FINISHED = ("FINALIZE", "ABORT", "NOCOMM", "UNKNOWN")
_ALIVE = ("RUNNING", "INIT")


@dataclass(frozen=True, slots=True)
class JudgedRas:
    """What RAS shows: differences, notes, and whether anything moved between its answers; None: unknown."""

    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    moves: bool | None


def judge_ras(
    looks: RasLooks, world_size: Reading[int] | None = None, ranks_by_pid: Mapping[int, int] | None = None
) -> JudgedRas:
    """What the answers of one address show.

    With `ranks_by_pid`, the job's ranks on the machine that was asked, ranks within smaller communicators are
    named as the job's.
    """
    last = looks.looks[-1]
    earlier = {one.identity: one for one in looks.looks[0].communicators} if len(looks.looks) > 1 else {}
    names = _Names(last, world_size, ranks_by_pid or {})
    differences: list[Difference] = []
    moved: list[bool] = []
    for communicator in last.communicators:
        before = earlier.get(communicator.identity)
        standing = before is not None and before.counts == communicator.counts
        if before is not None and communicator.counts:
            moved.append(not standing)
        differences += _judge_absent(communicator, names)
        differences += _judge_errors(communicator, names)
        if standing:
            differences += _judge_statuses(communicator, names)
            found = _judge_counts(communicator, names)
            differences += [found] if found is not None else []
    gone = set(earlier) - {one.identity for one in last.communicators}
    if not last.is_complete and gone:
        moved.append(True)  # it stood out before, and does not any more
    return JudgedRas(
        tuple(sorted(_each_rank_once(differences), key=lambda one: one.apart is Apart.NONE)),
        tuple(_notes(looks, last)),
        any(moved) if moved else None,
    )


class _Names:
    """Ranks of the job by ranks within communicators, as far as processes show them."""

    def __init__(self, look: RasLook, world_size: Reading[int] | None, by_pid: Mapping[int, int]) -> None:
        self.world_size = world_size if isinstance(world_size, int) else None
        self.by_process: dict[tuple[str, int, int | None], int] = {}
        self.by_pid = by_pid
        sizes = [one.size for one in look.communicators]
        self.largest = self.world_size or (max(sizes) if sizes and look.is_complete else None)
        for communicator in look.communicators:
            if communicator.size == self.largest:
                for place in _places(communicator):
                    if place.pid is not None:
                        self.by_process[place.host, place.pid, place.nvml_device] = place.rank

    def of_job(self, communicator: RasCommunicator, ranks: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """The ranks, and whether they still count within the communicator because no more is known."""
        if communicator.size == self.largest:
            return tuple(sorted(ranks)), False
        places = {place.rank: place for place in _places(communicator)}
        named = []
        for rank in ranks:
            place = places.get(rank)
            if place is None or place.pid is None:
                return tuple(sorted(ranks)), True
            found = self.by_process.get(
                (place.host, place.pid, place.nvml_device), self.by_pid.get(place.pid)
            )
            if found is None:
                return tuple(sorted(ranks)), True
            named.append(found)
        return tuple(sorted(named)), False


def _places(communicator: RasCommunicator) -> list[RasRank]:
    return [*communicator.ranks, *(one.place for one in communicator.absent if one.place is not None)]


def _words(communicator: RasCommunicator) -> str:
    return f"communicator {communicator.identity} of {communicator.size} ranks"


def _difference(
    apart: Apart,
    communicator: RasCommunicator,
    names: _Names,
    ranks: Sequence[int],
    waiting: Sequence[int],
    text: str,
) -> Difference:
    """The difference; `{ranks}`, `{others}`, `{wait}` and `{has}` in the text become words."""
    blamed, within = names.of_job(communicator, ranks)
    others, others_within = names.of_job(communicator, waiting)
    within = within or others_within
    if within:  # one of the two could be named: then both count within the communicator
        blamed, others = tuple(sorted(ranks)), tuple(sorted(waiting))
    message = text.format(
        ranks=name_many(blamed),
        others=name_many(others) if others else "",
        wait=wait(others),
        has=has(blamed),
    )
    if within:
        message += " (ranks as they count in it)"
    evidence = [Evidence("communicator", communicator.identity, source=SOURCE)]
    evidence += [
        Evidence(
            f"launched by {count.size} rank{'s' * (count.size != 1)}",
            f"{count.launched} {_many(count.operation, count.launched)}",
            source=SOURCE,
        )
        for count in communicator.counts[:8]
    ]
    return Difference(apart, blamed, others, _words(communicator), message, SOURCE, tuple(evidence), within)


def _judge_absent(communicator: RasCommunicator, names: _Names) -> list[Difference]:
    dead = [one.rank for one in communicator.absent if one.dead is True]
    silent = [one.rank for one in communicator.absent if one.unresponsive is True and one.dead is not True]
    there = [place.rank for place in communicator.ranks if place.rank not in {*dead, *silent}]
    found = []
    for apart, ranks, words in (
        (
            Apart.DEAD,
            dead,
            "{ranks} {has} not answered NCCL's RAS for a minute: the process is dead or its machine is",
        ),
        (
            Apart.UNRESPONSIVE,
            silent,
            "the process of {ranks} does not answer NCCL's RAS: stopped, dead or not reachable",
        ),
    ):
        if ranks:
            text = f"{words} ({_words(communicator)})"
            found.append(_difference(apart, communicator, names, ranks, there, text))
    return found


def _judge_errors(communicator: RasCommunicator, names: _Names) -> list[Difference]:
    # A remote error reports that another process failed: an echo, where some rank reports an error of its
    # own.
    own = [one for one in communicator.errors if one.word != "Remote process error"]
    return [
        _difference(
            Apart.FAILED,
            communicator,
            names,
            error.ranks,
            (),
            f"{{ranks}} reported `{_plain(error.word)}` to NCCL in {_words(communicator)}",
        )
        for error in own or communicator.errors
        if error.ranks
    ]


def _plain(word: str) -> str:
    return word.replace("{", "(").replace("}", ")")


def _judge_statuses(communicator: RasCommunicator, names: _Names) -> list[Difference]:
    alive = [one for one in communicator.statuses if one.word in _ALIVE and one.ranks]
    left = [one for one in communicator.statuses if one.word in _FINISHED and one.ranks]
    if not alive or not left:
        return []
    running = _ranks(alive)
    return [
        _difference(
            Apart.LEFT,
            communicator,
            names,
            _ranks(left),
            running,
            f"{{ranks}} {{has}} left {_words(communicator)}"
            f" ({', '.join(one.word for one in left)}), in which {{others}} still run",
        )
    ]


def _ranks(statuses: Sequence[RasStatus]) -> list[int]:
    return sorted({rank for one in statuses for rank in one.ranks})


def _judge_counts(communicator: RasCommunicator, names: _Names) -> Difference | None:
    """The ranks whose counts are lower, or of other kinds; for counts that stand still."""
    by_rank: dict[int, dict[str, int]] = defaultdict(dict)
    for count in communicator.counts:
        for rank in count.ranks:
            by_rank[rank][count.operation] = count.launched
    operations = {count.operation for count in communicator.counts}
    whole = {rank: counts for rank, counts in by_rank.items() if set(counts) == operations}
    if len(whole) < 2:
        return _judge_sets(communicator, names)
    totals = {rank: sum(counts.values()) for rank, counts in whole.items()}
    lowest, highest = min(totals.values()), max(totals.values())
    if lowest < highest:
        behind = [rank for rank, total in totals.items() if total == lowest]
        ahead = [rank for rank in totals if rank not in behind]
        text = _behind_text(whole, behind[0], ahead[0], communicator)
        return _difference(Apart.BEHIND, communicator, names, behind, ahead, text)
    kinds: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for rank, counts in whole.items():
        kinds[tuple(sorted(counts.items()))].append(rank)
    if len(kinds) > 1:
        few, *_, most = sorted(kinds.values(), key=len)
        text = _elsewhere_text(whole, few[0], most[0], communicator)
        return _difference(Apart.ELSEWHERE, communicator, names, few, most, text)
    if len(whole) < communicator.size:
        return None  # absent ranks were reported
    text = (
        f"all ranks of {_words(communicator)} have launched the same {highest}"
        " collectives, and no rank launches"
    )
    return _difference(Apart.NONE, communicator, names, (), sorted(whole), f"{text} another")


def _judge_sets(communicator: RasCommunicator, names: _Names) -> Difference | None:
    """As above where the answer does not name all ranks: the lowest count of one operation, if named."""
    by_operation: dict[str, list[tuple[int, int, tuple[int, ...]]]] = defaultdict(list)
    for count in communicator.counts:
        by_operation[count.operation].append((count.launched, count.size, count.ranks))
    for operation, sets in sorted(by_operation.items()):
        launched, size, ranks = min(sets)
        most = max(sets)[0]
        if len(sets) > 1 and len(ranks) == size:
            text = (
                f"{{ranks}} {{has}} launched {launched} {_many(operation, launched)} in"
                f" {_words(communicator)}, and others {most}"
            )
            return _difference(Apart.BEHIND, communicator, names, ranks, (), text)
    return None


def _behind_text(
    whole: Mapping[int, Mapping[str, int]], low: int, high: int, communicator: RasCommunicator
) -> str:
    fewer = {name: (whole[low][name], most) for name, most in whole[high].items() if whole[low][name] < most}
    name = max(fewer, key=lambda one: fewer[one][1] - fewer[one][0])
    has_launched, most = fewer[name]
    return (
        f"{{ranks}} {{has}} launched {has_launched} {_many(name, has_launched)} in {_words(communicator)},"
        f" {{others}} {most}: {most - has_launched} behind, and nothing moves"
    )


def _elsewhere_text(
    whole: Mapping[int, Mapping[str, int]], few: int, most: int, communicator: RasCommunicator
) -> str:
    own = [name for name, count in whole[few].items() if count > whole[most][name]]
    others = [name for name, count in whole[most].items() if count > whole[few][name]]
    return (
        f"{{ranks}} {{has}} launched {' and '.join(own)} in {_words(communicator)} where {{others}} launched "
        f"{' and '.join(others)}, and nothing moves"
    )


def _many(operation: str, number: int) -> str:
    if operation == "collective":
        return verb(range(number), "collective", "collectives")
    return operation


def _each_rank_once(differences: Sequence[Difference]) -> list[Difference]:
    """The differences, without a smaller communicator's for the same ranks and reason."""
    known: set[tuple[Apart, tuple[int, ...]]] = set()
    kept = []
    for one in differences:
        key = (one.apart, one.ranks)
        if one.is_within_group or one.apart is Apart.NONE or key not in known:
            kept.append(one)
        if not one.is_within_group:
            known.add(key)
    return kept


def _notes(looks: RasLooks, last: RasLook) -> list[str]:
    notes = []
    if len(looks.looks) < 2:
        notes.append("NCCL RAS answered once and not twice: whether its counts stand still is not known")
    if not last.is_complete:
        notes.append(
            f"NCCL {last.nccl_version}'s RAS has no JSON: of communicators"
            " that it calls OK it gives no counts"
        )
    if last.timeouts:
        notes.append(
            f"NCCL RAS timed out {last.timeouts} times while it collected this:"
            " what it calls OK is not certain"
        )
    unnamed = max(0, last.unasked_process_count - len(last.processes))
    if unnamed:
        notes.append(f"{unnamed} processes of the job did not answer NCCL RAS, and it does not name them")
    return notes
