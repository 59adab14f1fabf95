"""Which user's line started a thread of a library's code alone, as a checkpoint in the background."""

import ast
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from gpudiag.model.job import ThreadLook
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.reference.waits import is_library

# The file in which such a thread runs, and the function that starts it.
_STARTERS = (("/torch/distributed/checkpoint/_async_thread_executor.py", "async_save"),)
_SOURCE_BYTES = 4 << 20
_MOST_PLACES = 2


def add_starters(pid: int, threads: tuple[ThreadLook, ...]) -> tuple[ThreadLook, ...]:
    """The threads, those that only such a function starts with the lines of the user's files that call it.

    The files are those that the process's threads are in; a function that is called elsewhere is not found.
    """
    wanted = {one.tid: name for one in threads if (name := _starter(one))}
    if not wanted:
        return threads
    files = {frame.file for one in threads for frame in one.frames if not is_library(frame.file)}
    return tuple(
        replace(one, started_by=_describe(pid, sorted(files), wanted[one.tid])) if one.tid in wanted else one
        for one in threads
    )


def _starter(thread: ThreadLook) -> str:
    files = [frame.file for frame in thread.frames]
    if not all(is_library(file) for file in files):
        return ""
    return next((name for mark, name in _STARTERS for file in files if file.endswith(mark)), "")


def _describe(pid: int, files: Iterable[str], name: str) -> str:
    """`async_save at job.py:14 in Keeper.save`; the function alone where no line is found."""
    places = [place for file in files for place in _calls_in(pid, file, name)][:_MOST_PLACES]
    return f"{name} at {' or '.join(places)}" if places else name


def _calls_in(pid: int, file: str, name: str) -> list[str]:
    text = ""
    with suppress(OSError):
        path = file if file.startswith("/") else os.path.join(os.readlink(f"/proc/{pid}/cwd"), file)
        with open(f"/proc/{pid}/root{path}", errors="replace") as source:
            text = source.read(_SOURCE_BYTES)
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        shown = escape_controls(os.path.basename(file))
        return [f"{shown}:{line}{inside}" for line, inside in _calls(ast.parse(text), name, "")]
    return []


def _calls(node: ast.AST, name: str, inside: str) -> Iterator[tuple[int, str]]:
    """The line of each call of that name, and ` in Keeper.save` where it stands in a function."""
    for child in ast.iter_child_nodes(node):
        around = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            around = f"{inside}.{child.name}" if inside else child.name
        elif isinstance(child, ast.Call):
            called = child.func
            if name in (getattr(called, "attr", ""), getattr(called, "id", "")):
                yield child.lineno, f" in {inside}" if inside else ""
        yield from _calls(child, name, around)
