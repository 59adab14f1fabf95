"""The sensors that are read while a test runs, on a simulated machine; and that nothing stays behind."""

import json
import subprocess
import sys

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.session import open_session

PROGRAM = """
import json, sys, time
from gpudiag.model.codec import encode
from gpudiag.runs.active import TelemetryReader
reader = TelemetryReader(0.2, time.monotonic())
until = time.monotonic() + 20
points = ()
while time.monotonic() < until and len(reader._child.messages) < 32:
    reader.drain()
    time.sleep(0.05)
points = reader.finish()
print(json.dumps([encode(point) for point in points]))
"""


@pytest.mark.parametrize("scenario", ["h100x8+busy:0", "h100x8+busy:0+hang:6"])
def test_every_gpu_that_answers_is_read_again_and_again(scenario):
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")
    with open_session(load_scenario(scenario)) as session:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=dict(session.environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)
    first = [point for point in points if point["sm_clock_mhz"] is not None]
    assert len({point["device_uuid"] for point in first}) >= 7
    assert len({point["at_seconds"] for point in points}) >= 3
    assert {point["pcie_width"] for point in first} == {16}
