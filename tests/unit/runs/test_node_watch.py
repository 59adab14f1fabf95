"""The watch over a machine's jobs: a list that is late once is no news, and one that never comes is."""

from typing import Any

import pytest

from gpudiag.runs import node_watch
from gpudiag.runs.node_watch import NodeWatch


class Child:
    """A guarded child that has ended without an answer."""

    messages: tuple[Any, ...] = ()
    ending = "timed_out"
    detail = ""


def test_only_lists_that_fail_again_and_again_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    watch = NodeWatch(told.append)
    late: Any = Child()
    for _ in range(node_watch._LISTS_FAILED - 1):
        watch._take_list(late)
    assert told == []
    answered: Any = Child()
    answered.messages = (("jobs", [], 0),)
    watch._take_list(answered)
    assert [one["kind"] for one in told] == ["jobs"]
    for _ in range(node_watch._LISTS_FAILED):
        watch._take_list(late)
    assert [one["kind"] for one in told] == ["jobs", "failed"]
