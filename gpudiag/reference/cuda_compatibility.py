"""Which driver a CUDA build needs, by cuda_compatibility.toml."""

from functools import cache

from gpudiag.reference.tables import read_table

_TABLE = "cuda_compatibility.toml"


@cache
def minimum_drivers() -> dict[int, str]:
    """The oldest driver that runs programs of each CUDA major version."""
    return {entry["cuda"]: entry["minimum_driver"] for entry in read_table(_TABLE)["major"]}


def minimum_driver(cuda_version: str) -> str | None:
    """The oldest driver that runs programs built with that CUDA; None where it is not in the table."""
    return minimum_drivers().get(int(cuda_version.split(".")[0]))


def torch_build_for(cuda_driver_version: str) -> str:
    """The newest CUDA build of torch that a driver with that CUDA runs, such as `cu128`."""
    newest = parse_version(cuda_driver_version)
    builds: list[str] = read_table(_TABLE)["torch"]["builds"]
    for build in builds:
        digits = build.removeprefix("cu")
        if parse_version(f"{digits[:-1]}.{digits[-1]}") <= newest:
            return build
    return builds[-1]


def compatibility_source() -> str:
    """The source of the table, and its date."""
    table = read_table(_TABLE)
    return f"{table['source']}, {table['source_date']}"


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of a version such as `580.105.08`, for comparison; a part that is no number ends it."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
