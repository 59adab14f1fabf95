"""What moved between the facts that the repository holds and those that upstream has."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.upstream.parsers import Facts

# Of what the repository holds, upstream must have this share; with less of it, its text has another form now.
LEAST_SHARE = 0.5


class NotRead(Exception):
    """Upstream could not be reached, or its text has too little; the message names which, in one sentence."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Differences that were looked at: what upstream has and the repository leaves out, or the reverse."""

    left_out: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()  # gone upstream; older releases, which people still use, have it
    values: Mapping[str, str] | None = None  # upstream's value, where the repository has another on purpose


@dataclass(frozen=True, slots=True)
class Moved:
    """The differences that nobody has looked at yet."""

    new: tuple[tuple[str, str], ...]
    gone: tuple[str, ...]
    changed: tuple[tuple[str, str, str], ...]  # name, ours, upstream's

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.new or self.gone or self.changed)


def compare(held: Facts, upstream: Facts, settled: Settled) -> Moved:
    """What is new, gone and changed upstream, but for what is settled.

    Raises:
        NotRead: upstream's text has so little of what is held that it must have another form now.
    """
    expected = set(held) - settled.kept
    found = expected & set(upstream)
    if not upstream or len(found) < LEAST_SHARE * len(expected):
        raise NotRead(
            f"its text has {len(found)} of the {len(expected)} names that the repository"
            " holds, so its form may have changed"
        )
    ours = {**held, **(settled.values or {})}
    return Moved(
        tuple((name, upstream[name]) for name in _sorted(set(upstream) - set(held) - settled.left_out)),
        tuple(_sorted(expected - set(upstream))),
        tuple(
            (name, ours[name], upstream[name])
            for name in _sorted(set(held) & set(upstream))
            if ours[name] != upstream[name]
        ),
    )


def _sorted(names: set[str]) -> list[str]:
    """Numbers by their value, before names."""
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))
