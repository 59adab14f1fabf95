"""The files of docs/ci on every FAIL of docs/detection.md: each of them keeps the job off, and says why.

The prolog asks gpudiag itself on the simulated machine. The other files start the same look with other flags,
which would say the same of these machines and take longer: they are run with a gpudiag that ends as their own
flags make of the prolog's report.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.errors import UsageError
from gpudiag.model.documents import loads
from gpudiag.model.plan import PreflightPlan
from gpudiag.runs.gate import exit_status
from gpudiag.simulate.loader import base_machines, load_scenario
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.session import open_session
from tests.warm_start import run_python
from tools.write_detection import PAGE

ROOT = Path(__file__).parents[2]
GATES = ROOT / "docs" / "ci"
_ROW = re.compile(
    r"^\| `(?P<machine>[^`]+\+[^`]+)` \| (?P<words>.*) \| (?P<verdict>FAIL|WARN|PASS) \| (?P<found>.*) \|$",
    re.M,
)
# Nothing of these is left on the machine but a line of its kernel log: a good report, or the Gres of the
# node, tells.
BY_GRES = ["h100x8+gone:3", "a100x8+gone:0", "rtx4090x2+gone:1"]
GIVEN = {"h100x8-container2": 2}  # of the machine's GPUs
SPARED = {kind.code for kind in finding_kinds() if kind.spares_jobs}

pytestmark = pytest.mark.slow


def rows(verdict: str) -> list[tuple[str, str]]:
    """Every machine of the page with that verdict, and the first code found on it.

    Not those held against another.
    """
    text = PAGE.read_text().partition("## Machines held against")[0]
    found = [row for row in _ROW.finditer(text) if row["verdict"] == verdict]
    return [
        (row["machine"], row["found"].split("`")[1].split(" ")[0] if "`" in row["found"] else "")
        for row in found
    ]


@pytest.fixture(autouse=True)
def compiler():
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")


class Node:
    """A simulated machine as a node: its own gpudiag, a controller that knows its Gres, and what was asked of
    it.
    """

    def __init__(self, folder: Path, machine: str, gres: str) -> None:
        self.folder, self.machine = folder, machine
        self.calls, self.reports = folder / "calls", folder / "reports"
        self.calls.write_text("")
        self.reports.mkdir()
        self.asked, self.answered = folder / "asked", folder / "answered"
        for pipe in (self.asked, self.answered):
            os.mkfifo(pipe)
        told = f"NodeName=n01 Gres={gres} State=IDLE"
        self.scontrol = self.program("scontrol", f'echo "$*" >> {self.calls}; echo "{told}"')

    def program(self, name: str, body: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def prolog(self, *, cold: bool = False, **variables: str) -> int:
        """The exit status of the shipped prolog on this machine.

        `cold`: it starts gpudiag itself, from nothing.
        """
        program = f'exec {sys.executable} -m gpudiag "$@"' if cold else self._asking()
        with open_session(load_scenario(self.machine)) as session:
            environment = {
                **session.environment,
                "PYTHONPATH": str(ROOT),
                "GPUDIAG_STATE_DIR": str(self.folder / "state"),
                "SLURMD_NODENAME": "n01",
                "SLURM_JOB_ID": "42",
                "GPUDIAG": str(self.program("gpudiag", program)),
                "GPUDIAG_SECONDS": "90",  # this test's machine may be busy
                "GPUDIAG_REPORTS": str(self.reports),
                "SCONTROL": str(self.scontrol),
                **variables,
            }
            with subprocess.Popen(
                [GATES / "slurm" / "prolog.sh"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as prolog:
                if not cold:
                    self._answer(environment)
                prolog.communicate(timeout=240)
        return prolog.returncode

    def _asking(self) -> str:
        """A gpudiag that has the test run the command, and ends as that did."""
        return (
            f'for word; do printf "%s\\n" "$word"; done > {self.asked}\n'
            f"read -r status < {self.answered}\n"
            f"cat {self.folder}/out; cat {self.folder}/err >&2; exit $status"
        )

    def _answer(self, environment: dict[str, str]) -> None:
        words = self.asked.read_text().splitlines()
        ended = run_python(("-m", "gpudiag", *words), environment, 90)
        (self.folder / "out").write_text(ended.out)
        (self.folder / "err").write_text(ended.err)
        self.answered.write_text(f"{ended.status}\n")

    def reason(self) -> str:
        """The reason that the node was drained with; empty where it was not."""
        drains = [line for line in self.calls.read_text().splitlines() if "State=DRAIN" in line]
        assert len(drains) < 2
        return drains[0].partition("Reason=")[2] if drains else ""

    def statuses(self) -> dict[str, int]:
        """What other files' commands exit with, by file, where gpudiag says what the report does."""
        report = loads((self.reports / "42.prolog.json").read_text())
        status = int(exit_status(report, PreflightPlan()))
        self.program("gpudiag", f"exit {status}")
        return {name: self._shell(command) for name, command in ci_commands(self.folder).items()}

    def _shell(self, command: str) -> int:
        path = {"PATH": f"{self.folder}:/usr/bin:/bin", "RUNNER_TEMP": str(self.folder)}
        return subprocess.run(
            ["bash", "-e", "-c", command], env=path, cwd=self.folder, timeout=60, check=False
        ).returncode


