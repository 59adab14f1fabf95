"""The scripts of the linter's corpus, with what is to be found in each line: `# expect: set_epoch_missing,
..`.
"""

import re
from collections import Counter
from pathlib import Path

CORPUS = Path(__file__).parent / "lint"
_EXPECTED = re.compile(r"expect: (\w+(?:, \w+)*)")

Places = Counter[tuple[int, str]]  # of a line and a code


def corpus_files() -> list[Path]:
    """All scripts, wrong and right."""
    return sorted(path for folder in ("wrong", "right") for path in (CORPUS / folder).iterdir())


def expected_places(path: Path) -> Places:
    """The lines of a file, each with the code that is planted there."""
    found: Places = Counter()
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        for words in _EXPECTED.findall(line):
            found.update((number, f"lint.{word}") for word in words.split(", "))
    return found
