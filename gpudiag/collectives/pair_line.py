"""A line between two ranks, of gloo or NCCL, and its speed: alone, in a ring, or with all others at once."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Store  # type: ignore[attr-defined]  # public in torch's documentation

from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.ranks.agents.tcp_counters import TcpCounters
from gpudiag.ranks.diagnosis.loss import LOST_AT_LEAST, SEGMENTS_AT_LEAST
from gpudiag.units import MIB

# An exchange that takes longer, or a partner that is not there by then, counts as failed.
LIMIT_SECONDS = 8.0
_GLOO_LARGE_BYTES, _NCCL_LARGE_BYTES = 4 * MIB, 128 * MIB
_SMALL_BYTES = MIB // 4
_LARGE_TIMES, _LOADED_TIMES = 5, 2
_FULL_TIMES = 8  # at most, before both ends agree on the time
_LARGE_SECONDS = 0.5  # no further one is begun after so long
# At least four segments each, however the kernel cuts them: where one in fifty is lost, 64 small exchanges
# meet it with a probability of 99 %.
_SMALL_TIMES, _SMALL_BATCHES = 16, 4
_SMALL_SECONDS = 0.3  # no further batch is begun after so long
# Where one small exchange takes longer, the line is slow: fewer are made, and large ones hold what it carries
# in a part of its time.
_SLOW_SECONDS = 0.01
_SLOW_SMALL_AT_LEAST, _SLOW_LARGE_SHARE = 3, 0.6
LINE_SECONDS = 0.8  # for both; less where many pairs of one machine take turns
_POLL_SECONDS = 0.0002
_NOT_COUNTED = Missing(MissingReason.NOT_SUPPORTED, "the data did not go to another machine over TCP")


@dataclass(frozen=True, slots=True)
class LineResult:
    """How fast two ranks exchanged data, the same on both: the slower end's times count."""

    bytes_per_second: Reading[float]
    typical_seconds: Reading[float]
    tail_seconds: Reading[float]
    sent_again: Reading[float] = NOT_ASKED


def failed_line(words: str) -> LineResult:
    """The result of exchanges that did not finish; `words`: what happened."""
    reason = Missing(MissingReason.TIMED_OUT, words)
    return LineResult(reason, reason, reason)


class _Works:
    """Several works as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def is_completed(self) -> bool:
        """Whether all are done."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        """Return once all are done; on a GPU, once its stream waits for them."""
        for work in self._works:
            work.wait()


class PairLine(Protocol):
    """This rank's end of a line to another rank."""

    device: torch.device
    large_bytes: int  # enough for the plateau (collectives.md 4), and for some twenty pairs that take turns
    turns: int  # 2 where the ends send one after the other, 1 where both send at once

    def send(self, data: torch.Tensor) -> Any:
        """The work of an exchange: each end sends and receives as much as the array holds."""

    def agree(self, token: torch.Tensor) -> Callable[[], None]:
        """What waits until `token` has the larger ones of both ends' values."""


class GlooLine:
    """A line of gloo: a process group of the two, which needs the store alone.

    Other pairs go on if it breaks.
    """

    device = torch.device("cpu")
    large_bytes = _GLOO_LARGE_BYTES
    turns = 1

    def __init__(self, store: Store, place: int) -> None:
        """Open the line as the first (0) or the second (1) of the two that share `store`.

        Raises:
            RuntimeError: the other rank was not reached.
        """
        self._group: Any = dist.ProcessGroupGloo(store, place, 2, timedelta(seconds=LIMIT_SECONDS))
        self._slowest = dist.AllreduceOptions()
        self._slowest.reduceOp = ReduceOp(ReduceOp.MAX)

    def send(self, data: torch.Tensor) -> Any:
        """The work of an all-reduce: each of two ranks sends and receives as much as the array holds."""
        return self._group.allreduce([data])

    def agree(self, token: torch.Tensor) -> Callable[[], None]:
        """What waits until `token` has the larger ones of both ends' values."""
        return cast(Callable[[], None], self._group.allreduce([token], self._slowest).wait)


class NcclLine:
    """A line of NCCL: the communicator that torch opens for two ranks at the first send between them.

    A group of the two would need a name that both know: torch takes that from how many groups a rank has
    opened.
    """

    turns = 2

    def __init__(self, rank: int, other: int, device: torch.device, back: Any = None) -> None:
        """Use the open default group, in which these two have those ranks.

        `back`: another group of all ranks, for the way back. A group has one stream for both ways of a pair,
        so that with one group they follow each other.
        """
        self.device = device
        self._back = back
        if back is not None:
            self.turns = 1
        self.large_bytes = _NCCL_LARGE_BYTES
        self._other = other
        self._is_first = rank < other

    def send(self, data: torch.Tensor) -> Any:
        """The works of both ways: the lower rank sends first, or both at once where there is a way back."""
        return self._exchange(data, torch.empty_like(data))

    def agree(self, token: torch.Tensor) -> Callable[[], None]:
        """What waits until `token` has the larger ones of both ends' values."""
        received = torch.empty_like(token)
        works = self._exchange(token.clone(), received)

        def finish() -> None:
            works.wait()
            torch.maximum(token, received, out=token)

        return finish

    def _exchange(self, data: torch.Tensor, received: torch.Tensor) -> _Works:
        def send() -> Any:
            return dist.isend(data, self._other, group=None if self._is_first else self._back)

        def receive() -> Any:
            return dist.irecv(received, self._other, group=self._back if self._is_first else None)

        return _Works([one() for one in ((send, receive) if self._is_first else (receive, send))])


