"""The answers that follow from the table of readings: one number, text or word for one call or field."""

from typing import Any

from gpudiag.reference.declaration import ByHand, Call, Declared, Field, by_question
from gpudiag.reference.readings import READINGS
from gpudiag.reference.vocabulary import ENABLE_STATES
from gpudiag.simulate.answers import AnswerTable, Refusal, text, u32, u64
from gpudiag.simulate.calls import fills_a_struct
from gpudiag.simulate.encode_identity import numbered, word_number
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu


def encode_declared(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer every reading whose question the table of readings spells out; the rest is encoded by hand.

    A struct with a version is packed by hand too.
    """
    answers = GpuAnswers(table, placed.subject)
    for question, readings in by_question(READINGS):
        if isinstance(question, ByHand):
            continue
        if isinstance(question, Field):
            number = _number(question, readings[0].name, placed.read(readings[0].name))
            answers.reply_field_number(question.number, number, wide=question.wide)
            if question.otherwise is not None:
                _encode_call(answers, question.otherwise, readings, placed)
        elif not fills_a_struct(question.function):
            _encode_call(answers, question, readings, placed)


def _encode_call(answers: GpuAnswers, call: Call, readings: tuple[Declared, ...], placed: PlacedGpu) -> None:
    if call.gives == "text":
        answers.reply(call.function, placed.read(readings[0].name), text, call.arguments)
        return
    pack = u64 if call.wide else u32
    members = sorted(readings, key=lambda declared: _place(declared, call))
    numbers = [
        _number(
            declared.question if call.place is not None else call, declared.name, placed.read(declared.name)
        )
        for declared in members
    ]
    refused = next((number for number in numbers if isinstance(number, Refusal)), None)
    answers.reply(
        call.function,
        numbers if refused is None else refused,
        lambda known: b"".join(pack(number) for number in known),
        call.arguments,
    )


def _place(declared: Declared, call: Call) -> int:
    """Which of the numbers in the answer it is; members of a struct stand in the order of the table."""
    place = declared.question.place if isinstance(declared.question, Call) else call.place
    return place if isinstance(place, int) else 0


def _number(question: Any, name: str, reading: Any) -> Any:
    """The number that NVML gives for the reading, or its Refusal."""
    if isinstance(reading, Refusal):
        return reading
    if question.gives == "switch":
        return word_number(numbered(ENABLE_STATES), name, reading)
    if isinstance(question.gives, tuple):
        return word_number(numbered(question.gives), name, reading)
    return round(reading * question.per)
