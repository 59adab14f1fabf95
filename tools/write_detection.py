"""Writes docs/detection.md: every fault of a simulated machine, what should be found, what was.

Each row is a run of `gpudiag preflight --level instant` on a simulated machine; the rows of active tests
are runs on CPU ranks with a fault injected.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.model.active import DETERMINISM, MEMORY_COPY, MEMORY_PATTERNS, ActivePlan
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import RankSubject
from gpudiag.model.report import Measures
from gpudiag.probe.inventory import take_snapshot
from gpudiag.ranks.inject import parse_fault
from gpudiag.runs.active import measure_active
from gpudiag.runs.placement import Placement
from gpudiag.simulate.faults.table import FAULTS
from gpudiag.simulate.loader import base_machines, load_scenario
from gpudiag.simulate.session import open_session
from gpudiag.units import MIB
from tests.warm_start import run_python

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
_LIMIT_SECONDS = 120

# From here on tools/write_kinds.py and benchmarks/fault_matrix.py write the page.
_NEXT_HEADING = "## Kinds of faults"

# What must be found on each machine: the code, and the NVML index of the GPU it is about where it is about
# one. Nothing is as much a promise as something: those rows must stay silent.
EXPECTED: dict[str, tuple[str, ...]] = {
    "h100x8+busy:3": (),
    "h100x8+idle-holder:3": (),
    "h100x8+zombie:3": ("process.dead 3",),
    "h100x8+hot:3": ("temperature.gpu_too_hot 3",),
    "h100x8+throttle:3": ("clocks.power_brake 3",),
    "h100x8+power-cap:3": ("power.limit_lowered 3",),
    "h100x8+ecc:3": ("ecc.uncorrected_volatile 3",),
    "h100x8+ecc-corrected:3": (),
    "h100x8+row-remap-pending:3": ("memory.row_remap_pending 3",),
    "h100x8+row-remap-failed:3": ("memory.row_remap_failed 3",),
    "t4x1+retired-pages:0": ("memory.page_retirement_pending 0",),
    "h100x8+ecc-off:3": ("ecc.disabled 3",),
    "h100x8+mig-pending:3": ("mode.mig_pending 3",),
    "h100x8+compute-prohibited:3": ("mode.compute_prohibited 3",),
    "h100x8+recovery:3:gpu_reset": ("gpu.recovery_needed 3",),
    "h100x8+pcie-width:3": ("pcie.width_reduced 3",),
    "h100x8+pcie-gen:3+busy:3": ("pcie.generation_reduced 3",),
    "h100x8+nvlink-down:3:5": ("nvlink.link_down 3",),
    "h100x8+nvlink-errors:3": (),
    "h100x8+slow:3:5": ("gpu.hung 3",),
    "h100x8+hang-call:3:nvmlDeviceGetUUID": ("gpu.hung 3",),
    "h100x8+xid:3:95": ("xid.hardware 3",),
    "h100x8+xid:3:13": ("xid.application 3",),
    "h100x8+hang:3": ("gpu.hung 3",),
    "h100x8+lost:3": ("gpu.lost 3",),
    "h100x8+gone:3": ("gpu.board_incomplete", "kernel.pcie_link_down"),
    "h100x8+old-driver": (),
    "h100x8+no-driver": ("nvml.driver_not_loaded",),
    "h100x8+nouveau": ("nvml.driver_not_loaded",),
    "h100x8+no-library": ("nvml.library_absent",),
    "h100x8+version-mismatch": ("nvml.version_mismatch",),
    "h100x8+no-permission": ("nvml.no_permission",),
    "h100x8+zero-gpus": ("gpu.count",),
    "h100x8+init-hang": ("nvml.timed_out",),
    "h100x8+init-slow:2": (),
    "gh200+driver-costs": (),
    "h100x8+cold:1": ("driver.persistence_off",),
    "h100x8+cuda-broken": ("fabric.not_ready",),
    "h100x8+cpu-torch": (),
    "h100x8+no-torch": (),
    "h100x8+visible:0,1": (),
    "h100x8+order": (),
    "h100x8+busy:0+busy:1+busy:2+busy:3+job-hangs": (),
}
# Faults that one look at level instant cannot see, and what does.
SEEN_OTHERWISE = {
    "ecc-corrected": "a rate: needs errors between two readings, and this counter stands still",
    "nvlink-errors": "a rate: needs errors between two readings, and this counter stands still",
    "cpu-torch": "by torch, which level quick asks",
    "no-torch": "by level quick, which needs torch",
    "job-hangs": "by `gpudiag hang`: the machine is in order",
}
# Machines held against a good one (`--expect`): the machine, the good one, and what must be found.
COMPARED: dict[str, tuple[str, tuple[str, ...]]] = {
    "h100x8": ("h100x8", ()),
    "h100x8+gone:3": ("h100x8", ("gpu.gone",)),
    "h100x8+mig-pending:3": ("h100x8", ("mode.mig_pending 3",)),
    "h100x8+ecc-off:3": ("h100x8", ("ecc.disabled 3", "machine.differs 3")),
    "h100x8+power-cap:3": ("h200x8", ("machine.gpus_differ", "machine.differs", "machine.differs 3")),
}
# Active tests on four CPU ranks: what is injected, and what must be found.
INJECTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "one bit flips in one of the repeats on rank 2": (
        (DETERMINISM, "bitflip:2@1"),
        ("compute.not_repeatable rank 2",),
    ),
    "one bit flips in the memory of rank 1": (
        (MEMORY_PATTERNS, "bitflip:1@3"),
        ("memory.pattern_mismatch rank 1",),
    ),
    "one bit flips in a copy on rank 3": ((MEMORY_COPY, "bitflip:3@0"), ("bandwidth.corrupted rank 3",)),
    "rank 1 is killed in the test": ((DETERMINISM, "kill:1@1"), ("rank.died rank 1",)),
    "no fault": ((DETERMINISM,), ()),
}

_HEAD = """# Detection

