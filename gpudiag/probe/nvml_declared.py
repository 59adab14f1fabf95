"""Readings asked for as the table of `model.readings` declares them."""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, as_text, enable_state, known, word
from gpudiag.probe.nvml_by_hand import BY_HAND
from gpudiag.probe.sheet import ERROR, Absent
from gpudiag.reference.declaration import ByHand, Call, Field, by_question
from gpudiag.reference.readings import READINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gpudiag.reference.declaration import Declared, Question, Tier

    Plan = list[tuple[Question, tuple[Declared, ...]]]


def plan_of(*names: str) -> Plan:
    """The questions to ask for the readings of those names, in the table's order."""
    return by_question(declared for declared in READINGS if declared.name in names)


def plan_of_tier(tier: Tier) -> Plan:
    """The questions to ask for the readings of that tier, in the table's order."""
    return by_question(declared for declared in READINGS if declared.tier == tier)


def fields_of(plan: Plan) -> tuple[int, ...]:
    """The numbers of NVML's fields that the plan asks for: one call answers all of them."""
    numbers: list[int] = []
    for question, _ in plan:
        if isinstance(question, Field):
            numbers.append(question.number)
        elif isinstance(question, ByHand):
            numbers += question.fields
    return tuple(numbers)


def read_plan(ask: Ask, sheet: DeviceSheet, plan: Plan) -> None:
    """Fill in every reading of the plan."""
    fields = fields_of(plan)
    if fields:
        # On a sheet that nobody looks at: where the batch fails, each field is asked for singly.
        DeviceSheet().read("batch", ask.read_fields, fields)
    for question, readings in plan:
        if isinstance(question, ByHand):
            BY_HAND[question.name](ask, sheet)
        elif isinstance(question, Field):
            sheet.read(readings[0].name, _read_field, ask, question)
        elif question.place is None:
            sheet.read(readings[0].name, _read_call, ask, question)
        else:
            sheet.read_together([one.name for one in readings], _read_members, ask, question, readings)


def _read_field(ask: Ask, field: Field) -> Any:
    try:
        return _given(ask.field(field.number), field)
    except Absent:
        if field.otherwise is None:
            raise
    return _read_call(ask, field.otherwise)


def _read_call(ask: Ask, call: Call) -> Any:
    if call.older is not None:
        older = call.older
        return ask.first_of(lambda: _answer(ask, call), lambda: _answer(ask, older))
    return _answer(ask, call)


def _answer(ask: Ask, call: Call) -> Any:
    if call.gives == "text":
        return as_text(lambda: ask(call.function, *call.arguments))
    return _given(ask(call.function, *call.arguments), call)


def _read_members(ask: Ask, call: Call, readings: Iterable[Declared]) -> list[Any]:
    answer = ask(call.function, *call.arguments)
    return [
        _given(answer[one.place] if isinstance(one.place, int) else getattr(answer, str(one.place)), one)
        for one in (declared.question for declared in readings)
        if isinstance(one, Call)
    ]


def _given(raw: Any, question: Call | Field) -> Any:
    """NVML's number as the reading's value.

    Raises:
        Absent: it is NVML's all-ones value for "not available", or a 0 that cannot be.
    """
    gives = question.gives
    if gives == "switch":
        return enable_state(raw)
    if isinstance(gives, tuple):
        return word(gives, raw)
    number = known(raw)
    if gives == "flag":
        return bool(number)
    if gives == "positive" and number == 0:
        raise Absent(ERROR, "NVML answers 0")
    return number if question.per == 1 else number / question.per
