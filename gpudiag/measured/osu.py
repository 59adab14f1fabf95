"""Tables of the OSU micro-benchmarks: bandwidth and latency of two ranks, and latency of collectives."""

import re
from dataclasses import dataclass, field

from gpudiag.checks.benchmarks.point_to_point import BOTH_DIRECTIONS, GPU_MEMORY, HOST_MEMORY
from gpudiag.measured.facts import Facts
from gpudiag.measured.numbers import as_number
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Metric
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.units import BYTES_PER_MB

_TITLE = re.compile(r"#\s*OSU (?:MPI|NCCL|OpenSHMEM|XCCL)\S*(?:-\S+)? (.+?)(?: Test)?(?: v(\d[\d.]*\d))?\s*$")
_HEAD = re.compile(r"#\s*Size\s+(Bandwidth|Latency|Avg Lat)[^(]*\((MB/s|us)\)")
_NAMES = {
    "Bandwidth": "osu_bw",
    "Bi-Directional Bandwidth": "osu_bibw",
    "Latency": "osu_latency",
    "Multiple Bandwidth / Message Rate": "osu_mbw_mr",
}


@dataclass(slots=True)
class OsuBenchmarks:
    """One table after another."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    _name: str = ""
    _version: Reading[str] = NOT_ASKED
    _line: int = 0
    _factor: float = 0.0
    _device: bool = False
    _host: bool = False
    _values: list[MeasuredValue] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if "OSU" in line and (title := _TITLE.search(line)) is not None:
            self._finish()
            words = title[1].removesuffix(" Latency") if title[1] not in _NAMES else title[1]
            words = words.removesuffix(" Test")
            self._name = _NAMES.get(words) or f"osu_{re.sub(r'[^a-z]+', '', words.lower())}"
            self._version, self._line = title[2] or NOT_ASKED, number
        elif self._name and "DEVICE" in line:
            self._device, self._host = True, "HOST" in line
        elif self._name and (head := _HEAD.search(line)) is not None:
            self._factor = BYTES_PER_MB if head[2] == "MB/s" else 1e-6
        elif self._factor:
            words = line.split()
            if len(words) >= 2 and words[0].isdecimal() and (value := as_number(words[1])) is not None:
                self._values.append(MeasuredValue(value * self._factor, int(words[0])))

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""
        self._finish()
        return self.tables

    def _finish(self) -> None:
        if self._line:
            shown = {
                GPU_MEMORY: self._device,
                HOST_MEMORY: self._host,
                BOTH_DIRECTIONS: self._name == "osu_bibw",
            }
            remarks = [remark for remark, is_so in shown.items() if is_so]
            self.tables.append(
                MeasuredTable(
                    self.file,
                    self._line,
                    self._name,
                    self._version,
                    self._name,
                    Metric.LATENCY if self._factor == 1e-6 else Metric.BANDWIDTH,
                    tuple(self._values),
                    self.facts.setup(),
                    complete=bool(self._values),
                    remarks=tuple(remarks),
                )
            )
        self._name, self._line, self._factor, self._values = "", 0, 0.0, []
        self._device = self._host = False
