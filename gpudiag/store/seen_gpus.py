"""The GPUs that the service of this machine has seen, for a service that starts without one, or the driver.

Where it cannot be read or written there is a warning.
"""

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import decode, encode
from gpudiag.model.history import KnownGpus
from gpudiag.store.known_gpus import known_gpus_file
from gpudiag.store.state_folder import DiskThread

_CLOSE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class IndexHolder:
    """The GPU that had an NVML index first, and when it last had it."""

    nvml_index: int
    uuid: str
    last_at: datetime


@dataclass(frozen=True, slots=True)
class SeenMachine:
    """The GPUs that were seen, and the one that each index belongs to."""

    known: KnownGpus
    holders: tuple[IndexHolder, ...]

    @property
    def last_at(self) -> datetime | None:
        """When a GPU was seen last."""
        return max((gpu.last_seen for gpu in self.known.gpus), default=None)


class SeenFile:
    """The file of one machine in the service's folder; a thread that nobody waits for reads and writes it."""

    def __init__(self, folder: Path | None, machine: str) -> None:
        """Begin to read; `loaded` has what was there. Without a folder nothing is kept."""
        self.warning = ""
        self.loaded: SeenMachine | None = None  # by the disk's thread, until it is taken
        self.is_read = False  # before that, writing would lose what is there
        self._file = None if folder is None else known_gpus_file(machine, folder)
        self._machine = machine
        self._disk: DiskThread | None = None
        if self._file is not None:
            self._disk = DiskThread("the GPUs that were seen are not remembered", self._warn)
            self._disk.do(self._load)

    def save(self, seen: SeenMachine) -> None:
        """Have it written, in place of what was there."""
        if self._disk is not None:
            self._disk.do(lambda: self._write(seen))

    def close(self) -> None:
        """Wait until all is written, but no longer than a working disk takes."""
        if self._disk is not None:
            self._disk.wait(_CLOSE_SECONDS)

    def _load(self) -> None:
        assert self._file is not None  # noqa: S101 - the caller has looked
        try:
            whose, _, text = self._file.read_text(encoding="utf-8").partition("\n")
            if whose == self._machine:
                self.loaded = decode(SeenMachine, json.loads(text))
        except (FileNotFoundError, ValueError, RecursionError, GpudiagError):
            pass  # none yet, or another version's: the next one is written soon
        self.is_read = True

    def _write(self, seen: SeenMachine) -> None:
        assert self._file is not None  # noqa: S101 - the caller has looked
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            draft.write_text(f"{self._machine}\n{json.dumps(encode(seen))}\n", encoding="utf-8")
            draft.replace(self._file)
        finally:
            draft.unlink(missing_ok=True)

    def _warn(self, words: str) -> None:
        self.warning = words
