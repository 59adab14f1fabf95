"""Tables that torch's collective benches print: all_reduce_bench of the ML Engineering book, DeepSpeed's."""

import re
from dataclasses import dataclass, field, replace

from gpudiag.checks.benchmarks.collectives import ONE_RANK
from gpudiag.measured.facts import Facts
from gpudiag.measured.numbers import as_number
from gpudiag.model.benchmark import BITS_PER_BYTE, MeasuredTable, MeasuredValue, Metric
from gpudiag.model.reading import NOT_ASKED
from gpudiag.units import BYTES_PER_GB, GIB, KIB, MIB

ALL_REDUCE_BENCH, DEEPSPEED = "all_reduce_bench", "DeepSpeed communication benchmark"
_SIZES = {"": 1, "K": KIB, "M": MIB, "G": GIB}
_BOOK_HEAD = re.compile(r"\|?\s*payload\s*\|\s*busbw\s*\|\s*algbw")
_BOOK_TITLE = re.compile(r"average bandwidth of (\w+) over (\d+) ranks")
_BOOK_ROW = re.compile(
    r"^\|?\s*(?P<size>[\d.]+)\s?(?P<unit>[KMG]?)i?B\s*\|\s*(?P<bus>[\d.]+)\s?GBps\s*"
    r"\|\s*(?P<alg>[\d.]+)\s?GBps"
)
_SPEED_TITLE = re.compile(r"-{3,} Performance of (\w+) on (\d+) devices -{3,}")
_SPEED_HEAD = re.compile(r"Size \(Bytes\).*BusBW \((Gbps|GBps)\)")
_SPEED_ROW = re.compile(r"\b(?P<count>\d+)x(?P<width>[1248])\s+[\d.]+ \w+\s+[\d.]+\s+(?P<bus>[\d.]+)\s*$")
_OPERATIONS = {"allreduce": "all_reduce", "allgather": "all_gather", "all_to_all": "alltoall"}
_LEAST_RATE = 10.0  # GB/s: below it two decimals are too few to count ranks by


@dataclass(slots=True)
class TorchBenches:
    """One table after another, of either bench."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    _tool: str = ""
    _operation: str = ""
    _line: int = 0
    _ranks: int = 0
    _factor: float = BYTES_PER_GB
    _values: list[MeasuredValue] = field(default_factory=list)
    _ratio: float = 0.0

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if (title := _BOOK_TITLE.search(line)) is not None:
            self._begin(number, ALL_REDUCE_BENCH, title[1], int(title[2]))
        elif (title := _SPEED_TITLE.search(line)) is not None:
            self._begin(number, DEEPSPEED, title[1], int(title[2]))
        elif _BOOK_HEAD.search(line):
            if not self._tool or self._values:
                self._begin(number, ALL_REDUCE_BENCH, "all_reduce", 0)
        elif self._tool == DEEPSPEED and (head := _SPEED_HEAD.search(line)) is not None:
            self._factor = BYTES_PER_GB / (BITS_PER_BYTE if head[1] == "Gbps" else 1)
        elif self._tool == ALL_REDUCE_BENCH and (row := _BOOK_ROW.match(line)) is not None:
            size = round(float(row["size"]) * _SIZES[row["unit"]])
            self._add(size, float(row["bus"]) * BYTES_PER_GB)
            if float(row["alg"]) >= _LEAST_RATE:
                self._ratio = float(row["bus"]) / float(row["alg"])
        elif self._tool == DEEPSPEED and (row := _SPEED_ROW.search(line)) is not None:
            value = as_number(row["bus"])
            if value is not None:
                self._add(int(row["count"]) * int(row["width"]), value * self._factor)

    def _add(self, size: int, speed: float) -> None:
        self._values.append(MeasuredValue(speed, size))

    def _begin(self, number: int, tool: str, operation: str, ranks: int) -> None:
        self._finish()
        self._tool, self._line, self._ranks = tool, number, ranks
        self._operation = _OPERATIONS.get(operation, operation)

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""
        self._finish()
        return self.tables

    def _finish(self) -> None:
        if self._tool and (self._values or self._ranks):
            setup = self.facts.setup()
            ranks = self._ranks or self._ranks_by_ratio()
            if ranks:
                setup = replace(setup, gpus=ranks)
            self.tables.append(
                MeasuredTable(
                    self.file,
                    self._line,
                    self._tool,
                    NOT_ASKED,
                    self._operation,
                    Metric.BUSBW,
                    tuple(self._values),
                    setup,
                    complete=bool(self._values),
                    remarks=(ONE_RANK,) if ranks == 1 else (),
                )
            )
        self._tool, self._operation, self._line, self._ranks = "", "", 0, 0
        self._factor, self._values, self._ratio = BYTES_PER_GB, [], 0.0

    def _ranks_by_ratio(self) -> int:
        """The number of ranks of an all_reduce by busbw over algbw; 0 where it does not show it."""
        if not 1.0 <= self._ratio < 1.995:
            return 0
        return round(2 / (2 - self._ratio))
