"""A listing judges by a part of the catalogue, and loads no more than that part."""

import subprocess
import sys

from gpudiag.checks.builtin import BEHIND
from gpudiag.checks.on_gpus import GPU_CHECKS

NOT_FOR_A_LISTING = tuple(
    """
    gpudiag.checks.builtin gpudiag.checks.software.torch_build gpudiag.checks.software.settings
    gpudiag.checks.host.health gpudiag.reference.software gpudiag.reference.speeds tomllib
    """.split()
)
_PROGRAM = "import sys, gpudiag.runs.instant; print(*sys.modules)"


def test_a_listing_loads_only_what_it_judges_by():
    loaded = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert "gpudiag.checks.on_gpus" in loaded.stdout.split()
    assert [name for name in NOT_FOR_A_LISTING if name in loaded.stdout.split()] == []


def test_every_other_check_stands_behind_one_of_these():
    assert BEHIND.keys() - {check.name for check in GPU_CHECKS} == set()
    assert {*GPU_CHECKS} & {check for behind in BEHIND.values() for check in behind} == set()
