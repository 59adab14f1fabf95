"""What only a look at several machines' reports can find: versions that differ among them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

VERSIONS_DIFFER = FindingKind(
    code="machines.versions_differ",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_OTHER,
    owner=Owner.SOFTWARE,
    meaning="The machines of one merged report do not have the same driver, torch, CUDA runtime or NCCL.",
    remedy="Ranks of one job need the same torch and NCCL: align these machines, or keep jobs from spanning both kinds.",
    basis=Basis(
        reads="Driver, torch, CUDA runtime and NCCL in each report that `gpudiag"
        " merge`, or a preflight under a launcher, puts together.",
        limit="The version that most of the machines have.",
        look_also=(
            "gpudiag list --sources all",
            "gpudiag preflight --expect FILE, with the report of a good machine",
        ),
    ),
)
_MAX_VERSIONS_TOLD = 4


@dataclass(frozen=True, slots=True)
class VersionSkew:
    """One thing of which the machines have several versions; `odd` are those without the most common one."""

    message: str
    odd: tuple[str, ...]


def judge_versions(versions: Mapping[str, Mapping[str, str]]) -> tuple[VersionSkew, ...]:
    """A skew for each thing, such as `driver`, whose version differs between machines, with their names."""
    things = dict.fromkeys(thing for told in versions.values() for thing in told)
    found = []
    for thing in things:
        by_machine = {machine: told[thing] for machine, told in versions.items() if thing in told}
        counts = Counter(by_machine.values()).most_common()
        if len(counts) < 2:
            continue
        words = ", ".join(f"{version} on {count:,}" for version, count in counts[:_MAX_VERSIONS_TOLD])
        more = f" and {len(counts) - _MAX_VERSIONS_TOLD} more" if len(counts) > _MAX_VERSIONS_TOLD else ""
        usual = counts[0][0]
        odd = tuple(machine for machine, version in by_machine.items() if version != usual)
        found.append(VersionSkew(f"{thing} differs: {words}{more}", odd))
    return tuple(found)
