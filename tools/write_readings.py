"""Writes the page's and docs' copies of the table in `gpudiag/reference/readings`; a test compares."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from gpudiag.model.codec import type_hints
from gpudiag.model.device import Device, DeviceId
from gpudiag.model.reading import Missing
from gpudiag.reference.declaration import COUNTER, Activity, ByHand, Call, Declared, Field
from gpudiag.reference.readings import PAGE_GROUPS, READINGS, TOPICS

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "readings.md"
SCRIPT = _ROOT / "api" / "dashboard" / "src" / "readings.ts"

_PAGE_HEAD = """# Readings

Every reading of a GPU: its name in documents, who answers it, how often `gpudiag serve` asks (once; fast:
every second, or every 5 while nobody looks; prompt: every 5 seconds, whatever that costs, as an alert may
come of it and no event shows it; slow: every 5 seconds, more rarely where the driver is slow
([api.md](api.md#how-often-the-gpus-are-asked)); fixed: every minute), whether it is remembered over time,
and its names in `GET /metrics`, in gpudiag's own dialect (behind `gpudiag_gpu_`) and in dcgm-exporter's
(behind `DCGM_FI_DEV_`, or behind `DCGM_FI_` where it starts with `PROF_`). A metric that is made from a
reading which is no number (links, reasons, processes) is in the scrape too. "GPM" is a metric of
nvmlGpmMetricsGet: what happened between two looks, so that only `gpudiag serve` has it, on Hopper and
later. Written by `python tools/write_readings.py` from `gpudiag/reference/readings`.
"""
_SCRIPT_HEAD = """// Written by `python tools/write_readings.py` from gpudiag/reference/readings.

"""
_TYPES: dict[Any, str] = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    tuple[str, ...]: "string[]",
}
_HINTS = {**type_hints(DeviceId), **type_hints(Device)}


def page_text() -> str:
    """docs/readings.md."""
    return _PAGE_HEAD + "".join(
        "\n"
        f"## {topic[0].upper()}{topic[1:]}\n"
        "\n"
        "| reading | asked | how often | remembered | metric | dcgm |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"{''.join(map(_row, readings))}"
        for topic, readings in TOPICS
    )


def _row(declared: Declared) -> str:
    tier = declared.tier if declared.question is not None else ""
    cells = (f"`{declared.name}`", _asked(declared), tier, declared.history or "", *_metric_names(declared))
    return f"| {' | '.join(cells)} |\n"


def _asked(declared: Declared) -> str:
    question = declared.question
    if isinstance(question, Call):
        return f"`{question.function}`"
    if isinstance(question, Field):
        return f"field {question.number}"
    if isinstance(question, Activity):
        return f"GPM {question.number}"
    return f"by hand: `{question.name}`" if isinstance(question, ByHand) else "not NVML"


def _metric_names(declared: Declared) -> tuple[str, str]:
    metric = declared.metric
    if metric is None:
        return "", ""
    labels = ",".join(f'{name}="{word}"' for name, word in metric.labels.items())
    total = "_total" if metric.family.kind == COUNTER else ""
    own = f"`{metric.family.name}{total}{f'{{{labels}}}' if labels else ''}`"
    return own, f"`{metric.dcgm.name}`" if metric.dcgm is not None else ""


def script_text() -> str:
    """The types and the facts of the page, in TypeScript."""
    return (
        f"{_SCRIPT_HEAD}// A GPU's readings as `gpudiag.device/1` has them; null where one is missing.\n"
        f"export interface Readings {{\n{''.join(_members())}}}\n\n"
        "export interface DeclaredFact {\n  field: keyof Readings;\n  label: string;\n"
        "  show: string; // a unit, bytes, size, rate, or a prefix that ends in #\n}\n\n"
        "// What the page of a GPU shows, by group, in order.\n"
        "export const DECLARED_FACTS: [group: string, facts: DeclaredFact[]][] = [\n"
        f"{''.join(_groups())}];\n"
    )


def _members() -> Iterator[str]:
    for declared in READINGS:
        yield f"  {declared.name}: {_script_type(declared.name)} | null;\n"


def _script_type(name: str) -> str:
    [value_type] = [member for member in get_args(_HINTS[name]) if member is not Missing]
    return _TYPES.get(value_type, "unknown")


def _groups() -> Iterator[str]:
    for group in PAGE_GROUPS:
        facts = "".join(
            f'    {{ field: "{one.name}", label: "{one.fact.label}", show: "{one.fact.show}" }},\n'
            for one in facts_of(group)
            if one.fact is not None
        )
        yield f'  ["{group}", [\n{facts}  ]],\n'


def facts_of(group: str) -> list[Declared]:
    """The readings of one group of the page, in order: as declared, except those that set their place."""
    members = [one for one in READINGS if one.fact is not None and one.fact.group == group]
    ordered = [one for one in members if one.fact and one.fact.first]
    ordered += [one for one in members if one.fact and not one.fact.first and one.fact.after is None]
    waiting = [one for one in members if one not in ordered]
    while waiting:
        one = next(
            one for one in waiting if one.fact and one.fact.after in {placed.name for placed in ordered}
        )
        waiting.remove(one)
        behind = next(at for at, placed in enumerate(ordered) if one.fact and placed.name == one.fact.after)
        ordered.insert(behind + 1, one)
    return ordered


def main() -> None:
    """Write both."""
    PAGE.write_text(page_text())
    SCRIPT.write_text(script_text())


if __name__ == "__main__":
    main()
