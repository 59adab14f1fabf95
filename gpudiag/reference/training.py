"""The strategies of `gpudiag train`, by training.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpudiag.installed import install_command
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
    installer: str  # the program that does, where pip alone cannot
    lines: int
    changes: str
    shards: frozenset[str]  # of parameters, gradients, optimizer

    @property
    def one_process(self) -> bool:
        """Whether one process drives all workers, so that there is one rank for any number of them."""
        return self.name in ("data-parallel", "mirrored")

    @property
    def one_voice(self) -> bool:
        """Whether one rank reads and reports for all workers; the replicas of `mirrored` report one by one."""
        return self.name == "data-parallel"

    @property
    def install(self) -> str:
        """The one command that installs what is not there."""
        return self.installer or f"{self.before_install} {install_command(self.extra)}".lstrip()

    @property
    def code_needed(self) -> str:
        """The lines to add to a single-process script, and what they do."""
        return f"{self.lines} line{'s' * (self.lines != 1)}: {self.changes}"


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
