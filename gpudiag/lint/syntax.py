"""A script as a syntax tree; what does not parse is reported, and only its own cell or fence is left out."""

import ast
import re
import warnings
from dataclasses import dataclass, replace

from gpudiag.lint.newer_python import older_syntax
from gpudiag.lint.reader import Line, Script

_PYTHON_2 = re.compile(
    r"^\s*(?:print\s+[^(=\s]|exec\s+[\"']|raise\s+\w+\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Broken:
    """A part of a script that does not parse: the place of its line in the script, and the error."""

    place: int
    message: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The tree of what parses, the lines that it was made from, and what does not parse."""

    tree: ast.Module
    lines: tuple[Line, ...]
    broken: tuple[Broken, ...] = ()


def parse_script(script: Script) -> Parsed:
    """The tree of a script; parts that do not parse are left out of it and listed in `broken`."""
    whole = _parse([line.text for line in script.lines])
    if isinstance(whole, ast.Module):
        return Parsed(whole, script.lines)
    if len(script.parts) < 2 and script.kind != "page":
        return Parsed(ast.Module([], []), script.lines, (whole,))
    lines, broken = list(script.lines), []
    ends = (*script.parts[1:], len(lines))
    for begin, end in zip(script.parts, ends, strict=True):
        part = lines[begin:end]
        result = _parse([line.text for line in part])
        if isinstance(result, Broken):
            part = _without_indent(part)
            again = _parse([line.text for line in part])
            if isinstance(again, Broken):
                broken.append(Broken(begin + result.place, result.message))
                part = [replace(line, text="") for line in part]
            lines[begin:end] = part
    joined = _parse([line.text for line in lines])
    if isinstance(
        joined, Broken
    ):  # parts that parse one by one and not together: a form feed, a lone `await`
        return Parsed(ast.Module([], []), tuple(lines), (*broken, joined))
    return Parsed(joined, tuple(lines), tuple(broken))


def _parse(lines: list[str]) -> ast.Module | Broken:
    text = "\n".join(lines) + "\n"
    first = _compiled(text)
    if isinstance(first, ast.Module):
        return first
    second = _compiled(older_syntax(text))
    if isinstance(second, ast.Module):
        return second
    if _PYTHON_2.search(text):
        return Broken(first.place, "it is written for Python 2, which no current PyTorch runs")
    return first


def _compiled(text: str) -> ast.Module | Broken:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are another linter's business
            tree = compile(text, "<script>", "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        return Broken(max((error.lineno or 1) - 1, 0), f"it is not valid Python: {error.msg}")
    except (RecursionError, MemoryError):
        return Broken(0, "its expressions are nested too deeply to be read")
    except ValueError as error:
        return Broken(0, f"it is not valid Python: {error}")
    if not isinstance(tree, ast.Module):
        raise TypeError("compile() gave no module")
    return tree


def _without_indent(lines: list[Line]) -> list[Line]:
    """The lines moved left by what all of them are indented, as a fence inside a list is."""
    margins = [len(line.text) - len(line.text.lstrip()) for line in lines if line.text.strip()]
    margin = min(margins, default=0)
    return [
        replace(line, text=line.text[margin:], shift=line.shift + min(margin, len(line.text)))
        for line in lines
    ]
