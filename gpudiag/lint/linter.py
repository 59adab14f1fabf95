"""Files linted: each rule over each script, without what a comment silences."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpudiag.lint.ignoring import Silence, read_silences
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import (
    SHELL_SUFFIXES,
    SUFFIXES,
    Line,
    Script,
    SourceFile,
    Unreadable,
    parse_source,
    read_source,
)
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules import BY_CODE, RULES
from gpudiag.lint.shares import work_in_shares
from gpudiag.lint.syntax import Broken, Parsed, parse_script
from gpudiag.model.lint import LintedFile, LintFinding, LintReport

MAX_FILES = 100_000
_FILES_FOR_ONE_PROCESS = 24  # below that another process costs more than it saves
_LEFT_OUT = frozenset({"node_modules", "__pycache__", "site-packages", "venv", "build", "dist"})
# Words of which every script with distributed training has one; the others are only parsed.
_SUBJECTS = tuple(
    """
    dist Dist Parallel horovod hvd deepspeed ccelerat nvml spawn local_rank process_zero
    local-rank DDP fully_shard fsdp CUDA_VISIBLE_DEVICES launch lightning torchrun world_rank
    """.split()
)


@dataclass(frozen=True, slots=True)
class Linted:
    """What was found in one file."""

    file: LintedFile
    findings: tuple[LintFinding, ...] = ()


def lint_files(paths: Sequence[Path], *, processes: int | None = None) -> LintReport:
    """The mistakes in files, in the order in which they are given; a folder stands for the scripts in it."""
    files = list(_expand(paths))
    count = processes if processes is not None else len(os.sched_getaffinity(0))
    if count < 2 or len(files) < _FILES_FOR_ONE_PROCESS:
        done = [lint_file(path) for path in files]
    else:
        done = work_in_shares(lint_file, files, min(count, 8))
    return LintReport(
        tuple(linted.file for linted in done),
        tuple(finding for linted in done for finding in linted.findings),
    )


def _expand(paths: Iterable[Path]) -> Iterator[Path]:
    """The files, and of folders the scripts in them, without hidden folders and installed packages.

    A folder that cannot be read stands for itself.
    """
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        unread: list[Path] = []
        for folder, folders, names in os.walk(path, onerror=partial(_note_unread, unread)):
            folders[:] = sorted(
                name for name in folders if not name.startswith(".") and name not in _LEFT_OUT
            )
            yield from (
                Path(folder, name)
                for name in sorted(names)
                if Path(name).suffix.lower() in (*SUFFIXES, *SHELL_SUFFIXES)
            )
        yield from unread


def _note_unread(unread: list[Path], error: OSError) -> None:
    unread.append(Path(error.filename))


def lint_file(path: Path) -> Linted:
    """The mistakes in one file; one that cannot be read has the reason in its remark."""
    try:
        source = read_source(path)
    except Unreadable as error:
        return Linted(LintedFile(str(path), 0, f"not read: {error}", is_read=False))
    return lint_source(source)


def lint_text(text: str, name: str = "<text>", suffix: str = ".py") -> Linted:
    """The mistakes in a text."""
    try:
        source = parse_source(text.encode(), name, suffix)
    except Unreadable as error:
        return Linted(LintedFile(name, 0, f"not read: {error}", is_read=False))
    return lint_source(source)


def lint_source(source: SourceFile) -> Linted:
    """The mistakes in a file that has been read."""
    found: list[LintFinding] = []
    remark = source.remark
    for script in source.scripts:
        try:
            found += _lint_script(source, script)
        except RecursionError:
            remark = "its statements are nested too deeply"
    for rule in RULES if source.shell else ():
        if rule.find_commands is not None:
            mistakes = rule.find_commands(source.shell, run=source.shell_runs, editable=source.kind == "page")
            found += [_located(source, None, None, rule, mistake) for mistake in mistakes]
    found = sorted(dict.fromkeys(found), key=lambda finding: (finding.line, finding.column, finding.code))
    silence = read_silences(source.text, "notebook" if source.kind == "notebook" else source.kind)
    kept = tuple(
        finding for finding in _once_a_place(found) if not silence.covers(finding.code, finding.line)
    )
    unknown = _unknown_codes(silence)
    if unknown:
        remark = f"{remark}; {unknown}" if remark else unknown
    scripts = 1 if source.kind == "shell" else len(source.scripts)
    file = LintedFile(source.path, scripts, remark, len(_once_a_place(found)) - len(kept))
    return Linted(file, kept)


def _once_a_place(found: list[LintFinding]) -> list[LintFinding]:
    seen: dict[tuple[str, int, int, str], LintFinding] = {}
    for finding in found:
        seen.setdefault((finding.code, finding.line, finding.column, finding.message), finding)
    return list(seen.values())


def _unknown_codes(silence: Silence) -> str:
    unknown = sorted(silence.codes - {rule.code for rule in RULES})
    return f"a comment ignores {', '.join(unknown)}, which is no rule" if unknown else ""


def _lint_script(source: SourceFile, script: Script) -> Iterator[LintFinding]:
    text = "\n".join(line.text for line in script.lines)
    parsed = parse_script(script)
    if script.kind != "page":
        for broken in parsed.broken:
            yield _broken(source, script, parsed, broken)
    if not any(word in text for word in _SUBJECTS) or not parsed.tree.body:
        return
    program = Program(source, script, parsed)
    for rule in RULES:
        for mistake in rule.find(program):
            yield _located(source, script, program, rule, mistake)


def _broken(source: SourceFile, script: Script, parsed: Parsed, broken: Broken) -> LintFinding:
    line = parsed.lines[min(broken.place, len(parsed.lines) - 1)]
    shown = script.lines[min(broken.place, len(script.lines) - 1)]
    rule = BY_CODE["lint.syntax_error"]
    return LintFinding(
        rule.code,
        rule.severity,
        source.path,
        line.number,
        1,
        shown.text.strip(),
        broken.message,
        rule.why,
        "",
        cell=_cell_of(script, broken.place),
    )


def _located(
    source: SourceFile, script: Script | None, program: Program | None, rule: Rule, mistake: Mistake
) -> LintFinding:
    """A mistake as a finding, on its line of the file."""
    severity = mistake.severity or rule.severity
    if program is None or script is None or mistake.line is not None:
        line = mistake.line or Line("", 1)
        return LintFinding(
            rule.code,
            severity,
            source.path,
            line.number,
            1,
            line.text.strip(),
            mistake.message,
            rule.why,
            mistake.fix,
            mistake.edits,
            place=mistake.place,
            advice=mistake.advice,
        )
    number = getattr(mistake.node, "lineno", 1)
    line = program.line_at(number)
    column = line.shift + program.column_of(number, getattr(mistake.node, "col_offset", 0)) + 1
    return LintFinding(
        rule.code,
        severity,
        source.path,
        line.number,
        column,
        line.text.strip(),
        mistake.message,
        rule.why,
        mistake.fix,
        mistake.edits,
        _cell_of(script, number - 1),
        mistake.place,
        mistake.advice,
    )


def _cell_of(script: Script, place: int) -> int | None:
    if not script.cells:
        return None
    part = max((i for i, begin in enumerate(script.parts) if begin <= place), default=0)
    return script.cells[min(part, len(script.cells) - 1)]


def relative(report: LintReport, base: Path) -> LintReport:
    """The report with paths as seen from a folder, where they lie in it."""

    def shortened(path: str) -> str:
        try:
            return str(Path(path).resolve().relative_to(base.resolve()))
        except ValueError:
            return path

    return LintReport(
        tuple(replace(file, path=shortened(file.path)) for file in report.files),
        tuple(replace(finding, path=shortened(finding.path)) for finding in report.findings),
    )
