"""Plants a fault in torch, from outside: a folder for PYTHONPATH, which any Python reads.

GPUDIAG_PLANTED names the fault, of the modules beside this one. It is planted as soon as torch has been
imported.
"""

import importlib
import os
import sys
from pathlib import Path

FAULTS_IN = (
    "corrupt_and_divided",
    "averaged_and_late",
    "steps_data_and_start",
    "checkpoints_and_ends",
    "mistakes_of_scripts",
    "as_reported",
)


def _plant() -> None:
    for name in FAULTS_IN:
        importlib.import_module(f"benchmarks.planted.{name}")
    importlib.import_module("benchmarks.planted.planting").plant(os.environ["GPUDIAG_PLANTED"])


if os.environ.get("GPUDIAG_PLANTED"):
    sys.path.append(str(Path(__file__).parents[2]))
    importlib.import_module("benchmarks.planted.importing").AfterImport("torch", _plant)
