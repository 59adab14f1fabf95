"""Writes every page and schema that a program writes: `make pages`.

Those whose program has a word of the arguments in its name, where there are any: `python -m tools.write_pages
schemas boards`. The rows of kinds (`python -m tools.write_kinds`) take an hour, and are written apart.
"""

import sys
from collections.abc import Callable

from tools import (
    write_boards,
    write_chart,
    write_detection,
    write_findings_page,
    write_lint_page,
    write_model,
    write_prometheus_rule,
    write_readings,
    write_readme,
    write_schemas,
    write_vocabulary,
)

PROGRAMS: dict[str, Callable[[], None]] = {
    "write_schemas": write_schemas.main,
    "write_vocabulary": write_vocabulary.main,
    "write_readings": write_readings.main,
    "write_model": write_model.main,
    "write_findings_page": write_findings_page.main,
    "write_lint_page": write_lint_page.main,
    "write_prometheus_rule": write_prometheus_rule.main,
    "write_boards": write_boards.main,
    "write_chart": write_chart.main,
    "write_readme": write_readme.main,
    "write_detection": write_detection.main,  # runs commands, and ends with the status of what they found
}


def main(*words: str) -> None:
    """Write the pages, all or those that a word is of."""
    if unknown := [word for word in words if not any(word in name for name in PROGRAMS)]:
        sys.exit(f"no program has {unknown[0]!r} in its name: {', '.join(PROGRAMS)}")
    for name, write in PROGRAMS.items():
        if not words or any(word in name for word in words):
            write()


if __name__ == "__main__":
    main(*sys.argv[1:])
