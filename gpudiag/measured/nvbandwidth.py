"""Matrices of nvbandwidth, of every version from 0.2 on, of one node or of several."""

import re
from dataclasses import dataclass, field

from gpudiag.checks.benchmarks.copies import BOTH_WAYS, BY_KERNEL, COUNTED_ONCE, MULTI_NODE, WITH_OTHERS
from gpudiag.measured.facts import Facts
from gpudiag.measured.numbers import as_number
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Metric, TestResult
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.units import BYTES_PER_GB

NVBANDWIDTH = "nvbandwidth"
_VERSION = re.compile(r"^nvbandwidth Version: v?(\S+)")
_RUNNING = re.compile(r"^Running (\w+)\.?\s*$")
_TITLE = re.compile(r"^(?:memcpy|memory|bandwidth).*?\((GB/s|ns|us)\)\s*$")
_WAIVED = re.compile(r"^Waiving (\w+)\.?\s*$")
_SUM = re.compile(r"^SUM (\w+) ")
_WRONG = re.compile(
    r"Invalid value when checking the pattern|ASSERT in expression.*(?:pattern|buffer)", re.IGNORECASE
)
_FAILED = re.compile(r"^\[?(CUDA_ERROR_\w+|NVML_ERROR_\w+)\]?|^\[(?:CUDA|NVML)_ERROR\w*\]")
_HELD_UP = ("CUDA_ERROR_NOT_SUPPORTED",)


def remarks_of(operation: str) -> tuple[str, ...]:
    """What the name of a test means for its copies."""
    found = []
    if operation.endswith("_sm"):
        found.append(BY_KERNEL)
    if "bidirectional" in operation:
        found.append(BOTH_WAYS)
    if operation.startswith(("all_to_host", "host_to_all")):
        found.append(WITH_OTHERS)
    if operation.startswith("device_local_copy"):
        found.append(COUNTED_ONCE)
    if operation.startswith("multinode"):
        found.append(MULTI_NODE)
    return tuple(found)


@dataclass(slots=True)
class NvBandwidth:
    """One matrix after another."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    _version: Reading[str] = NOT_ASKED
    _operation: str = ""
    _unit: str = ""
    _line: int = 0
    _by_rows: bool = False  # its rows are GPUs
    _columns: list[int] = field(default_factory=list)
    _rows: list[tuple[int, list[str]]] = field(default_factory=list)
    _wrong: str = ""
    _failed: str = ""
    _waived: list[tuple[int, str]] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if (version := _VERSION.search(line)) is not None:
            self._version = version[1]
        elif (running := _RUNNING.match(line)) is not None:
            self._finish()
            self._operation, self._line = running[1], number
        elif (waived := _WAIVED.match(line)) is not None:
            self._waived.append((number, waived[1]))
        elif (title := _TITLE.match(line)) is not None:
            if self._rows:
                self._finish()
            self._unit, self._line = title[1], self._line or number
            self._by_rows = "GPU(row)" in line or "Process(row)" in line
            self._columns = []
        elif (ending := _SUM.match(line)) is not None:
            self._operation = self._operation or ending[1]
            self._finish()
        elif self._operation and _WRONG.search(line):
            self._wrong = line.strip()
        elif self._operation and (failed := _FAILED.search(line)) is not None and failed[1] not in _HELD_UP:
            self._failed = line.strip()
        elif self._unit:
            self._read_row(line.split())

    def _read_row(self, words: list[str]) -> None:
        """The columns' numbers, or a row: its own number, then as many values."""
        if not words or not words[0].isdecimal():
            return
        if not self._columns:
            if all(word.isdecimal() for word in words):
                self._columns = [int(word) for word in words]
        elif 1 < len(words) <= len(self._columns) + 1 and all(
            word == "N/A" or as_number(word) is not None for word in words[1:]
        ):
            self._rows.append((int(words[0]), words[1:]))

    def end(self) -> list[MeasuredTable]:
        """All matrices of the file."""
        self._finish()
        if self._waived and not self.tables:
            line, name = self._waived[0]
            why = TestResult(
                name, "skip", message="the program waived it: this machine does not have what it needs"
            )
            setup = self.facts.setup()
            self.tables.append(
                MeasuredTable(
                    self.file,
                    line,
                    NVBANDWIDTH,
                    self._version,
                    name,
                    Metric.BANDWIDTH,
                    (),
                    setup,
                    results=(why,),
                )
            )
        return self.tables

    def _finish(self) -> None:
        if self._rows or self._wrong or self._failed or self._columns:
            self.tables.append(self._table())
        self._operation, self._unit, self._line, self._columns, self._rows = "", "", 0, [], []
        self._wrong, self._failed = "", ""

    def _table(self) -> MeasuredTable:
        operation = self._operation or ("device_to_device_memcpy" if self._by_rows else "unnamed test")
        results = [TestResult(operation, "wrong", message=self._wrong)] if self._wrong else []
        results += [TestResult(operation, "fail", message=self._failed)] if self._failed else []
        return MeasuredTable(
            self.file,
            self._line,
            NVBANDWIDTH,
            self._version,
            operation,
            Metric.BANDWIDTH if self._unit in ("", "GB/s") else Metric.LATENCY,
            tuple(
                matrix_values(
                    self._rows, self._columns, self._by_rows, BYTES_PER_GB if self._unit == "GB/s" else 1e-9
                )
            ),
            self.facts.setup(),
            complete=self._is_complete(),
            results=tuple(results),
            remarks=remarks_of(operation),
        )

    def _is_complete(self) -> bool:
        """Whether the last row is as long as the first, and a matrix of pairs is square."""
        if not self._rows:
            return not self._columns
        width = len(self._rows[0][1])
        square = not self._by_rows or len(self._rows) == len(self._columns)
        return square and all(len(row) == width for _, row in self._rows)


def matrix_values(
    rows: list[tuple[int, list[str]]], columns: list[int], by_rows: bool, factor: float
) -> list[MeasuredValue]:
    """The values of a matrix; in one of pairs without those of a GPU with itself (`N/A` or 0)."""
    return [
        MeasuredValue(value * factor, row=row if by_rows else None, column=column)
        for row, words in rows
        for column, word in zip(columns, words, strict=False)
        if (value := as_number(word)) and not (by_rows and row == column)
    ]
