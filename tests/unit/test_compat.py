"""What stands in for newer Pythons says the same as they do.

Run under 3.10 by `make pythons` and `make lowest`.
"""

from datetime import datetime, timedelta, timezone

import pytest

from gpudiag.compat import UTC, StrEnum, parse_iso_time
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
