"""A slice of the walk of NVML's functions over the base machines: some machines at each commit, all by `make test-all`.

`python -m tools.walk_nvml` walks all of it. Every function that gpudiag calls on a machine hangs there or
fails, machine by machine with other codes. The walk is a program beside this one: it forks for each
experiment, which a test's process with its threads must not. A machine takes two seconds of a processor.
"""

import json
import subprocess
import sys

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.nvml.library import build_library
from tools.walk_nvml import HEADING, MACHINES
from tools.write_detection import PAGE

_LIMIT_SECONDS = 900  # proves that it ends; on a quiet machine it takes less than one minute
_LEAST_FUNCTIONS = 40


@pytest.mark.sliced
@pytest.mark.timeout(_LIMIT_SECONDS)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_function_that_fails_never_passes_and_is_told_of_the_right_gpu(machine: str):
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")
    done = subprocess.run(
        [sys.executable, "-m", "tools.walk_nvml", f"--slice={machine}"],
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr
    row = json.loads(done.stdout)
    assert row["wrong"] == []
    assert row["healthy"] == "pass"
    assert row["functions"] > _LEAST_FUNCTIONS
    assert min(row["hangs"], row["codes"], row["lost"]) > 0


@pytest.mark.parametrize("machine", MACHINES)
def test_the_page_has_the_whole_walk(machine: str):
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    assert f"| `{machine}` |" in section
