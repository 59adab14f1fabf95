"""What a doctor judges: everything that was looked at, and the commands that install what is missing."""

from collections.abc import Callable
from dataclasses import dataclass

from gpudiag.checks.traces import gpu_traces
from gpudiag.model.device import Snapshot
from gpudiag.model.doctor import DoctorPart, PartState, Surroundings
from gpudiag.model.reading import Missing, Reading
from gpudiag.reference.reading_names import explain_missing


@dataclass(frozen=True, slots=True)
class Sight:
    """The snapshot, the surroundings, how many runs the history has, and how an extra is installed."""

    snapshot: Snapshot
    seen: Surroundings
    runs_stored: Reading[int]
    install: Callable[[str], str]  # the command that adds an extra
    python: str  # the interpreter that was looked at
    torch_asked: bool = False  # it was imported: `snapshot.torch` has its answer

    @property
    def has_gpu(self) -> bool:
        """Whether there is a GPU here, or a trace of one."""
        return bool(self.snapshot.devices) or bool(gpu_traces(self.snapshot))

    def find_program(self, *names: str) -> str | None:
        """Where the first of these programs is; None where none is, or it could not be looked for."""
        programs = self.seen.programs
        if isinstance(programs, Missing):
            return None
        return next((programs[name] for name in names if name in programs), None)

    def find_package(self, name: str) -> str | None:
        """The version of gpudiag's distribution of that name; None if it is not installed or unknown."""
        packages = self.seen.packages
        return None if isinstance(packages, Missing) else packages.get(name)

    def unread_programs(self, name: str) -> DoctorPart | None:
        """The part of that name where no program could be looked for; None where that worked."""
        programs = self.seen.programs
        return unread(name, "the programs on PATH", programs) if isinstance(programs, Missing) else None

    def unread_packages(self, name: str) -> DoctorPart | None:
        """The part of that name if gpudiag's own packages could not be looked for; None if that worked."""
        packages = self.seen.packages
        return unread(name, "gpudiag's own packages", packages) if isinstance(packages, Missing) else None


def unread(name: str, what: str, missing: Missing) -> DoctorPart:
    """A part that could not be looked at, which should have been possible."""
    return DoctorPart(name, PartState.BROKEN, f"{what}: {explain_missing(missing)}")
