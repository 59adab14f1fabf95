"""What a call into the simulated NVML library costs, beside a call into libc by the same means.

    python benchmarks/simulated_call.py [--calls 200000] [--scenario h100x8]

Both are called through ctypes, in a process on the simulated machine, in interleaved rounds; the
difference is what the library itself takes.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

_ROUNDS = 9
_PROGRAM = """
import ctypes, json, sys, time
nvml, libc = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL(None)
assert nvml.nvmlInit_v2() == 0
handle, value = ctypes.c_void_p(), ctypes.c_uint()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
out, calls, rounds = ctypes.byref(value), int(sys.argv[1]), int(sys.argv[2])
subjects = {
    "nvmlDeviceGetPowerUsage": (nvml.nvmlDeviceGetPowerUsage, (handle, out)),
    "nvmlDeviceGetTemperature": (nvml.nvmlDeviceGetTemperature, (handle, 0, out)),
    "abs (libc)": (libc.abs, (1,)),
}
times = {name: [] for name in subjects}
for _ in range(rounds):
    for name, (function, arguments) in subjects.items():
        start = time.perf_counter()
        for _ in range(calls):
            function(*arguments)
        times[name].append((time.perf_counter() - start) / calls)
print(json.dumps(times))
"""


def measure_calls(scenario: str, calls: int) -> dict[str, float]:
    """Seconds per call, by function: the median over the rounds."""
    with open_session(load_scenario(scenario)) as session:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(calls // _ROUNDS), str(_ROUNDS)],
            env=dict(session.environment),
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        )
    return {name: statistics.median(times) for name, times in json.loads(done.stdout).items()}


def main() -> int:
    """Print the cost of each call and what machine it was measured on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--scenario", default="h100x8")
    options = parser.parse_args()
    seconds = measure_calls(options.scenario, options.calls)
    floor = seconds["abs (libc)"]
    print(
        f"{platform.machine()}, Python {platform.python_version()}, {options.scenario}, {options.calls} calls each"
    )
    for name, each in seconds.items():
        print(f"{name:26} {each * 1e6:6.3f} us  {(each - floor) * 1e6:+.3f} us against libc")
    return 0


if __name__ == "__main__":
    sys.exit(main())
