"""Answers about a range of time: what is written in parts is the document, and one such work serves all."""

import asyncio
import gzip
import json
import time
from dataclasses import replace

from gpudiag.model.codec import dumps
from gpudiag.sampler.ring import NAMES
from gpudiag.service.readings import Readings
from gpudiag_api.history import MAX_WAITING_QUESTIONS, HistoryBodies, Question
from gpudiag_api.replies import Problem

DAY = Question(None, None, None, NAMES, None)


def filled(devices: int = 2, seconds: int = 600) -> Readings:
    readings = Readings(None)
    now = int(time.time())
    for number in range(devices):
        uuid = f"GPU-{number}"
        readings.names[uuid] = (number, "a GPU")
        for at in range(now - seconds, now):
            readings._ring.add(uuid, at, {"temperature_celsius": 40.0 + at % 7, "power_draw_watts": 100.5})
    return readings


def test_what_is_written_in_parts_is_the_document():
    for devices in (0, 1, 3):
        readings = filled(devices, 30)
        body = asyncio.run(HistoryBodies(readings).answer(DAY))
        wanted = json.loads(dumps(readings.series()))
        found = json.loads(body.body)
        assert found["devices"] == wanted["devices"] or abs(found["to_at"] - wanted["to_at"]) >= 0.001
        assert list(found) == list(wanted)
        assert gzip.decompress(body.compressed()) == body.body


def test_the_same_question_is_answered_once_for_all_who_ask(monkeypatch):
    readings = filled(1, 30)
    asked = []
    whole = readings.series
    monkeypatch.setattr(readings, "series", lambda *arguments: asked.append(arguments) or whole(*arguments))

    async def ask_together():
        bodies = HistoryBodies(readings)
        return await asyncio.gather(*(bodies.answer(DAY) for _ in range(32)))

    answers = asyncio.run(ask_together())
    assert len(asked) == 1
    assert len({answer.tag for answer in answers}) == 1


def test_a_question_that_fails_is_asked_again(monkeypatch):
    readings = filled(1, 30)
    whole, failures = readings.series, [OSError("once")]

    def fail_once(*arguments):
        if failures:
            raise failures.pop()
        return whole(*arguments)

    monkeypatch.setattr(readings, "series", fail_once)

    async def ask_twice():
        bodies = HistoryBodies(readings)
        first = await asyncio.gather(bodies.answer(DAY), return_exceptions=True)
        return first[0], await bodies.answer(DAY)

    first, second = asyncio.run(ask_twice())
    assert isinstance(first, OSError)
    assert json.loads(second.body)["schema"] == "gpudiag.series/1"


def test_a_question_whose_asker_has_left_is_not_answered(monkeypatch):
    """A hundred clients that ask for a range each and hang up must not keep the readings busy for half a
    minute.
    """
    readings = filled(1, 30)
    made = []
    whole = readings.series
    monkeypatch.setattr(readings, "series", lambda *arguments: made.append(arguments[0]) or whole(*arguments))
    now = time.time()

    async def left() -> bool:
        return True

    async def ask() -> list:
        bodies = HistoryBodies(readings)
        asked = [bodies.answer(replace(DAY, from_at=now - number), left) for number in range(20)]
        return await asyncio.gather(bodies.answer(DAY), *asked, return_exceptions=True)

    first, *others = asyncio.run(ask())
    assert json.loads(first.body)["schema"] == "gpudiag.series/1"
    assert [error.code for error in others] == ["request.left"] * 20
    assert made == [None]


def test_no_more_questions_wait_than_may_and_the_same_one_is_still_answered():
    readings = filled(1, 30)
    now = time.time()

    async def ask() -> tuple[list, list]:
        bodies = HistoryBodies(readings)
        questions = [replace(DAY, from_at=now - number) for number in range(MAX_WAITING_QUESTIONS + 10)]
        asked = [asyncio.ensure_future(bodies.answer(question)) for question in questions]
        await asyncio.sleep(0)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return found, await asyncio.gather(*(bodies.answer(questions[60]) for _ in range(5)))

    found, again = asyncio.run(ask())
    refused = [error for error in found if isinstance(error, Problem)]
    assert [(error.status, error.headers) for error in refused] == [(503, {"Retry-After": "5"})] * 10
    assert len({answer.tag for answer in again}) == 1
