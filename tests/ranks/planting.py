"""Faults planted in torch from outside: a sitecustomize that runs some code in every rank as soon as torch is
there.
"""

from pathlib import Path
from typing import Any

from tests.ranks.nccl_test_command import run
from tests.ranks.train_command import TRAIN

LIMIT_SECONDS = 150.0  # proves that nothing hangs
_ROOT = Path(__file__).parents[2]

_PLANTER = """
import importlib.util, sys

class Planter:
    looking = False
    def find_spec(self, name, path=None, target=None):
        if name != {after!r} or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            exec(compile({code!r}, "planted", "exec"), {{}})
        spec.loader.exec_module = exec_module
        return spec

if "boot.py" in " ".join(sys.orig_argv):  # ranks only, and what they are forked from
    sys.meta_path.insert(0, Planter())
"""


def train_with(plant: str, folder: Path, *flags: str, after: str = "torch") -> Any:
    """The report of `gpudiag train` on two gloo ranks in which `plant` ran once the module `after` was
    imported.
    """
    (folder / "sitecustomize.py").write_text(_PLANTER.format(code=plant, after=after))
    command = (
        "env",
        f"PYTHONPATH={folder}:{_ROOT}",
        *TRAIN,
        "--nproc",
        "2",
        "--steps",
        "4",
        *flags,
        "--json",
    )
    completed = run(*command, limit_seconds=LIMIT_SECONDS)
    assert completed.left_behind == ()
    return completed.document()
