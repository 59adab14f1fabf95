"""Tables of nccl-tests, of every binary and version: rows of sizes, out of place and in place.

Up to 2.9 `error` stands for `#wrong`, without a root; all_gather had no `redop`; from 2.18 `-I` adds four
columns, and `-S` the time of day. Other lines may stand between the parts of a row. A table that people
post may have no `#wrong`.
"""

import math
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from gpudiag.checks.benchmarks.collectives import MIXED, NO_WARM_UP, ONE_RANK, ONLY_AVERAGE, SHARED_GPU
from gpudiag.checks.benchmarks.judge import NCCL_TESTS, NOT_CHECKED, OLD_ERROR_COLUMN
from gpudiag.measured.facts import Facts
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Metric, TestResult
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.units import BYTES_PER_GB, MIB

_TYPES = frozenset(
    [
        "float",
        "half",
        "double",
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "char",
        "int",
        "uchar",
        "bfloat16",
        "bf16",
        "f8e4m3",
        "f8e5m2",
        "fp8_e4m3",
        "fp8_e5m2",
        "f16",
        "f32",
        "f64",
        "float16",
        "float32",
        "float64",
    ]
)
_OPERATORS = frozenset(("sum", "prod", "max", "min", "avg", "none", "mulsum", "all"))
_TAG = re.compile(r"\[\d+\](?=\s|$)")
_START = re.compile(
    r"nThread\s+\d+\s+nGpus\s+\d+\s+minBytes\s+(\d+)\s+maxBytes\s+(\d+)\s+step:\s+(\d+)\((\w+)\)"
    r"(?:\s+warmup iters:\s+(\d+)\s+iters:\s+(\d+))?(?:.*?validation:\s+(\d+))?"
)
_ANY_PROGRAM = re.compile(
    r"(?:^|[/\s:])(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoallv?|sendrecv|gather|scatter|"
    r"hypercube)_perf(?:_mpi)?\b"
)
_HEADER = re.compile(r"\bsize\s+count\s+(?:\(elements\)\s+)?type\b.*\bbusbw\b(?:\s+(#wrong|error)\b)?")
_TIME_OF_DAY = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s*(OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_TEST_FAILED = re.compile(r"Test (?:NCCL|CUDA) failure .*?(?:'([^']+)')|(\w+: Test timeout \(\d+s\).*)")
_TOOL_VERSION = re.compile(r"nccl-tests version (\d[\w.]*)")
_GROUP = 4  # columns of one placement: time, algbw, busbw, #wrong
_DOUBT = 0.5  # of the last digit that is printed


@dataclass(slots=True)
class _Row:
    size: int
    key: tuple[str, ...]  # type, operator, root
    groups: list[list[str]]
    numbers: list[str] = field(default_factory=list)  # columns that have come so far


@dataclass(slots=True)
class NcclTests:
    """The rows of one run after another."""

    file: str
    facts: Facts  # of the run at hand; emptied where one ends
    tables: list[MeasuredTable] = field(default_factory=list)
    _rows: list[_Row] = field(default_factory=list)
    _open: _Row | None = None
    _line: int = 0
    _max_bytes: int = 0
    _operation: str = ""
    _version: Reading[str] = NOT_ASKED
    _old_column: bool = False
    _rooted: bool | None = None  # whether rows have a root; None where no header was seen
    _group: int = _GROUP
    _bounds: Reading[int] = NOT_ASKED
    _ended: bool = False
    _starts: int = 0
    _remarks: list[str] = field(default_factory=list)
    _failure: str = ""
    _average_line: int = 0

    def read(self, number: int, whole: str) -> None:
        """Take one line."""
        if "nThread" in whole and (start := _START.search(whole)) is not None:
            self._begin(number, start)
        elif "ut of bounds" in whole and (bounds := _BOUNDS.search(whole)) is not None:
            found = int(bounds[1])
            self._bounds = found if self._bounds == NOT_ASKED else max(found, int(str(self._bounds)))
            self._ended = True
        elif "Avg bus" in whole and _AVERAGE.search(whole) is not None:
            self._ended, self._average_line = True, number
        elif "_perf" in whole and (program := _ANY_PROGRAM.search(whole)) is not None:
            if self._ended:
                self._finish()
            if "concluded" not in whole:
                self._operation = program[1]
        elif (header := _HEADER.search(whole)) is not None:
            if self._ended and self._rows:
                self._finish()
            self._old_column, self._rooted = header[1] == "error", " root " in whole
            self._group = _GROUP if header[1] else _GROUP - 1
            self._line = self._line or number
        elif "Test " in whole and (failed := _TEST_FAILED.search(whole)) is not None:
            self._failure = failed[1] or failed[2] or "a test failed"
        else:
            self._read_row(number, whole)
        if "nccl-tests version" in whole and (version := _TOOL_VERSION.search(whole)) is not None:
            self._version = version[1]

    def _begin(self, number: int, start: "re.Match[str]") -> None:
        """The first line of a run; where one is open without a row, another process of the launch."""
        if self._rows and (self._ended or self._starts == 0):
            self._finish()
        self._starts += 1
        self._line = self._line or number
        self._max_bytes = int(start[2])
        if start[6] is not None and int(start[5]) == 0:
            self._remarks.append(NO_WARM_UP)
        if start[7] == "0":
            self._remarks.append(NOT_CHECKED)

    def _read_row(self, number: int, whole: str) -> None:
        if not whole:
            return
        tokens = _TAG.sub(" ", _TIME_OF_DAY.sub("", whole)).split()
        if not self._start_row(number, tokens):
            self._continue_row(tokens)

    def _start_row(self, number: int, tokens: list[str]) -> bool:
        """Whether the tokens hold the beginning of a row."""
        for place in range(len(tokens) - 2):
            if tokens[place + 2] in _TYPES and tokens[place].isdecimal() and tokens[place + 1].isdecimal():
                break
        else:
            return False
        if self._ended:
            self._finish()
        self._line = self._line or number
        rest = tokens[place + 3 :]
        key = [tokens[place + 2]]
        if rest and rest[0] in _OPERATORS:
            key.append(rest.pop(0))
        if self._rooted is not None:
            rooted = self._rooted
        else:
            rooted = rest[:1] == ["-1"] or len(rest) % self._group == 1
        if rest and rooted and re.fullmatch(r"-?\d+", rest[0]):
            key.append(rest.pop(0))
        row = _Row(int(tokens[place]), tuple(key), [])
        self._open = row
        self._rows.append(row)
        self._continue_row(rest)
        return True

    def _continue_row(self, tokens: list[str]) -> None:
        """Columns of the open row, of one placement or both; other programs' lines end nothing."""
        row = self._open
        if (
            row is None
            or not tokens
            or len(tokens) > 4 * _GROUP
            or not all(one in ("N/A", "nan", "-nan", "inf") or _number(one) is not None for one in tokens)
        ):
            return
        row.numbers += tokens
        group = self._group
        wide = len(row.numbers) == 4 * group
        if wide or len(row.numbers) in (group, 2 * group):
            width = 2 * group if wide else group
            row.groups = [row.numbers[at : at + group] for at in range(0, len(row.numbers), width)]

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""
        self._finish()
        if not self.tables and self._average_line:
            self.tables.append(
                MeasuredTable(
                    self.file,
                    self._average_line,
                    NCCL_TESTS,
                    self._version,
                    self._operation or "collective",
                    Metric.BUSBW,
                    (),
                    self.facts.setup(),
                    complete=False,
                    remarks=(ONLY_AVERAGE,),
                )
            )
        return self.tables

    def _finish(self) -> None:
        """Close the run at hand and begin an empty one."""
        rows = [row for row in self._rows if row.groups]
        if rows or self._starts:
            self.tables.append(self._table(rows))
        self._rows, self._open, self._line, self._max_bytes = [], None, 0, 0
        self._operation, self._bounds, self._ended, self._starts = "", NOT_ASKED, False, 0
        self._remarks, self._failure, self._old_column, self._group = [], "", False, _GROUP
        self.facts.ranks.clear()
        self.facts.buses.clear()
        self.facts.settings.clear()
        self.facts.algorithms.clear()
        self.facts.first_ranks = self.facts.rank_count = 0

    def _table(self, rows: list[_Row]) -> MeasuredTable:
        operation = self._operation or _operation_by_rows(rows)
        setup = self.facts.setup()
        if setup.gpus == NOT_ASKED and (ranks := _ranks_by_rows(operation, rows)):
            setup = replace(setup, gpus=ranks)
        remarks = [*self._remarks, *([OLD_ERROR_COLUMN] if self._old_column else [])]
        if _is_mixed(rows, self._starts, self.facts.first_ranks):
            remarks.append(MIXED)
        elif rows and _is_of_one_rank(rows, setup.gpus):
            remarks.append(ONE_RANK)
        elif self.facts.share_gpus:
            remarks.append(SHARED_GPU)
        largest = max((row.size for row in rows), default=0)
        results = (TestResult(operation, "fail", message=self._failure),) if self._failure else ()
        return MeasuredTable(
            self.file,
            self._line,
            NCCL_TESTS,
            self._version,
            operation,
            Metric.BUSBW,
            tuple(value for row in rows for value in self._values(row)),
            setup,
            complete=bool(rows) and (self._ended or not self._max_bytes or 2 * largest > self._max_bytes),
            out_of_bounds=self._bounds,
            results=results,
            remarks=tuple(dict.fromkeys(remarks)),
        )

    def _values(self, row: _Row) -> list[MeasuredValue]:
        """The bus bandwidth of a row, out of place and in place."""
        found = []
        for place, (_, _, busbw, *wrong) in enumerate(row.groups):
            speed = _number(busbw)
            if speed is not None:
                count = _number(wrong[0]) if wrong and not self._old_column else None
                found.append(
                    MeasuredValue(
                        speed * BYTES_PER_GB,
                        row.size,
                        NOT_ASKED if count is None else int(count),
                        in_place=place == 1,
                    )
                )
        return found


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _ratio(rows: list[_Row]) -> float | None:
    """Bus bandwidth over the algorithm's, of the largest message: the operation's factor."""
    for row in sorted(rows, key=lambda one: one.size, reverse=True):
        for _, algbw, busbw, *_ in row.groups:
            speed, bus = _number(algbw), _number(busbw)
            if speed and bus is not None and speed > 1:
                return bus / speed
    return None


def _operation_by_rows(rows: list[_Row]) -> str:
    """The operation of a table without a name: by reduction, root, factor, and the check in place."""
    ratio = _ratio(rows)
    words = rows[0].key if rows else ()
    reduces = len(words) > 1 and words[1] not in ("none",)
    rooted = len(words) > 2 and words[2] not in ("-1",)
    unchecked = any(
        len(row.groups) == 2 and _is_unchecked(*(group[3:] for group in row.groups)) for row in rows
    )
    if rooted:
        return "reduce" if reduces else "broadcast"
    if ratio is not None and 0 < ratio < 0.999:
        return "reduce_scatter" if reduces else "alltoall" if unchecked else "all_gather"
    if words and not reduces:  # of small messages alone the factor is not known
        return "alltoall" if unchecked else "collective"
    return "sendrecv" if unchecked else "all_reduce"


def _is_unchecked(apart: list[str], in_place: list[str]) -> bool:
    """Whether the result in place is not compared, or, in the old column, is off by 1 or more there alone."""
    if in_place == ["N/A"]:
        return apart != in_place
    return any("e" in one and (_number(one) or 0.0) >= 1 for one in in_place) and not any(
        (_number(one) or 0.0) >= 1 for one in apart
    )


def _ranks_by_rows(operation: str, rows: list[_Row]) -> int:
    """The number of ranks by the factor between algbw and busbw; 0 where the digits allow several."""
    if operation in ("broadcast", "reduce", "sendrecv"):
        return 0
    whole = 2.0 if operation == "all_reduce" else 1.0  # what the factor is of very many ranks
    low, high = 0.0, 1.0
    for row in rows:
        for _, algbw, busbw, *_ in row.groups:
            speed, bus = _number(algbw), _number(busbw)
            if speed and bus and speed > 1:
                low = max(low, (bus - _doubt(busbw)) / (speed + _doubt(algbw)) / whole)
                high = min(high, (bus + _doubt(busbw)) / (speed - _doubt(algbw)) / whole)
    if not 0.4 < low <= high < 1:
        return 0
    fewest, most = math.ceil(1 / (1 - low)), math.floor(1 / (1 - high))
    return most if fewest == most else 0


def _doubt(word: str) -> float:
    """How far a printed number may be from the one that was measured."""
    return _DOUBT * 10.0 ** -len(word.partition(".")[2]) if "e" not in word else math.inf


def _is_mixed(rows: list[_Row], starts: int, first_ranks: int) -> bool:
    """Whether several runs wrote one table: sizes go back, and not to the smallest."""
    if first_ranks > 1 or starts > 1:
        return True
    smallest = min((row.size for row in rows), default=0)
    for before, after in pairwise(rows):
        if after.key == before.key and smallest < after.size < before.size:
            return True
    # One row of each size from each process: sizes repeat. Of a run with one size, cycles repeat it, unless
    # its ranks send nothing.
    repeated = any(
        after.size == before.size > 0 and after.key == before.key for before, after in pairwise(rows)
    )
    several = len({row.size for row in rows}) > 1
    return repeated and (several or not any(_number(group[2]) for row in rows for group in row.groups))


def _is_of_one_rank(rows: list[_Row], gpus: Reading[int]) -> bool:
    """Whether a run had one rank, whose bus bandwidth is 0 by its definition."""
    large = [group for row in rows if row.size >= MIB for group in row.groups]
    return gpus == 1 or (
        bool(large) and all(_number(group[2]) == 0 and (_number(group[1]) or 0) > 1 for group in large)
    )
