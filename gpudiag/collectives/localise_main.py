"""The entry point of a rank of a localisation: exchange data with the ranks that rank 0 names, by rounds.

All messages between the ranks go through the store of their rendezvous: a group of all ranks would break with
the first bad link.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

# They are public in torch's documentation.
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from gpudiag.collectives.fabric import Fabric
from gpudiag.collectives.fabric_localiser import ROUND_SECONDS, FabricLocaliser
from gpudiag.collectives.localise import SLOW_SHARE, Localiser, LocaliseRequest, Pair, Round
from gpudiag.collectives.pair_line import (
    LINE_SECONDS,
    GlooLine,
    LineResult,
    NcclLine,
    PairLine,
    failed_line,
    measure_full_load,
    measure_line,
    measure_lines,
)
from gpudiag.collectives.process_group import meet
from gpudiag.linux.namespaces import read_machine
from gpudiag.model.codec import decode, encode
from gpudiag.model.measure import Exchange, ExchangePhase, Localisation, Node
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.ranks.node_labels import NodeLabels, label_node, labels_of_slurm
from gpudiag.ranks.rank.context import Progress, RankContext
from gpudiag.ranks.stages import MEASURE

_TURNS_SECONDS = 8.0  # for all pairs that take turns
# Of so many exchanges all are in the result; of more, those of the suspects.
_MAX_EXCHANGES = 1000
_LOOPBACK = "127.0.0.1"
_LINES_KEPT = 4
_SLURM_LABELS = ("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN")
_SOURCE_LINE = re.compile(r"^\[[^\]]*\]\s*")  # gloo's own file and line
_NOT_USUAL = Missing(MissingReason.ERROR, "no two nodes exchanged anything")


def run(context: RankContext) -> Mapping[str, Any]:
    """On rank 0 the `Localisation`, encoded; on others nothing.

    `context.arguments` is an encoded LocaliseRequest.
    """
    request = decode(LocaliseRequest, context.arguments)
    store, device = meet(context, request.backend)
    back: Any = None
    if request.backend == "nccl":  # it connects two ranks at the first send between them
        limit = timedelta(seconds=context.operation_timeout_seconds)
        dist.init_process_group(
            "nccl",
            store=PrefixStore("localise/world", store),
            rank=context.rank,
            world_size=context.world_size,
            timeout=limit,
        )
        back = dist.new_group(timeout=limit)
    board = _Board(_open_store(store, request.nodes, context.rank))
    board.put("boot", context.rank, read_machine().clock.partition(" ")[0])
    board.put("labels", context.rank, [os.environ.get(name, "") for name in _SLURM_LABELS])
    member = _Member(context, request, board, device, back)
    if context.rank == 0:
        found = _Leader(member, request, board, context.world_size).run()
        return dict(encode(found))
    member.follow()
    return {}


def _open_store(meeting: Store, nodes: Sequence[Node], rank: int) -> Store:
    """The store of the rendezvous, or one that rank 0 serves where that is a file of one machine.

    Ranks that wait for a key in a file read it again and again: eight of them took the processors from those
    that measured.
    """
    if not isinstance(meeting, FileStore) or len({node.host for node in nodes}) > 1:
        return meeting
    if rank == 0:
        served = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
        meeting.set("localise/port", str(served.port))
        return served
    return TCPStore(_LOOPBACK, int(meeting.get("localise/port")), is_master=False)


class _Board:
    """The messages between ranks, by topic and number, in the store of their rendezvous."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def put(self, topic: str, number: int, value: Any) -> None:
        """Write a JSON value, once."""
        self.store.set(f"localise/{topic}/{number}", json.dumps(value))

    def meet(self, topic: str, number: int, ranks: int) -> None:
        """Return once so many ranks have called this."""
        if self.store.add(f"localise/{topic}/{number}/here", 1) == ranks:
            self.put(f"{topic}/go", number, True)
        self.get(f"{topic}/go", number)

    def get(self, topic: str, number: int) -> Any:
        """The value, after waiting until a rank has written it."""
        return json.loads(self.store.get(f"localise/{topic}/{number}"))


