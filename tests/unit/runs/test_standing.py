"""A rank that wakes up only to ask again stands; one that steps, however slowly, does not."""

import random

from gpudiag.model.job import Frame
from gpudiag.model.job_run import Pulse
from gpudiag.runs.job_run.standing import Standing


def at(function: str, polls: str = "") -> tuple[Frame, ...]:
    """The stack of a glance at a main thread."""
    return (Frame("train.py", function, 4, polls=polls),)


def watch(standing: Standing, start: float, end: float, share: float) -> None:
    """Ten pulses a second, of a rank that takes that share of a processor."""
    ran = 100.0 * start  # what it took before does not count
    for tenth in range(int(10 * start), int(10 * end)):
        ran += 0.1 * share
        standing.add(Pulse(tenth / 10, ran, 0.0, tenth, tenth))


def test_a_poll_stands_since_it_last_took_processor_time() -> None:
    standing = Standing()
    watch(standing, 0, 30, 0.8)
    standing.note(29.0, at("step 58"))
    watch(standing, 30, 45, 0.01)
    standing.note(38.0, at("loader"))
    assert standing.since_seconds is None  # one glance may have met a step that is slow
    standing.note(41.0, at("loader"))
    since = standing.since_seconds
    assert since is not None
    assert 29.0 <= since <= 32.0


def test_a_spin_stands_since_it_was_first_seen_there() -> None:
    standing = Standing()
    watch(standing, 0, 60, 1.0)
    standing.note(20.0, at("elsewhere"))
    standing.note(30.0, at("spin", polls="while True (line 3)"))
    standing.note(33.0, at("spin", polls="while True (line 3)"))
    assert standing.since_seconds == 30.0


def test_a_slow_loader_that_delivers_does_not_stand() -> None:
    standing = Standing()
    drawn = random.Random(7)
    for step in range(40):
        watch(standing, 8 * step, 8 * step + 8, 0.005)
        for glance in range(2):
            standing.note(8 * step + 8 * (glance + drawn.random()) / 2, at(f"step {step}"))
        since = standing.since_seconds
        assert since is None or since >= 8 * step


def test_movement_that_a_look_saw_ends_it() -> None:
    standing = Standing()
    watch(standing, 0, 20, 0.01)
    standing.note(5.0, at("loader"))
    standing.note(9.0, at("loader"))
    assert standing.since_seconds is not None
    standing.note_movement(12.0)
    assert standing.since_seconds is None


def test_glances_beside_the_usual_ones_are_few() -> None:
    standing = Standing()
    watch(standing, 0, 10, 0.0)
    asked = sum(standing.wants_glance(10 + second / 10) for second in range(100_000))
    assert 0 < asked <= 7 + 10_010 / 60
