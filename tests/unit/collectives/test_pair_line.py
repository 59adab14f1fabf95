"""Lines between two ranks, as two threads of this process."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, PrefixStore

from gpudiag.collectives import localise_main, pair_line
from gpudiag.collectives.localise import LocaliseRequest, Round
from gpudiag.collectives.pair_line import GlooLine, LineResult, measure_line, measure_lines
from gpudiag.model.codec import decode
from gpudiag.model.measure import ExchangePhase, Node
from gpudiag.model.reading import Missing


@pytest.fixture(autouse=True)
def by_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each returned or raised."""
    results: list[Any] = [None] * len(calls)

    def call(place: int) -> None:
        try:
            results[place] = calls[place]()
        except Exception as error:  # noqa: BLE001 - whatever a thread raises is its result
            results[place] = error

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_both_ends_measure_the_same() -> None:
    store = HashStore()

    def measure(place: int) -> LineResult:
        return measure_line(GlooLine(store, place), lambda: None)

    one, other = at_once(lambda: measure(0), lambda: measure(1))
    assert one == other
    assert not isinstance(one.bytes_per_second, Missing)
    assert 0 < one.typical_seconds <= one.tail_seconds
    assert isinstance(one.sent_again, Missing)  # within this machine


def test_a_delay_at_either_end_counts_for_both() -> None:
    store = HashStore()

    def measure(place: int) -> LineResult:
        return measure_line(GlooLine(store, place), lambda: time.sleep(0.05 * place))

    one, other = at_once(lambda: measure(0), lambda: measure(1))
    assert one == other
    assert one.typical_seconds >= 0.05
    assert one.bytes_per_second <= 4 * 2**20 / 0.05


def test_three_ranks_in_a_ring_use_two_lines_each_at_once() -> None:
    store = HashStore()

    def measure(rank: int) -> list[LineResult]:
        pairs = [tuple(sorted((rank, other))) for other in range(3) if other != rank]
        lines = [GlooLine(PrefixStore(f"{pair}", store), pair.index(rank)) for pair in sorted(pairs)]
        return measure_lines(lines, lambda: None)

    results = at_once(*(lambda rank=rank: measure(rank) for rank in range(3)))
    assert [len(one) for one in results] == [2, 2, 2]
    assert results[0][0] == results[1][0]  # of ranks 0 and 1
    assert results[0][1] == results[2][0]
    assert results[1][1] == results[2][1]


def test_a_partner_that_does_not_come_is_an_error_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_line, "LIMIT_SECONDS", 1.0)
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    with pytest.raises(RuntimeError):
        measure_line(GlooLine(store, 0), lambda: None)


class Quiet:
    """The progress of a rank that nobody follows."""

    def enter_stage(self, stage: object) -> None: ...

    def before_exchange(self, partners: object) -> None: ...


def test_a_node_takes_its_turns_one_after_the_other_in_one_round() -> None:
    """Each of four nodes is in three pairs; a pair waits for those before it that have its nodes."""
    nodes = tuple(Node(f"n{rank}", (rank,)) for rank in range(4))
    pairs = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))
    waits = ((), (), (0, 1), (0, 1), (2, 3), (2, 3))
    current = Round(1, ExchangePhase.SCREEN, pairs, waits)
    board = localise_main._Board(HashStore())

    def take_part(rank: int) -> None:
        context: Any = SimpleNamespace(rank=rank, progress=Quiet())
        request = LocaliseRequest("gloo", 1, nodes)
        member = localise_main._Member(context, request, board, torch.device("cpu"))
        member.take_part(current, in_turn=False, seconds=0.01)

    assert at_once(*(partial(take_part, rank) for rank in range(4))) == [None] * 4
    for one, other in pairs:
        result = decode(LineResult, board.get(f"1/{one}-{other}", 0))
        assert not isinstance(result.bytes_per_second, Missing), result


def test_the_pairs_of_a_turn_send_at_once_and_one_that_fails_holds_up_none() -> None:
    """Six nodes in two turns; the line of one pair does not open in the first."""
    nodes = tuple(Node(f"n{rank}", (rank,)) for rank in range(6))
    pairs = ((0, 3), (1, 4), (2, 5), (0, 4), (1, 5), (2, 3))
    current = Round(1, ExchangePhase.FULL, pairs, ((), (), (), (0,), (0,), (0,)))
    assert current.turns == (0, 0, 0, 1, 1, 1)
    board = localise_main._Board(HashStore())

    def take_part(rank: int) -> None:
        context: Any = SimpleNamespace(rank=rank, progress=Quiet())
        member = localise_main._Member(context, LocaliseRequest("gloo", 1, nodes), board, torch.device("cpu"))
        really = member._open

        def open_line(current: Round, pair: Any, back: Any = None) -> Any:
            if pair == (1, 4):
                raise RuntimeError("no way to there")
            return really(current, pair, back)

        member._open = open_line  # type: ignore[method-assign]
        member.take_part(current, in_turn=False, seconds=0.02)

    assert at_once(*(partial(take_part, rank) for rank in range(6))) == [None] * 6
    for one, other in pairs:
        result = decode(LineResult, board.get(f"1/{one}-{other}", 0))
        assert isinstance(result.bytes_per_second, Missing) == ((one, other) == (1, 4)), result
