"""The results of an nccl-test run as tables: sizes of one operation, or a line for each of many."""

from collections.abc import Sequence

from gpudiag.collectives.formulas import ACCOUNTING, BARRIER
from gpudiag.model.measure import CollectiveResult
from gpudiag.model.reading import Missing, Reading
from gpudiag.render.style import PLAIN, Column, Style, render_table
from gpudiag.units import BYTES_PER_GB, format_seconds, format_size, significant

SHOWN_SIZES = 6
_SHOWN_GROUPS = 2  # of so many operations and dtypes the sizes are shown; of more, the largest only
_SMALLEST_RATE = 0.001  # GB/s; below it the time says more

_NUMBERS = (
    Column("SIZE", right=True),
    Column("p50", right=True),
    Column("p99", right=True),
    Column("algbw GB/s", right=True),
    Column("busbw GB/s", right=True),
    Column("wrong", right=True),
)
_OPERATION = Column("OPERATION", gives_way=True)

Group = list[CollectiveResult]


def render_results(
    results: Sequence[CollectiveResult], *, all_sizes: bool, style: Style = PLAIN
) -> list[str]:
    """The tables, and what they leave out."""
    groups = _groups(results)
    if len(groups) > _SHOWN_GROUPS and not all_sizes:
        table = render_table((_OPERATION, *_NUMBERS), [_summary_row(group) for group in groups])
        in_place = " * in place;" if any(_is_also_in_place(group[0]) for group in groups) else ""
        return [*_with_heading(table, style), f"The largest size of each;{in_place} --all-sizes shows all."]
    lines: list[str] = []
    for group in groups:
        title = [] if len(groups) == 1 else ["", name_group(group[0])]
        shown = group if all_sizes else _spread(group, SHOWN_SIZES)
        lines += [*title, *_with_heading(render_table(_NUMBERS, [_row(result) for result in shown]), style)]
    hidden = len(results) - sum(min(SHOWN_SIZES, len(group)) for group in groups)
    if hidden and not all_sizes:
        lines.append(f"{len(results) - hidden} of {len(results)} sizes; --all-sizes shows all.")
    return lines


def name_group(result: CollectiveResult) -> str:
    """What a table is about: `all_gather float32, in place`."""
    if result.op == BARRIER:
        return result.op
    reduce = "" if isinstance(result.reduce, Missing) else f" {result.reduce}"
    placement = ", in place" if _is_also_in_place(result) else ""
    return f"{result.op}{reduce} {result.dtype}{placement}{', unaligned' if result.unaligned else ''}"


def _is_also_in_place(result: CollectiveResult) -> bool:
    """Whether it was in place, of an operation that is measured out of place too."""
    return result.in_place and len(ACCOUNTING[result.op].placements) > 1


def _groups(results: Sequence[CollectiveResult]) -> list[Group]:
    """Results that differ in nothing but the size, together, in the order of the plan."""
    groups: dict[str, Group] = {}
    for result in results:
        groups.setdefault(name_group(result), []).append(result)
    return list(groups.values())


def _with_heading(table: list[str], style: Style) -> list[str]:
    return [style.paint(table[0], "bold"), *table[1:]]


def _spread(results: Group, count: int) -> Group:
    """At most `count` results, evenly spread, with the first and the last and every wrong one."""
    last = len(results) - 1
    chosen = {round(place * last / (count - 1)) for place in range(count)}
    return [result for place, result in enumerate(results) if place in chosen or result.verified is False]


def _summary_row(group: Group) -> list[str]:
    """The largest size of a group, with the wrong elements of all its sizes."""
    largest = max(group, key=lambda result: result.size_bytes)
    counts = [result.wrong_elements for result in group]
    known = [count for count in counts if not isinstance(count, Missing)]
    return [_short_name(largest), *_row(largest)[:-1], str(sum(known)) if known else "-"]


def _short_name(result: CollectiveResult) -> str:
    """The group in a column: what all groups of a run have in common is said above the table."""
    if result.op == BARRIER:
        return result.op
    return f"{result.op} {result.dtype}{'*' if _is_also_in_place(result) else ''}"


def _row(result: CollectiveResult) -> list[str]:
    return [
        "-" if result.op == BARRIER else format_size(result.size_bytes),
        format_seconds(result.time_p50_seconds),
        format_seconds(result.time_p99_seconds),
        _rate(result.algbw_bytes_per_second),
        _rate(result.busbw_bytes_per_second),
        "-" if isinstance(result.wrong_elements, Missing) else str(result.wrong_elements),
    ]


def _rate(reading: Reading[float]) -> str:
    if isinstance(reading, Missing):
        return "n/a"
    rate = reading / BYTES_PER_GB
    return significant(rate) if rate >= _SMALLEST_RATE else f"<{_SMALLEST_RATE}"
