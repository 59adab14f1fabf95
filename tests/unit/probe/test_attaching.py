"""How long a driver is waited for that attaches its GPUs first."""

import pytest

from gpudiag.probe.attaching import Attaching, deadline_of

BEGAN = 100.0


def handles(count, *moments):
    """The messages of that many GPUs, whose handles came so many seconds after they were asked for."""
    came = [("attached", index, BEGAN + moment) for index, moment in enumerate(moments)]
    return [("library", {}), ("count", count), ("attaching", BEGAN), *came]


@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        ([], 1.5),  # nvmlInit itself has not come back
        (handles(8), 40.0),
        (handles(8, *(0.001 * index for index in range(8))), 1.507),
        (handles(8, 3.1), 3.1 + 35.0),
        (handles(8, *(4.3 * (index + 1) for index in range(7))), 7 * 4.3 + 5.0),
        (handles(8, *(4.3 * (index + 1) for index in range(8))), 8 * 4.3 + 1.5),
        (handles(8, *(0.001 * index for index in range(7))), 1.506),  # the driver is awake: the eighth hangs
        (handles(1), 5.0),
        (handles(0), 1.5),
    ],
)
def test_the_time_counts_from_the_last_handle_and_five_seconds_are_given_for_each_that_is_due(
    messages, seconds
):
    assert deadline_of(messages, BEGAN, 1.5) == pytest.approx(BEGAN + seconds)


def test_gpus_are_being_attached_only_where_none_came_at_once():
    assert Attaching(handles(3)).pending() == [0, 1, 2]
    assert Attaching(handles(3, 2.0)).pending() == [1, 2]
    assert Attaching(handles(3, 0.001)).pending() == []
    assert Attaching([]).pending() == []
