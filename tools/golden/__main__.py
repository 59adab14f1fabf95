"""Record all answers of gpudiag in a folder, or compare those of now with them.

    python -m tools.golden record DIR [--only SECTION]    before the first change
    python -m tools.golden compare DIR [--only SECTION]   after each: prints what differs, as a diff

`compare` exits with 1 where something differs.

Sections: machines, cases, metrics, logs, scripts, jobs, commands. Times, process ids and what the machine
itself measures are blanked; what the probes saw of the simulated machines is kept in DIR/looks, so that the
cases judge the same snapshots both times.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.golden.answers import SECTIONS, Answers

_MOST_LINES = 40


def main() -> int:
    """0 where all answers are as they were, or were recorded; 1 where some differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=sorted(SECTIONS), action="append")
    options = parser.parse_args()
    if options.verb == "compare" and not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder: record the answers there first")
    chosen = options.only or sorted(SECTIONS)
    differing = 0
    for section in chosen:
        answers = SECTIONS[section](options.folder / "looks")
        if options.verb == "record":
            number = _record(answers, options.folder / section)
            print(f"{section}: {number} answers", flush=True)
            continue
        number = 0
        for text in _differences(answers, options.folder / section):
            number += 1
            print(text, flush=True)
        print(f"{section}: {number} answers differ", flush=True)
        differing += number
    return 1 if differing else 0


def _record(answers: Answers, folder: Path) -> int:
    number = 0
    for name, text in answers:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        number += 1
    return number


def _differences(answers: Answers, folder: Path) -> Iterator[str]:
    """One text for each answer that differs, is new, or is no longer given."""
    seen = set()
    for name, text in answers:
        path = folder / name
        seen.add(path)
        before = path.read_text() if path.is_file() else ""
        if before == text:
            continue
        lines = list(
            difflib.unified_diff(
                before.splitlines(), text.splitlines(), f"before/{name}", f"now/{name}", lineterm="", n=1
            )
        )
        more = [f"... {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        yield "\n".join(lines[:_MOST_LINES] + more)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in seen:
            yield f"no longer answered: {path.relative_to(folder)}"


if __name__ == "__main__":
    sys.exit(main())