def measure_line(line: PairLine, before: Callable[[], None], seconds: float = LINE_SECONDS) -> LineResult:
    """What one line reaches by itself, in about so many seconds.

    `before` is called in the time of each exchange.

    Raises:
        RuntimeError: the other rank is gone, or an exchange took too long.
    """
    exchange = _Exchanger((line,), before)
    exchange.run(_SMALL_BYTES)  # opens the connections
    sent = _Sent()
    share = seconds / LINE_SECONDS
    smalls = exchange.run(_SMALL_BYTES)[0]
    if smalls[0] > _SLOW_SECONDS:
        often = int(share * _SMALL_SECONDS / smalls[0])
        smalls += exchange.run(_SMALL_BYTES, min(_SMALL_TIMES, max(_SLOW_SMALL_AT_LEAST, often)))[0]
    else:
        for _ in range(_SMALL_BATCHES):
            smalls += exchange.run(_SMALL_BYTES, _SMALL_TIMES)[0]
            if sum(smalls) >= share * _SMALL_SECONDS:
                break
    typical = statistics.median(smalls)
    size, larges = line.large_bytes, list[float]()
    fitting = int(_SLOW_LARGE_SHARE * share * _LARGE_SECONDS * _SMALL_BYTES / typical)
    if fitting < size:  # a slow line shows its speed with less
        size = max(_SMALL_BYTES, fitting - fitting % _SMALL_BYTES)
    while len(larges) < _LARGE_TIMES and sum(larges) < share * _LARGE_SECONDS:
        larges += exchange.run(size)[0]
    worse_end = exchange.agree(sent.share_again())
    sent_again = _NOT_COUNTED if worse_end < 0 else worse_end
    return LineResult(line.turns * size / min(larges), typical, max(smalls), sent_again)


def measure_lines(lines: Sequence[PairLine], before: Callable[[], None]) -> list[LineResult]:
    """What each of several lines reaches while all are used at once.

    Raises:
        RuntimeError: another rank is gone, or an exchange took too long.
    """
    exchange = _Exchanger(lines, before)
    exchange.run(_SMALL_BYTES)
    size = lines[0].large_bytes
    # A number, not a time: all ranks of a ring must stop after the same exchange.
    seconds = exchange.run(size, _LOADED_TIMES)
    turns = lines[0].turns
    return [LineResult(turns * size / min(each), NOT_ASKED, NOT_ASKED) for each in seconds]


def measure_full_load(
    line: PairLine, before: Callable[[], None], all_here: Callable[[], None], seconds: float
) -> LineResult:
    """What a line reaches in about `seconds` after `all_here` returns: other lines are used for as long.

    Raises:
        RuntimeError: the other rank is gone, or an exchange took too long.
    """
    exchange = _Exchanger((line,), before)
    exchange.run(_SMALL_BYTES)  # opens the connections
    once = exchange.run(line.large_bytes)[0][0]
    times = max(1, min(_FULL_TIMES, int(seconds / _FULL_TIMES / once)))
    all_here()
    taken: list[float] = []
    while sum(taken) < seconds:  # the same at both ends, which agree on each time
        taken += exchange.run(line.large_bytes, times)[0]
    return LineResult(line.turns * line.large_bytes * len(taken) / sum(taken), NOT_ASKED, NOT_ASKED)


class _Sent:
    """The segments that this process has sent over TCP since then."""

    def __init__(self) -> None:
        self._counters = TcpCounters()
        self._before = self._read()

    def share_again(self) -> float:
        """The share that was sent again; below 0 where too few were sent that way."""
        segments, again = (now - then for now, then in zip(self._read(), self._before, strict=True))
        if segments < SEGMENTS_AT_LEAST:
            return -1.0
        return again / segments if again >= LOST_AT_LEAST else 0.0

    def _read(self) -> tuple[int, int]:
        self._counters.read((os.getpid(),))
        totals = self._counters.totals()
        return sum(one.segments for one in totals), sum(one.retransmitted for one in totals)


class _Exchanger:
    """Runs the same exchange on all lines at once, again and again."""

    def __init__(self, lines: Sequence[PairLine], before: Callable[[], None]) -> None:
        self._lines = lines
        self._before = before
        self._device = lines[0].device

    def run(self, size_bytes: int, times: int = 1) -> list[list[float]]:
        """Seconds that each exchange took, for each line, at the slower one of its ends."""
        data = [torch.zeros(size_bytes // 4, device=self._device) for _ in self._lines]
        taken: list[list[float]] = [[] for _ in self._lines]
        self._agree([[0.0] for _ in self._lines])  # both ends are here
        for _ in range(times):
            began = time.perf_counter()
            self._before()
            works = [line.send(each) for line, each in zip(self._lines, data, strict=True)]
            for place, ended in enumerate(self._ends(works)):
                taken[place].append(ended - began)
        return self._agree(taken)

    def agree(self, value: float) -> float:
        """The larger one of both ends' values, on the first line."""
        return self._agree([[value] for _ in self._lines])[0][0]

    def _ends(self, works: Sequence[Any]) -> list[float]:
        """When each of the works was done."""
        ended: dict[int, float] = {}
        while len(ended) < len(works) - 1:
            for place, work in enumerate(works):
                if place not in ended and work.is_completed():
                    ended[place] = time.perf_counter()
            time.sleep(_POLL_SECONDS)
        for place, work in enumerate(works):
            work.wait()
            self._synchronize()
            ended.setdefault(place, time.perf_counter())
        return [ended[place] for place in range(len(works))]

    def _agree(self, values: Sequence[Sequence[float]]) -> list[list[float]]:
        """The larger ones of both ends' values, for each line."""
        tokens = [torch.tensor(each, dtype=torch.float64, device=self._device) for each in values]
        for finish in [line.agree(token) for line, token in zip(self._lines, tokens, strict=True)]:
            finish()
        return [token.tolist() for token in tokens]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
