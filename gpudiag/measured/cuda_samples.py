"""Matrices of p2pBandwidthLatencyTest and the three speeds of bandwidthTest, two samples of CUDA."""

import re
from dataclasses import dataclass, field
from statistics import median

from gpudiag.checks.benchmarks.copies import (
    BOTH_WAYS,
    COUNTED_TWICE,
    FASTER_WITHOUT,
    FROM_GPU,
    LOCAL,
    PEER,
    TO_GPU,
    WITHOUT_PEER_ACCESS,
)
from gpudiag.measured.facts import Facts
from gpudiag.measured.numbers import as_number
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Metric
from gpudiag.model.reading import NOT_ASKED
from gpudiag.units import BYTES_PER_GB, BYTES_PER_MB

P2P_SAMPLE, COPY_SAMPLE = "p2pBandwidthLatencyTest", "bandwidthTest"
_SECTION = re.compile(
    r"(?P<ways>Unidirectional|Bidirectional) P2P=(?P<peer>Enabled|Disabled)"
    r" Bandwidth(?P<by>.*) Matrix \(GB/s\)"
)
_OTHER_SECTION = re.compile(r"P2P Connectivity Matrix|P2P=\w+ Latency.*Matrix")
_HEAD = re.compile(r"^\s*D\\D((?:\s+\d+)+)\s*$")
_CANNOT = re.compile(r"Device=\d+ CANNOT Access Peer Device=\d+")
_CAN = re.compile(r"Device=\d+ CAN Access Peer Device=\d+")
_DETOUR_SHARE = 0.7  # with peer access, of the speed without: below it the path is a detour
_COPY = re.compile(r"^\s*(Host to Device|Device to Host|Device to Device) Bandwidth, \d+ Device")
_COPIES = {"Host to Device": TO_GPU, "Device to Host": FROM_GPU, "Device to Device": LOCAL}
_UNIT = re.compile(r"Transfer Size \(Bytes\)\s+Bandwidth\((GB/s|MB/s)\)")

_Matrix = list[tuple[int, list[str]]]


