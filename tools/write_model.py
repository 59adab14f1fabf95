"""Writes the page's types, api/dashboard/src/model.ts, from `gpudiag/model`; a test compares."""

import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from gpudiag.model.codec import type_hints, written_fields
from gpudiag.model.comparison import Comparison
from gpudiag.model.evidence import Scalar, Subject
from gpudiag.model.hub import HubDocument, HubEvents
from gpudiag.model.job_run import RankRecord, SignalSeen, StepTime
from gpudiag.model.reading import Missing
from gpudiag.model.run import PlanValue, Run, RunEvents
from gpudiag.model.service import Findings, Live, Processes, Series, Session
from gpudiag.model.topology import Topology

SCRIPT = Path(__file__).parents[1] / "api" / "dashboard" / "src" / "model.ts"

# The documents that the page reads; what they are made of follows.
_DOCUMENTS: tuple[Any, ...] = (
    *(Live, Findings, Session, Series, Processes, Topology, Run, RunEvents, Comparison),
    *(HubDocument, HubEvents, RankRecord, SignalSeen, StepTime),
)
_UNIONS: dict[Any, str] = {Scalar: "Scalar", Subject: "Subject", PlanValue: "PlanValue"}
_PLAIN: dict[Any, str] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    datetime: "string",
    type(None): "null",
    Missing: "null",
}
_HEAD = """\
// The documents of docs/api.md that the page reads. Written by
// `python -m tools.write_model` from gpudiag/model.

// A missing reading is null; `missing` has its reason, `missing_detail` the source's words.
export type Missing = Record<string, string>;

export interface WithMissing {
  missing?: Missing;
  missing_detail?: Missing;
}
"""


def script_text() -> str:
    """The whole file."""
    declared: dict[str, str] = {}
    for document in _DOCUMENTS:
        _type_text(document, declared)
    return _HEAD + "".join(f"\n{text}" for text in declared.values())


def _type_text(expected: Any, declared: dict[str, str]) -> str:
    """The type in TypeScript; what it names is added to `declared`."""
    if expected in _PLAIN:
        return _PLAIN[expected]
    origin = get_origin(expected)
    if expected in _UNIONS:
        union = _UNIONS[expected]
        if union not in declared:
            declared[union] = f"export type {union} = {_union_text(get_args(expected), declared)};\n"
        return union
    if origin in (Union, types.UnionType):
        return _union_text(get_args(expected), declared)
    if origin is Literal:
        return " | ".join(f'"{word}"' for word in get_args(expected))
    if origin is tuple:
        return _tuple_text(get_args(expected), declared)
    if origin is dict:
        return f"Record<string, {_type_text(get_args(expected)[1], declared)}>"
    name: str = expected.__name__
    if name not in declared:
        declared[name] = ""  # taken before its members are visited
        declared[name] = _noun_text(expected, declared) if is_dataclass(expected) else _words_text(expected)
    return name


def _union_text(members: tuple[Any, ...], declared: dict[str, str]) -> str:
    texts = dict.fromkeys(_type_text(member, declared) for member in members)
    return " | ".join(sorted(texts, key=lambda text: text == "null"))


def _tuple_text(members: tuple[Any, ...], declared: dict[str, str]) -> str:
    texts = [_type_text(member, declared) for member in members if member is not Ellipsis]
    if len(members) == 2 and members[1] is Ellipsis:
        return f"({texts[0]})[]" if "|" in texts[0] else f"{texts[0]}[]"
    return f"[{', '.join(texts)}]"


def _noun_text(noun: Any, declared: dict[str, str]) -> str:
    members = dict(_members(noun, declared))
    may_miss = any(Missing in get_args(hint) for hint in _flat_hints(noun).values())
    schema = ["  schema: string;\n"] if hasattr(noun, "SCHEMA") else []
    lines = (*schema, *(f"  {name}: {text};\n" for name, text in members.items()))
    extends = " extends WithMissing" if may_miss else ""
    summary = (noun.__doc__ or "").strip().splitlines()[0]
    return f"// {summary}\nexport interface {noun.__name__}{extends} {{\n{''.join(lines)}}}\n"


def _members(noun: Any, declared: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, hint in _flat_hints(noun).items():
        yield name, _type_text(hint, declared)


def _flat_hints(noun: Any) -> dict[str, Any]:
    """The types by name, with the members of what is written beside the others."""
    hints = type_hints(noun)
    flat: dict[str, Any] = {}
    for one in written_fields(noun):
        flat |= _flat_hints(hints[one.name]) if one.metadata.get("flatten") else {one.name: hints[one.name]}
    return flat


def _words_text(words: type[Enum]) -> str:
    summary = (words.__doc__ or "").strip().splitlines()[0]
    members = " | ".join(f'"{member.value}"' for member in words)
    return f"// {summary}\nexport type {words.__name__} = {members};\n"


def main() -> None:
    """Write the file."""
    SCRIPT.write_text(script_text())


if __name__ == "__main__":
    main()
