"""The table of `dcgmi diag`: tests with Pass, Fail, Warn or Skip, and the lines of reasons below them."""

import re
from dataclasses import dataclass, field

from gpudiag.checks.benchmarks.judge import DCGM
from gpudiag.measured.facts import Facts
from gpudiag.model.benchmark import MeasuredTable, Metric, TestResult
from gpudiag.model.reading import NOT_ASKED, Reading

_HEAD = re.compile(r"\|?\s*Diagnostic\s*\|\s*Result\s*\|?")
_ROW = re.compile(r"^\|?\s?(?P<name>[^|]*?)\s*\|\s?(?P<answer>[^|]*?)\s*\|?\s*$")
_RULE = re.compile(r"^[+|][-+=\s]*(?:[-=]+\s*(?P<section>[A-Za-z]\w*)?\s*[-=]*)?[+|-]")
_STATUS = re.compile(r"^(Pass|Fail|Warn|Skip|Not Run|FAIL|PASS|WARN|SKIP)\b(?:\s*-\s*(.*))?$")
_OF_GPUS = re.compile(r"^GPUs?\s*:?\s*([\d, -]+)")
_ONE_GPU = re.compile(r"^GPU\s?(\d+)\s*:\s*(Pass|Fail|Warn|Skip)")
_REASONS = ("Warning", "Error", "Info", "")
_VERSION = re.compile(r"\bDCGM Version\s*\|\s*(\d[\w.]*)")
_STATUSES = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "not run": "skip"}


@dataclass(slots=True)
class _Test:
    name: str
    status: str
    gpus: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DcgmDiag:
    """The table of one run after another."""

    file: str
    facts: Facts
    tables: list[MeasuredTable] = field(default_factory=list)
    _line: int = 0
    _version: Reading[str] = NOT_ASKED
    _tests: list[_Test] = field(default_factory=list)
    _ended: bool = False
    _last_was_reason: bool = False

    def read(self, number: int, line: str) -> None:
        """Take one line."""
        if _HEAD.search(line):
            self._finish()
            self._line = number
        elif self._line:
            if "|" in line and not _RULE.match(line):
                self._read_row(line)
            elif line.startswith("+") or "+--" in line or line.startswith("---"):
                self._ended = self._ended or ("|" not in line and bool(self._tests))
            if (version := _VERSION.search(line)) is not None:
                self._version = version[1]

    def _read_row(self, line: str) -> None:
        row = _ROW.match(line)
        if row is None:
            return
        name, answer = row["name"].strip(), row["answer"].strip()
        status = _STATUS.match(answer)
        if status is not None and name and name not in _REASONS:
            self._ended, self._last_was_reason = False, False
            self._tests.append(_Test(name, _STATUSES[status[1].lower()], _gpus(status[2] or "")))
        elif (one := _ONE_GPU.match(answer)) is not None:
            self._read_gpu(name, int(one[1]), _STATUSES[one[2].lower()])
        elif name in _REASONS and self._tests and answer:
            self._read_reason(name, answer)

    def _read_gpu(self, name: str, gpu: int, status: str) -> None:
        """A row for one GPU: of the test that it names, or of the one above."""
        if (
            name
            and name not in _REASONS
            and (not self._tests or self._tests[-1].name != name or self._tests[-1].gpus)
        ):
            self._tests.append(_Test(name, status, [gpu]))
        elif self._tests:
            last = self._tests[-1]
            if status != last.status:
                self._tests.append(_Test(last.name, status, [gpu]))
            elif gpu not in last.gpus:
                last.gpus.append(gpu)

    def _read_reason(self, name: str, answer: str) -> None:
        """A line of a reason; a long one goes on in the rows below."""
        last = self._tests[-1]
        if name in ("Warning", "Error") or not self._last_was_reason:
            last.reasons.append(answer)
        else:
            last.reasons[-1] += f" {answer}"
        self._last_was_reason = True

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""
        self._finish()
        return self.tables

    def _finish(self) -> None:
        if self._line:
            results = [
                TestResult(test.name, test.status, gpu, " ".join(test.reasons))
                for test in self._tests
                for gpu in (*test.gpus,) or (None,)
            ]
            self.tables.append(
                MeasuredTable(
                    self.file,
                    self._line,
                    DCGM,
                    self._version,
                    "diagnostic",
                    Metric.RESULTS,
                    (),
                    self.facts.setup(),
                    complete=self._ended,
                    results=tuple(results),
                )
            )
        self._line, self._tests, self._ended, self._last_was_reason = 0, [], False, False


def _gpus(words: str) -> list[int]:
    """The GPUs after `Fail - `; none for `All`."""
    found = _OF_GPUS.match(words)
    return [int(one) for one in re.findall(r"\d+", found[1])] if found else []
