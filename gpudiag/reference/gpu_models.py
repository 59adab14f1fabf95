"""The data sheets of GPU models: speeds, memory, NVLinks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

# Processors that one multiprocessor has, by compute capability (CUDA C++ Programming Guide, "Arithmetic
# Instructions").
CORES_PER_MULTIPROCESSOR = {"7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128, "10.0": 128}
# Dense float16 operations of one multiprocessor per clock, by compute capability, with accumulation in
# float32 (NVIDIA's architecture white papers). Consumer cards of 8.6, 8.9 and 12.0 do half of it.
TENSOR_FLOPS_PER_CLOCK = {
    "7.0": 1024,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1024,
    "8.9": 1024,
    "9.0": 4096,
    "10.0": 8192,
}
# The rate of each type, as a multiple of float16's.
RATE_OF_DTYPE = {"float16": 1.0, "bfloat16": 1.0, "tfloat32": 0.5, "float8": 2.0, "float4": 4.0}
# The lowest compute capability whose tensor cores support a type (CUDA C++ Programming Guide, "Warp Matrix
# Functions"); older GPUs emulate it, some ten times slower.
LEAST_CAPABILITY_OF_DTYPE = {
    "float16": (7, 0),
    "bfloat16": (8, 0),
    "tfloat32": (8, 0),
    "float8": (8, 9),
    "float4": (10, 0),
}


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One product by its data sheet. Rates are in bytes and operations per second, of one direction."""

    names: tuple[str, ...]
    architecture: str
    compute_capability: str
    source: str
    memory_bus_width_bits: int
    memory_clock_mhz: int
    memory_bytes_per_second: float
    boost_clock_mhz: int
    multiprocessors: int
    power_watts: int
    dense_flops_per_second: Mapping[str, float]
    nvlink_count: int
    nvlink_bytes_per_second: float


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """Every product of the table."""
    return tuple(_model(entry) for entry in read_table("gpu_models.toml")["model"])


def find_model(name: str) -> GpuModel | None:
    """The product that NVML calls by that name; None for one that is not in the table."""
    return next((model for model in gpu_models() if name in model.names), None)


def _model(entry: Mapping[str, object]) -> GpuModel:
    facts = dict(entry)
    links = facts.pop("nvlinks", None) or {"count": 0, "bytes_per_second": 0.0}
    assert isinstance(links, dict)  # noqa: S101 - the table is ours, and a test reads it all
    names = facts.pop("names")
    assert isinstance(names, list)  # noqa: S101
    return GpuModel(
        names=tuple(names),
        nvlink_count=links["count"],
        nvlink_bytes_per_second=float(links["bytes_per_second"]),
        **facts,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of the products of those names; `max_celsius` None: no driver reports its temperature."""

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


@dataclass(frozen=True, slots=True)
class Links:
    """The NVLinks of a product: how many, and whether its board joins them without further parts.

    `wiring` is board, mesh (from GPU to GPU, among `gpus` of them) or bridge (there or not).
    """

    names: tuple[str, ...]
    count: int
    wiring: str
    source: str
    gpus: int = 2


@cache
def link_tables() -> tuple[Links, ...]:
    """Every entry of the table of NVLinks."""
    entries = read_table("gpu_links.toml")["links"]
    return tuple(Links(**{**entry, "names": tuple(entry["names"])}) for entry in entries)


def find_links(name: str) -> Links | None:
    """The NVLinks of the product that NVML calls by that name; None for one without, or not in the table."""
    return next((links for links in link_tables() if name in links.names), None)
