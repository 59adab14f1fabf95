"""README.md and docs/: every page is found, and every command and figure shown is one that exists."""

import json
import re
from pathlib import Path

from tests.walking import walk
from tools.terminal_picture.__main__ import LINES
from tools.write_readme import PARTS, part_of, without_times

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "decisions" not in path.parts)
SHOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md", *PAGES]
TREE = {
    command: {name for option in options for name in option["names"]}
    for command, options in json.loads((Path(__file__).parent / "command_tree.json").read_text()).items()
}
CODE = re.compile(r"`([^`\n]*\bgpudiag [^`\n]+)`|^(?: {4}|\$ )(.*\bgpudiag .+)$", re.MULTILINE)
# What ends a command in a shell's line, or in a sentence of code.
END = re.compile(r"\s(?:--|\||\|\||&&|#|>|2>&1)(?:\s|$)|[;)]")


def test_readme_is_short_and_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 125
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text)}
    assert [target for target in linked if "://" not in target and not (ROOT / target).exists()] == []
    home = DOCS / "index.md"  # of the site, as README.md is of the repository
    assert [str(page) for page in PAGES if page != home and str(page.relative_to(ROOT)) not in linked] == []
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", home.read_text())}
    assert [str(page) for page in PAGES if page != home and str(page.relative_to(DOCS)) not in linked] == []


def test_readme_has_what_programs_print_and_what_was_measured() -> None:
    """The bare command on a sick machine, the table of confirmed GPUs, and the costs, each as it is in its
    own place.
    """
    text = (ROOT / "README.md").read_text()
    for name, make in PARTS.items():
        assert without_times(part_of(text, name)) == without_times(make(ROOT)), "run: make pages PAGES=readme"
    costs = text.partition("**What it costs.**")[2].partition("**")[0]
    figures = re.findall(r"(?<![\w.])\d[\d.,]*\d", "".join(re.findall(r"^\| `.*$", costs, re.MULTILINE)))
    measured = (DOCS / "measurements.md").read_text()
    assert len(figures) > 8
    assert [
        figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", measured)
    ] == []


def test_the_picture_of_a_hang_has_twelve_lines() -> None:
    picture = (DOCS / "images" / "hang.svg").read_text()
    assert len(set(re.findall(r'clip-path="url\(#hang-line-(\d+)\)"', picture))) <= LINES == 12


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Every command of gpudiag that a page shows, with its options."""
    found = []
    for code in (inline or block for inline, block in CODE.findall(text)):
        for call in re.split(r"\bgpudiag(?= )", code)[1:]:
            words = END.split(f" {call} ")[0].split()
            if words and words[0] in TREE:
                options = [
                    word.partition("=")[0].strip("`,.:") for word in words[1:] if word.startswith("--")
                ]
                found.append((words[0], options))
    return found


@walk(SHOWN, name=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_shown_has_the_options_shown(page: Path) -> None:
    unknown = [
        f"gpudiag {command} {option}"
        for command, options in commands_of(page.read_text())
        for option in options
        if option not in TREE[command]
    ]
    assert unknown == []


def test_every_command_stands_in_the_table_of_commands() -> None:
    named = set(re.findall(r"^\| `gpudiag (\S+?)(?: .*)?`", (DOCS / "commands.md").read_text(), re.MULTILINE))
    assert {command for command in TREE if command and command != "gpudiag"} <= named


LIMIT = re.compile(r"`(--[a-z-]+)`,? \(?(\d+(?:\.\d+)?) s\b")
DEFAULTS: dict[str, set[float]] = {}
for option in (
    one
    for options in json.loads((Path(__file__).parent / "command_tree.json").read_text()).values()
    for one in options
):
    for name in option["names"]:
        if isinstance(option["default"], int | float) and not isinstance(option["default"], bool):
            DEFAULTS.setdefault(name, set()).add(float(option["default"]))


def test_a_limit_in_seconds_is_the_default_of_its_option() -> None:
    """Of the options of gpudiag: docs/gpu.md is about a program of its own."""
    told = [
        (page.name, name, float(seconds))
        for page in PAGES
        if page.name != "gpu.md"
        for name, seconds in LIMIT.findall(page.read_text())
    ]
    assert told
    assert [limit for limit in told if limit[2] not in DEFAULTS.get(limit[1], ())] == []


def test_commands_are_found_in_the_pages() -> None:
    assert commands_of("`gpudiag list --free 2`\n    gpudiag simulate x -- gpudiag list --wide | head\n") == [
        ("list", ["--free"]),
        ("simulate", []),
        ("list", ["--wide"]),
    ]
    assert sum(len(commands_of(page.read_text())) for page in SHOWN) > 200
