"""A rank's frames, with what distinguishes ranks: variables, tensors' shapes, groups, source lines."""

import ast
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from gpudiag.linux.proc import read_stat
from gpudiag.model.job import Frame, GroupSeen, TensorSeen
from gpudiag.model.untrusted_text import escape_controls, mask_text, names_secret
from gpudiag.probe.job.memory import Memory, read_group, read_tensor, read_timedelta
from gpudiag.probe.job.poll_loops import find_poll_loop
from gpudiag.probe.job.py_spy import RawFrame, Variable
from gpudiag.reference.waits import is_library

_MOST_VARIABLES = 24
_MOST_TENSORS = 6
_VALUE_CHARACTERS = 120
_TENSORS = ("<Tensor at ", "<Parameter at ")
_TIMEDELTA = "<datetime.timedelta at "
_PLAIN = frozenset("0123456789-+.e")
_SOURCE_BYTES = 4 << 20
_TEXT_CHARACTERS = 160
_MOST_GUARDS = 2  # of one block
_CLOCKS_APART_SECONDS = 1.0  # of a file server and this machine
_CHANGED = "(this file was changed after the process started)"


def describe_frames(pid: int, raw: Iterable[RawFrame]) -> tuple[Frame, ...]:
    """The frames, with variables of the user's own frames and of calls of torch.distributed."""
    memory: Memory | None = None
    with suppress(OSError):
        memory = Memory.open(pid)
    try:
        return tuple(_describe(memory, one) for one in raw)
    finally:
        if memory is not None:
            memory.close()


def glance_frames(pid: int, raw: Iterable[RawFrame]) -> tuple[Frame, ...]:
    """The frames without what lies in the process's memory.

    The user's have the text of their line and the loop that polls there.
    """
    sources = Sources()
    return tuple(
        frame
        if is_library(frame.file)
        else replace(
            frame,
            text=sources.text(pid, frame.file, frame.line),
            polls=sources.poll_loop(pid, frame.file, frame.line),
        )
        for frame in (_describe(None, one) for one in raw)
    )


def mark_of(raw: Iterable[RawFrame]) -> str:
    """A short text that changes when the user's frames run: of where the objects of their variables lie.

    It is empty without such frames.
    """
    own = [
        (frame.function, frame.line, *((one.name, one.address) for one in frame.variables))
        for frame in raw
        if not is_library(frame.file)
    ]
    return hashlib.blake2b(repr(own).encode(errors="replace"), digest_size=6).hexdigest() if own else ""


def _describe(memory: Memory | None, raw: RawFrame) -> Frame:
    of_torch = "/torch/distributed/" in raw.file
    if is_library(raw.file) and not of_torch:
        return Frame(raw.file, raw.function, raw.line)
    tensors: list[tuple[str, TensorSeen]] = []
    group: GroupSeen | None = None
    timeout_seconds: float | None = None
    for one in raw.variables if memory is not None else ():
        assert memory is not None  # noqa: S101 - for the type checker
        if one.value.startswith(_TENSORS) and len(tensors) < _MOST_TENSORS and one.name != "self":
            tensor = read_tensor(memory, one.address)
            if tensor is not None:
                tensors.append((one.name, tensor))
        elif of_torch and group is None and ".ProcessGroup at " in one.value:
            group = read_group(memory, one.address)
        elif of_torch and one.name == "timeout" and one.value.startswith(_TIMEDELTA):
            timeout_seconds = read_timedelta(memory, one.address)
    plain = [(one.name, value) for one in raw.variables if (value := _plain(one)) is not None]
    return Frame(
        raw.file,
        raw.function,
        raw.line,
        variables=tuple(plain[:_MOST_VARIABLES]),
        tensors=tuple(tensors),
        group=group,
        timeout_seconds=timeout_seconds,
        mark="" if of_torch else mark_of((raw,)),
    )


def _plain(variable: Variable) -> str | None:
    """A number, a word or a text, without secrets; None for everything else."""
    value = variable.value
    if names_secret(variable.name) or len(value) > _VALUE_CHARACTERS or not value:
        return None
    if value in ("True", "False", "None") or set(value) <= _PLAIN:
        return value
    if value[0] in "\"'" and value[-1] == value[0]:
        return mask_text(escape_controls(value))
    return None


