"""What is read of objects in a process's memory: here in this one's."""

import os
from datetime import timedelta

import pytest

from gpudiag.probe.job.memory import Memory, read_timedelta


@pytest.mark.parametrize(
    "wanted", [timedelta(0), timedelta(minutes=7, seconds=3), timedelta(days=2, microseconds=500_000)]
)
def test_a_timedelta_is_read_in_seconds(wanted: timedelta) -> None:
    memory = Memory.open(os.getpid())
    try:
        assert read_timedelta(memory, id(wanted)) == wanted.total_seconds()
    finally:
        memory.close()


def test_what_is_no_timedelta_is_not_read_as_one() -> None:
    other = b"\xff" * 100
    memory = Memory.open(os.getpid())
    try:
        assert read_timedelta(memory, id(other)) is None
        assert read_timedelta(memory, 8) is None
    finally:
        memory.close()
