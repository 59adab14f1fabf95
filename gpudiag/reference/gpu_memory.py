"""How much memory a GPU is sold with and how hot that may be, by gpu_memory.toml."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of the products of those names; `max_celsius` None where no driver tells its temperature."""

    names: tuple[str, ...]
    gib: int
    source: str
    max_celsius: int | None = None


@cache
def gpu_memories() -> tuple[GpuMemory, ...]:
    """Every entry of the table."""
    entries = read_table("gpu_memory.toml")["memory"]
    return tuple(GpuMemory(**{**entry, "names": tuple(entry["names"])}) for entry in entries)


def find_memory(name: str) -> GpuMemory | None:
    """The memory of the product that NVML calls by that name; None for one that is not in the table."""
    return next((memory for memory in gpu_memories() if name in memory.names), None)
