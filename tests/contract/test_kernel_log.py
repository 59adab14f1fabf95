"""The kernel log of simulated machines: read from their host tree, judged together with what NVML says."""

import subprocess
import sys

import pytest

from gpudiag.checks.gpu.xid import xid_kernel_log
from gpudiag.checks.links.sxid import sxid_kernel_log
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.device import SourceState
from gpudiag.model.documents import loads
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.simulate.loader import base_machines
from tests.cli.simulated import TIME_LIMIT_SECONDS, simulated_machine

PROGRAM = """
from gpudiag.model.codec import dumps
from gpudiag.probe.inventory import take_snapshot
print(dumps(take_snapshot(kernel_log=True)))
"""


def take(scenario):
    with simulated_machine(scenario) as session:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=dict(session.environment),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
        )
    assert done.returncode == 0, done.stderr
    return loads(done.stdout)


def judge(snapshot):
    return run_checks(Context(snapshot), (xid_kernel_log, sxid_kernel_log))


def found(snapshot):
    return [
        (finding.code, finding.subject.nvml_index)
        for result in judge(snapshot)
        for finding in result.findings
    ]


@pytest.mark.sliced
@pytest.mark.parametrize("machine", base_machines())
def test_a_healthy_machine_has_no_finding(machine):
    snapshot = take(machine)
    outcomes = {result.outcome for result in judge(snapshot)}
    if isinstance(snapshot.kernel_log, Missing):  # a container has no kernel log
        assert snapshot.machine.container is not None
        assert snapshot.kernel_log.reason is MissingReason.SOURCE_ABSENT
        assert outcomes == {Outcome.SKIP}
    else:
        assert snapshot.source("kernel_log").state is SourceState.OK
        assert outcomes == {Outcome.PASS if snapshot.devices else Outcome.SKIP}


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("h100x8+lost:3", [("xid.hardware", 3)]),
        ("h100x8+xid:6:79", [("xid.hardware", 6)]),
        ("h100x8+xid:2:31", [("xid.application", 2)]),
        ("h100x8+xid:1:43", [("xid.note", 1)]),
        ("h100x8+xid:1:999", [("xid.unknown", 1)]),
        ("h100x8+xid:2:31+xid:5:13", [("xid.application", 2), ("xid.application", 5)]),
    ],
)
def test_a_fault_in_the_log_is_found_on_its_gpu(scenario, expected):
    assert sorted(found(take(scenario)), key=lambda pair: pair[1]) == expected
