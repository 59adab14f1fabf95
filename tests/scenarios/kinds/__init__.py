"""Kinds of faults, a file each: every file here that holds a `KIND` or `KINDS` is one more row of
docs/detection.md.
"""

from importlib import import_module
from pkgutil import iter_modules

from tests.scenarios.kinds.trial import Kind


def all_kinds() -> tuple[Kind, ...]:
    """Every kind, in the order of the files' names."""
    modules = [
        import_module(f"{__name__}.{found.name}")
        for found in sorted(iter_modules(__path__), key=lambda m: m.name)
    ]
    return tuple(kind for module in modules for kind in getattr(module, "KINDS", ()))
