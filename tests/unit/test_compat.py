"""What stands in for newer Pythons says the same as they do; run under 3.10 by `make pythons` and `make lowest`."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from gpudiag.compat import UTC, StrEnum, parse_iso_time, within
from gpudiag.toml import tomllib


class Colour(StrEnum):
    RED = "red"


def test_a_member_is_its_value_also_where_it_is_shown():
    assert (str(Colour.RED), f"{Colour.RED}", f"{Colour.RED:>5}") == ("red", "red", "  red")
    assert Colour.RED == "red"
    assert Colour("red") is Colour.RED


TIMES = {
    "2026-11-20T21:04:05Z": datetime(2026, 11, 20, 21, 4, 5, tzinfo=UTC),
    "2026-11-20T21:04:05.123Z": datetime(2026, 11, 20, 21, 4, 5, 123000, tzinfo=UTC),
    "2026-11-20T21:04:05.123456789+00:00": datetime(2026, 11, 20, 21, 4, 5, 123456, tzinfo=UTC),
    "2026-11-20 21:04:05,5": datetime(2026, 11, 20, 21, 4, 5, 500000),
    "2026-11-20T21:04:05+0130": datetime(2026, 11, 20, 21, 4, 5, tzinfo=timezone(timedelta(minutes=90))),
    "2026-11-20T21:04": datetime(2026, 11, 20, 21, 4),
    "2026-11-20": datetime(2026, 11, 20),
    "20261120T210405Z": datetime(2026, 11, 20, 21, 4, 5, tzinfo=UTC),
}


def test_every_form_of_a_time_is_read():
    assert {text: parse_iso_time(text) for text in TIMES} == TIMES


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-20", "2026-11-20T25:00", "1732136645", "2026-11-20T21:04:05Zulu"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_iso_time(text)


def test_toml_is_read():
    assert tomllib.loads("a = 1") == {"a": 1}


def test_a_cancellation_that_comes_when_the_awaited_is_done_is_not_lost():
    """asyncio.wait_for of Python 3.11 and earlier returns the result instead, and a loop around it goes on."""

    async def scene() -> bool:
        awaited = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(within(60, awaited))
        await asyncio.sleep(0)
        awaited.set_result("done")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(scene())


def test_what_takes_too_long_is_cancelled_and_what_fails_says_so():
    async def scene() -> bool:
        awaited = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(0.001, awaited)
        with pytest.raises(KeyError):
            await within(60, _fail())
        assert await within(60, asyncio.sleep(0, "slept")) == "slept"
        return awaited.cancelled()

    async def _fail() -> None:
        raise KeyError("x")

    assert asyncio.run(scene())
