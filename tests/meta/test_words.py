"""No text for a user has a word that the voice guide bans (CONTRIBUTING.md, tests/meta/banned_words.toml).

Texts are: every string of the product, f-strings with `{}` for what they insert; the docstrings that click
shows as help; the values of its tables; the page's sources; README.md and docs/.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpudiag.toml import tomllib

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "banned_words.toml"
# What other programs print, which is simulated or recognised, and not ours to write.
FOREIGN = (
    "gpudiag/simulate/nvidia_smi/",
    "gpudiag/simulate/host/",
    "gpudiag/simulate/faults/gpu.py",
    "gpudiag/lint/rules/examples/",
)
# Keys of tables whose values are other programs' words, addresses or code.
FOREIGN_KEYS = {"pattern", "patterns", "unless", "regex", "source", "url", "text", "match", "example"}
# Decisions are dated notes, which stay as they were written.
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts)
GUIDE = re.compile(r"<!-- the voice guide begins -->.*?<!-- the voice guide ends -->", re.DOTALL)


class Text(NamedTuple):
    """A text and where it stands."""

    place: str
    text: str


class Word(NamedTuple):
    """A word that is banned."""

    find: "re.Pattern[str]"
    write: str
    spared: tuple[str, ...]

    def is_in(self, text: str) -> str | None:
        """What of the text is banned; None where nothing is."""
        for spared in self.spared:
            text = text.replace(spared, "")
        found = self.find.search(text)
        return found[0] if found else None


def read_words() -> list[Word]:
    """The table of words."""
    return [
        Word(re.compile(word["find"], re.IGNORECASE), word["write"], tuple(word.get("except", ())))
        for word in tomllib.loads(TABLE.read_text())["word"]
    ]


def strings_of_module(source: str) -> Iterator[tuple[int, str]]:
    """Every string of a module with its line; of docstrings only those that click shows as help."""
    tree = ast.parse(source)
    parts, hidden = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {
                id(part) for part in ast.walk(node) if part is not node and isinstance(part, ast.Constant)
            }
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            if isinstance(first, ast.Expr) and not any("command" in one for one in decorators):
                hidden.add(id(first.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | hidden:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )


def values_of_table(table: Any, key: str = "") -> Iterator[str]:
    """Every string of a table, but for other programs' words."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from values_of_table(value, name)
    elif isinstance(table, list):
        for value in table:
            yield from values_of_table(value, key)
    elif isinstance(table, str) and key not in FOREIGN_KEYS:
        yield table


@cache
def all_texts() -> tuple[Text, ...]:
    """Every text for a user, read once."""
    return tuple(read_texts())


def read_texts() -> Iterator[Text]:
    """Every text for a user."""
    for folder in ("gpudiag", "api/gpudiag_api"):
        for path in sorted((ROOT / folder).rglob("*")):
            place = str(path.relative_to(ROOT))
            if place.startswith(FOREIGN):
                continue
            if path.suffix == ".py":
                for line, text in strings_of_module(path.read_text()):
                    yield Text(f"{place}:{line}", " ".join(text.split()))
            elif path.suffix == ".toml":
                for text in values_of_table(tomllib.loads(path.read_text())):
                    yield Text(place, " ".join(text.split()))
    for path in sorted((ROOT / "api/dashboard/src").rglob("*.ts*")):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            if not text.lstrip().startswith(("*", "/*")):
                yield Text(f"{path.relative_to(ROOT)}:{line}", re.sub(r"(^|\s)//.*", "", text))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy/README.md", *PAGES):
        for paragraph in GUIDE.sub("", path.read_text()).split("\n\n"):
            yield Text(str(path.relative_to(ROOT)), " ".join(paragraph.split()))


def test_no_text_has_a_banned_word() -> None:
    words = read_words()
    any_of_them = re.compile("|".join(word.find.pattern for word in words), re.IGNORECASE)
    found = [
        f"{place}: {hit!r} in {text[:160]!r}; write: {word.write}"
        for place, text in all_texts()
        if " " in text and any_of_them.search(text)
        for word in words
        if (hit := word.is_in(text))
    ]
    assert not found, f"{len(found)} texts:\n" + "\n".join(found)


def test_strings_are_found_wherever_they_stand() -> None:
    source = '''
"""A module's docstring: meanwhile."""
@click.command()
def command():
    """Help."""
    raise Error(f"{name} is "
        f"told {a} meanwhile" + 'x')
@property
def inner():
    """Not shown."""
'''
    assert [text for _, text in strings_of_module(source)] == ["Help.", "{} is told {} meanwhile", "x"]
    assert list(values_of_table({"a": [{"cause": "x", "source": "y"}]})) == ["x"]


def test_every_word_is_found_and_has_a_better_one() -> None:
    for word in read_words():
        assert word.write
    words = {word.find.pattern: word for word in read_words()}
    assert words[r"\bany more\b"].is_in("It does not move any\nmore.".replace("\n", " ")) == "any more"
    assert words[r"\bmeanwhile\b"].is_in("Moved meanwhile: x") == "meanwhile"
    assert len(all_texts()) > 5000
