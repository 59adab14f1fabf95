"""How many NVLinks a product has, by gpu_links.toml; apart from its speeds, for a listing needs no more."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table


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
    """What is known of the NVLinks of products."""
    entries = read_table("gpu_links.toml")["links"]
    return tuple(Links(**{**entry, "names": tuple(entry["names"])}) for entry in entries)


def find_links(name: str) -> Links | None:
    """The NVLinks of the product that NVML calls by that name; None for one without, or not in the table."""
    return next((links for links in link_tables() if name in links.names), None)
