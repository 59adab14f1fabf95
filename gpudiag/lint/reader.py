"""The Python in a file (a script, a notebook's cells, a page's fences), each line with its number."""

import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

from gpudiag.lint.encodings import decode_source
from gpudiag.lint.notebook import NotebookCell, read_cells
from gpudiag.lint.page import Fence, read_fences

MAX_BYTES = 4_000_000  # of a script or a page; sources that people write are far smaller
MAX_NOTEBOOK_BYTES = 100_000_000  # a notebook carries its pictures

SUFFIXES = (".py", ".pyw", ".ipynb", ".md", ".markdown", ".qmd", ".rmd")
_NOTEBOOKS = (".ipynb",)
_PAGES = (".md", ".markdown", ".qmd", ".rmd")
SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".sub", ".pbs", ".lsf")
_SHELL_SCRIPT = re.compile(r"#!\s*(?:/\S*/)?(?:env\s+(?:-S\s+)?)?(?:ba|z|k|da)?sh\b")
# Files that a `*` of the shell includes and that hold no Python.
_OTHERS = tuple(
    """
    .yaml .yml .json .jsonl .toml .cfg .ini .lock .rst .html .csv .tsv .log .c .cc .cpp .cu
    .cuh .h .js .ts
    """.split()
)
_PYTHON_WORDS = frozenset({"python", "py", "python3", "py3", "ipython", "ipython3", "sage"})
_SHELL_WORDS = frozenset({"bash", "sh", "shell", "console", "zsh", "shell-session", "terminal", "cmd"})
_STARTS_A_PROGRAM = re.compile(
    r"^\s*(?:import\s+(?:[\w., ]+,\s*)?|from\s+)(?:torch|deepspeed|horovod|tensorflow|accelerate|lightning|"
    r"pytorch_lightning|ray|transformers|pynvml|py3nvml)\b",
    re.MULTILINE,
)
_DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
_IMPORT = re.compile(r"(?:import|from)\s+[\w.]+(?:\s+import\s+[\w, ]+)?(?:\s+as\s+\w+)?\s*$")
_CELL_OF_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3", "%%px")
_MAGIC = re.compile(r"^(?P<indent>\s*)(?:[%!?]|\w[\w.]*\?{1,2}\s*$)")
# Commands that IPython takes without their sign, unless Python can read the line.
_AUTOMAGIC = re.compile(
    r"^(?P<indent>\s*)(?:(?:pip3?|conda|mamba|micromamba|uv|cd|ls|ll|cat|cp|mv|mkdir|rmdir|rm|man|matplotlib|"
    r"load_ext|autoreload"
    r"|run|time|timeit|env|set_env|cls|clear)(?=\s+(?!(?:in|is|and|or|not|if|for)\b)(?:--?\w|[\w./~\"'$])))"
)
_ASSIGNED_MAGIC = re.compile(r"^(?P<before>\s*[\w.,\s()\[\]]+=\s*)[%!](?!=)")
_IGNORED_CELL = "%%"


class Unreadable(Exception):
    """Why a file is not read, in a few words that follow its name."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a program: its text, its number in the file, and where it begins there."""

    text: str
    number: int
    shift: int = 0  # characters that stand before it on the file's line


