"""The data files beside this one, read once each."""

from functools import cache
from pathlib import Path
from typing import Any


@cache
def read_table(name: str) -> dict[str, Any]:
    """The contents of the TOML file of that name; `folder/name` is one in a folder beside this file."""
    # Imported late: most commands read no table, and the import costs milliseconds.
    from gpudiag.toml import tomllib

    return tomllib.loads((Path(__file__).parent / name).read_text("utf-8"))
