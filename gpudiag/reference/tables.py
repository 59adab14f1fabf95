"""The data files beside this one, read once each."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_table(name: str) -> dict[str, Any]:
    """The contents of the TOML file of that name."""
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
