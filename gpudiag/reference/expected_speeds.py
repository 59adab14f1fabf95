"""The published speeds of collectives in expected_speeds.toml, and the boards of boards.toml."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from gpudiag.model.benchmark import Nics
from gpudiag.reference.tables import read_table
from gpudiag.units import BYTES_PER_GB, parse_size_bytes

_TABLE, _BOARDS = "expected_speeds.toml", "boards.toml"
FLOOR = "floor"  # a kind of Curve
_NICS = re.compile(r"(\d{1,2})\s*[x*]\s*(\d{1,4}(?:\.\d+)?)\s*(?:G(?:b(?:/s|ps|it/s)?)?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Curve:
    """Bus bandwidth by message size of one operation on one kind of machine, from one source.

    `points` are sizes in bytes with bytes per second, smallest first. `ideal` is in bytes per second too.
    """

    operation: str
    setup: str
    models: tuple[str, ...]
    gpus: int
    nodes: int
    kind: str
    ideal: float
    points: tuple[tuple[int, float], ...]
    source: str
    agreement: str
    date: str
    nics: str = ""
    algorithm: str = ""
    nccl: str = ""

    def at(self, size_bytes: int) -> float | None:
        """What is published for that size, by logarithms between two; None below the smallest."""
        if size_bytes < self.points[0][0]:
            return None
        for (low, slow), (high, fast) in pairwise(self.points):
            if low <= size_bytes < high:
                share = math.log(size_bytes / low) / math.log(high / low)
                return slow + share * (fast - slow)
        return self.points[-1][1]


@cache
def curves() -> tuple[Curve, ...]:
    """Every published curve."""
    return tuple(_curve(entry) for entry in read_table(_TABLE)["curve"])


def _curve(entry: Mapping[str, Any]) -> Curve:
    facts = dict(entry)
    sizes: dict[str, float] = facts.pop("sizes")
    points = sorted((parse_size_bytes(size), rate * BYTES_PER_GB) for size, rate in sizes.items())
    facts["ideal"] *= BYTES_PER_GB
    return Curve(**{**facts, "models": tuple(facts["models"]), "points": tuple(points)})


def find_curves(operation: str, models: frozenset[str], gpus: int, nodes: int) -> tuple[Curve, ...]:
    """The curves of that operation on such machines; every model of a run must be one of the curve's."""
    return tuple(
        curve
        for curve in curves()
        if (curve.operation, curve.gpus, curve.nodes) == (operation, gpus, nodes)
        and models <= set(curve.models)
    )


@dataclass(frozen=True, slots=True)
class Board:
    """How a GPU is built into machines: names, links to the host and to its peers. See boards.toml."""

    names: tuple[str, ...]
    called: tuple[str, ...]
    pcie_generation: int
    gpus_per_node: int
    nvlink_version: int
    source: str
    host_gb_per_second: float = 0.0
    copy_share: float = 0.0


@cache
def boards() -> tuple[Board, ...]:
    """Every board of the table."""
    return tuple(
        Board(**{**entry, "names": tuple(entry["names"]), "called": tuple(entry["called"])})
        for entry in read_table(_BOARDS)["board"]
    )


def find_board(name: str) -> Board | None:
    """The board that NVIDIA's programs call by that name; None for one that is not in the table."""
    return next((board for board in boards() if name in board.names), None)


def known_gpus() -> dict[str, str]:
    """NVML's name of a GPU by each name that a person may write, in small letters: `h100 sxm`."""
    known: dict[str, str] = {}
    for board in boards():
        for name in board.names:
            known[name.lower()] = name
            known.setdefault(name.lower().removeprefix("nvidia ").removeprefix("tesla "), name)
        for called in board.called:
            name = next((one for one in board.names if _has_words(one, called)), board.names[0])
            known.setdefault(called.lower(), name)
    return known


def _has_words(name: str, called: str) -> bool:
    words = set(re.split(r"[ -]", name.lower()))
    return set(called.lower().split()) <= words


@dataclass(frozen=True, slots=True)
class ReportedFailure:
    """A failure by a program's own words that is no fault of a GPU: what it is, and what to do."""

    tool: str
    pattern: str
    status: str
    means: str
    remedy: str
    source: str


def find_reported_failure(tool: str, message: str) -> ReportedFailure | None:
    """The entry whose pattern is in the message of that program."""
    for entry in read_table(_BOARDS)["reported_failure"]:
        failure = ReportedFailure(**entry)
        if failure.tool == tool and re.search(failure.pattern, message):
            return failure
    return None


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """A program whose output is known, and not judged: a line of its own, what it measures, what to run."""

    name: str
    line: "re.Pattern[str]"
    measures: str
    remedy: str


@cache
def other_programs() -> tuple[OtherProgram, ...]:
    """Every program whose output is known and not judged."""
    return tuple(
        OtherProgram(**{**entry, "line": re.compile(entry["line"])})
        for entry in read_table(_BOARDS)["other_program"]
    )


def latency_limit(operation: str) -> tuple[float, str] | None:
    """The latency of small messages, in seconds, above which to ask why, with its source; None if unknown."""
    for entry in read_table(_BOARDS)["latency"]:
        if operation in entry["operations"]:
            return entry["microseconds"] / 1e6, str(entry["source"])
    return None


def parse_nics(text: str) -> Nics | None:
    """Network cards written as `8x400`: how many, by Gb/s; None where it is not written so."""
    match = _NICS.fullmatch(text.strip())
    if match is None or not int(match[1]) or not float(match[2]):
        return None
    return Nics(int(match[1]), float(match[2]))
