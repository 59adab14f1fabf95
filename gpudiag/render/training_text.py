"""The report of a training run as text, and its comparison of strategies as Markdown."""

from collections.abc import Iterable

from gpudiag.model.finding import Outcome
from gpudiag.model.number_ranges import count_of, name_ranks
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.training import StepShares, StrategyResult, TrainingReport, Verification
from gpudiag.render.report_words import describe_launcher, describe_subject_and_host, finding_lines
from gpudiag.render.style import PLAIN, Column, Style, next_lines, render_table, wrapped
from gpudiag.units import format_seconds, format_size, significant

HEADINGS = ("STRATEGY", "FRAMEWORK", "KIND", "RANKS", "VERIFIED", "SAMPLES/s", "SCALING", "MEMORY")

SHOWN_FINDINGS = 3


def cells(result: StrategyResult) -> list[str]:
    """One row of the comparison, under HEADINGS; reasons for not running stand elsewhere."""
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
    """The strategies that did not run, by reason with its remedy."""
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
    """Whether proving it was not asked for."""
    passed = verification.passed
    return isinstance(passed, Missing) and passed.reason.value == "not_asked"


def memory(result: StrategyResult) -> str:
    """Peak memory of the largest rank: the GPU's, or the process's on the CPU."""
    for reading in (result.device_memory_bytes, result.host_memory_bytes):
        if not isinstance(reading, Missing):
            return format_size(reading)
    return "-"


def figure(reading: Reading[float]) -> str:
    """The number with three significant figures, or a dash."""
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
        ranks = f"{count_of(script.world_size, 'rank')}"
        proved = [one.name.replace("_", " ") for one in script.verifications if one.passed is True]
        seen = f"verified: {', '.join(proved)}" if proved else "its training was not verified"
        return f"{prefix}{ranks} of {script.script} succeeded; {seen}."
    ran = [result for result in report.strategies if result.ran]
    if not ran:
        return f"{prefix}nothing ran: {_reasons(report)}"
    only = "CPU ONLY: " if all(result.device_kind == "cpu" for result in ran) else ""
    names = ", ".join(result.strategy for result in ran)
    ranks = f"{count_of(ran[0].world_size, 'rank')}"
    return f"{prefix}{only}{names} on {ranks}: the results match a single process."


def _reasons(report: TrainingReport) -> str:
    return "; ".join(f"{result.strategy}: {result.reason}" for result in report.strategies if result.reason)


_COLUMNS = tuple(
    Column(
        heading,
        right=heading in ("RANKS", "SAMPLES/s", "SCALING", "MEMORY"),
        gives_way=heading == "FRAMEWORK",
    )
    for heading in HEADINGS
)


def render_training(report: TrainingReport, *, style: Style = PLAIN) -> str:
    """The whole report: verdict first, as wide as the terminal."""
    if report.advice and not report.strategies:
        return "\n".join(_advice_lines(report)) + "\n"
    word = report.outcome.value.upper()
    first, *more = wrapped(f"{word} {headline(report)}", indent="  ")
    lines = [style.paint_outcome(first, report.outcome.value), *more]
    most = style.most(SHOWN_FINDINGS)
    for place, finding in enumerate(report.findings[:most]):
        lines += ["", *finding_lines(finding, has_message=place == 0)]
    if len(report.findings) > most:
        lines += ["", f"  {len(report.findings) - most} more findings: --verbose has all"]
    ran = [result for result in report.strategies if result.ran]
    if len(report.strategies) == 1 and ran:
        lines += ["", *_strategy_lines(ran[0])]
    elif report.strategies:
        lines += ["", *_table_lines(report, style)]
    if report.script is not None:
        lines += ["", *_script_lines(report)]
    lines += ["", *wrapped(f"On {report.host}: {', '.join(report.machine)}.", indent="  ")]
    lines += next_lines(*_next_commands(report))
    return "\n".join(lines) + "\n"


def _strategy_lines(result: StrategyResult) -> list[str]:
    lines = wrapped(
        f"{result.strategy} ({result.framework}), {result.workload} with {figure(result.parameters)}"
        f" parameters, {result.dtype}, {result.optimizer}, {result.steps} verified steps,"
        f" {describe_launcher(result.launcher)}, {format_seconds(result.seconds)}.",
        indent="  ",
    )
    lines += _verification_lines(result)
    if isinstance(result.samples_per_second, Missing):
        return lines
    lines += wrapped(
        f"Speed: {figure(result.samples_per_second)} samples/s, "
        f"step p50 {_seconds(result.step_p50_seconds)}, p99 {_seconds(result.step_p99_seconds)}, "
        f"scaling {percent(result.scaling_efficiency)} of {result.world_size} single ranks, "
        f"peak memory {memory(result)} per rank.",
        indent="  ",
    )
    if isinstance(result.shares, StepShares):
        shares = result.shares
        lines += wrapped(
            f"Time: forward {shares.forward:.0%}, backward {shares.backward:.0%}, optimizer "
            f"{shares.optimizer:.0%}, data {shares.data:.0%}, communication and framework "
            f"{shares.communication:.0%}.",
            indent="  ",
        )
    return lines


