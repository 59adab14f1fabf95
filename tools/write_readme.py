"""Writes parts of README.md: what the bare command prints, and the GPUs that confirmed gpudiag.

Each stands between two comments with its name. The GPUs are those of the table in docs/gpu-paths.md, to which
`tools/accept_confirmation` adds. A test compares both parts.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.write_samples import run

ROOT = Path(__file__).parents[1]
TABLE_PAGE = "docs/gpu-paths.md"
_HEADING = "## What real GPUs have confirmed\n"
SICK = "gpudiag simulate h100x8+hot:3+busy:0 -- gpudiag"  # a machine on which something is wrong


def sick_lines(root: Path) -> str:
    """What the bare command prints on a machine with a fault, as a block.

    The next commands depend on what is installed.
    """
    text = run(SICK).partition("\nNext: ")[0]
    return f"```\n$ gpudiag\n{text}\n...\n```\n"


def without_times(part: str) -> str:
    """The part without the seconds that a run took: all else is the same each time."""
    return re.sub(r"\(in \d+\.\d s\)", "(in)", part)


def confirmed_rows(page: str) -> list[str]:
    """The rows of the table of confirmed machines, as the page has them.

    Raises:
        ValueError: the page has no such table.
    """
    table = page.partition(_HEADING)[2].lstrip("\n").partition("\n\n")[0].splitlines()
    if len(table) < 3 or not table[0].startswith("| date | GPU |"):
        raise ValueError(f"{TABLE_PAGE} has no table of confirmed machines behind {_HEADING.strip()!r}")
    return table[2:]


def confirmed_table(root: Path) -> str:
    """The table of confirmed machines with its first columns, the newest first."""
    rows = []
    for row in confirmed_rows((root / TABLE_PAGE).read_text()):
        day, gpu, driver, torch, nccl = (cell.strip() for cell in row.split("|")[1:6])
        rows.append((day, f"| {gpu} | {driver} | {torch} | {nccl} | {day} |\n"))
    rows.sort(key=lambda one: one[0], reverse=True)
    head = "| confirmed on | driver | torch | NCCL | date |\n| --- | --- | --- | --- | --- |\n"
    return head + "".join(row for _, row in rows)


PARTS: dict[str, Callable[[Path], str]] = {"sick": sick_lines, "confirmed": confirmed_table}


def part_of(readme: str, name: str) -> str:
    """The part of that name, between its comments. Raises ValueError: the comments are not there."""
    found = _place(name).search(readme)
    if found is None:
        raise ValueError(f"README.md has no part between <!-- {name} --> and <!-- /{name} -->")
    return found[2]


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->\n)", re.DOTALL)


def write_readme(root: Path = ROOT, names: Iterable[str] = tuple(PARTS)) -> None:
    """Write these parts again."""
    path = root / "README.md"
    text = path.read_text()
    for name in names:
        part_of(text, name)
        made = PARTS[name](root)
        text = _place(name).sub(
            lambda found, made=made: f"{found[1]}{made}{found[3]}",  # type: ignore[misc]
            text,
        )
    path.write_text(text)


def main() -> None:
    """Write README.md."""
    write_readme()


if __name__ == "__main__":
    main()
