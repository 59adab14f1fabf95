"""A judgement of other programs' benchmarks as text: the verdict, tables that are not right, the others."""

from gpudiag.model.benchmark import JudgedTable, Judgement, OutputRead
from gpudiag.model.finding import Finding, Outcome
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

_INDENT = "  "
_WORDS = {Outcome.ERROR: "NOT JUDGED", Outcome.SKIP: "NO FIGURE"}
_COLOURS = {Outcome.FAIL: "red", Outcome.WARN: "yellow", Outcome.PASS: "green"}
_ORDER = (Outcome.FAIL, Outcome.WARN, Outcome.ERROR, Outcome.PASS, Outcome.SKIP)
_MOST_TABLES = 12  # of one outcome; `--verbose` has all
_MOST_REMARKS = 5


def render_judgement(judgement: Judgement, style: Style = PLAIN) -> str:
    """The whole judgement, as wide as the terminal."""
    lines = _verdict(judgement, style)
    several = len(judgement.files) > 1
    remedies: set[str] = set()
    for outcome in _ORDER:
        of_outcome = [judged for judged in judgement.tables if judged.outcome is outcome]
        for judged in of_outcome[: style.most(_MOST_TABLES)]:
            lines += ["", *_table(judged, style, several, remedies)]
        left = len(of_outcome) - style.most(_MOST_TABLES)
        if left > 0:
            lines += ["", f"and {left} more such tables: --verbose has all"]
    remarks = [line for file in judgement.files for line in _file(file)]
    if remarks:
        shown = remarks[: style.most(_MOST_REMARKS)]
        lines += ["", *shown]
        if len(remarks) > len(shown):
            lines.append(f"and {len(remarks) - len(shown)} more files: --verbose names them")
    return "\n".join([*lines, *_next(judgement)]) + "\n"


def _verdict(judgement: Judgement, style: Style) -> list[str]:
    """The word, and how many tables are right, slow and so on."""
    word = _WORDS.get(judgement.outcome, judgement.outcome.value.upper())
    painted = style.paint(word, _COLOURS.get(judgement.outcome, "bold"))
    counts = []
    for outcome, words in (
        (Outcome.FAIL, "wrong"),
        (Outcome.WARN, "to look at"),
        (Outcome.ERROR, "not judged"),
        (Outcome.PASS, "right"),
        (Outcome.SKIP, "without a figure"),
    ):
        number = sum(judged.outcome is outcome for judged in judgement.tables)
        if number:
            counts.append(f"{number} {words}")
    files = judgement.files
    of = one_line(files[0].name) if len(files) == 1 else f"{len(files)} files"
    tables = f"{len(judgement.tables)} table{'s' * (len(judgement.tables) != 1)} in {of}"
    text = f"{word} {tables}: {', '.join(counts)}." if counts else f"{word} {_nothing(judgement, of)}"
    lines = wrapped(text, indent=_INDENT)
    lines[0] = lines[0].replace(word, painted, 1)
    return lines


def _nothing(judgement: Judgement, name: str) -> str:
    """Why there is no table."""
    if not any(file.lines or file.refused for file in judgement.files):
        return f"{name}: nothing is in it."
    if all(file.refused for file in judgement.files):
        return f"{name}: nothing was read."
    return (
        f"{name}: no table of a benchmark that gpudiag knows. It reads nccl-tests, nvbandwidth,"
        " p2pBandwidthLatencyTest, bandwidthTest, perftest, OSU, all_reduce_bench, DeepSpeed, `dcgmi diag`,"
        " NCCL's Inspector, and gpudiag's JSON."
    )


def _table(judged: JudgedTable, style: Style, several: bool, remedies: set[str]) -> list[str]:
    """What is words of one table; advice that stood above is not repeated."""
    table = judged.table
    place = f"{one_line(table.file)}:{table.line}" if several else f"line {table.line}"
    lines: list[str] = []
    for finding in judged.findings:
        lines += _finding(finding, place, style)
        if finding.outcome is not Outcome.PASS and finding.remedy not in remedies:
            remedies.add(finding.remedy)
            lines += wrapped(one_line(finding.remedy), first=f"{_INDENT}Do: ", indent=_INDENT + "    ")
    if table.setup.assumed and judged.outcome is not Outcome.PASS:
        lines += wrapped(
            f"Taken to be so: {'; '.join(table.setup.assumed)} (else --nodes N).",
            first=_INDENT,
            indent=_INDENT,
        )
    return lines


def _finding(finding: Finding, place: str, style: Style) -> list[str]:
    word = _WORDS.get(finding.outcome, finding.outcome.value.upper())
    text = f"{word} {one_line(finding.message)} ({finding.code}, {place})"
    lines = wrapped(text, indent=_INDENT)
    lines[0] = lines[0].replace(word, style.paint(word, _COLOURS.get(finding.outcome, "bold")), 1)
    if style.verbose:
        for fact in finding.evidence:
            if fact.source:
                lines += wrapped(f"by {one_line(fact.source)}", first=_INDENT, indent=_INDENT)
    return lines


def _file(file: OutputRead) -> list[str]:
    """A file that was not read, or that has no table."""
    name = one_line(file.name)
    if file.refused:
        return wrapped(f"{name}: not read: {file.refused}.", indent=_INDENT)
    if file.tables:
        return []
    if not file.lines:
        return [f"{name}: it is empty."]
    facts = f"it shows {', '.join(map(one_line, file.facts[:4]))}" if file.facts else "it has no table"
    return wrapped(f"{name}: {facts}.", indent=_INDENT)


def _next(judgement: Judgement) -> list[str]:
    codes = [finding.code for judged in judgement.tables for finding in judged.findings]
    worst = next(
        (
            finding.code
            for outcome in (Outcome.FAIL, Outcome.WARN)
            for judged in judgement.tables
            for finding in judged.findings
            if finding.outcome is outcome
        ),
        "",
    )
    if worst:
        return next_lines(f"gpudiag explain {worst}", "gpudiag preflight --level standard")
    return [] if codes else next_lines("gpudiag judge --help", "gpudiag explain FILE (failures in a log)")
