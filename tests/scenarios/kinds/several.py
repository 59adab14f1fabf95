"""Several faults at once, drawn by a seeded generator from the simulator's kinds, on every base machine with
a GPU.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from gpudiag.errors import UsageError
from gpudiag.model.codec import encode
from gpudiag.model.documents import loads
from gpudiag.model.finding import WORST_FIRST, Outcome
from gpudiag.model.report import Report
from gpudiag.simulate.blueprint import Blueprint
from gpudiag.simulate.faults.table import apply_faults, parse_faults
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.machine_file import base_machines, build_blueprint, read_layers
from gpudiag.simulate.session import open_session
from tests.scenarios.kinds.trial import Kind, Trial, TrialRow
from tests.warm_start import run_python
from tools.write_detection import Row, names_of

_LIMIT_SECONDS = 120
_SEED = "several faults"
_CONTAINER = "h100x8-container2"
_HEADLINE = re.compile(r"^  (FAIL|ERROR|WARN) \S+:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault of the simulator, `{}` being the GPU, and the code that it is found by.

    Two of one `group` on one GPU are one story, and so is one that silences the GPU with any other.
    """

    spec: str
    code: str
    group: str


# Faults of one GPU that a look at level instant finds. Those that stop the driver leave nothing else to be
# read: docs/detection.md has them one by one.
PLANTED = (
    Planted("zombie:{}", "process.dead", "process"),
    Planted("hot:{}", "temperature.gpu_too_hot", "clock"),
    Planted("throttle:{}", "clocks.power_brake", "clock"),
    Planted("power-cap:{}", "power.limit_lowered", "clock"),
    Planted("ecc:{}", "ecc.uncorrected_volatile", "memory"),
    Planted("row-remap-pending:{}", "memory.row_remap_pending", "memory"),
    Planted("row-remap-failed:{}", "memory.row_remap_failed", "memory"),
    Planted("retired-pages:{}", "memory.page_retirement_pending", "memory"),
    Planted("ecc-off:{}", "ecc.disabled", "memory"),
    Planted("mig-pending:{}", "mode.mig_pending", "mode"),
    Planted("compute-prohibited:{}", "mode.compute_prohibited", "mode"),
    Planted("recovery:{}:gpu_reset", "gpu.recovery_needed", "memory"),
    Planted("xid:{}:95", "xid.hardware", "memory"),
    Planted("pcie-width:{}", "pcie.width_reduced", "pcie"),
    Planted("nvlink-down:{}", "nvlink.link_down", "memory"),
    Planted("nvlink-down:{}:1", "nvlink.link_down", "memory"),
    Planted("hang:{}", "gpu.hung", "silent"),
    Planted("lost:{}", "gpu.lost", "silent"),
)
# What stands beside faults on real machines and is none.
_HOLDING = ("busy:{}", "idle-holder:{}")
HARMLESS = (
    *_HOLDING,
    "ecc-corrected:{}",
    "nvlink-errors:{}",
    "order",
    "old-driver",
    "init-slow:1",
    "no-torch",
)
# Where a fault is none, or is told by another code.
_NONE_THERE = {
    "nvlink-down": ("h100-mig", "gh200", "a6000x4", "a100-pciex4"),  # links that need not be there
    "zombie": (_CONTAINER,),  # which sees its own processes only
    "pcie-width": ("t4x1", "wsl2-rtx"),  # virtual machines that show no slot
    "ecc-off": ("a10x1",),  # the driver calls it a workstation card, where that is a choice
}
_IN_A_CONTAINER = {"xid.hardware": "gpu.recovery_needed"}  # which sees no kernel log


