"""Does something as soon as a module has been imported, whoever imports it."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as others do, and acts behind its import."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        """Wait for that module."""
        self._name, self._act = name, act
        self._looking = False
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the module with a loader that acts; None for everything else."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True  # the others are asked by the same way
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            self._act()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec
