"""Tables of perftest: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests."""

import re
from dataclasses import dataclass, field

from gpudiag.checks.benchmarks.judge import PERFTEST
from gpudiag.checks.benchmarks.point_to_point import BOTH_DIRECTIONS, GPU_MEMORY, SMALL_MTU, SOFTWARE_DEVICE
from gpudiag.measured.facts import Facts
from gpudiag.measured.numbers import as_number
from gpudiag.model.benchmark import BITS_PER_BYTE, MeasuredTable, MeasuredValue, Metric
from gpudiag.model.reading import NOT_ASKED
from gpudiag.units import BYTES_PER_GB, MIB

_TITLE = re.compile(
    r"\b((?:RDMA_Write|RDMA_Read|Send|Atomic|Raw\w*)(?: Post List)?(?: Bidirectional)?(?: BW| Latency)) Test"
)
_SMALL_MTU = re.compile(r"Mtu\s*:\s*(?:256|512|1024)\[B\]")
_HEAD = re.compile(r"#\s?bytes\s+#\s?iterations\s+(.*)$")
_SPEED = re.compile(r"BW average\s*\[(Gb/sec|MB/sec|GB/sec|MiB/sec)\]")
_HUNDREDTHS = re.compile(r"\.\d\d")
_FACTORS = {"Gb/sec": BYTES_PER_GB / BITS_PER_BYTE, "MB/sec": MIB, "MiB/sec": MIB, "GB/sec": BYTES_PER_GB}
# Of a row of latencies: t_min, t_max, t_typical, t_avg and more; with -D only t_avg and the rate.
_TYPICAL = 2


@dataclass(slots=True)
class PerfTest:
    """One run after another."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    _title: str = ""
    _line: int = 0
    _remarks: list[str] = field(default_factory=list)
    _factor: float = 0.0
    _column: int = 0
    _columns: int = 0  # in all, by the head
    _latency: bool = False
    _values: list[MeasuredValue] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if (title := _TITLE.search(line)) is not None:
            self._finish()
            self._title, self._line = title[1], number
        elif "initializing CUDA" in line or "use_cuda" in line:
            self._remarks.append(GPU_MEMORY)
        elif _SMALL_MTU.search(line):
            self._remarks.append(SMALL_MTU)
        elif "Device" in line and re.search(r"Device\s*:\s*rxe", line):
            self._remarks.append(SOFTWARE_DEVICE)
        elif (head := _HEAD.search(line)) is not None:
            self._read_head(number, head[1])
        elif self._factor:
            self._read_row(line.split())

    def _read_head(self, number: int, columns: str) -> None:
        if self._values:
            self._finish()
        speed = _SPEED.search(columns)
        if speed is not None:
            self._factor, self._latency, self._column = (
                _FACTORS[speed[1]],
                False,
                3 if "BW peak" in columns else 2,
            )
        elif "usec]" in columns:
            self._factor, self._latency = 1e-6, True
            self._column = 2 + (_TYPICAL if "t_typical" in columns else 0)
        else:
            return
        self._columns = 2 + len(re.findall(r"\[[^\]]+\]", columns))
        self._line = self._line or number

    def _read_row(self, words: list[str]) -> None:
        # Where a row does not go on as its head does, the number may be cut.
        last = self._column + 1
        whole = len(words) > last or (len(words) == self._columns == last and _HUNDREDTHS.search(words[-1]))
        if whole and words[0].isdecimal() and words[1].isdecimal():
            value = as_number(words[self._column])
            if value is not None:
                self._values.append(MeasuredValue(value * self._factor, int(words[0])))

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""
        self._finish()
        return self.tables

    def _finish(self) -> None:
        if self._line:
            kind = "Latency" if self._latency else "BW"
            title = self._title or f"perftest {kind}"
            remarks = [*self._remarks, *([BOTH_DIRECTIONS] if "Bidirectional" in title else [])]
            self.tables.append(
                MeasuredTable(
                    self.file,
                    self._line,
                    PERFTEST,
                    NOT_ASKED,
                    f"{title} test",
                    Metric.LATENCY if title.endswith("Latency") else Metric.BANDWIDTH,
                    tuple(self._values),
                    self.facts.setup(),
                    complete=bool(self._values),
                    remarks=tuple(dict.fromkeys(remarks)),
                )
            )
            self._remarks = []
        self._title, self._line, self._factor, self._latency, self._values = "", 0, 0.0, False, []
