"""Writes the section on NVML's functions of docs/detection.md: each, failing in every way, everywhere.

`python -m tools.walk_nvml` walks all of it and writes the page (`--parts=N`: every Nth cell);
`--slice=MACHINE` walks the part that CI does of that machine, and prints one JSON object. Takes no
interpreter per cell: see tests/scenarios/nvml_walk.py.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from gpudiag.simulate.loader import base_machines
from tests.scenarios.nvml_walk import CODES, HANG, LOST, walk_machine, walking
from tools.write_detection import PAGE

HEADING = "## The walk of NVML's functions"
_NEXT_HEADING = "## Faults on ranks"
MACHINES = sorted({*base_machines()} - {"none"})  # whose library is not there
# As many parts as there are machines: each function meets each code on one of them, and hangs on four.
SLICE_PARTS = {HANG: 5, "codes": 22, LOST: 44}
AT_ONCE = 16
_HEAD = f"""{HEADING}

`python -m tools.walk_nvml`: every NVML function that gpudiag calls on a machine (by the simulated library's
own counts) hangs, answers each return code of nvmlReturn_t, and every call of a GPU is the one from which
on it is lost. Right: a hang is `gpu.hung` on that GPU and nothing else, a loss `gpu.lost`, any other error
is reported for that GPU and the machine does not pass; where no GPU answers a function at all, no check
passes that reads it. CI walks a slice, another one on each
machine, of one machine in ten at each commit.

| machine | functions | hangs | return codes | lost half way | wrong |
| --- | --- | --- | --- | --- | --- |
"""


def walk(machine: str, part: int, parts: dict[str, int]) -> dict[str, Any]:
    """What came of the walk of one machine; `parts`: into how many slices each way is cut."""
    began = monotonic()
    with walking(machine, AT_ONCE) as walked:
        functions = len(walked.functions())
        found = {
            "hangs": walk_machine(walked, (HANG,), part=part, parts=parts[HANG]),
            "codes": walk_machine(walked, CODES, part=part, parts=parts["codes"]),
            "lost": walk_machine(walked, (LOST,), part=part, parts=parts[LOST]),
        }
        healthy = walked.healthy.verdict.value
    counts = {name: count for name, (count, _) in found.items()}
    wrong = [words for _, faults in found.values() for words in faults]
    return {
        "machine": machine,
        "healthy": healthy,
        "functions": functions,
        **counts,
        "wrong": wrong,
        "seconds": round(monotonic() - began, 1),
    }


def walk_all(parts: dict[str, int], machines: Sequence[str] = MACHINES) -> Iterator[dict[str, Any]]:
    """Those machines, each with another slice."""
    for machine in machines:
        yield walk(machine, MACHINES.index(machine), parts)


def main(*flags: str) -> None:
    """Walk one machine's slice and print it, or walk all of it, or one part in N, and write the page.

    Status 1 if any was wrong.
    """
    sliced = [flag.partition("=")[2] for flag in flags if flag.startswith("--slice=")]
    parts = next((int(flag.partition("=")[2]) for flag in flags if flag.startswith("--parts=")), 1)
    rows = []
    cut = SLICE_PARTS if sliced else {**dict.fromkeys(SLICE_PARTS, parts), HANG: 1}
    for row in walk_all(cut, sliced or MACHINES):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if not sliced:
        lines = [
            f"| `{row['machine']}` | {row['functions']} | {row['hangs']} | {row['codes']} | {row['lost']} |"
            f" {len(row['wrong'])} |\n"
            for row in rows
        ]
        before, _, after = PAGE.read_text().partition(_NEXT_HEADING)
        before = before.partition(HEADING)[0]
        part = (
            f"Of the codes and losses, here every {parts}th, shifted by one from machine to machine.\n\n"
            if parts > 1
            else ""
        )
        head = _HEAD.replace("| machine |", f"{part}| machine |", 1)
        PAGE.write_text(f"{before}{head}{''.join(lines)}\n{_NEXT_HEADING}{after}")
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
