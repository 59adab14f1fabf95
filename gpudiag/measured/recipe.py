"""What `gpudiag judge` was asked about: files, folders or standard input, read into tables and judged."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from gpudiag.checks.benchmarks.judge import judge_table, overall
from gpudiag.errors import UsageError
from gpudiag.explain.files import LogLines, LogRefused, log_files, open_lines
from gpudiag.explain.lines import parse_lines
from gpudiag.measured.cuda_samples import CopySample, P2pSample
from gpudiag.measured.dcgm_diag import DcgmDiag
from gpudiag.measured.documents import MAX_JSON_BYTES, json_tables
from gpudiag.measured.facts import Facts, filled
from gpudiag.measured.nccl_tests import NcclTests
from gpudiag.measured.nvbandwidth import NvBandwidth
from gpudiag.measured.osu import OsuBenchmarks
from gpudiag.measured.other_programs import OtherPrograms
from gpudiag.measured.perftest import PerfTest
from gpudiag.measured.torch_benches import TorchBenches
from gpudiag.model.benchmark import Judgement, MeasuredTable, Metric, OutputRead, Setup
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.reference.expected_speeds import find_board, known_gpus

_HINT = "give files or folders with the output of benchmarks, or - for standard input"
# A test framework's log: the process, the level and the stream before each line that a program printed.
_TEST_LOG = re.compile(r"^.*?\b(?:DEBUG|INFO)\s*\| ?\[(?:stdout|stderr)\] ?")
_ONE_NODE = "as many GPUs as one such machine has: taken for one node"


class Reader(Protocol):
    """A reader of one program's tables: it gets every line of a file, and knows its own."""

    def read(self, number: int, line: str) -> None:
        """Take one line."""

    def end(self) -> list[MeasuredTable]:
        """All tables of the file."""


@dataclass(slots=True)
class _FileRead:
    """One file: its tables, and what its lines show of the machine."""

    name: str
    tables: list[MeasuredTable] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    lines: int = 0
    refused: str | None = None


def judge_files(words: tuple[str, ...], given: Setup) -> Judgement:
    """The tables in files, in the logs of folders or in standard input (`-`), each judged.

    `given` is what the user gives of the machines; it goes before all that files show.

    Raises:
        UsageError: there is no such file, or the only one cannot be opened.
    """
    files = [_read(name, stream) for name, stream in _open_all(_paths(words))]
    beside = Setup()
    for file in files:
        if not file.tables:
            beside = filled(beside, file.facts.setup())
    tables = [judge_table(_placed(table, file, beside, given)) for file in files for table in file.tables]
    unread = [file for file in files if file.refused]
    outcome = overall(tables) if tables else Outcome.ERROR
    if unread and outcome is Outcome.PASS:
        outcome = Outcome.ERROR  # a file that was not read has passed nothing
    return Judgement(outcome, tuple(_describe_file(file) for file in files), tuple(tables))


def _placed(table: MeasuredTable, file: _FileRead, beside: Setup, given: Setup) -> MeasuredTable:
    """The table with all that is known of its hardware: by the user, its run, its file, those beside."""
    of_file = file.facts.setup()
    if sum(one.metric is Metric.BUSBW for one in file.tables) > 1:  # whose ranks they are is not certain
        of_file = Setup(gpu=of_file.gpu, nics=of_file.nics, nccl_version=of_file.nccl_version)
    setup = filled(filled(filled(given, table.setup), of_file), beside)
    if not isinstance(setup.gpu, Missing):
        name = known_gpus().get(setup.gpu.lower(), setup.gpu)
        setup, board = replace(setup, gpu=name), find_board(name)
        alone = (
            board is not None and not isinstance(setup.gpus, Missing) and setup.gpus <= board.gpus_per_node
        )
        if alone and isinstance(setup.nodes, Missing) and table.metric is Metric.BUSBW:
            setup = replace(setup, nodes=1, assumed=(_ONE_NODE,))
    return replace(table, setup=setup)


def _describe_file(file: _FileRead) -> OutputRead:
    """What the judgement reports of a file."""
    setup, facts = file.facts.setup(), []
    if not isinstance(setup.gpu, Missing):
        facts.append(setup.gpu)
    if not isinstance(setup.nccl_version, Missing):
        facts.append(f"NCCL {setup.nccl_version}")
    if not isinstance(setup.nics, Missing):
        facts.append(f"{setup.nics.count} network cards of {setup.nics.gbits_per_second:g} Gb/s")
    return OutputRead(file.name, file.lines, len(file.tables), (*facts, *setup.settings), file.refused)


