"""Two documents compared, as text: what matters first, by the part that it belongs to."""

from gpudiag.model.comparison import ComparedDocument, Comparison, Difference, Whose
from gpudiag.model.finding import Outcome
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

_INDENT = "  "
_MOST_CHARACTERS = 160
_MOST_OTHERS = 8  # that need not matter; `--verbose` has all
_NAMES = {
    Whose.GPU: "GPU",
    Whose.LINK: "Links (NVLink, PCIe)",
    Whose.NETWORK: "Network",
    Whose.DRIVER: "Driver",
    Whose.CONTAINER: "Container",
    Whose.HOST: "Host",
    Whose.SOFTWARE: "Software (torch)",
    Whose.JOB: "Job's variables",
    Whose.DOCUMENT: "Documents",
}


def render_comparison(found: Comparison, style: Style = PLAIN) -> str:
    """The count of differences, each that matters with its part, then those that need not."""
    matters = [one for one in found.differences if one.outcome is not Outcome.PASS]
    others = [one for one in found.differences if one.outcome is Outcome.PASS]
    lines = _verdict(found, matters, others, style)
    for whose in dict.fromkeys(one.whose for one in matters):
        lines += ["", _NAMES[whose]]
        for one in matters:
            if one.whose is whose:
                lines += _difference(one, style)
    if others:
        shown = others[: style.most(_MOST_OTHERS)]
        lines += ["", "Differs, and need not matter"]
        lines += [line for one in shown for line in _difference(one, style)]
        if len(others) > len(shown):
            lines.append(f"{_INDENT}and {len(others) - len(shown)} more: --verbose has all")
    if found.not_compared:
        lines += [
            "",
            *wrapped(
                f"Not compared: {one_line('; '.join(found.not_compared[: style.most(4)]))}", indent=_INDENT
            ),
        ]
    codes = [one.name for one in matters if "." in one.name and " " not in one.name]
    return (
        "\n".join(
            [
                *lines,
                *next_lines(
                    *(f"gpudiag explain {one_line(code)}" for code in codes[:1]), "gpudiag compare --json"
                ),
            ]
        )
        + "\n"
    )


def _verdict(
    found: Comparison, matters: list[Difference], others: list[Difference], style: Style
) -> list[str]:
    word = found.outcome.value.upper()
    counts = f"{count_of(len(matters), 'difference')} that matter{'s' * (len(matters) == 1)}"
    more = f", {len(others)} more" if others else ""
    lines = wrapped(f"{word} {counts}{more}; {found.alike} facts and speeds are alike", indent=_INDENT)
    lines[0] = style.paint_outcome(lines[0], found.outcome.value)
    for name, one in (("A", found.before), ("B", found.now)):
        lines += wrapped(f"{name}: {_document(one)}", first=_INDENT, indent=_INDENT + "   ")
    if not found.same_machine:
        lines += wrapped(
            "Two machines: GPUs are compared slot by slot, or by their number.", first=_INDENT, indent=_INDENT
        )
    return lines


def _document(one: ComparedDocument) -> str:
    kind = one.schema.partition(".")[2].partition("/")[0].replace("_", " ")
    verdict = "" if isinstance(one.verdict, Missing) else f" {one.verdict.value.upper()}"
    simulated = f"SIMULATED {one_line(one.simulated)}, " if one.simulated else ""
    return (
        f"{simulated}{one_line(one.host)}, {kind}{verdict} of"
        f" {one.taken_at:%Y-%m-%d %H:%M} UTC ({one_line(one.path)})"
    )


def _difference(one: Difference, style: Style) -> list[str]:
    before, now = (
        one_line(words, None if style.verbose else _MOST_CHARACTERS) for words in (one.before, one.now)
    )
    word = f"{one.outcome.value.upper()} " if one.outcome is not Outcome.PASS else ""
    lines = wrapped(
        f"{word}{one_line(one.where)}: {one_line(one.name)}: {before} -> {now}",
        first=_INDENT,
        indent=_INDENT * 2,
    )
    lines[0] = style.paint_outcome(lines[0], one.outcome.value)
    return [
        *lines,
        *wrapped(
            one_line(one.why, None if style.verbose else 2 * _MOST_CHARACTERS),
            first=_INDENT * 2,
            indent=_INDENT * 2,
        ),
    ]
