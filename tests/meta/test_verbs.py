"""No docstring, comment, name, key or schema has a verb that programs do not do (banned_words.toml,
`[[verb]]`).

test_words.py reads what users read; here is what developers and other programs read too.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gpudiag.toml import tomllib
from tests.meta.test_words import GUIDE, ROOT, TABLE, Text, Word, values_of_table

_FOLDERS = ("gpudiag", "api/gpudiag_api", "api/dashboard/src", "benchmarks", "tools", "docs", "deploy")
_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")
# Names that are not ours: methods of files, and Python's modules.
_FOREIGN_NAMES = frozenset(("tell",))
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|_")


@cache
def verbs() -> tuple[Word, ...]:
    """The verbs of the table."""
    return tuple(
        Word(re.compile(word["find"], re.IGNORECASE), word["write"], tuple(word.get("except", ())))
        for word in tomllib.loads(TABLE.read_text())["verb"]
    )


def words_of(name: str) -> str:
    """A name as words: `tell_end` and `TellEnd` have `tell`."""
    return " ".join(_CAMEL.split(name))


def texts_of_module(source: str) -> Iterator[tuple[int, str]]:
    """Names, strings, docstrings and comments of a module, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, words_of(node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, words_of(node.name)
        elif isinstance(node, ast.arg):
            yield node.lineno, words_of(node.arg)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.value.lineno, words_of(node.arg)
        elif isinstance(node, ast.Name):
            yield node.lineno, words_of(node.id)
        elif isinstance(node, ast.Attribute) and node.attr not in _FOREIGN_NAMES:
            yield node.lineno, words_of(node.attr)


def texts_of_table(source: str) -> Iterator[tuple[int, str]]:
    """Keys, our own values and comments of a TOML table."""
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            yield number, line
    for text in (*values_of_table(tomllib.loads(source)), *_keys_of(tomllib.loads(source))):
        yield 0, text


def texts_of_schema(source: str) -> Iterator[tuple[int, str]]:
    """Keys and descriptions of a JSON Schema."""
    schema = json.loads(source)
    yield from ((0, text) for text in _keys_of(schema))
    yield from ((0, text) for text in values_of_table(schema) if " " in text)


def _keys_of(table: Any) -> Iterator[str]:
    if isinstance(table, dict):
        for name, value in table.items():
            yield words_of(name)
            yield from _keys_of(value)
    elif isinstance(table, list):
        for value in table:
            yield from _keys_of(value)


def texts_of_page(source: str) -> Iterator[tuple[int, str]]:
    """Each line of a page, a script or a configuration.

    Without the voice guide, which quotes what it bans.
    """
    blank = GUIDE.sub(lambda guide: "\n" * guide[0].count("\n"), source)
    yield from enumerate(blank.splitlines(), start=1)


def texts_of_script(source: str) -> Iterator[tuple[int, str]]:
    """Each line of the dashboard's sources, with its names as words."""
    yield from enumerate(map(words_of, source.splitlines()), start=1)


_READERS = {
    ".py": texts_of_module,
    ".toml": texts_of_table,
    ".json": texts_of_schema,
    ".ts": texts_of_script,
    ".tsx": texts_of_script,
    ".css": texts_of_script,
}
_PLAIN = (".md", ".sh", ".yml", ".yaml", "")


def find_verbs(path: Path) -> Iterator[str]:
    """Each banned verb in a file, with its place and what to write."""
    source = path.read_text()
    as_words = words_of(source)
    if not any(verb.find.search(as_words) for verb in verbs()):
        return  # most files: one search is much quicker than a parse
    read = _READERS.get(path.suffix, texts_of_page)
    for line, text in read(source):
        for verb in verbs():
            hit = verb.is_in(text)
            if hit:
                place = Text(f"{path.relative_to(ROOT)}:{line}", " ".join(text.split()))
                yield f"{place.place}: {hit!r} in {place.text[:120]!r}; write: {verb.write}"


@cache
def files() -> tuple[Path, ...]:
    """Every file that is read, in order."""
    found = [ROOT / page for page in _PAGES]
    for folder in _FOLDERS:
        found += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.is_file() and path.suffix in (*_READERS, *_PLAIN) and _is_ours(path.relative_to(ROOT))
        ]
    return tuple(found)


def _is_ours(path: Path) -> bool:
    """Whether a file is written by us and now: decisions stay as they were; what was measured is a record.

    Of JSON, the schemas.
    """
    if path.suffix == ".json":
        return path.parts[:2] == ("docs", "schemas")
    return "decisions" not in path.parts and not any(part in ("__pycache__", "static") for part in path.parts)


def test_no_file_has_a_verb_that_programs_do_not_do() -> None:
    found = [line for path in files() for line in find_verbs(path)]
    assert not found, f"{len(found)} places:\n" + "\n".join(found)


def test_verbs_are_found_in_names_comments_docstrings_and_keys() -> None:
    source = '''
class Teller:
    """It tells."""
    said = {"mend": 1}  # what it hears
    def say_late(self, unheard):
        return file.tell()
'''
    texts = [text for _, text in texts_of_module(source)]
    assert set(_hits(texts)) == {"Teller", "said", "tells", "mend", "say", "unheard", "hears"}
    table = '# It says so.\nmend = "x"\n[[a]]\npattern = "it told"\n'
    assert _hits(text for _, text in texts_of_table(table)) == ["says", "mend"]


def _hits(texts: Iterable[str]) -> list[str]:
    hits = (verb.is_in(text) for text in texts for verb in verbs())
    return [hit for hit in hits if hit]