def _paths(words: tuple[str, ...]) -> list[Path | None]:
    """The files to read; None for standard input."""
    if "" in words:  # as a path it would be this folder
        raise UsageError("an argument is empty: is a variable of the shell not set?", hint=_HINT)
    if words.count("-") > 1:
        raise UsageError("standard input can be read once", hint="give - once")
    paths: list[Path | None] = []
    for word in words:
        if word == "-":
            paths.append(None)
            continue
        if (why := _why_missing(word)) is not None:
            raise UsageError(f"cannot read {word}: {why}", hint=_HINT)
        if os.path.isdir(word):
            inside, _ = log_files(Path(word), lambda head: head.lstrip().startswith(b"{"))
            if not inside:
                raise UsageError(f"no file in {word} looks like output", hint="give the files themselves")
            paths += inside
        else:
            paths.append(Path(word))
    return paths


def _why_missing(word: str) -> str | None:
    """Why there is nothing of that name; None where there is, or where only opening it can show it."""
    try:
        os.stat(word)
    except OSError as error:
        return None if error.errno == errno.EACCES else (error.strerror or str(error)).lower()
    except ValueError:  # it has a character that no name has
        return "no such file"
    return None


def _open_all(paths: list[Path | None]) -> Iterator[tuple[str, BinaryIO | LogRefused]]:
    """Each file opened when its turn comes."""
    for path in paths:
        if path is None:
            yield "standard input", sys.stdin.buffer
            continue
        try:
            with path.open("rb") as stream:
                yield str(path), stream
        except OSError as error:
            if len(paths) == 1:
                raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=_HINT) from error
            yield str(path), LogRefused(f"it cannot be opened: {error.strerror or error}")


def _read(name: str, stream: BinaryIO | LogRefused) -> _FileRead:
    """All tables of one file."""
    file = _FileRead(name)
    if isinstance(stream, LogRefused):
        file.refused = str(stream).removesuffix(".")
        return file
    try:
        source = open_lines(stream, is_dump=lambda head: head.lstrip().startswith(b"{"))
        if isinstance(source, bytes):
            _read_document(file, source)
        else:
            _read_lines(file, source)
    except LogRefused as refused:
        file.refused = str(refused).removesuffix(".")
    except OSError as error:
        file.refused = f"it cannot be read: {error.strerror or error}"
    return file


def _read_document(file: _FileRead, content: bytes) -> None:
    """A file that begins with a JSON object.

    Lines of records whose text is a benchmark's are read as text.
    """
    text = content.decode(errors="replace")
    file.tables = json_tables(file.name, text, file.facts)
    file.lines = len(content.splitlines())
    if not file.tables:
        _read_lines(file, enumerate(content.split(b"\n"), 1))


def _read_lines(file: _FileRead, lines: LogLines | Iterator[tuple[int, bytes]]) -> None:
    """The lines of a text, given to each reader; a JSON document within is read too."""
    run = Facts()  # of the run at hand
    readers: tuple[Reader, ...] = (
        NcclTests(file.name, run),
        NvBandwidth(file.name, run),
        P2pSample(file.name, run),
        CopySample(file.name, run),
        PerfTest(file.name, run),
        OsuBenchmarks(file.name, run),
        TorchBenches(file.name, run),
        DcgmDiag(file.name, run),
        OtherPrograms(file.name, run),
    )
    document: list[str] = []
    size = 0
    for number, raw in lines:
        file.lines = number
        for line in parse_lines(number, raw):
            body = _TEST_LOG.sub("", line.body) if "| [std" in line.body else line.body
            run.read(body)
            file.facts.read(body)
            for reader in readers:
                reader.read(number, body)
            if (document or body.startswith("{")) and size < MAX_JSON_BYTES:
                document.append(body if document else "\n" * (number - 1) + body)
                size += len(body)
    file.tables = [table for reader in readers for table in reader.end()]
    if document:
        file.tables += json_tables(file.name, "\n".join(document), file.facts)
    file.tables.sort(key=lambda table: table.line)
