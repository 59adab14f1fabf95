"""The entry point of a rank of a localisation: exchange data with the ranks that rank 0 names, round by round.

All that the ranks say to each other goes through the store of their rendezvous: a group of all ranks would break with
the first bad link.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public in torch's documentation

from gpudiag.collectives.localise import SLOW_SHARE, Localiser, LocaliseRequest, Round
from gpudiag.collectives.pair_line import (
    GlooLine,
    LineResult,
    NcclLine,
    PairLine,
    failed_line,
    measure_line,
    measure_lines,
)
from gpudiag.collectives.pairing import Pair
from gpudiag.collectives.process_group import meet
from gpudiag.model.codec import decode, encode
from gpudiag.model.localisation import Exchange, ExchangePhase, Localisation, Node
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.ranks.process import read_machine
from gpudiag.ranks.rank.context import Progress, RankContext
from gpudiag.ranks.stages import MEASURE

# Of so many exchanges all are told; of more, those of the suspects.
_TOLD_EXCHANGES = 1000
_LOOPBACK = "127.0.0.1"
_SOURCE_LINE = re.compile(r"^\[[^\]]*\]\s*")  # gloo's own file and line
_NOT_USUAL = Missing(MissingReason.ERROR, "no two nodes exchanged anything")


def run(context: RankContext) -> Mapping[str, Any]:
    """On rank 0 the `Localisation`, encoded; on others nothing. `context.arguments` is an encoded LocaliseRequest."""
    request = decode(LocaliseRequest, context.arguments)
    store, device = meet(context, request.backend)
    if request.backend == "nccl":  # it connects two ranks at the first send between them
        dist.init_process_group(
            "nccl",
            store=PrefixStore("localise/world", store),
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=context.operation_timeout_seconds),
        )
    board = _Board(_open_store(store, request.nodes, context.rank))
    board.put("boot", context.rank, read_machine().clock.partition(" ")[0])
    member = _Member(context, request, board, device)
    if context.rank == 0:
        found = _Leader(member, request, board, context.world_size).run()
        return dict(encode(found))
    member.follow()
    return {}


def _open_store(meeting: Store, nodes: Sequence[Node], rank: int) -> Store:
    """The store of the rendezvous, or one that rank 0 serves where that is a file of one machine.

    Ranks that wait for a key in a file read it again and again: eight of them took the processors from those that
    measured.
    """
    if not isinstance(meeting, FileStore) or len({node.host for node in nodes}) > 1:
        return meeting
    if rank == 0:
        served = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
        meeting.set("localise/port", str(served.port))
        return served
    return TCPStore(_LOOPBACK, int(meeting.get("localise/port")), is_master=False)


class _Board:
    """What ranks tell each other, by topic and number, in the store of their rendezvous."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def put(self, topic: str, number: int, value: Any) -> None:
        """Tell a JSON value, once."""
        self.store.set(f"localise/{topic}/{number}", json.dumps(value))

    def get(self, topic: str, number: int) -> Any:
        """The value, after waiting until a rank has told it."""
        return json.loads(self.store.get(f"localise/{topic}/{number}"))


class _Member:
    """One rank's part in the rounds."""

    def __init__(
        self, context: RankContext, request: LocaliseRequest, board: _Board, device: torch.device
    ) -> None:
        self._rank = context.rank
        self._progress: Progress = context.progress
        self._backend = request.backend
        self._nodes = request.nodes
        self._board = board
        self._device = device
        self._node = next(number for number, node in enumerate(self._nodes) if self._rank in node.ranks)
        self._rail = self._nodes[self._node].ranks.index(self._rank)
        self._lines: list[PairLine] = []  # the other end may still read from those of the last round

    def follow(self) -> None:
        """Take part in all rounds that rank 0 names."""
        number = 1
        while (told := self._board.get("round", number)) is not None:
            self.take_part(decode(Round, told["round"]), in_turn=told["in_turn"])
            number += 1
        self._board.put("left", self._rank, True)

    def take_part(self, current: Round, *, in_turn: bool) -> None:
        """Exchange data with this rank's partners in that round, and tell the results."""
        self._progress.enter_stage(MEASURE)  # again: a round is progress, and idle ranks wait for theirs
        own = [
            (place, pair)
            for place, pair in enumerate(current.pairs)
            if self._node in pair and self._rail < rails_of(pair, self._nodes)
        ]
        if not own:
            return
        if in_turn and own[0][0]:
            self._board.get(_topic(current, current.pairs[own[0][0] - 1]), 0)
        results = self._measure(current, [pair for _, pair in own])
        for (_, pair), result in zip(own, results, strict=True):
            if self._node == pair[0]:
                self._board.put(_topic(current, pair), self._rail, encode(result))

    def _measure(self, current: Round, pairs: Sequence[Pair]) -> list[LineResult]:
        partners = [self._partner(pair) for pair in pairs]
        before = partial(self._progress.before_exchange, partners)
        try:
            self._lines = [self._open(current, pair) for pair in pairs]
            if current.phase is ExchangePhase.LOAD:
                return measure_lines(self._lines, before)
            return [measure_line(self._lines[0], before)]
        except RuntimeError as error:
            words = _SOURCE_LINE.sub("", str(error).partition("\n")[0])
            return [failed_line(words)] * len(pairs)

    def _open(self, current: Round, pair: Pair) -> PairLine:
        if self._backend == "nccl":
            return NcclLine(self._rank, self._partner(pair), self._device)
        store = PrefixStore(f"{_topic(current, pair)}/{self._rail}", self._board.store)
        return GlooLine(store, pair.index(self._node))

    def _partner(self, pair: Pair) -> int:
        other = pair[1 - pair.index(self._node)]
        return self._nodes[other].ranks[self._rail]


