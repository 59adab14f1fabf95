"""What is known of software: which driver a CUDA build needs, and the variables that NCCL reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.reference.tables import read_table

# --- CUDA

_CUDA = "cuda_compatibility.toml"


@cache
def minimum_drivers() -> dict[int, str]:
    """The oldest driver that runs programs of each CUDA major version."""
    return {entry["cuda"]: entry["minimum_driver"] for entry in read_table(_CUDA)["major"]}


def minimum_driver(cuda_version: str) -> str | None:
    """The oldest driver that runs programs built with that CUDA; None where it is not in the table."""
    return minimum_drivers().get(int(cuda_version.split(".")[0]))


def torch_build_for(cuda_driver_version: str, capabilities: Iterable[str] = ()) -> str:
    """The newest CUDA build of torch (`cu128`) that a driver of that CUDA runs on GPUs of `capabilities`."""
    newest, table = parse_version(cuda_driver_version), read_table(_CUDA)["torch"]
    before_turing = any(parse_version(capability) < (7, 5) for capability in capabilities)
    builds: list[str] = table["builds"]
    for build in builds:
        digits = build.removeprefix("cu")
        runs = parse_version(f"{digits[:-1]}.{digits[-1]}") <= newest
        if runs and not (before_turing and build in table["from_turing_on"]):
            return build
    return builds[-1]


def compatibility_source() -> str:
    """The source of the table, and its date."""
    table = read_table(_CUDA)
    return f"{table['source']}, {table['source_date']}"


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of a version such as `580.105.08`, for comparison; a part that is no number ends it."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


# --- NCCL


def describe_nccl(loaded: Reading[str], built: Reading[str], library: Reading[str] = NOT_ASKED) -> str:
    """`NCCL 2.32.3`; with the loaded file where torch was built with another; empty without NCCL."""
    if isinstance(loaded, Missing):
        return ""
    if isinstance(built, Missing) or built == loaded:
        return f"NCCL {loaded}"
    place = "" if isinstance(library, Missing) else f" from {library}"
    return f"NCCL {loaded}{place} (torch was built with {built})"


PREFIX = "NCCL_"
TORCH_PREFIX = "TORCH_NCCL_"
_NCCL = "nccl_variables.toml"


@dataclass(frozen=True, slots=True)
class CostlySetting:
    """A variable with values that cost speed: which ones (empty: any), and what they cost."""

    name: str
    values: tuple[str, ...]
    cost: str

    def covers(self, value: str) -> bool:
        """Whether that value costs speed."""
        return not self.values or value.strip().upper() in (one.upper() for one in self.values)


@cache
def known_variables() -> frozenset[str]:
    """Every name that NCCL reads or once read, and those that only container images and builds set."""
    table = read_table(_NCCL)
    names = (*table["known"], *table["documented"], *table["harmless"], *table["renamed"])
    return frozenset(PREFIX + name for name in names)


@cache
def torch_variables() -> frozenset[str]:
    """The TORCH_NCCL_ names that torch reads."""
    return frozenset(TORCH_PREFIX + name for name in read_table(_NCCL)["torch"]["known"])


def is_known(name: str) -> bool:
    """Whether the name is a variable of NCCL, or of one of its plugins."""
    prefixes = tuple(PREFIX + prefix for prefix in read_table(_NCCL)["prefixes"])
    return name in known_variables() or name.startswith(prefixes)


@cache
def renamed_variables() -> Mapping[str, str]:
    """Old names and the names that took their place."""
    return {PREFIX + old: new for old, new in read_table(_NCCL)["renamed"].items()}


@cache
def costly_settings() -> tuple[CostlySetting, ...]:
    """The settings that cost speed."""
    return tuple(
        CostlySetting(PREFIX + entry["name"], tuple(entry["values"]), entry["cost"])
        for entry in read_table(_NCCL)["costly"]
    )


def nccl_variables_source() -> str:
    """The source of the names, and its date."""
    table = read_table(_NCCL)
    return f"{table['source']}, {table['source_date']}"
