"""The place of a collective is that of the code that wanted it, not of the wrapper that announced it."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, cast

from gpudiag.ranks.event_log import EventWriter
from gpudiag.ranks.rank.board import PositionWriter
from gpudiag.ranks.rank.worker import RankProgress

WRAPPER = """
def run(progress):
    announce(progress)

def announce(progress):
    progress.before_operation(0, "all_reduce", "float32", 1)

def announced(progress):
    announce(progress)
    yield
"""


class Said:
    """In the place of the board."""

    file = ""

    def enter_operation(self, sequence: int, announced: tuple[Any, ...], place: tuple[str, int]) -> int:
        self.file = place[0]
        return 0


def test_a_wrapper_is_not_the_place() -> None:
    said = Said()
    progress = RankProgress(cast(PositionWriter, said), cast(EventWriter, None), ())
    wrapper: dict[str, Callable[..., Any]] = {}
    exec(compile(WRAPPER, "wrapper.py", "exec"), wrapper)
    wrapper["run"](progress)
    assert said.file == __file__
    said.file = ""
    with contextmanager(wrapper["announced"])(progress):
        assert said.file == __file__
