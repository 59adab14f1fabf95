"""The catalogue of findings: every code that gpudiag may report, once. docs/findings.md is its page."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gpudiag.checks import BUILTIN
from gpudiag.checks.benchmarks.kinds import JUDGE_FINDINGS
from gpudiag.checks.fleet import VERSIONS_DIFFER
from gpudiag.checks.job.kinds import HANG_FINDINGS
from gpudiag.checks.job.run_kinds import RUN_FINDINGS
from gpudiag.checks.ranks.collective import COLLECTIVE_FINDINGS
from gpudiag.checks.registry import Check, FindingKind
from gpudiag.checks.software.nccl_log import NCCL_LOG_FINDINGS
from gpudiag.checks.training.strategy import TRAINING_RUN_FINDINGS

_MAX_LIMITS = 3
# What commands report that judge without checks.
COMMAND_FINDINGS: Mapping[str, tuple[FindingKind, ...]] = MappingProxyType(
    {
        "nccl-test": COLLECTIVE_FINDINGS,
        "train": TRAINING_RUN_FINDINGS,
        "hang": HANG_FINDINGS,
        "run": RUN_FINDINGS,
        "merge": (VERSIONS_DIFFER,),
        "explain": NCCL_LOG_FINDINGS,
        "judge": JUDGE_FINDINGS,
    }
)


def each_once(kinds: Iterable[FindingKind]) -> tuple[FindingKind, ...]:
    """The kinds given, in their order, each once. Raises ValueError: two of them have one code."""
    catalogue: dict[str, FindingKind] = {}
    for kind in kinds:
        if catalogue.setdefault(kind.code, kind) is not kind:
            raise ValueError(f"the code {kind.code} has two entries: a code has one FindingKind")
    return tuple(catalogue.values())


_KINDS = each_once(
    (
        *(kind for check in BUILTIN for kind in check.reports),
        *(kind for kinds in COMMAND_FINDINGS.values() for kind in kinds),
    )
)


def finding_kinds() -> tuple[FindingKind, ...]:
    """Every kind of finding: those of checks in run order, then those of commands alone."""
    return _KINDS


def name_reporters(kind: FindingKind) -> str:
    """The checks and commands that may report a code, in one text: `the check gpu.lost; gpudiag merge`."""
    checks = [check.name for check in BUILTIN if any(one is kind for one in check.reports)]
    commands = [
        f"gpudiag {name}" for name, kinds in COMMAND_FINDINGS.items() if any(one is kind for one in kinds)
    ]
    of_checks = [f"the check{'s' * (len(checks) > 1)} {', '.join(checks)}"] if checks else []
    return "; ".join([*of_checks, *([", ".join(commands)] if commands else [])])


def describe_limits(check: Check) -> str:
    """The limits that a check holds readings against, each once; for many, only where to find them."""
    limits = dict.fromkeys(kind.basis.limit.rstrip(".") for kind in check.reports)
    if len(limits) > _MAX_LIMITS:
        return "one for each code: `gpudiag explain CODE`"
    return "; ".join(limits)
