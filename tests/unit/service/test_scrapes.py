"""A scrape while nobody looks: the GPUs are read once, out of turn, and the pace stays."""

import asyncio
import time

import pytest

from gpudiag.sampler.tiers import FAST_SECONDS, SLOW_SECONDS
from gpudiag.service.readings import Readings
from gpudiag.service.watch import MachineWatch
from gpudiag.store.baselines import GoodState

PATIENT_SECONDS = 90.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> MachineWatch:
    """A watch that nobody looks at, with numbers from four seconds ago.

    `asked` counts readings out of turn.
    """
    watch = MachineWatch(lambda _update: None, Readings(None), GoodState(None))
    watch._looked_at -= 3600
    monkeypatch.setattr(watch._picture, "age_seconds", lambda: 4.0)
    watch.asked = 0

    def read_now() -> None:
        watch.asked += 1

    monkeypatch.setattr(watch._supervisor, "read_now", read_now)
    return watch


def tick() -> dict[str, object]:
    whole: dict[str, object] = {"fast": {}, "slow": {}, "peers": {}, "late": {}}
    times = {
        "at": time.time(),
        "seconds": 0.01,
        "interval": SLOW_SECONDS,
        "waited": 0.0,
        "longest": ["", 0.0],
    }
    return {"kind": "tick", "sequence": 1, "prompt": False, **whole, **times}


def test_scrapes_at_once_have_the_gpus_read_once_and_wait_for_it(watch):
    async def scrape() -> None:
        scrapes = [asyncio.create_task(watch.freshen(PATIENT_SECONDS)) for _ in range(3)]
        await asyncio.sleep(0)
        assert watch.asked == 1
        assert not any(one.done() for one in scrapes)
        watch._receive(tick())
        await asyncio.gather(*scrapes)
        assert watch.interval_seconds == SLOW_SECONDS
        again = asyncio.create_task(watch.freshen(PATIENT_SECONDS))
        await asyncio.sleep(0)
        assert watch.asked == 2
        watch._receive(tick())
        await again

    asyncio.run(scrape())


def test_a_sampler_that_gives_no_answer_delays_no_scrape_for_long(watch):
    asyncio.run(watch.freshen(0.0))
    assert watch.asked == 1


@pytest.mark.parametrize("why", ["fresh", "paused", "off", "hanging", "starting"])
def test_nothing_is_asked_where_it_would_be_in_vain(watch, monkeypatch, why):
    if why == "fresh":
        monkeypatch.setattr(watch._picture, "age_seconds", lambda: FAST_SECONDS / 2)
    elif why == "starting":
        monkeypatch.setattr(watch._picture, "age_seconds", lambda: None)
    elif why == "hanging":
        monkeypatch.setattr(watch._picture, "is_hanging", lambda: True)
    elif why == "paused":
        watch.pause("a bandwidth test")
    else:
        watch._polls = False
    asyncio.run(watch.freshen(PATIENT_SECONDS))
    assert watch.asked == 0


def test_who_looks_makes_it_fast_at_once_and_who_scrapes_does_not(watch):
    paces = []
    watch._supervisor.set_pace = lambda seconds, *, paused: paces.append(seconds)
    asyncio.run(watch.freshen(0.0))
    watch._set_pace()
    assert paces == [SLOW_SECONDS]
    watch.note_look()
    assert paces == [SLOW_SECONDS, FAST_SECONDS]
    watch._looked_at -= 3600
    watch.viewers = 1  # a listener of the stream, or `gpudiag watch`
    watch._set_pace()
    assert paces[-1] == FAST_SECONDS