@dataclass(frozen=True, slots=True)
class Several(Trial):
    """Some faults at once: each must be named, the run must end with 1, and its text must begin with the
    worst.
    """

    def run(self) -> TrialRow:
        """The codes found; "status N" and "not worst first" beside them where that is not as it should be."""
        with tempfile.TemporaryDirectory() as folder:
            document = Path(folder, "report.json")
            with open_session(load_scenario(f"{self.machine}+{self.faults}")) as session:
                words = ("-m", "gpudiag", "preflight", "--level", "instant", "--report", f"json={document}")
                environment = {**session.environment, "GPUDIAG_STATE_DIR": folder}
                done = run_python(words, environment, _LIMIT_SECONDS)
            report: Report = loads(document.read_text())
            found = [*_names(report), *_wrong(self, done.status, done.out)]
            return TrialRow(
                self,
                Row(
                    f"{self.machine}+{self.faults}",
                    self.finds,
                    report.verdict.value,
                    tuple(found),
                    any(finding.blocks_jobs for finding in report.findings()),
                ),
            )


def _names(report: Report) -> tuple[str, ...]:
    return names_of(encode(finding) for finding in report.findings())


def _wrong(trial: Several, status: int, text: str) -> Iterator[str]:
    words = [Outcome(word.lower()) for word in _HEADLINE.findall(text)]
    if words and words[0] is not min(words, key=WORST_FIRST.index):
        yield "not worst first"
    if status != (1 if Outcome.FAIL in words else 3 if Outcome.ERROR in words else 0):
        yield f"status {status}"
    if trial.finds and not words:
        yield "no finding in the text"


@cache
def _blueprint(machine: str) -> Blueprint:
    return build_blueprint(read_layers(machine), machine)


def _fits(machine: str, faults: list[str]) -> bool:
    try:
        apply_faults(_blueprint(machine), parse_faults(faults))
    except UsageError:
        return False
    return True


def _draw(machine: str, number: int) -> Several | None:
    """That many faults of different stories, on as many GPUs as there are.

    None where the machine has no room for them.
    """
    chance = Random(f"{_SEED} {machine} {number}")
    gpus = len(_blueprint(machine).listed())
    taken: dict[int, set[str]] = {gpu: set() for gpu in range(gpus)}
    faults: list[str] = []
    finds: list[str] = []
    for planted in chance.sample(PLANTED * 2, 2 * len(PLANTED)):
        gpu = min(taken, key=lambda one: (len(taken[one]), chance.random()))
        alone = planted.group == "silent" and bool(taken[gpu] or gpus == 1)
        if len(finds) == number or alone or planted.group in taken[gpu] or "silent" in taken[gpu]:
            continue
        if machine in _NONE_THERE.get(planted.spec.partition(":")[0], ()):
            continue
        spec = planted.spec.format(gpu)
        if _fits(machine, [*faults, spec]):
            faults.append(spec)
            code = _IN_A_CONTAINER.get(planted.code, planted.code) if machine == _CONTAINER else planted.code
            finds.append(f"{code} {gpu}")
            taken[gpu].add(planted.group)
    return (
        Several(", ".join(faults), machine, tuple(finds), "+".join(faults)) if len(finds) == number else None
    )


def _beside(machine: str) -> Several:
    """Three things that are no fault."""
    chance = Random(f"{_SEED} {machine} near")
    faults: list[str] = []
    # Processes that hold the only GPU are said: the job is to use that one.
    harmless = HARMLESS if len(_blueprint(machine).listed()) > 1 else HARMLESS[len(_HOLDING) :]
    for spec in chance.sample(harmless, len(harmless)):
        if len(faults) < 3 and _fits(machine, [*faults, spec.format(0)]):
            faults.append(spec.format(0))
    return Several(f"no fault: {', '.join(faults)}", machine, (), "+".join(faults))


def _kind(number: int, near: tuple[str, ...]) -> Kind:
    drawn = (_draw(machine, number) for machine in base_machines() if machine != "none")
    trials: list[Trial] = [trial for trial in drawn if trial is not None]
    return Kind(f"{number} faults at once", (*trials, *map(_beside, near)))


KINDS: tuple[Kind, ...] = (
    _kind(2, ("a100x16", "gb200x4", "v100x8", "vgpu")),
    _kind(3, ("h100x8", "gb300x4", "l40sx8", "a6000x4")),
    _kind(5, ("b200x8", "gh200", "rtx4090x2", "h100-mig")),
)
