"""What each SXid of an NVSwitch means, by class: the catalogue in sxid.toml."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from gpudiag.reference.tables import read_table


class SXidClass(StrEnum):
    """How bad an NVSwitch error is, as the Fabric Manager User Guide groups them."""

    ALWAYS_FATAL = "always_fatal"
    FATAL = "fatal"  # where a GPU sees it too
    DISTURBING = "disturbing"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class SXid:
    """One code of the catalogue."""

    code: int
    meaning: str
    sxid_class: SXidClass
    remedy: str


@cache
def sxids() -> dict[int, SXid]:
    """Every code of the catalogue."""
    table = read_table("sxid.toml")
    return {
        code: SXid(code, entry["meaning"], SXidClass(entry["class"]), table["remedies"][entry["class"]])
        for entry in table["sxid"]
        for code in entry["codes"]
    }


def sxid_source() -> str:
    """Where the catalogue comes from, and of what date it is."""
    table = read_table("sxid.toml")
    return f"{table['source']}, {table['source_date']}"
