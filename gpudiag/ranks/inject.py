"""Faults that `--inject` asks for: their kinds, when they happen, and the syntax for them."""

import re
from dataclasses import dataclass, replace

from gpudiag.compat import StrEnum
from gpudiag.errors import UsageError
from gpudiag.ranks.stages import INIT, MEASURE, STAGES, VERIFY, WARMUP

_EXAMPLES = "write it as kill:2@5, stop:1@init, mismatch:1@3:size, bitflip:0@3 or slow:3:20"
_PATTERN = re.compile(
    r"(?P<kind>[a-z]+):(?P<rank>[0-9]{1,6})(?:-(?P<other>[0-9]{1,6}))?"
    r"(?:@(?P<when>[a-z0-9]{1,16}))?(?::(?P<detail>[a-z0-9.]{1,16}))?"
)

# The stages in which ranks run collectives that one of them could get wrong.
_STAGES_WITH_COLLECTIVES = (INIT, WARMUP, MEASURE, VERIFY)


class FaultKind(StrEnum):
    """What a rank does to itself."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP
    SKIP = "skip"  # stays out of the collective that the others enter, idle, in Python code
    MISMATCH = "mismatch"  # enters a different collective from the others
    OOM = "oom"  # runs out of memory
    BITFLIP = "bitflip"  # one bit of its output buffer, after the collective
    # late by a given number of milliseconds in every timed iteration, and exchange between two nodes
    SLOW = "slow"


class MismatchKind(StrEnum):
    """How a rank's collective differs from that of the others."""

    OP = "op"
    SIZE = "size"
    DTYPE = "dtype"


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault: its kind, its rank, and when: at a timed `iteration` from 0, or a `stage`.

    `slow` has `delay_seconds` instead; with `other_rank` only what the two exchange is slow.
    """

    kind: FaultKind
    rank: int
    iteration: int | None = None
    stage: str | None = None
    delay_seconds: float = 0.0
    mismatch: MismatchKind = MismatchKind.SIZE
    specification: str = ""
    other_rank: int | None = None


def parse_fault(text: str, world_size: int, *, of_pairs: bool = False) -> Fault:
    """The fault that `text` asks for, such as `kill:2@5`, `stop:1@init` or `slow:3:20`.

    `of_pairs`: `slow:2-5:20` has a meaning, as two ranks exchange data by themselves.

    Raises:
        UsageError: the text is not a fault, or the rank is not in the run.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None or match["kind"] not in tuple(FaultKind):
        raise UsageError(f"--inject {text}: not a fault that gpudiag knows", hint=_EXAMPLES)
    kind, rank = FaultKind(match["kind"]), int(match["rank"])
    other = None if match["other"] is None else int(match["other"])
    absent = max(rank, other or 0)
    if absent >= world_size:
        raise UsageError(
            f"--inject {text}: there is no rank {absent} among {world_size} ranks",
            hint=f"ranks are counted from 0 to {world_size - 1}",
        )
    if kind is FaultKind.SLOW:
        if other is not None and not of_pairs:
            hint = "add --localise to nccl-test, or give one rank"
            raise UsageError(f"--inject {text}: no pair of ranks exchanges data in this command", hint=hint)
        return replace(_parse_slow(text, rank, match["when"], match["detail"]), other_rank=other)
    if other is not None:
        raise UsageError(f"--inject {text}: only slow takes two ranks", hint="write it as slow:2-5:20")
    mismatch = _parse_mismatch(text, kind, match["detail"])
    iteration, stage = _parse_moment(text, kind, match["when"])
    return Fault(kind, rank, iteration, stage, mismatch=mismatch, specification=text)


def _parse_slow(text: str, rank: int, when: str | None, detail: str | None) -> Fault:
    try:
        milliseconds = float(detail or "")
    except ValueError:
        milliseconds = 0.0
    if when is not None or milliseconds <= 0:
        raise UsageError(f"--inject {text}: slow needs a rank and milliseconds", hint="write it as slow:3:20")
    return Fault(FaultKind.SLOW, rank, delay_seconds=milliseconds / 1000, specification=text)


def _parse_mismatch(text: str, kind: FaultKind, detail: str | None) -> MismatchKind:
    if detail is None:
        return MismatchKind.SIZE
    if kind is FaultKind.MISMATCH and detail in tuple(MismatchKind):
        return MismatchKind(detail)
    hint = "a mismatch is one of op, size or dtype" if kind is FaultKind.MISMATCH else _EXAMPLES
    raise UsageError(f"--inject {text}: {detail!r} is not valid here", hint=hint)


def _parse_moment(text: str, kind: FaultKind, when: str | None) -> tuple[int | None, str | None]:
    """The timed iteration or the stage; exactly one of them."""
    if when is None:
        raise UsageError(f"--inject {text}: {kind} needs a rank and a moment", hint=_EXAMPLES)
    if when.isdecimal():
        return int(when), None
    if when not in STAGES:
        raise UsageError(
            f"--inject {text}: {when!r} is neither a timed iteration nor a stage",
            hint=f"the stages are {', '.join(STAGES)}",
        )
    if kind is FaultKind.BITFLIP:
        if when == MEASURE:
            return 0, None
        raise UsageError(
            f"--inject {text}: only timed iterations have an output to flip a bit in",
            hint="write bitflip:0@3",
        )
    if kind is FaultKind.MISMATCH and when not in _STAGES_WITH_COLLECTIVES:
        raise UsageError(
            f"--inject {text}: no collective runs in stage {when}",
            hint=f"stages with collectives are {', '.join(_STAGES_WITH_COLLECTIVES)}",
        )
    return None, when
