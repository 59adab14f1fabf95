"""The rules of the house that no linter knows: names of modules, sizes of files, what a text may name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import finding_kinds
from tools import write_lint_page
from tools.write_findings_page import PAGE, page_text

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("gpudiag", "api", "tools", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".toml", ".c", ".sh") and "__pycache__" not in path.parts
)
TEXTS = [
    *SOURCES,
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "pyproject.toml",
]
MODULES = [path for path in SOURCES if path.suffix == ".py"]

# Words that say nothing about what a module holds.
BANNED_NAMES = {"utils", "util", "helpers", "helper", "misc", "common", "stuff", "tools"}
BANNED_VERBS = re.compile(r"^\s*(?:async )?def _?(?:get|do|handle)_", re.MULTILINE)
# Paths of one particular machine, and hosts of package registries: neither belongs into a product.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:work|root|home/(?!(?:ann|bob)\b)[a-z]+)/")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted|download\.pytorch\.org|registry\.npmjs|crates\.io", re.IGNORECASE
)
# click and uvicorn call methods of these names.
FOREIGN_NAMES = {"get_command", "handle_exit", "do_POST", "_handle_exception"}
MAX_LINES = {"product": 600, "tests": 600}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 50
    assert ROOT / "gpudiag/cli/main.py" in MODULES


def test_no_module_is_called_by_a_word_that_says_nothing() -> None:
    assert names([path for path in MODULES if path.stem in BANNED_NAMES]) == []


def test_no_file_is_too_long_to_read_in_one_go() -> None:
    kinds = [(path, "tests" if "tests" in path.parts else "product") for path in MODULES]
    lines = {path: path.read_text().count("\n") for path, _ in kinds}
    long = [
        f"{path.relative_to(ROOT)} has {lines[path]} lines, at most {MAX_LINES[kind]}: "
        "move one of its subjects"
        for path, kind in kinds
        if lines[path] > MAX_LINES[kind]
    ]
    assert long == []


def test_only_the_file_of_a_test_marks_it_as_one_of_ranks() -> None:
    """`pytest -m ranks` looks for the mark in test files before it imports them (tests/conftest.py)."""
    shared = [path for path in MODULES if "tests" in path.parts and not path.name.startswith("test_")]
    assert names([path for path in shared if "mark.ranks" in path.read_text()]) == ["tests/conftest.py"]


def test_functions_start_with_a_verb_that_says_what_they_do() -> None:
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in MODULES
        if "tests" not in path.parts
        for line in path.read_text().splitlines()
        if BANNED_VERBS.match(line)
    ]
    assert [line for line in lines if not any(f"def {name}(" in line for name in FOREIGN_NAMES)] == []


def test_no_text_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in TEXTS
        if path != Path(__file__)  # it names what it looks for
        for text in (path.read_text(),)
        for word in (*MACHINE_PATH.findall(text), *REGISTRY_HOST.findall(text))
    ]
    assert found == []


def guards_of_json(source: str) -> Iterator[tuple[int, str]]:
    """Where JSON is read and a mistake in it caught: the line, and what is caught."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try):
            caught = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type)
        elif isinstance(node, ast.With):
            caught = ast.unparse(node.items[0])
        else:
            continue
        if "ValueError" in caught and re.search(r"json\.loads?\(", "".join(map(ast.unparse, node.body))):
            yield node.lineno, caught


def test_whoever_expects_bad_json_expects_json_that_is_nested_too_deep() -> None:
    """100,000 brackets are a RecursionError, which is no ValueError."""
    assert list(guards_of_json("try:\n x = json.loads(y)\nexcept ValueError:\n pass")) == [(1, "ValueError")]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        if "json.load" in path.read_text() and path.parts[len(ROOT.parts)] in ("gpudiag", "api")
        for line, caught in guards_of_json(path.read_text())
        if "RecursionError" not in caught
    ]
    assert found == []


def test_every_code_is_dotted_and_spelled_out() -> None:
    for kind in finding_kinds():
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", kind.code), kind.code
    for check in BUILTIN:
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", check.name), check.name


def test_every_kind_of_finding_says_what_it_means_and_what_to_do() -> None:
    for kind in finding_kinds():
        assert kind.meaning.endswith("."), kind.code
        assert kind.remedy.endswith("."), kind.code


def test_every_code_is_documented() -> None:
    assert PAGE.read_text() == page_text(), "run: make pages"
    assert write_lint_page.PAGE.read_text() == write_lint_page.page_text(), "run: make pages"
