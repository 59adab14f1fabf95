"""What shows a program less memory of a GPU than its board has: loaded from memory_limiters.toml."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table


@dataclass(frozen=True, slots=True)
class MemoryLimiter:
    """A library or a scheduler that limits memory: its name, and how it is known."""

    name: str
    libraries: tuple[str, ...]
    variables: tuple[str, ...]


@cache
def memory_limiters() -> tuple[MemoryLimiter, ...]:
    """The limiters of the table."""
    rows = read_table("memory_limiters.toml")["limiter"]
    return tuple(MemoryLimiter(row["name"], tuple(row["libraries"]), tuple(row["variables"])) for row in rows)


def find_limiter(preloaded: Iterable[str], environment: Mapping[str, str]) -> str | None:
    """The limiter and its sign, `HAMi (CUDA_DEVICE_MEMORY_LIMIT_0=10000m)`; None where nothing shows one."""
    libraries = list(preloaded)
    for limiter in memory_limiters():
        for name, value in environment.items():
            if any(_is_named(name, variable) for variable in limiter.variables):
                return f"{limiter.name} ({name}={value})"
        for library in libraries:
            if any(piece in library for piece in limiter.libraries):
                return f"{limiter.name} ({library} is preloaded)"
    return None


def _is_named(name: str, variable: str) -> bool:
    return name.startswith(variable[:-1]) if variable.endswith("*") else name == variable
