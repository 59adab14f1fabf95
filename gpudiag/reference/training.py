"""The strategies of `gpudiag train`, by training.toml."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpudiag.installed import install_command, pip_command
from gpudiag.model.number_ranges import count_of
from gpudiag.reference.tables import read_table


@dataclass(frozen=True, slots=True)
class StrategyFacts:
    """What a strategy is, what it needs, and what it changes in a script."""

    name: str
    framework: str
    kind: str  # data, sharded or mirrored
    modules: tuple[str, ...]
    extra: str  # of gpudiag, which brings what is not there
    before_install: str  # variables that pip needs for it
    installer: str  # the script that does, where pip alone cannot: a file that `gpudiag deploy` prints
    lines: int
    changes: str
    shards: frozenset[str]  # of parameters, gradients, optimizer

    @property
    def one_process(self) -> bool:
        """Whether one process drives all workers, so that there is one rank for any number of them."""
        return self.name in ("data-parallel", "mirrored")

    @property
    def one_voice(self) -> bool:
        """Whether one rank reports for all workers; the replicas of `mirrored` report one by one."""
        return self.name == "data-parallel"

    def install_command(self, module: str, python: str | None, settings: str = "") -> str:
        """The command that brings `module` to an interpreter (None: ours), with `settings` as variables."""
        if module == "torch":
            return pip_command(module, python=python) if python else install_command(module)
        if self.installer:
            shell = f"{settings} sh".lstrip()
            return f"gpudiag deploy {self.installer} | {shell} -s -- {shlex.quote(python or sys.executable)}"
        command = pip_command(module, python=python) if python else install_command(self.extra)
        return f"{self.before_install} {command}".lstrip()

    @property
    def code_needed(self) -> str:
        """The lines to add to a single-process script, and what they do."""
        return f"{count_of(self.lines, 'line')}: {self.changes}"


@cache
def strategy_facts() -> Mapping[str, StrategyFacts]:
    """Every strategy, by name."""
    return {
        entry["name"]: StrategyFacts(
            name=entry["name"],
            framework=entry["framework"],
            kind=entry["kind"],
            modules=tuple(entry["modules"]),
            extra=entry.get("extra", ""),
            before_install=entry.get("before_install", ""),
            installer=entry.get("installer", ""),
            lines=entry["lines"],
            changes=entry["changes"],
            shards=frozenset(entry["shards"]),
        )
        for entry in read_table("training.toml")["strategy"]
    }
