"""What the inspector asks, and when. The child itself: tests/api."""

import pytest

from gpudiag.model.codec import to_document
from gpudiag.sampler import supervisor
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.sampler.supervisor import Inspector
from tests.unit.model.nouns import make_snapshot

HOUR = 3600
LIBRARY = {"values": {}, "missing": {}, "missing_detail": {}}


class Child:
    """Stands in for the process, which answers when the test says so."""

    started: list["Child"]

    def __init__(self, module, arguments, receive, environment=None) -> None:
        self.asked = set(",".join(arguments).split(",")) - {""}
        self.receive, self.ended, self.killable = receive, False, True
        self.started_at = supervisor.monotonic()
        Child.started.append(self)

    def answer(self, uuids) -> None:
        self.receive(self, {"snapshot": to_document(make_snapshot()), "uuids": uuids})
        self.ended = True

    def abandon(self) -> None:
        self.ended = True

    def is_reaped(self) -> bool:
        return self.killable


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    Child.started = []
    monkeypatch.setattr(supervisor, "monotonic", lambda: now[0])
    monkeypatch.setattr(supervisor, "ChildProcess", Child)
    return now


def watch(inspector: Inspector, clock: list[float], seconds: int, *, driver_hangs: bool) -> list[set[str]]:
    """What was asked in that time; every look is answered."""
    before = len(Child.started)
    for _ in range(seconds):
        inspector.look(driver_hangs=driver_hangs)
        if not Child.started[-1].ended:
            Child.started[-1].answer({"b0": "GPU-0"} if "driver" in Child.started[-1].asked else None)
        clock[0] += 1
    return [child.asked for child in Child.started[before:]]


def test_every_source_is_asked_the_cheaper_the_more_often(clock):
    inspector = Inspector(lambda _: None)
    asked = watch(inspector, clock, 2 * HOUR, driver_hangs=False)
    assert all("driver" in sources for sources in asked)
    times = {name: sum(name in sources for sources in asked) for name in ("driver", "gputil", "torch")}
    assert times["driver"] > times["gputil"] > times["torch"] >= 2


def test_while_the_driver_hangs_nothing_is_asked_that_calls_it_and_the_host_still_is(clock):
    """A process in the driver cannot be killed: nvidia-smi every five minutes would be 288 a day."""
    inspector = Inspector(lambda _: None)
    watch(inspector, clock, HOUR, driver_hangs=False)
    seen = inspector.surroundings
    asked = watch(inspector, clock, 24 * HOUR, driver_hangs=True)
    assert len(asked) >= 24 * 60 - 30
    assert set().union(*asked) == set()
    assert inspector.surroundings.uuids == {"b0": "GPU-0"}
    assert (inspector.surroundings.gputil, inspector.surroundings.torch) == (seen.gputil, seen.torch)
    assert "gputil" in set().union(*watch(inspector, clock, 60, driver_hangs=False))


def test_no_more_looks_are_started_than_can_be_killed(clock):
    inspector = Inspector(lambda _: None)
    for _ in range(HOUR):
        inspector.look()
        Child.started[-1].killable = False
        clock[0] += 1
    assert len(Child.started) == 3
    Child.started[0].killable = True
    inspector.look()
    assert len(Child.started) == 4


def test_a_driver_hangs_from_the_deadline_on_in_the_first_call_too():
    picture = NvmlPicture()
    assert not picture.is_hanging(100.0)
    picture.add({"kind": "starting", "call": "nvmlInit", "seconds": 1.0}, 101.0)
    assert not picture.is_hanging(101.0)
    assert picture.is_hanging(102.5)
    picture.add({"kind": "library", "document": LIBRARY, "count": 0}, 103.0)
    assert not picture.is_hanging(103.0)
