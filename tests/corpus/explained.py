"""The texts of tests/corpus/explain, and what `gpudiag explain` answers to each."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpudiag.explain.recipe import explain_text
from gpudiag.model.explanation import Role

FOLDER = Path(__file__).with_name("explain")
NOTHING = "none"


@dataclass(frozen=True, slots=True)
class Text:
    """One text and what must be told of it."""

    kind: str  # the file that it stands in
    name: str
    expected: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What was told of a text."""

    causes: tuple[str, ...]
    symptoms: tuple[str, ...]
    unknown: tuple[str, ...]
    raised: tuple[str, ...]  # unknown errors with a traceback


@cache
def texts() -> tuple[Text, ...]:
    """Every text, by kind and place."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in path.read_text().split("==== ")[1:]:
            heading, text = block.split("\n", 1)
            name, expected = heading.split(" | ", 1)
            found.append(Text(path.stem, name.strip(), expected.strip(), text))
    return tuple(found)


def answer_to(text: str) -> Answer:
    """What `gpudiag explain` tells of a text."""
    told = explain_text(text)
    causes = tuple(
        sighting.explanation.topic for sighting in told.sightings if sighting.role is not Role.SYMPTOM
    )
    symptoms = tuple(
        sighting.explanation.topic for sighting in told.sightings if sighting.role is Role.SYMPTOM
    )
    unknown = tuple(error.text for error in told.unknown)
    return Answer(causes, symptoms, unknown, tuple(error.text for error in told.unknown if error.where))


def is_right(expected: str, answer: Answer) -> bool:
    """Whether that is what must be told."""
    sort, _, words = expected.partition(":")
    if expected == NOTHING:
        return not answer.causes and not answer.raised
    if sort == "symptom":
        return not answer.causes and not answer.unknown and words in answer.symptoms
    if sort == "unknown":
        return not answer.causes and bool(answer.unknown) and words in answer.unknown[0]
    return answer.causes[:1] == (expected,)
