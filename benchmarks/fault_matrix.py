"""Does gpudiag find every fault at every stage, whom does it name, and how soon?

Injects each fault at each stage into `gpudiag nccl-test` on gloo ranks, N times, under its own spawn
and under torchrun, and prints Markdown: in each cell how often rank, kind and stage were right, and
the median time from the fault to the verdict.

    python benchmarks/fault_matrix.py [--times 3] [--ranks 4] [--launcher spawn --launcher torchrun]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpudiag.ranks.process import is_alive
from gpudiag.ranks.stages import INIT, MEASURE, STAGES, TEARDOWN, WARMUP

_COMMAND = ("-m", "gpudiag", "nccl-test", "--backend", "gloo", "--max-bytes", "8K", "--json")
_LAUNCHERS = ("spawn", "torchrun")
_LIMIT_SECONDS = 120.0  # of one run; only a hang of gpudiag itself comes near it

_FAULTS = ("kill", "stop", "skip", "oom", "mismatch:op", "mismatch:size", "mismatch:dtype")
_STAGES_WITH_COLLECTIVES = (INIT, WARMUP, MEASURE)  # nccl-test verifies without any
_KINDS = {"kill": "died", "stop": "stopped", "skip": "silent", "oom": "raised", "mismatch": "mismatched"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one stage, as a launcher's ranks meet it."""

    launcher: str
    fault: str  # kill, or mismatch:size
    stage: str

    def specification(self, rank: int) -> str:
        """What `--inject` is told."""
        kind, _, what = self.fault.partition(":")
        return f"{kind}:{rank}@{self.stage}" + (f":{what}" if what else "")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run said, held against what was injected."""

    right: bool  # the only cause: that kind, that rank, that stage; and the exit status for it
    seconds: float  # from the fault to the verdict
    processes_left: int
    said: str


def main() -> None:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="how often each cell is run")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--launcher", action="append", choices=_LAUNCHERS)
    options = parser.parse_args()
    observed: dict[Cell, list[Observation]] = {}
    for cell in _cells(options.launcher or _LAUNCHERS):
        observed[cell] = [
            _observe(cell, turn % options.ranks, options.ranks) for turn in range(options.times)
        ]
        wrong = [observation.said for observation in observed[cell] if not observation.right]
        print(f"{cell.launcher} {cell.fault}@{cell.stage}: {len(wrong)} wrong {wrong}", file=sys.stderr)
    print(_render(observed, options.times, options.ranks))


def _cells(launchers: Sequence[str]) -> Iterator[Cell]:
    for launcher in launchers:
        for fault in _FAULTS:
            for stage in _STAGES_WITH_COLLECTIVES if fault.startswith("mismatch") else STAGES:
                yield Cell(launcher, fault, stage)


def _observe(cell: Cell, rank: int, ranks: int) -> Observation:
    """Inject the fault once, and hold what comes back against it."""
    mark = uuid.uuid4().hex
    program = subprocess.run(
        _command_line(cell, rank, ranks),
        capture_output=True,
        env={**os.environ, "GPUDIAG_BENCHMARK_MARK": mark},
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    left = _count_processes(mark)
    try:
        report: dict[str, Any] = json.loads(program.stdout)
    except ValueError:
        words = program.stderr.decode(errors="replace").strip()[-400:]
        return Observation(False, float("nan"), left, f"exit {program.returncode}, no report: {words}")
    right, said = _judge(report, cell, rank)
    fault_at = report["injected"][0]["at_seconds"]
    seconds = float("nan") if fault_at is None else report["seconds"] - fault_at
    return Observation(right and program.returncode == _exit_status(cell), seconds, left, said)


def _command_line(cell: Cell, rank: int, ranks: int) -> list[str]:
    inject = ("--inject", cell.specification(rank))
    if cell.launcher == "spawn":
        return [sys.executable, *_COMMAND, "--nproc", str(ranks), *inject]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return [sys.executable, *torchrun, *_COMMAND, *inject]


def _judge(report: dict[str, Any], cell: Cell, rank: int) -> tuple[bool, str]:
    """Whether the report's cause is what was injected, and what it is."""
    incidents = [incident for incident in report["incidents"] if incident["kind"] != "late"]
    if not incidents:
        return False, "no incident"
    cause = incidents[0]
    facts = {fact["name"]: fact["value"] for fact in cause["evidence"]}
    kind = cell.fault.partition(":")[0]
    # A rank that stays out of a stage is still in the one before, and the report names both.
    stage = facts.get("not_reached", "").removeprefix("stage ") if kind == "skip" else cause["stage"]
    said = f"{cause['kind']} rank {cause['rank']} {stage}"
    expected = f"{_KINDS[kind]} rank {rank} {cell.stage}"
    return said == expected and len(incidents) == 1, said


def _exit_status(cell: Cell) -> int:
    """1; but a rank that ends badly after all results were complete is a warning."""
    return 0 if cell.stage == TEARDOWN and cell.fault in ("kill", "oom") else 1


def _count_processes(mark: str) -> int:
    """Processes of the run that are still there, a moment after it has ended."""
    time.sleep(0.2)  # the kernel tears down what was killed last
    wanted, count = f"GPUDIAG_BENCHMARK_MARK={mark}".encode(), 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += wanted in path.read_bytes() and is_alive(int(path.parent.name))
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return count


def _render(observed: dict[Cell, list[Observation]], times: int, ranks: int) -> str:
    lines = [
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, torch {version('torch')}; {ranks} gloo ranks, "
        f"each cell {times} times, the rank by turns. Cell: runs that were right, median seconds to the verdict.",
    ]
    for launcher in dict.fromkeys(cell.launcher for cell in observed):
        lines += ["", f"| {launcher} | {' | '.join(STAGES)} |", "|---" * (len(STAGES) + 1) + "|"]
        for fault in _FAULTS:
            cells = [_render_cell(observed.get(Cell(launcher, fault, stage))) for stage in STAGES]
            lines.append(f"| {fault} | {' | '.join(cells)} |")
    everything = [observation for observations in observed.values() for observation in observations]
    seconds = sorted(observation.seconds for observation in everything if observation.right)
    lines += [
        "",
        f"{sum(observation.right for observation in everything)} of {len(everything)} right; "
        f"processes left: {sum(observation.processes_left for observation in everything)}.",
    ]
    if seconds:
        lines[-1] += (
            f" Fault to verdict: median {statistics.median(seconds):.2f} s, longest {seconds[-1]:.2f} s."
        )
    return "\n".join(lines)


def _render_cell(observations: list[Observation] | None) -> str:
    if observations is None:
        return ""
    right = [observation for observation in observations if observation.right]
    if not right:
        return f"0/{len(observations)}"
    median = statistics.median(observation.seconds for observation in right)
    return f"{len(right)}/{len(observations)} {median:.2f}"


if __name__ == "__main__":
    main()
