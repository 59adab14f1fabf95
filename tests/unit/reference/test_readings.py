"""The table of readings: whole, without a name twice, and true to the types of `Device`."""

from collections import Counter
from typing import Any, get_args

import pytest

from gpudiag.model.codec import type_hints
from gpudiag.model.device import Device, DeviceId
from gpudiag.model.reading import Missing
from gpudiag.probe.nvml.device import BY_HAND
from gpudiag.reference.declaration import Activity, ByHand, Call, Declared, by_question
from gpudiag.reference.readings import PAGE_GROUPS, READINGS
from tools.write_readings import PAGE, SCRIPT, facts_of, page_text, script_text

# Not read of a GPU: what its row as a whole says, its place in NVML's list, and what the checks judge of it.
NOT_READINGS = {"id", "responding", "nvml_index", "free"}
NUMBERS: set[Any] = {int, float}


def field_type(name: str) -> Any:
    hints = {**type_hints(DeviceId), **type_hints(Device)}
    [value_type] = [member for member in get_args(hints[name]) if member is not Missing]
    return value_type


@pytest.fixture(params=READINGS, ids=lambda declared: declared.name)
def declared(request: pytest.FixtureRequest) -> Declared:
    one: Declared = request.param
    return one


def test_every_field_of_a_device_is_declared_once():
    names = Counter(one.name for one in READINGS)
    fields = {*DeviceId.__dataclass_fields__, *Device.__dataclass_fields__} - NOT_READINGS
    assert names == Counter(fields)


def test_a_question_gives_what_the_field_holds(declared: Declared):
    question = declared.question
    if question is None or isinstance(question, ByHand):
        return
    if isinstance(question, Activity):
        assert field_type(declared.name) is float
        return
    given: Any = int if question.per == 1 else float
    if question.gives == "flag":
        given = bool
    elif question.gives in ("text", "switch") or isinstance(question.gives, tuple):
        given = str
    assert field_type(declared.name) is given


def test_what_is_measured_or_remembered_is_a_number(declared: Declared):
    if declared.history is not None:
        assert field_type(declared.name) in NUMBERS
    if declared.metric is not None:
        assert field_type(declared.name) in NUMBERS | {bool}


def test_every_function_by_hand_is_there_and_every_one_that_is_there_is_declared():
    named = {question.name for question, _ in by_question(READINGS) if isinstance(question, ByHand)}
    assert named == set(BY_HAND)


def test_readings_of_one_call_have_a_place_each_and_one_tier():
    for question, readings in by_question(READINGS):
        assert len({one.tier for one in readings}) == 1, readings[0].name
        if isinstance(question, Call) and question.place is not None:
            places = [one.question.place for one in readings if isinstance(one.question, Call)]
            assert len(set(places)) == len(readings) > 1, question.function


def test_samples_of_one_metric_share_its_family_and_differ_in_their_labels():
    families: dict[str, list[Declared]] = {}
    for one in READINGS:
        if one.metric is not None:
            families.setdefault(one.metric.family.name, []).append(one)
    for name, readings in families.items():
        metrics = [one.metric for one in readings if one.metric is not None]
        assert len({id(metric.family) for metric in metrics}) == 1, name
        labels = [tuple(sorted(metric.labels.items())) for metric in metrics]
        assert len(set(labels)) == len(labels), name


def test_only_the_name_has_no_words_of_its_own():
    assert [one.name for one in READINGS if not one.words] == ["name"]
    assert all(one.words.count("{}") == 1 for one in READINGS if one.words)


def test_the_page_shows_every_fact_in_a_group_of_its_own():
    placed = [one.name for group in PAGE_GROUPS for one in facts_of(group)]
    assert sorted(placed) == sorted(one.name for one in READINGS if one.fact is not None)


def test_the_copies_are_what_the_table_makes():
    assert PAGE.read_text() == page_text(), "run: make pages"
    assert SCRIPT.read_text() == script_text(), "run: make pages"
