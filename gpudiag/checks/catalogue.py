"""The catalogue of findings: every code that gpudiag may report. docs/findings.md is written from it."""

from collections.abc import Mapping
from types import MappingProxyType

from gpudiag.checks import BUILTIN
from gpudiag.checks.collective import COLLECTIVE_FINDINGS
from gpudiag.checks.fleet import VERSIONS_DIFFER
from gpudiag.checks.registry import FindingKind
from gpudiag.checks.training import TRAINING_RUN_FINDINGS

# What commands report that judge without the checks.
COMMAND_FINDINGS: Mapping[str, tuple[FindingKind, ...]] = MappingProxyType(
    {
        "nccl-test": COLLECTIVE_FINDINGS,
        "train": TRAINING_RUN_FINDINGS,
        "merge": (VERSIONS_DIFFER,),
    }
)


def finding_kinds() -> tuple[FindingKind, ...]:
    """Every kind once: those of the checks in run order, then those of commands alone."""
    of_checks = [kind for check in BUILTIN for kind in check.reports]
    of_commands = [kind for kinds in COMMAND_FINDINGS.values() for kind in kinds]
    return tuple({kind.code: kind for kind in (*of_checks, *of_commands)}.values())


def name_reporters(kind: FindingKind) -> str:
    """The checks that may report it, and the commands that do so themselves: `the check gpu.lost; gpudiag merge`."""
    checks = [check.name for check in BUILTIN if kind in check.reports]
    commands = [f"gpudiag {name}" for name, kinds in COMMAND_FINDINGS.items() if kind in kinds]
    of_checks = [f"the check{'s' * (len(checks) > 1)} {', '.join(checks)}"] if checks else []
    return "; ".join([*of_checks, *([", ".join(commands)] if commands else [])])