class _Leader:
    """Rank 0's part: it names the rounds, takes part itself, and concludes."""

    def __init__(self, member: _Member, request: LocaliseRequest, board: _Board, world_size: int) -> None:
        self._member = member
        self._nodes = request.nodes
        self._board = board
        self._world_size = world_size
        boots = [board.get("boot", node.ranks[0]) for node in self._nodes]
        on_gpus = request.backend == "nccl"
        # Ranks that share processors would measure these.
        self._in_turn = not on_gpus and len(set(boots)) < len(boots)
        hosts = {node.host for node in self._nodes}
        self._localiser = Localiser(
            len(self._nodes),
            seed=request.seed,
            slow_share=SLOW_SHARE[request.backend],
            under_load=not self._in_turn and (on_gpus or len(hosts) > 1),
            fill=not self._in_turn,
        )

    def run(self) -> Localisation:
        """What was found, after the last round."""
        began = time.monotonic()
        rounds = 0
        while (current := self._localiser.next_round()) is not None:
            rounds = current.number
            self._board.put("round", rounds, {"round": encode(current), "in_turn": self._in_turn})
            self._member.take_part(current, in_turn=self._in_turn)
            self._localiser.add(self._collect(current))
        self._board.put("round", rounds + 1, None)
        for rank in range(1, self._world_size):  # else the store could be gone before they have read that
            self._board.get("left", rank)
        return self._conclude(rounds, time.monotonic() - began)

    def _collect(self, current: Round) -> Iterator[Exchange]:
        for pair in current.pairs:
            for rail in range(rails_of(pair, self._nodes)):
                told = decode(LineResult, self._board.get(_topic(current, pair), rail))
                yield Exchange(
                    round_number=current.number,
                    phase=current.phase,
                    nodes=pair,
                    rail=rail,
                    bytes_per_second=told.bytes_per_second,
                    typical_seconds=told.typical_seconds,
                    tail_seconds=told.tail_seconds,
                    sent_again=told.sent_again,
                )

    def _conclude(self, rounds: int, seconds: float) -> Localisation:
        suspects = self._localiser.conclude()
        exchanges, usual = self._localiser.exchanges, self._localiser.usual
        suspected = {node for suspect in suspects for node in suspect.nodes}
        told = exchanges
        if len(exchanges) > _TOLD_EXCHANGES:
            told = tuple(one for one in exchanges if suspected & set(one.nodes))[:_TOLD_EXCHANGES]
        return Localisation(
            nodes=self._nodes,
            rounds=rounds,
            seconds=seconds,
            links=len({one.nodes for one in exchanges}),
            usual_bytes_per_second=_NOT_USUAL if usual is None else usual.bytes_per_second,
            usual_tail_seconds=_NOT_USUAL if usual is None else usual.tail_seconds,
            suspects=suspects,
            exchanges=told,
        )


def rails_of(pair: Pair, nodes: Sequence[Node]) -> int:
    """How many ranks of the one node have one of the same place in the other."""
    return min(len(nodes[node].ranks) for node in pair)


def _topic(current: Round, pair: Pair) -> str:
    return f"{current.number}/{pair[0]}-{pair[1]}"
