"""The environment variables that NCCL reads, by nccl_variables.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

PREFIX = "NCCL_"
TORCH_PREFIX = "TORCH_NCCL_"
_TABLE = "nccl_variables.toml"


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
    table = read_table(_TABLE)
    names = (*table["known"], *table["documented"], *table["harmless"], *table["renamed"])
    return frozenset(PREFIX + name for name in names)


@cache
def torch_variables() -> frozenset[str]:
    """The TORCH_NCCL_ names that torch reads."""
    return frozenset(TORCH_PREFIX + name for name in read_table(_TABLE)["torch"]["known"])


def is_known(name: str) -> bool:
    """Whether the name is a variable of NCCL, or of one of its plugins."""
    prefixes = tuple(PREFIX + prefix for prefix in read_table(_TABLE)["prefixes"])
    return name in known_variables() or name.startswith(prefixes)


@cache
def renamed_variables() -> Mapping[str, str]:
    """Old names and the names that took their place."""
    return {PREFIX + old: new for old, new in read_table(_TABLE)["renamed"].items()}


@cache
def costly_settings() -> tuple[CostlySetting, ...]:
    """The settings that cost speed."""
    return tuple(
        CostlySetting(PREFIX + entry["name"], tuple(entry["values"]), entry["cost"])
        for entry in read_table(_TABLE)["costly"]
    )


def nccl_variables_source() -> str:
    """The source of the names, and its date."""
    table = read_table(_TABLE)
    return f"{table['source']}, {table['source_date']}"