Every fault that a simulated machine can have, what gpudiag should find, and what it found. Written by
`python -m tools.write_detection`, which runs each row; a test holds the page against the runs. `3` behind a
code is the NVML index of the GPU it is about.

"""


@dataclass(frozen=True, slots=True)
class Row:
    """One run: the scenario, what should be found in it, and what was."""

    scenario: str
    wanted: tuple[str, ...]
    verdict: str
    found: tuple[str, ...]
    keeps_jobs_off: bool = False  # some FAIL blocks jobs; the gate is another question than the verdict

    @property
    def kept(self) -> bool:
        """Whether all that should be found was, and nothing where there is nothing."""
        return set(self.wanted) <= set(self.found) and (bool(self.wanted) or not self.found)


def run_compared(scenario: str) -> Row:
    """One preflight at level instant on a machine of `COMPARED`, against the good one's report."""
    good, wanted = COMPARED[scenario]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "good.json"
        run_instant(good, (), "--report", f"json={report}")
        return run_instant(scenario, wanted, "--expect", str(report))


def injected_rows() -> Iterator[Row]:
    """A run of active tests with each injected fault."""
    snapshot = take_snapshot((), 5.0)
    for words, ((test, *faults), wanted) in INJECTED.items():
        yield _run_active(snapshot, words, test, faults, wanted)


def run_instant(scenario: str, wanted: tuple[str, ...], *flags: str) -> Row:
    """One preflight at level instant on that simulated machine, without any history."""
    with tempfile.TemporaryDirectory() as state, open_session(load_scenario(scenario)) as session:
        words = ("-m", "gpudiag", "preflight", "--level", "instant", "--json", *flags)
        done = run_python(words, {**session.environment, "GPUDIAG_STATE_DIR": state}, _LIMIT_SECONDS)
    document = json.loads(done.out)
    found = [finding for result in document["results"] for finding in result["findings"]]
    return Row(
        scenario,
        wanted,
        document["verdict"],
        names_of(found),
        any(finding["blocks_jobs"] for finding in found),
    )