class _Member:
    """One rank's part in the rounds."""

    def __init__(
        self,
        context: RankContext,
        request: LocaliseRequest,
        board: _Board,
        device: torch.device,
        back: Any = None,
    ) -> None:
        self._rank = context.rank
        self._back = back  # of NCCL, for both ways at once
        self._progress: Progress = context.progress
        self._backend = request.backend
        self._nodes = request.nodes
        self._board = board
        self._device = device
        self._node = next(number for number, node in enumerate(self._nodes) if self._rank in node.ranks)
        self._rail = self._nodes[self._node].ranks.index(self._rank)
        self._lines: list[PairLine] = []  # the last ones: their other ends may still read

    def follow(self) -> None:
        """Take part in all rounds that rank 0 names."""
        number = 1
        while (message := self._board.get("round", number)) is not None:
            self.take_part(decode(Round, message["round"]), message["in_turn"], message["seconds"])
            number += 1
        self._board.put("left", self._rank, True)

    def take_part(self, current: Round, in_turn: bool, seconds: float) -> None:
        """Exchange data with this rank's partners, about `seconds` with each, and write the results."""
        self._progress.enter_stage(MEASURE)  # again: a round is progress, and idle ranks wait for theirs
        own = [
            (place, pair)
            for place, pair in enumerate(current.pairs)
            if self._node in pair and self._rail < rails_of(pair, self._nodes)
        ]
        if not own:
            return
        if current.phase is ExchangePhase.LOAD:  # all at once
            self._measure(current, own, seconds)
            return
        if current.phase is ExchangePhase.FULL:
            for place, pair in own:
                self._measure_full_load(current, place, pair, seconds)
            return
        for place, pair in own:  # one after the other: each in its turn
            before = current.waits[place] if current.waits else ()
            for earlier in (place - 1,) if in_turn and place else () if in_turn else before:
                other = current.pairs[earlier]
                self._board.get(_topic(current, other), min(self._rail, rails_of(other, self._nodes) - 1))
            self._measure(current, [(place, pair)], seconds)

    def report_round(self, number: int) -> None:
        """Report to the agent that this round has ended."""
        self._progress.emit({"kind": "round", "round": number})

    def _measure(self, current: Round, own: Sequence[tuple[int, Pair]], seconds: float) -> None:
        """Exchange data in these pairs, and write what the lower of their nodes saw."""
        pairs = [pair for _, pair in own]
        for (_, pair), result in zip(own, self._exchange(current, pairs, seconds), strict=True):
            if self._node == pair[0]:
                self._board.put(_topic(current, pair), self._rail, encode(result))

    def _measure_full_load(self, current: Round, place: int, pair: Pair, seconds: float) -> None:
        """Exchange data in this pair while all others of its turn do, and write what the lower node saw."""
        turns = current.turns
        alike = [one for one, turn in zip(current.pairs, turns, strict=True) if turn == turns[place]]
        ranks = sum(2 * rails_of(one, self._nodes) for one in alike)
        met = False

        def all_here() -> None:
            nonlocal met
            if not met:
                met = True
                self._board.meet(f"{current.number}/turn", turns[place], ranks)

        try:
            line = self._open(current, pair, self._back)
            self._lines = [*self._lines, line][-_LINES_KEPT:]
            before = partial(self._progress.before_exchange, [self._partner(pair)])
            result = measure_full_load(line, before, all_here, seconds)
        except RuntimeError as error:
            result = failed_line(_words(error))
        all_here()  # the others wait for a rank whose line did not open, too
        if self._node == pair[0]:
            self._board.put(_topic(current, pair), self._rail, encode(result))

    def _exchange(self, current: Round, pairs: Sequence[Pair], seconds: float) -> list[LineResult]:
        partners = [self._partner(pair) for pair in pairs]
        before = partial(self._progress.before_exchange, partners)
        try:
            lines = [self._open(current, pair) for pair in pairs]
            self._lines = [*self._lines, *lines][-_LINES_KEPT:]
            if current.phase is ExchangePhase.LOAD:
                return measure_lines(lines, before)
            return [measure_line(lines[0], before, seconds)]
        except RuntimeError as error:
            return [failed_line(_words(error))] * len(pairs)

    def _open(self, current: Round, pair: Pair, back: Any = None) -> PairLine:
        if self._backend == "nccl":
            return NcclLine(self._rank, self._partner(pair), self._device, back)
        store = PrefixStore(f"{_topic(current, pair)}/{self._rail}", self._board.store)
        return GlooLine(store, pair.index(self._node))

    def _partner(self, pair: Pair) -> int:
        other = pair[1 - pair.index(self._node)]
        return self._nodes[other].ranks[self._rail]


