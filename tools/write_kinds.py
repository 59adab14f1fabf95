"""Writes the section on kinds of faults of docs/detection.md: each kind, tried on several machines.

Each trial is a run of `gpudiag preflight --level instant` on a simulated machine (tests/scenarios/kinds).
`python -m tools.write_kinds [WORD]` tries those kinds whose name has that word, and writes the page only
without it.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.scenarios.kinds import all_kinds
from tests.scenarios.kinds.trial import Kind, TrialRow
from tools.write_detection import PAGE

HEADING = "## Kinds of faults"
# What others write behind this section: tools/walk_nvml.py, benchmarks/fault_matrix.py.
_NEXT_HEADINGS = ("## The walk of NVML's functions", "## Faults on ranks")
_HEAD = f"""{HEADING}

A kind of fault is tried on several kinds of machine, by `python -m tools.write_kinds`. Found: the code, on
the right GPU, and nothing else. A near miss is a machine that looks alike and is well: nothing may be found
there.

| kind | machines | planted | found | missed or wrong | near misses | false alarms |
| --- | --- | --- | --- | --- | --- | --- |
"""


def try_kind(kind: Kind) -> list[TrialRow]:
    """Every trial of that kind, run two at a time on each processor."""
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda trial: trial.run(), kind.trials))


def line_of(kind: Kind, rows: list[TrialRow]) -> str:
    """The kind's row of the table."""
    planted = [row for row in rows if not row.trial.near_miss]
    near = [row for row in rows if row.trial.near_miss]
    found, quiet = sum(row.right for row in planted), sum(row.right for row in near)
    machines = ", ".join(f"`{name}`" for name in dict.fromkeys(trial.machine for trial in kind.trials))
    cells = (kind.name, machines, len(planted), found, len(planted) - found, len(near), len(near) - quiet)
    return f"| {' | '.join(map(str, cells))} |\n"


def main(word: str = "") -> None:
    """Try the kinds, print which trials went wrong, write the page; status 1 if any did."""
    kinds = [kind for kind in all_kinds() if word in kind.name]
    lines, wrong = [], []
    for kind in kinds:
        rows = try_kind(kind)
        lines.append(line_of(kind, rows))
        wrong += [row for row in rows if not row.right]
        print(lines[-1], end="", flush=True)
    for row in wrong:
        print(f"{row.row.scenario}: {row.trial.words}: should find {row.trial.finds}, found {row.row.found}")
    if not word:
        text = PAGE.read_text()
        following = next((heading for heading in _NEXT_HEADINGS if heading in text), _NEXT_HEADINGS[-1])
        before, _, after = text.partition(following)
        before = before.partition(HEADING)[0]
        PAGE.write_text(f"{before}{_HEAD}{''.join(lines)}\n{following}{after}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:2])