@dataclass(frozen=True, slots=True)
class Script:
    """One program of a file, in the order of its lines.

    `whole`: nothing else runs, so what is not there is missing. The fences of a page seldom are whole.
    `parts` are the places at which a cell or fence begins, so that one that does not parse costs only itself.
    """

    lines: tuple[Line, ...]
    kind: str  # script, notebook or page
    whole: bool = True
    parts: tuple[int, ...] = (0,)
    cells: tuple[int, ...] = ()  # of each part: the number of its cell, from 1
    editable: bool = True  # columns are those of the file


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was read: its scripts, its lines of shell, and its whole text."""

    path: str
    text: str
    encoding: str
    newline: str
    scripts: tuple[Script, ...]
    shell: tuple[Line, ...] = ()  # commands: magics of a notebook, fences of a page
    shell_runs: bool = False  # they are run (a notebook), and not only shown
    remark: str | None = None
    kind: str = "script"


def read_source(path: Path) -> SourceFile:
    """The scripts of a file. Raises Unreadable: it is no text, too large, or cannot be opened."""
    suffix = path.suffix.lower()
    limit = MAX_NOTEBOOK_BYTES if suffix in _NOTEBOOKS else MAX_BYTES
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be opened: {error.strerror or error}") from error
    if len(content) > limit:
        raise Unreadable(f"it is larger than {limit // 1_000_000} MB, too large for a script")
    return parse_source(content, str(path), suffix)


def parse_source(content: bytes, name: str, suffix: str = ".py") -> SourceFile:
    """The scripts in the bytes of a file, read by its suffix. Raises Unreadable: no text, or no Python."""
    text, encoding, remark = decode_source(content)
    if text is None:
        raise Unreadable(remark or "it is no text")
    newline = "\r\n" if "\r\n" in text else ("\r" if "\r" in text and "\n" not in text else "\n")
    if not text.strip():
        remark = None if Path(name).name == "__init__.py" else "it is empty"  # a package's is meant to be
        return SourceFile(name, text, encoding, newline, (), remark=remark)
    if suffix in _NOTEBOOKS:
        return _notebook(name, text, encoding, newline)
    if suffix in _PAGES:
        return _page(name, text, encoding, newline, remark)
    if suffix in _OTHERS:
        raise Unreadable("it is no Python script, notebook, page or shell script")
    lines = tuple(Line(line, number) for number, line in enumerate(split_lines(text), start=1))
    if suffix in SHELL_SUFFIXES or (suffix not in SUFFIXES and _SHELL_SCRIPT.match(text)):
        commands = tuple(
            line for line in lines if not line.text.lstrip().startswith("#") or "#SBATCH" in line.text
        )
        return SourceFile(name, text, encoding, newline, (), commands, True, remark, "shell")
    script = Script(lines, "script")
    return SourceFile(name, text, encoding, newline, (script,), remark=remark)


def split_lines(text: str) -> list[str]:
    """The lines as Python counts them: at line feeds and carriage returns, never at form feeds."""
    return re.split(r"\r\n|\n|\r", text)


def _notebook(name: str, text: str, encoding: str, newline: str) -> SourceFile:
    cells, remark = read_cells(text)
    if cells is None:
        raise Unreadable(remark or "it is no notebook")
    shell: list[Line] = []
    main: list[Line] = []
    parts: list[int] = []
    numbers: list[int] = []
    others: list[Script] = []
    for cell in cells:
        if cell.kind == "markdown":
            others += [
                _fence_script(fence, [Line(line.text, line.number) for line in cell.lines])
                for fence in read_fences([line.text for line in cell.lines])
                if _is_python(fence)
            ]
        elif cell.kind == "code":
            _add_cell(cell, main, parts, numbers, others, shell)
    scripts = (
        [Script(tuple(main), "notebook", parts=tuple(parts), cells=tuple(numbers), editable=False)]
        if main
        else []
    )
    return SourceFile(
        name, text, encoding, newline, (*scripts, *others), tuple(shell), True, remark, "notebook"
    )


def _add_cell(
    cell: NotebookCell,
    main: list[Line],
    parts: list[int],
    numbers: list[int],
    others: list[Script],
    shell: list[Line],
) -> None:
    """Add a code cell to the notebook's program, to other programs (%%writefile), or to the shell's lines."""
    lines = [Line(line.text, line.number) for line in cell.lines]
    first = next((line for line in lines if line.text.strip()), None)
    if first is None:
        return
    word = first.text.strip().split()[0]
    if word.startswith(_IGNORED_CELL):
        rest = lines[lines.index(first) + 1 :]
        if word in ("%%writefile", "%%file") and first.text.strip().endswith(".py"):
            others.append(Script(tuple(rest), "script", cells=(cell.number,), editable=False))
            return
        if word in ("%%bash", "%%sh", "%%script", "%%!", "%%system"):
            shell += rest
            return
        if word not in _CELL_OF_PYTHON:
            return
        lines = [Line("", first.number), *rest]
    parts.append(len(main))
    numbers.append(cell.number)
    main += _without_magics(lines, shell)


def _without_magics(lines: list[Line], shell: list[Line]) -> list[Line]:
    """The lines, with a statement of no effect in place of each command of IPython."""
    kept: list[Line] = []
    continued = False  # a command, by a backslash at its end
    for line in lines:
        assigned = _ASSIGNED_MAGIC.match(line.text)
        magic = _MAGIC.match(line.text) or _AUTOMAGIC.match(line.text)
        if continued:
            shell.append(Line(line.text.strip(), line.number))
            kept.append(Line("", line.number))
        elif not (assigned or magic) or _goes_on(kept):
            kept.append(line)
            continue
        elif assigned:
            kept.append(Line(assigned["before"] + "None", line.number))
        elif magic:
            shell.append(Line(line.text.strip().lstrip("!%"), line.number))
            kept.append(Line(f"{magic['indent']}pass", line.number))
        continued = line.text.rstrip().endswith("\\")
    return kept


def _goes_on(lines: list[Line]) -> bool:
    """Whether a statement is unfinished at the end of the lines, so that a `%` or `!=` continues it."""
    text = "".join(f"{line.text}\n" for line in lines)
    try:
        for _ in tokenize.generate_tokens(io.StringIO(text).readline):
            pass
    except tokenize.TokenError as error:
        return any(word in str(error) for word in ("multi-line", "triple-quoted"))
    except SyntaxError:
        return False
    return False


def _page(name: str, text: str, encoding: str, newline: str, remark: str | None) -> SourceFile:
    """The fences of a page: one that imports a framework begins a program, the following ones continue it."""
    lines = split_lines(text)
    numbered = [Line(line, number) for number, line in enumerate(lines, start=1)]
    programs: list[list[list[Line]]] = []
    shell: list[Line] = []
    for fence in read_fences(lines):
        inside = _fence_lines(fence, numbered)
        if fence.word in _SHELL_WORDS or (not fence.word and not _looks_like_python(inside)):
            shell += inside
            continue
        if not _is_python(fence) and fence.word:
            continue
        code = "\n".join(line.text for line in inside)
        again = programs and _defined(code) & _defined(
            "\n".join(line.text for f in programs[-1] for line in f)
        )
        if again:  # the same function in another version: it needs what the first one imported
            programs.append([[line for f in programs[-1] for line in f if _IMPORT.match(line.text)]])
        elif not programs or _STARTS_A_PROGRAM.search(code):
            programs.append([])
        programs[-1].append(inside)
    scripts = tuple(_joined(program) for program in programs)
    return SourceFile(name, text, encoding, newline, scripts, tuple(shell), False, remark, "page")


def _defined(text: str) -> set[str]:
    """The functions and classes that a text defines at its margin."""
    return set(_DEFINITION.findall(text))


def _joined(fences: list[list[Line]]) -> Script:
    lines: list[Line] = []
    parts: list[int] = []
    for fence in fences:
        parts.append(len(lines))
        lines += fence
    return Script(tuple(lines), "page", whole=False, parts=tuple(parts))


def _fence_script(fence: Fence, lines: list[Line]) -> Script:
    return Script(tuple(_fence_lines(fence, lines)), "page", whole=False, editable=False)


def _fence_lines(fence: Fence, lines: list[Line]) -> list[Line]:
    inside = []
    for place in range(fence.first, fence.end):
        text = lines[place].text
        shift = min(fence.indent, len(text) - len(text.lstrip(" \t>")))
        inside.append(Line(text[shift:], lines[place].number, shift))
    return inside


def _is_python(fence: Fence) -> bool:
    return fence.word in _PYTHON_WORDS


def _looks_like_python(lines: list[Line]) -> bool:
    return any(re.match(r"\s*(?:import \w|from [\w.]+ import |def \w+\()", line.text) for line in lines)
