"""Runs a program where it finds GPUs: a simulated machine, with this stand-in under torch."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.cuda_stand_in.build import build_extension

ROOT = Path(__file__).resolve().parents[2]
BUILD_FOLDER = ROOT / "build" / "cuda_stand_in"
# A CUDA toolkit for what only asks its version, as DeepSpeed does: CUDA_HOME for a machine that has one.
TOOLKIT = Path(__file__).parent / "toolkit"
_SITE = Path(__file__).parent / "site"


@contextmanager
def open_machine(
    scenario: str, variables: Mapping[str, str] | None = None, outside: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """The environment of programs on that machine, while it lives; state and caches are the machine's own.

    `variables` are set beside those of the stand-in (settings.py).

    Raises:
        CannotBuildError: the extension is not there, and cannot be built.
        UsageError: there is no such machine.
    """
    library = build_extension(BUILD_FOLDER)
    machine = load_scenario(scenario)
    instances = [
        {**instance, "bus_id": gpu.readings["bus_id"]}
        for gpu in machine.gpus
        for instance in gpu.readings.get("mig_instances", ())
    ]
    with open_session(machine, os.environ if outside is None else outside) as session:
        environment = dict(session.environment)
        folders = {name: session.folder / "own" / name for name in ("state", "runtime", "locks")}
        for folder in folders.values():
            folder.mkdir(parents=True, mode=0o700)
        python_path = [str(_SITE), str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {
            "CUDA_STAND_IN": str(library),
            "CUDA_STAND_IN_LOCKS": str(folders["locks"]),
            "CUDA_STAND_IN_MIG": json.dumps(instances),
            "PYTHONPATH": os.pathsep.join(python_path),
            "XDG_STATE_HOME": str(folders["state"]),
            "GPUDIAG_STATE_DIR": str(folders["state"]),
            "XDG_RUNTIME_DIR": str(folders["runtime"]),
            **(variables or {}),
        }
        yield environment


def command_on(environment: Mapping[str, str], command: list[str]) -> list[str]:
    """The command with its program looked up on the machine's own PATH."""
    found = shutil.which(command[0], path=environment["PATH"])
    return [found or command[0], *command[1:]] if command[0] != "python" else [sys.executable, *command[1:]]