class _Leader:
    """Rank 0's part: it names the rounds, takes part itself, and concludes."""

    def __init__(self, member: _Member, request: LocaliseRequest, board: _Board, world_size: int) -> None:
        self._member = member
        self._nodes, self._labels = _labelled(request, board)
        self._board = board
        self._world_size = world_size
        boots = [board.get("boot", node.ranks[0]) for node in self._nodes]
        on_gpus = request.backend == "nccl"
        # Ranks that share processors would measure these.
        self._in_turn = not on_gpus and len(set(boots)) < len(boots)
        hosts = {node.host for node in self._nodes}
        pairs = len(self._nodes) * (len(self._nodes) - 1) // 2
        self._line_seconds = min(LINE_SECONDS, _TURNS_SECONDS / pairs) if self._in_turn else LINE_SECONDS
        fabric = Fabric(self._nodes)
        options: dict[str, Any] = {
            "seed": request.seed,
            "slow_share": SLOW_SHARE[request.backend],
            "under_load": not self._in_turn and (on_gpus or len(hosts) > 1),
            "fill": not self._in_turn,
        }
        self._localiser = (
            FabricLocaliser(fabric, **options)
            if fabric.is_divided
            else Localiser(len(self._nodes), **options)
        )

    def run(self) -> Localisation:
        """What was found, after the last round."""
        began = time.monotonic()
        rounds = 0
        while (current := self._localiser.next_round()) is not None:
            rounds = current.number
            seconds = min(self._line_seconds, ROUND_SECONDS / (1 + max(current.turns, default=0)))
            round_began = time.monotonic()
            message = {"round": encode(current), "in_turn": self._in_turn, "seconds": seconds}
            self._board.put("round", rounds, message)
            self._member.take_part(current, self._in_turn, seconds)
            self._localiser.add(tuple(self._collect(current)), time.monotonic() - round_began)
            self._member.report_round(rounds)
        self._board.put("round", rounds + 1, None)
        for rank in range(1, self._world_size):  # else the store could be gone before they have read that
            self._board.get("left", rank)
        return self._conclude(rounds, time.monotonic() - began)

    def _collect(self, current: Round) -> Iterator[Exchange]:
        for pair in current.pairs:
            for rail in range(rails_of(pair, self._nodes)):
                line = decode(LineResult, self._board.get(_topic(current, pair), rail))
                yield Exchange(
                    round_number=current.number,
                    phase=current.phase,
                    nodes=pair,
                    rail=rail,
                    bytes_per_second=line.bytes_per_second,
                    typical_seconds=line.typical_seconds,
                    tail_seconds=line.tail_seconds,
                    sent_again=line.sent_again,
                )

    def _conclude(self, rounds: int, seconds: float) -> Localisation:
        suspects = self._localiser.conclude()
        exchanges, usual = self._localiser.exchanges, self._localiser.usual
        suspected = {node for suspect in suspects for node in suspect.nodes}
        kept = exchanges
        if len(exchanges) > _MAX_EXCHANGES:
            kept = tuple(one for one in exchanges if suspected & set(one.nodes))[:_MAX_EXCHANGES]
        return Localisation(
            nodes=self._nodes,
            rounds=rounds,
            seconds=seconds,
            links=len({one.nodes for one in exchanges}),
            usual_bytes_per_second=_NOT_USUAL if usual is None else usual.bytes_per_second,
            usual_tail_seconds=_NOT_USUAL if usual is None else usual.tail_seconds,
            suspects=suspects,
            exchanges=kept,
            labels=self._labels,
        )


def _labelled(request: LocaliseRequest, board: _Board) -> tuple[tuple[Node, ...], Reading[str]]:
    """The nodes with the labels of the file; without one, with those that Slurm gave to their ranks."""
    if request.labels != NOT_ASKED:
        return request.nodes, request.labels
    found = [labels_of_slurm(*board.get("labels", node.ranks[0])) for node in request.nodes]
    known = sum(one != NodeLabels() for one in found)
    if not known or len({node.host for node in request.nodes}) == 1:
        return request.nodes, NOT_ASKED
    nodes = tuple(label_node(node, one) for node, one in zip(request.nodes, found, strict=True))
    return nodes, f"{_SLURM_LABELS[0]}: {known} of {len(nodes)} nodes"


def _words(error: RuntimeError) -> str:
    return _SOURCE_LINE.sub("", str(error).partition("\n")[0])


def rails_of(pair: Pair, nodes: Sequence[Node]) -> int:
    """How many ranks of the one node have one of the same place in the other."""
    return min(len(nodes[node].ranks) for node in pair)


def _topic(current: Round, pair: Pair) -> str:
    return f"{current.number}/{pair[0]}-{pair[1]}"