def _run_active(snapshot: Snapshot, words: str, test: str, faults: list[str], wanted: tuple[str, ...]) -> Row:
    place = Placement("gloo", 4)
    plan = ActivePlan((test,), "cpu", ("float32",), repeat_seconds=0.05, pattern_bytes=4 * MIB)
    parsed = tuple(parse_fault(text, place.world_size) for text in faults)
    measured = measure_active(plan, place, "standard", faults=parsed)
    checks = [check for check in BUILTIN if "active" in check.needs]
    results = run_checks(Context(snapshot, Measures(active=measured)), checks)
    findings = [finding for result in results for finding in result.findings]
    verdict = "fail" if findings else "pass"
    named = tuple(
        f"{finding.code} rank {finding.subject.rank}"
        if isinstance(finding.subject, RankSubject)
        else finding.code
        for finding in findings
    )
    return Row(words, wanted, verdict, named)


def names_of(findings: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Code and GPU of each finding that is more than an observation."""
    named = (
        f"{finding['code']} {finding['subject'].get('nvml_index', '')}".replace("None", "").strip()
        for finding in findings
        if finding["outcome"] != "pass"
    )
    return tuple(dict.fromkeys(named))


def page_text(healthy: list[Row], faulty: list[Row], compared: list[Row], injected: list[Row]) -> str:
    """The whole page."""
    means = {kind.name: kind.description for kind in FAULTS}
    parts = [_HEAD, "## Machines in order\n\n", _table(healthy, {}), "\n## Machines with a fault\n\n"]
    parts += [
        _table(faulty, means),
        "\n## Machines held against a good one (`--expect`)\n\n",
        _compared_table(compared),
        "\n## Active tests on CPU ranks, with a fault injected\n\n",
        _table(injected, {}),
    ]
    return "".join(parts)


def _table(rows: list[Row], means: dict[str, str]) -> str:
    lines = [
        "| machine | what is wrong | should be found | verdict | found |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        faults = [fault.partition(":")[0] for fault in row.scenario.split("+")[1:]]
        # A GPU that is busy may only be what the fault needs.
        fault = next((one for one in faults if one != "busy"), faults[0] if faults else "")
        wanted = _codes(row.wanted) or SEEN_OTHERWISE.get(fault, "nothing")
        found = _codes(row.found) or "nothing"
        scenario = (
            f"`{row.scenario}`" if means or "+" in row.scenario or " " not in row.scenario else row.scenario
        )
        lines.append(f"| {scenario} | {means.get(fault, '-')} | {wanted} | {row.verdict.upper()} | {found} |")
    return "\n".join(lines) + "\n"


def _compared_table(rows: list[Row]) -> str:
    lines = [
        "| machine | good machine | should be found | verdict | found |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        wanted, found = _codes(row.wanted) or "nothing", _codes(row.found) or "nothing"
        good = COMPARED[row.scenario][0]
        lines.append(f"| `{row.scenario}` | `{good}` | {wanted} | {row.verdict.upper()} | {found} |")
    return "\n".join(lines) + "\n"


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Write the page; print which rows break their promise, and end with status 1 if any does."""
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        rows = (
            pool.map(lambda name: run_instant(name, ()), sorted(base_machines())),
            pool.map(run_instant, EXPECTED, EXPECTED.values()),
            pool.map(run_compared, COMPARED),
        )
        healthy, faulty, compared = map(list, rows)
    injected = list(injected_rows())
    _, heading, rest = PAGE.read_text().partition(_NEXT_HEADING)
    text = page_text(healthy, faulty, compared, injected)
    PAGE.write_text(f"{text}\n{heading}{rest}" if heading else text)
    broken = [row for row in (*healthy, *faulty, *compared, *injected) if not row.kept]
    for row in broken:
        print(f"{row.scenario}: should find {row.wanted}, found {row.found} ({row.verdict})")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
