"""What matrices that run for hours share: results in a file, and a table in a page of docs/.

    python -m benchmarks.MATRIX --results FILE [--times N] [--at-most N] [--jobs N] [--page docs/PAGE.md]

Each run is appended to FILE, a line of JSON, as it ends; started again, the matrix goes on where it was.
`--at-most 1` makes one run and stops; `--at-most 0` only prints. `--page` writes the table into that page
too.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAGE_WIDTH = 118


def matrix_parser(
    doc: str, *, times: int = 0, at_once: bool = False, page: bool = True
) -> argparse.ArgumentParser:
    """The parser of a matrix; `times` is the default of `--times`, `at_once` adds `--jobs`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="runs so far; new ones are appended")
    parser.add_argument("--at-most", type=int, help="runs to make before stopping")
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    if times:
        parser.add_argument("--times", type=int, default=times, help="how often each cell is run")
    if at_once:
        parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    return parser


def read_lines(results: Path) -> list[dict[str, Any]]:
    """The runs so far, one for each line; `codes` as a tuple."""
    lines = results.read_text().splitlines() if results.exists() else []
    rows = [json.loads(line) for line in lines]
    return [{**row, "codes": tuple(row["codes"])} if "codes" in row else row for row in rows]


def append_run(results: Path, run: "DataclassInstance") -> None:
    """Write one run behind the others."""
    with results.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def show(text: str, page: Path | None, begin: str, end: str) -> None:
    """Print the table, and put it between two marks of the page."""
    print(f"{text}\n")
    if page is not None:
        before, _, rest = page.read_text().partition(begin)
        page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


def show_section(text: str, page: Path | None, heading: str) -> None:
    """Print the section, and put it into the page, in the place of the one with that heading."""
    print(text)
    if page is None:
        return
    before, found, rest = page.read_text().partition(f"{heading}\n")
    _, following, after = rest.partition("\n## ")
    tail = f"\n{following.lstrip()}{after}" if found and following else "\n"
    page.write_text(f"{before.rstrip()}\n\n{heading}\n\n{text}\n{tail}".rstrip() + "\n")


def machine() -> str:
    """How many processors of which kind, and whether the machine is a virtual one."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    facts = {name.strip(): value.strip() for name, _, value in lines}
    virtual = "a virtual machine with " if "hypervisor" in facts.get("flags", "").split() else ""
    return f"{virtual}{os.cpu_count()} processors ({facts.get('model name', platform.machine())})"


def versions() -> str:
    """The machine, `x86_64, 2 processors, Linux 6.18,` and in a second line Python and torch."""
    release = ".".join(platform.release().split(".")[:2])
    return (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors, Linux {release},\n"
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def spread(loads: Iterable[float]) -> str:
    """The one-minute loads before the runs: `0.5 to 8.1, median 2.0`."""
    known = list(loads) or [0.0]
    return f"{min(known):.1f} to {max(known):.1f}, median {statistics.median(known):.1f}"


def train(*flags: str, limit_seconds: float, variables: Mapping[str, str] | None = None) -> Any:
    """The report of `gpudiag train` on gloo ranks; ends this program where there is none."""
    command = [sys.executable, "-m", "gpudiag", "train", "--backend", "gloo", "--json", *flags]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=limit_seconds, check=False
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        sys.exit(f"gpudiag train {' '.join(flags)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
