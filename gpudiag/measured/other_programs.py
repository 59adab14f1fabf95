"""Programs whose speeds are not judged, known by a line of theirs; of gpu-burn whether results were right."""

import re
from dataclasses import dataclass, field

from gpudiag.measured.facts import Facts
from gpudiag.model.benchmark import MeasuredTable, Metric, TestResult
from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.expected_speeds import other_programs

GPU_BURN = "gpu-burn"
_LINES = 5000  # of a file in which a program is looked for: its output alone is short
_TESTED = re.compile(r"^Tested \d+ GPUs?:")
_OF_GPU = re.compile(r"^\s*GPU (\d+): (OK|FAULTY)\b")


@dataclass(slots=True)
class OtherPrograms:
    """The first line of each such program, and what gpu-burn prints when it ends."""

    file: str
    facts: Facts
    _seen: dict[str, int] = field(default_factory=dict)
    _tested: int = 0
    _results: list[TestResult] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if self._tested and (of_gpu := _OF_GPU.match(line)) is not None:
            status = "pass" if of_gpu[2] == "OK" else "fail"
            self._results.append(TestResult("comparison of results", status, int(of_gpu[1]), ""))
        elif _TESTED.match(line):
            self._tested = number
        elif number <= _LINES:
            for program in other_programs():
                if program.name not in self._seen and program.line.search(line):
                    self._seen[program.name] = number

    def end(self) -> list[MeasuredTable]:
        """One table for each program, without values."""
        tables = [self._table(line, name) for name, line in self._seen.items()]
        if self._results:
            tables.append(self._table(self._tested, GPU_BURN, tuple(self._results)))
        return tables

    def _table(self, line: int, tool: str, results: tuple[TestResult, ...] = ()) -> MeasuredTable:
        setup = self.facts.setup()
        return MeasuredTable(
            self.file, line, tool, NOT_ASKED, "output", Metric.RESULTS, (), setup, results=results
        )