_YIELDS = ", which yields"  # at the end of a loop: whoever takes from it has its end


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a source: its text, and the statements around it that may explain why a rank is there."""

    text: str
    inside: tuple[str, ...]
    polls: str = ""  # the loop around it that only asks and waits


class Sources:
    """The sources of a job's own files, read through the root of a process that runs them."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._changed: set[str] = set()  # their lines are not those that run

    def line(self, pid: int, file: str, number: int) -> SourceLine | None:
        """A line of a file as the process sees it; None where there is none."""
        lines = self._read_lines(pid, file)
        tree = self._read_tree(pid, file)
        if file in self._changed:
            return SourceLine(_CHANGED, ())
        if not 0 < number <= len(lines):
            return None
        text = _statement(lines, number)
        shown = mask_text(escape_controls(text))[:_TEXT_CHARACTERS]
        return SourceLine(shown, _around(tree, number), find_poll_loop(lines, number))

    def text(self, pid: int, file: str, number: int) -> str:
        """The text of a line; empty where it cannot be read."""
        lines = self._read_lines(pid, file)
        return lines[number - 1].strip()[:_TEXT_CHARACTERS] if 0 < number <= len(lines) else ""

    def poll_loop(self, pid: int, file: str, number: int) -> str:
        """The loop around a line, where it only polls.

        It is empty for every other line, and where the file cannot be read.
        """
        return find_poll_loop(self._read_lines(pid, file), number)

    def _read_lines(self, pid: int, file: str) -> list[str]:
        if file not in self._lines:
            text = ""
            with suppress(OSError, ValueError):
                path = file if file.startswith("/") else os.path.join(os.readlink(f"/proc/{pid}/cwd"), file)
                with open(f"/proc/{pid}/root{path}", errors="replace") as source:
                    if os.fstat(source.fileno()).st_mtime > _started_at(pid) + _CLOCKS_APART_SECONDS:
                        self._changed.add(file)
                    else:
                        text = source.read(_SOURCE_BYTES)
            self._lines[file] = text.splitlines()
        return self._lines[file]

    def _read_tree(self, pid: int, file: str) -> ast.Module | None:
        if file not in self._trees:
            tree: ast.Module | None = None
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                tree = ast.parse("\n".join(self._read_lines(pid, file)))
            self._trees[file] = tree
        return self._trees[file]


def _started_at(pid: int) -> float:
    """When a process started, in seconds since the epoch."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - read_stat(pid).started_seconds
    return time.time() - age


def _statement(lines: list[str], number: int) -> str:
    """The line, and what follows it up to its closing bracket, on one line."""
    text = lines[number - 1].strip()
    for following in lines[number : number + 6]:
        if text.count("(") <= text.count(")"):
            break
        text = f"{text} {following.strip()}"
    return " ".join(text.split())


def _around(tree: ast.Module | None, number: int) -> tuple[str, ...]:
    """The statements around a line within its function, the nearest first."""
    if tree is None:
        return ()
    found: list[str] = []
    for node in _path_to(tree, number):
        found += _guards_before(tree, node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.clear()
        elif isinstance(node, ast.If):
            branch = "else of " if any(_has(one, number) for one in node.orelse) else ""
            if number > node.lineno or (node.body[0].lineno == number and not _may_wait(node.test)):
                found.append(f"{branch}if {_short(node.test)} (line {node.lineno})")
        elif isinstance(node, ast.Try):
            found += _describe_try(node, number)
        elif isinstance(node, ast.With | ast.AsyncWith) and number > node.lineno:
            found.append(
                f"with {', '.join(_short(item.context_expr) for item in node.items)} (line {node.lineno})"
            )
        elif isinstance(node, ast.While) or (isinstance(node, ast.For) and number > node.lineno):
            head = (
                f"for {_short(node.target)} in {_short(node.iter)}"
                if isinstance(node, ast.For)
                else f"while {_short(node.test)}"
            )
            gives = any(isinstance(one, ast.Yield | ast.YieldFrom | ast.Await) for one in ast.walk(node))
            found.append(f"{head} (line {node.lineno}){_YIELDS if gives else ''}")
    return tuple(reversed(found))


def _may_wait(test: ast.expr) -> bool:
    """Whether a condition calls more than a question for the rank: in `if a: b` of one line it may wait."""
    calls = (one for one in ast.walk(test) if isinstance(one, ast.Call))
    return any("rank" not in ast.unparse(one.func) for one in calls)


def _guards_before(tree: ast.Module, node: ast.AST) -> list[str]:
    """`after if rank not in members: continue (line 13)`: the conditions before it that lead away."""
    blocks = (
        block
        for parent in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(parent, name, None), list) and node in block
    )
    block = next(blocks, [])
    guards = [
        (one, one.body[-1])
        for one in block[: block.index(node) if block else 0]
        if isinstance(one, ast.If)
        and not one.orelse
        and isinstance(one.body[-1], ast.Continue | ast.Break | ast.Return)
    ]
    return [
        f"after if {_short(one.test)}: {type(end).__name__.lower()} (line {one.lineno})"
        for one, end in guards[-_MOST_GUARDS:]
    ]


def _describe_try(node: ast.Try, number: int) -> Iterator[str]:
    """`try (line 8) whose except at line 12 goes on`, where its body has the line and a handler swallows."""
    if any(_has(one, number) for one in node.body):
        for handler in node.handlers:
            goes_on = not any(isinstance(one, ast.Raise) for one in ast.walk(handler))
            ends = any(
                isinstance(one, ast.Call) and _short(one.func) in ("sys.exit", "os._exit", "exit")
                for one in ast.walk(handler)
            )
            if goes_on and not ends:
                caught = _short(handler.type) if handler.type else "everything"
                yield f"try (line {node.lineno}) that continues after {caught} (line {handler.lineno})"
    for handler in node.handlers:
        if any(_has(one, number) for one in handler.body):
            yield f"except {_short(handler.type) if handler.type else ''} (line {handler.lineno})".replace(
                "  ", " "
            )


def _path_to(tree: ast.AST, number: int) -> Iterator[ast.AST]:
    """The statements that hold a line, the outermost first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ExceptHandler | ast.match_case) or _has(node, number):
            if isinstance(node, ast.stmt):
                yield node
            yield from _path_to(node, number)


def _has(node: ast.AST, number: int) -> bool:
    start, end = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return start is not None and end is not None and start <= number <= end


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:58]}.."
