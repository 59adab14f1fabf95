"""What only a look at several machines' reports can find: versions that differ among them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpudiag.checks.majority import majority_of
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

VERSIONS_DIFFER = FindingKind(
    code="machines.versions_differ",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_OTHER,
    owner=Owner.SOFTWARE,
    meaning="The machines of one merged report do not have the same driver, torch, CUDA runtime or NCCL.",
    remedy=(
        "Ranks of one job need the same torch and NCCL: align these machines, or"
        " keep jobs from spanning both kinds."
    ),
    basis=Basis(
        reads="Driver, torch, CUDA runtime and NCCL in each report that `gpudiag"
        " merge`, or a preflight under a launcher, puts together.",
        limit=(
            "The version that more than half of the machines have, two at least. Where no version has that"
            " majority, all machines are named and none is blamed."
        ),
        look_also=(
            "gpudiag list --sources all",
            "gpudiag preflight --expect FILE, with the report of a good machine",
        ),
    ),
)
_MAX_VERSIONS_SHOWN = 4
_MAX_NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class VersionSkew:
    """One thing in several versions; `named`: the machines without the majority's, or all."""

    message: str
    named: tuple[str, ...]


def judge_versions(versions: Mapping[str, Mapping[str, str]]) -> tuple[VersionSkew, ...]:
    """A skew for each thing, such as `driver`, whose version differs between machines, with their names."""
    things = dict.fromkeys(thing for own in versions.values() for thing in own)
    found = []
    for thing in things:
        by_machine = {machine: own[thing] for machine, own in versions.items() if thing in own}
        counts = Counter(by_machine.values()).most_common()
        if len(counts) < 2:
            continue
        usual = majority_of(by_machine.values())
        named = tuple(machine for machine, version in by_machine.items() if version != usual)
        found.append(VersionSkew(f"{thing} differs: {_describe(by_machine, counts, usual)}", named))
    return tuple(found)


def _describe(by_machine: Mapping[str, str], counts: list[tuple[str, int]], usual: object) -> str:
    """How many machines have which version; without a majority also who they are."""
    parts = [f"{version} on {count:,}" for version, count in counts[:_MAX_VERSIONS_SHOWN]]
    if len(counts) > _MAX_VERSIONS_SHOWN:
        parts.append(f"{len(counts) - _MAX_VERSIONS_SHOWN} more versions")
    if usual is not None:
        return ", ".join(parts)
    for place, (version, count) in enumerate(counts[:_MAX_VERSIONS_SHOWN]):
        names = [machine for machine, known in by_machine.items() if known == version]
        more = f" and {count - _MAX_NAMES_SHOWN} more" if count > _MAX_NAMES_SHOWN else ""
        parts[place] += f" ({', '.join(names[:_MAX_NAMES_SHOWN])}{more})"
    return f"{'; '.join(parts)}. No version has a majority, so none of them is the wrong one"
