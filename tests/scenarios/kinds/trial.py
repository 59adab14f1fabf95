"""A kind of fault, tried on several machines: what each trial plants, and what must be found of it and no
more.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.write_detection import Row, run_instant


@dataclass(frozen=True, slots=True)
class Trial:
    """One planted fault, or a near miss: `finds` is empty, and nothing may be found.

    `machine` is a base machine, `faults` what is added to it (`lost:3+hot:5`), `differs` further lines of a
    scenario file. `finds` holds codes with the NVML index of the GPU behind those that are about one:
    `gpu.lost 3`. `flags` are those of `gpudiag preflight --level instant`.
    """

    words: str
    machine: str
    finds: tuple[str, ...] = ()
    faults: str = ""
    differs: str = ""
    flags: tuple[str, ...] = ()

    @property
    def near_miss(self) -> bool:
        """Whether nothing may be found."""
        return not self.finds

    def run(self) -> "TrialRow":
        """What a preflight at level instant finds on that machine."""
        with tempfile.TemporaryDirectory() as folder:
            machine = self.machine
            if self.differs:
                file = Path(folder, f"{self.machine}.toml")
                file.write_text(f'base = "{self.machine}"\n{self.differs}')
                machine = os.fspath(file)
            spec = "+".join(part for part in (machine, self.faults) if part)
            return TrialRow(self, run_instant(spec, self.finds, *self.flags))


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial and what was found in it."""

    trial: Trial
    row: Row

    @property
    def right(self) -> bool:
        """Whether what was planted was found, on the right part, and nothing else."""
        return set(self.row.found) == set(self.trial.finds)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault in the words of docs/detection.md, and its trials on at least four kinds of machine."""

    name: str
    trials: tuple[Trial, ...]