@dataclass(slots=True)
class P2pSample:
    """The sections of one run of p2pBandwidthLatencyTest after another."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    # By direction, peer access, and what the program calls its way of copying: writes, reads, or nothing.
    _sections: dict[tuple[str, str, str], tuple[int, _Matrix]] = field(default_factory=dict)
    _open: _Matrix | None = None
    _columns: list[int] = field(default_factory=list)
    _connected: _Matrix = field(default_factory=list)
    _may: bool = False
    _may_not: bool = False

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if (section := _SECTION.search(line)) is not None:
            key = (section["ways"], section["peer"], section["by"])
            if key in self._sections:
                self._finish()
            self._open, self._columns = [], []
            self._sections[key] = (number, self._open)
        elif _OTHER_SECTION.search(line):
            self._open, self._columns = (self._connected if "Connectivity" in line else None), []
        elif "Peer Device" in line:
            self._may = self._may or bool(_CAN.search(line))
            self._may_not = self._may_not or bool(_CANNOT.search(line))
        elif self._open is not None:
            self._read_row(line)

    def _read_row(self, line: str) -> None:
        if (head := _HEAD.match(line)) is not None:
            self._columns = [int(word) for word in head[1].split()]
            return
        words = line.split()
        if self._open is not None and len(words) > 1 and words[0].isdecimal():
            if (
                all(as_number(word) is not None for word in words[1:])
                and len(words) <= len(self._columns) + 1
            ):
                self._open.append((int(words[0]), words[1:]))
        elif words:
            self._open = None

    def end(self) -> list[MeasuredTable]:
        """All tables of the file: copies within each GPU, and between them one way and both ways."""
        self._finish()
        return self.tables

    def _finish(self) -> None:
        for ways in ("Unidirectional", "Bidirectional"):
            without, enabled = self._of(ways, "Disabled"), self._of(ways, "Enabled")
            if not enabled and self._is_apart():
                enabled = without
            if ways == "Unidirectional" and (own := [*enabled, *without]):
                self._add_local(*next((section for section in own if self._is_whole(section[1])), own[0]))
            for section in enabled:
                self._add_pairs(ways, section, without[0] if without else None)
        self._sections, self._open, self._connected, self._may, self._may_not = {}, None, [], False, False

    def _of(self, ways: str, peer: str) -> list[tuple[int, _Matrix]]:
        return [section for key, section in self._sections.items() if key[:2] == (ways, peer)]

    def _is_apart(self) -> bool:
        """Whether no GPU reads another one's memory."""
        pairs = [word for row, words in self._connected for column, word in enumerate(words) if row != column]
        return (bool(pairs) and set(pairs) == {"0"}) or (self._may_not and not self._may)

    def _add_local(self, line: int, rows: _Matrix) -> None:
        values = [
            MeasuredValue(value * BYTES_PER_GB, column=row)
            for row, words in rows
            if row < len(words) and (value := as_number(words[row]))
        ]
        if values:
            self._add(line, LOCAL, values, (COUNTED_TWICE,), self._is_whole(rows))

    def _add_pairs(
        self, ways: str, enabled: tuple[int, _Matrix], without: tuple[int, _Matrix] | None
    ) -> None:
        line, rows = enabled
        values = _pairs(rows)
        if not values:
            return
        remarks = [BOTH_WAYS] if ways == "Bidirectional" else []
        if self._is_apart():
            remarks.append(WITHOUT_PEER_ACCESS)
        elif without is not None and (others := _pairs(without[1])):
            middle, other = median(one.value for one in values), median(one.value for one in others)
            if middle < _DETOUR_SHARE * other:
                remarks.append(FASTER_WITHOUT)
        name = f"{PEER}, both ways" if ways == "Bidirectional" else PEER
        self._add(line, name, values, tuple(remarks), self._is_whole(rows))

    def _is_whole(self, rows: _Matrix) -> bool:
        return bool(rows) and all(len(words) == len(rows) for _, words in rows)

    def _add(
        self, line: int, operation: str, values: list[MeasuredValue], remarks: tuple[str, ...], complete: bool
    ) -> None:
        self.tables.append(
            MeasuredTable(
                self.file,
                line,
                P2P_SAMPLE,
                NOT_ASKED,
                operation,
                Metric.BANDWIDTH,
                tuple(values),
                self.facts.setup(),
                complete=complete,
                remarks=remarks,
            )
        )


def _pairs(rows: _Matrix) -> list[MeasuredValue]:
    return [
        MeasuredValue(value * BYTES_PER_GB, row=row, column=column)
        for row, words in rows
        for column, word in enumerate(words)
        if row != column and (value := as_number(word))
    ]


@dataclass(slots=True)
class CopySample:
    """The speeds of bandwidthTest: each direction with its sizes."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    _operation: str = ""
    _line: int = 0
    _factor: float = 0.0
    _values: list[MeasuredValue] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if (copy := _COPY.match(line)) is not None:
            self._finish()
            self._operation, self._line = _COPIES[copy[1]], number
        elif self._operation and "PAGEABLE" in line and self._operation != LOCAL:
            self._operation += ", pageable memory"  # no figure is known for it
            self._operation = f"copies of {self._operation}"
        elif self._operation and (unit := _UNIT.search(line)) is not None:
            self._factor = BYTES_PER_GB if unit[1] == "GB/s" else BYTES_PER_MB
        elif self._factor:
            words = line.split()
            if len(words) == 2 and words[0].isdecimal() and (speed := as_number(words[1])) is not None:
                self._values.append(MeasuredValue(speed * self._factor, int(words[0]), column=0))
            elif words:
                self._finish()

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""
        self._finish()
        return self.tables

    def _finish(self) -> None:
        if self._operation and self._line:
            remarks = (COUNTED_TWICE,) if self._operation == LOCAL else ()
            self.tables.append(
                MeasuredTable(
                    self.file,
                    self._line,
                    COPY_SAMPLE,
                    NOT_ASKED,
                    self._operation,
                    Metric.BANDWIDTH,
                    tuple(self._values),
                    self.facts.setup(),
                    remarks=remarks,
                )
            )
        self._operation, self._line, self._factor, self._values = "", 0, 0.0, []