def ci_commands(folder: Path) -> dict[str, str]:
    """The command with which each file asks gpudiag, with the folder's program for its own."""
    (workflow,) = yaml.safe_load((GATES / "github-actions.yml").read_text())["jobs"].values()
    github = next(step["run"] for step in workflow["steps"] if step["name"] == "Judge the GPUs")
    gitlab = yaml.safe_load((GATES / "gitlab-ci.yml").read_text())[".gpu-preflight"]["before_script"][-1]
    pod = yaml.safe_load((GATES / "kubernetes" / "job.yaml").read_text())["spec"]["template"]["spec"]
    kubernetes = pod["initContainers"][0]["command"][2]
    program = str(folder / "gpudiag")
    return {
        "github": github.replace("$RUNNER_TEMP/gpudiag/bin/gpudiag", program),
        "gitlab": gitlab.replace(".gpudiag/bin/gpudiag", program),
        "kubernetes": kubernetes.replace("/dev/termination-log", str(folder / "termination-log")),
    }


def gres_of(machine: str) -> str:
    if machine == "none":
        return "(null)"
    count = GIVEN.get(machine) or len(load_scenario(machine.partition("+")[0]).gpus)
    return f"gpu:{count}(S:0-1)"


@pytest.mark.sliced
@pytest.mark.parametrize(("machine", "code"), rows("FAIL"))
def test_every_fault_keeps_jobs_off_and_is_the_reason(machine, code, tmp_path):
    node = Node(tmp_path, machine, gres_of(machine))
    assert (node.prolog() == 0) == (code in SPARED)
    reason = node.reason()
    assert bool(reason) == (code not in SPARED)
    if reason:
        assert len(reason) < 200
        assert f" {code}" in reason
        assert "Do: " in reason
    assert set(node.statuses().values()) == {1}


@pytest.mark.parametrize("machine", BY_GRES)
def test_a_gpu_that_is_gone_without_a_trace_is_missed_by_the_gres_of_the_node(machine, tmp_path):
    node = Node(tmp_path, machine, gres_of(machine))
    assert node.prolog(cold=True) == 1
    assert "gpu.count: " in node.reason()


def test_a_gpu_that_is_gone_is_missed_by_a_good_report_of_the_node(tmp_path):
    good = tmp_path / "good"
    good.mkdir()
    before = Node(good, "h100x8", "(null)")
    assert before.prolog(cold=True) == 0
    report = str(before.reports / "42.prolog.json")
    node = Node(tmp_path, "h100x8+gone:3", "(null)")
    assert node.prolog(cold=True, GPUDIAG_EXPECT=report) == 1
    assert "gpu.gone: " in node.reason()


@pytest.mark.sliced
@pytest.mark.parametrize(
    "machine", [*sorted(base_machines()), *(machine for machine, _ in rows("WARN") if machine not in BY_GRES)]
)
def test_a_machine_without_a_fault_gets_its_job(machine, tmp_path):
    node = Node(tmp_path, machine, gres_of(machine))
    assert node.prolog() == 0
    assert node.reason() == ""
    assert set(node.statuses().values()) == {0}


def test_the_page_has_enough_faults_to_walk():
    assert len(rows("FAIL")) >= 20
    assert {"gpu.hung", "nvml.timed_out", "nvml.version_mismatch", "gpu.count", "fabric.not_ready"} <= {
        code for _, code in rows("FAIL")
    }
