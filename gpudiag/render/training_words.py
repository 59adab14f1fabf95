"""Words and figures of a training report, for text and Markdown alike."""

from collections.abc import Iterable

from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.training import StrategyResult, TrainingReport, Verification
from gpudiag.units import format_size, significant

HEADINGS = ("STRATEGY", "FRAMEWORK", "KIND", "RANKS", "VERIFIED", "SAMPLES/s", "SCALING", "MEMORY")


def cells(result: StrategyResult) -> list[str]:
    """One row of the comparison, under HEADINGS; why not, where it did not run, is told apart."""
    return [
        result.strategy,
        framework(result),
        result.kind,
        "-" if not result.ran else str(result.world_size),
        verified(result),
        figure(result.samples_per_second),
        percent(result.scaling_efficiency),
        memory(result),
    ]


def group_reasons(results: Iterable[StrategyResult]) -> dict[str, list[str]]:
    """Why strategies did not run, each reason once with its remedy and with all that it holds for."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if result.reason is not None:
            words = f"{result.reason} ({result.hint})" if result.hint else result.reason
            groups.setdefault(words, []).append(result.strategy)
    return groups


def framework(result: StrategyResult) -> str:
    """The framework's first version, without what it builds on."""
    return result.framework.partition(",")[0].partition("+")[0]


def verified(result: StrategyResult) -> str:
    """`17 of 17`, or why nothing was."""
    if not result.ran:
        return result.outcome.value.upper()
    asked = [one for one in result.verifications if not is_not_asked(one)]
    return f"{sum(one.passed is True for one in asked)} of {len(asked)}"


def is_not_asked(verification: Verification) -> bool:
    """Whether there was no reason to prove it."""
    passed = verification.passed
    return isinstance(passed, Missing) and passed.reason.value == "not_asked"


def memory(result: StrategyResult) -> str:
    """Peak memory of the largest rank: the GPU's, or the process's on the CPU."""
    for reading in (result.device_memory_bytes, result.host_memory_bytes):
        if not isinstance(reading, Missing):
            return format_size(reading)
    return "-"


def figure(reading: Reading[float]) -> str:
    """Three figures, or a dash."""
    return "-" if isinstance(reading, Missing) else significant(reading)


def percent(reading: Reading[float]) -> str:
    """A share in per cent, or a dash."""
    return "-" if isinstance(reading, Missing) else f"{reading:.0%}"


def headline(report: TrainingReport) -> str:
    """The verdict in one sentence, without the word PASS or FAIL."""
    injected = ", ".join(
        dict.fromkeys(fault.specification for result in report.strategies for fault in result.injected)
    )
    prefix = f"SIMULATED {report.simulated} " if report.simulated else ""
    prefix += f"(injected: {injected}) " if injected else ""
    if report.findings and report.outcome is not Outcome.PASS:
        return prefix + report.findings[0].message
    if report.script is not None:
        script = report.script
        ranks = f"{script.world_size} rank{'s' * (script.world_size != 1)}"
        proved = [one.name.replace("_", " ") for one in script.verifications if one.passed is True]
        seen = f"seen to hold: {', '.join(proved)}" if proved else "nothing of its training was proved"
        return f"{prefix}{ranks} of {script.script} ended well; {seen}."
    ran = [result for result in report.strategies if result.ran]
    if not ran:
        return f"{prefix}nothing ran: {_reasons(report)}"
    only = "CPU ONLY: " if all(result.device_kind == "cpu" for result in ran) else ""
    names = ", ".join(result.strategy for result in ran)
    ranks = f"{ran[0].world_size} rank{'s' * (ran[0].world_size != 1)}"
    return f"{prefix}{only}{names} on {ranks}: the maths is that of a single process."


def _reasons(report: TrainingReport) -> str:
    return "; ".join(f"{result.strategy}: {result.reason}" for result in report.strategies if result.reason)
