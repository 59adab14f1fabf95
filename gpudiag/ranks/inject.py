"""Faults that `--inject` asks for: what they are, and how a rank does them to itself."""

import re
from dataclasses import dataclass
from enum import StrEnum

from gpudiag.errors import UsageError
from gpudiag.ranks.stages import MEASURE, STAGES

_EXAMPLES = "write it as kill:2@5, stop:1@init, bitflip:0@3 or slow:3:20"
_PATTERN = re.compile(
    r"(?P<kind>[a-z]+):(?P<rank>[0-9]{1,6})(?:@(?P<when>[a-z0-9]{1,16}))?(?::(?P<detail>[a-z0-9.]{1,16}))?"
)


class FaultKind(StrEnum):
    """What a rank does to itself."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP
    BITFLIP = "bitflip"  # one bit of its output buffer, after the collective
    SLOW = "slow"  # late by so many milliseconds in every timed iteration


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault: of which kind, on which rank, and when.

    `iteration` is a timed iteration counted from 0 over the whole run; `stage` is a stage's name;
    exactly one of them is set, except for `slow`, which has neither and a `delay_seconds`.
    """

    kind: FaultKind
    rank: int
    iteration: int | None = None
    stage: str | None = None
    delay_seconds: float = 0.0
    specification: str = ""


def parse_fault(text: str, world_size: int) -> Fault:
    """The fault that `text` asks for, such as `kill:2@5`, `stop:1@init` or `slow:3:20`.

    Raises:
        UsageError: the text is not a fault, or the rank is not in the run.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None or match["kind"] not in tuple(FaultKind):
        raise UsageError(f"--inject {text}: not a fault that gpudiag knows", hint=_EXAMPLES)
    kind, rank = FaultKind(match["kind"]), int(match["rank"])
    if rank >= world_size:
        raise UsageError(
            f"--inject {text}: there is no rank {rank} among {world_size} ranks",
            hint=f"ranks are counted from 0 to {world_size - 1}",
        )
    if kind is FaultKind.SLOW:
        return _parse_slow(text, rank, match["when"], match["detail"])
    return _parse_moment(text, kind, rank, match["when"], match["detail"])


def _parse_slow(text: str, rank: int, when: str | None, detail: str | None) -> Fault:
    try:
        milliseconds = float(detail or "")
    except ValueError:
        milliseconds = 0.0
    if when is not None or milliseconds <= 0:
        raise UsageError(f"--inject {text}: slow needs a rank and milliseconds", hint="write it as slow:3:20")
    return Fault(FaultKind.SLOW, rank, delay_seconds=milliseconds / 1000, specification=text)


def _parse_moment(text: str, kind: FaultKind, rank: int, when: str | None, detail: str | None) -> Fault:
    if when is None or detail is not None:
        raise UsageError(f"--inject {text}: {kind} needs a rank and a moment", hint=_EXAMPLES)
    if when.isdecimal():
        return Fault(kind, rank, iteration=int(when), specification=text)
    if when not in STAGES:
        raise UsageError(
            f"--inject {text}: {when!r} is neither a timed iteration nor a stage",
            hint=f"the stages are {', '.join(STAGES)}",
        )
    if kind is FaultKind.BITFLIP:
        if when != MEASURE:
            raise UsageError(
                f"--inject {text}: only timed iterations have an output to flip a bit in",
                hint=f"write it as bitflip:{rank}@0",
            )
        return Fault(kind, rank, iteration=0, specification=text)
    return Fault(kind, rank, stage=when, specification=text)