def _verification_lines(result: StrategyResult) -> list[str]:
    proved = [_name(one) for one in result.verifications if one.passed is True]
    wrong = [_name(one) for one in result.verifications if one.passed is False]
    open_ = [
        one.name.replace("_", " ")
        for one in result.verifications
        if isinstance(one.passed, Missing) and not is_not_asked(one)
    ]
    lines = wrapped(f"Proved: {', '.join(proved)}.", indent="  ") if proved else []
    lines += wrapped(f"Failed: {', '.join(wrong)}.", indent="  ") if wrong else []
    return lines + (wrapped(f"Not reached: {', '.join(open_)}.", indent="  ") if open_ else [])


def _name(verification: Verification) -> str:
    name = verification.name.replace("_", " ")
    if isinstance(verification.value, Missing) or isinstance(verification.limit, Missing):
        return name
    return f"{name} ({verification.value:.1e}, limit {verification.limit:.1e})"


def _table_lines(report: TrainingReport, style: Style) -> list[str]:
    heading, *rows = render_table(_COLUMNS, [cells(result) for result in report.strategies])
    lines = [style.paint(heading, "bold"), *rows]
    for words, names in group_reasons(report.strategies).items():
        lines += wrapped(f"{', '.join(names)}: {words}", indent="  ")
    code = ", ".join(
        f"{result.strategy} {result.code_needed.partition(':')[0]}" for result in report.strategies
    )
    lines += ["", *wrapped(f"Code that a script for one process gains: {code}.", indent="  ")]
    return [*lines, *_advised(report)]


def _script_lines(report: TrainingReport) -> list[str]:
    script = report.script
    if script is None:
        return []
    sizes = sorted(set(script.group_world_sizes))
    words = ", ".join("none" if size == 0 else f"of {size}" for size in sizes) or "none"
    lines = [
        f"Process groups: {words}; {describe_launcher(script.launcher)}, {format_seconds(script.seconds)}."
    ]
    for one in script.verifications:
        if isinstance(one.passed, Missing):
            lines += wrapped(f"Not checked: {one.name.replace('_', ' ')} ({one.passed.detail}).", indent="  ")
    alike: dict[str, list[int]] = {}
    for rank in script.ranks:
        ending = "killed at the end" if isinstance(rank.exit, Missing) else f"exit {rank.exit}"
        alike.setdefault(f"on {rank.host}: stage {rank.stage}, {ending}", []).append(rank.rank)
    for words, ranks in alike.items():
        lines.append(f"  {name_ranks(ranks)} {words}")
    return lines


def _advice_lines(report: TrainingReport) -> list[str]:
    lines = wrapped(f"On {report.host}: {', '.join(report.machine)}.", indent="  ")
    lines += _advised(report)
    return [*lines, f"Next: gpudiag train --strategy {report.advice[0].strategy} | --strategy all"]


def _advised(report: TrainingReport) -> list[str]:
    lines = []
    for place, advice in enumerate(report.advice):
        lines += wrapped(
            f"{'Use' if place == 0 else 'or'} {advice.strategy}: {'; '.join(advice.reasons)}.", indent="  "
        )
    return lines


def _seconds(reading: object) -> str:
    return format_seconds(reading) if isinstance(reading, float) else "-"


def _next_commands(report: TrainingReport) -> list[str]:
    if report.outcome in (Outcome.FAIL, Outcome.ERROR):
        explain = [f"gpudiag explain {finding.code}" for finding in report.findings[:1]]
        return [*explain, "gpudiag nccl-test", "gpudiag train --json --output FILE"]
    more = "--strategy all" if len(report.strategies) == 1 else "--advise --parameters 7B"
    return [f"gpudiag train {more}", "--inject nosync:3 (see a fault found)"]


def render_training_markdown(report: TrainingReport) -> str:
    """The verdict, the table with the code that each strategy needs, and the findings."""
    lines = []
    if report.strategies or report.script:
        lines = [f"**{report.outcome.value.upper()}** {headline(report)}", ""]
    if report.strategies:
        headings = [*(heading.capitalize() for heading in HEADINGS), "Code needed"]
        lines += [_row(headings), _row(["---"] * len(headings))]
        lines += [_row([*cells(result), result.code_needed]) for result in report.strategies]
        lines.append("")
    lines += [f"- {', '.join(names)}: {words}" for words, names in group_reasons(report.strategies).items()]
    lines += [
        (
            f"- `{finding.code}` {describe_subject_and_host(finding.subject)}:"
            f" {finding.message}. {finding.remedy}"
        )
        for finding in report.findings
    ]
    lines += [f"- use {advice.strategy}: {'; '.join(advice.reasons)}" for advice in report.advice]
    lines += ["", f"On {', '.join(report.machine)}."]
    return "\n".join(lines) + "\n"


def _row(values: list[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
