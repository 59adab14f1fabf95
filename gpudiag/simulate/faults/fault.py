"""A kind of fault, and one fault of a spec."""

from collections.abc import Callable
from dataclasses import dataclass

from gpudiag.errors import UsageError
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a spec: `text` as written, the GPU's NVML index, and the argument behind it."""

    kind: "FaultKind"
    text: str
    gpu: int | None = None
    argument: str | None = None

    @property
    def on(self) -> int:
        """The NVML index of the GPU; only for kinds that have one."""
        assert self.gpu is not None  # noqa: S101 - parse_faults refuses a fault without its GPU
        return self.gpu

    def refuse(self, why: str, hint: str = "") -> UsageError:
        """The UsageError to raise where this fault cannot happen on this machine, with the reason."""
        return UsageError(f"fault {self.text!r}: {why}", hint=hint)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault that a spec can name.

    `arguments` as in a usage line: `N`, `N:SECONDS`, `N[:LINK]`, `LIST`, or nothing. Two of one `group`
    exclude each other on one GPU, or machine. `silences`: that GPU can have no other fault but a logged Xid.
    """

    name: str
    arguments: str
    description: str
    apply: Callable[[Blueprint, Fault], Blueprint]
    group: str | None = None
    silences: bool = False
    repeatable: bool = False  # several arguments for one GPU make sense

    @property
    def usage(self) -> str:
        """Its usage line: `nvlink-down:N[:LINK]`."""
        return f"{self.name}:{self.arguments}" if self.arguments else self.name

    @property
    def of_gpu(self) -> bool:
        """Whether it is about one GPU."""
        return self.arguments.startswith("N")


def has(gpu: GpuBlueprint, *names: str) -> bool:
    """Whether NVML has a value for each of those readings."""
    return all(name in gpu.gpu.readings for name in names)


def only_known(gpu: GpuBlueprint, **readings: object) -> GpuBlueprint:
    """The GPU with new values for those of the readings that it has; the rest stay missing."""
    return gpu.with_readings(**{name: value for name, value in readings.items() if has(gpu, name)})
