"""How often readings are read: by what they cost, without repeating what the GPU does not have."""

import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpudiag.model.finding import Outcome
from gpudiag.probe.nvml.ask import DeviceSheet
from gpudiag.reference.declaration import by_question
from gpudiag.reference.readings import READINGS
from gpudiag.sampler import tiers
from gpudiag.sampler.child import pause_seconds
from gpudiag.sampler.picture import DEADLINE_SECONDS, NvmlPicture
from gpudiag.sampler.tiers import (
    FIXED_SECONDS,
    SLOW_SECONDS,
    SLOWEST_SECONDS,
    Pace,
    ProcessFacts,
    WatchedAsk,
)
from gpudiag.service.watch import INSTANT_CHECKS
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

# --- the pace


def paced(fast: float, slow: float, gpus: int = 1) -> Pace:
    pace = Pace(gpus)
    for number in range(60):
        pace.note_tick(float(number), slow if number % 5 == 0 else fast, slow=number % 5 == 0)
    return pace


def test_readings_that_cost_next_to_nothing_come_every_five_seconds():
    for interval in (1.0, 5.0):
        assert paced(0.0005, 0.004).slow_seconds(interval) == SLOW_SECONDS


@pytest.mark.parametrize("gpus", [1, 8])
def test_dear_readings_come_as_rarely_as_their_share_asks_for(gpus: int):
    """What `driver_costs.toml` comes to: 7 calls and 50, of 0.9 ms each."""
    pace = paced(0.0063 * gpus, 0.045 * gpus, gpus)
    for interval, most in ((5.0, 0.004), (1.0, 0.009)):
        period = pace.slow_seconds(interval)
        assert SLOW_SECONDS < period < SLOWEST_SECONDS
        share = (0.0063 / interval + 0.045 / period) * gpus
        assert share <= most * gpus + 1e-6


def test_no_cost_makes_them_rarer_than_gpm_bears():
    assert paced(0.2, 3.0).slow_seconds(1.0) == SLOWEST_SECONDS


def test_an_event_brings_them_at_once():
    pace = Pace(1)
    assert pace.is_slow_due(100.0, 1.0)
    pace.note_tick(100.0, 0.01, slow=True)
    assert not pace.is_slow_due(101.0, 1.0)
    pace.hurry()
    assert pace.is_slow_due(101.0, 1.0)


@pytest.mark.parametrize("interval", [1.0, 5.0])
@pytest.mark.parametrize("scrapes_every", [None, 0.7, 4.4, 15.0])
def test_what_keeps_jobs_off_is_read_every_five_seconds_whatever_the_rest_costs(interval, scrapes_every):
    """As the sampler's loop, on its own clock: ticks out of turn, as for a scrape, delay no tick."""
    pace, now, scraped_at, prompt_at, slow_at = Pace(1), 0.0, 0.0, [], []
    while now < 300:
        slow = pace.is_slow_due(now, interval)
        prompt = slow or pace.is_prompt_due(now)
        prompt_at += [now] * prompt
        slow_at += [now] * slow
        pace.note_tick(now, 0.045 if slow else 0.0063, slow=slow, prompt=prompt)
        pause = min(pause_seconds(interval, 0.0, is_asking=False), pace.seconds_to_prompt(now))
        if scrapes_every is not None and scraped_at + scrapes_every < now + pause:
            pause = scraped_at + scrapes_every - now
            scraped_at += scrapes_every
        now += max(pause, 0.01)
    assert max(later - before for before, later in pairwise(prompt_at)) <= SLOW_SECONDS + 1e-6
    # The rest waits for its share.
    assert max(later - before for before, later in pairwise(slow_at)) > SLOW_SECONDS


def test_each_prompt_reading_is_one_that_may_keep_jobs_off():
    """By the checks that judge it: what only is looked at has no claim to the driver's time."""
    fails = [one for one in INSTANT_CHECKS if any(kind.outcome is Outcome.FAIL for kind in one.reports)]
    judged = {name.partition(" ")[0] for one in fails for name in one.readings}
    prompt = {one.question: one.name for one in READINGS if one.tier == "prompt"}
    questions = by_question(one for one in READINGS if one.tier == "prompt")
    assert prompt
    for _, readings in questions:  # readings of one call come together
        assert judged & {one.name for one in readings}, readings[0].name


def test_a_gpu_that_is_late_is_heard_of_again_before_it_counts_as_hung():
    """At the pace of nobody looking, too: a reading of 0.6 s was taken for a call that never returns."""
    assert pause_seconds(5.0, 0.02, is_asking=False) == pytest.approx(4.98)
    assert pause_seconds(1.0, 1.4, is_asking=False) > 0
    for interval in (1.0, 5.0):
        patience = 0.5  # the sampler's own, before it sends a tick without that GPU
        assert patience + pause_seconds(interval, patience, is_asking=True) < DEADLINE_SECONDS


# --- what is not asked again


class NVMLError_NotSupported(Exception):
    value = 3


def refusing() -> tuple[WatchedAsk, Counter[Any]]:
    """An Ask of a library that has no fan, and of whose fields every odd one is unknown."""
    asked: Counter[Any] = Counter()

    def fan(handle: object, fan: int) -> int:
        asked[fan] += 1
        raise NVMLError_NotSupported

    def fields(handle: object, numbers: list[int]) -> list[SimpleNamespace]:
        asked.update(numbers)
        return [SimpleNamespace(fieldId=one, nvmlReturn=3 * (one % 2)) for one in numbers]

    library = SimpleNamespace(nvmlDeviceGetFanSpeed_v2=fan, nvmlDeviceGetFieldValues=fields)
    return WatchedAsk(library, object()), asked


def test_what_the_gpu_does_not_have_is_asked_again_after_a_minute(monkeypatch: pytest.MonkeyPatch):
    ask, asked = refusing()
    now = 1000.0
    monkeypatch.setattr(tiers, "monotonic", lambda: now)

    def look() -> None:
        for fan in (0, 1):
            with pytest.raises(NVMLError_NotSupported):
                ask("nvmlDeviceGetFanSpeed_v2", fan)
        ask.fields.clear()
        ask.read_fields([2, 3])
        assert {number: value.nvmlReturn for number, value in ask.fields.items()} == {2: 0, 3: 3}

    look()
    look()
    assert asked == {0: 1, 1: 1, 2: 2, 3: 1}
    now += FIXED_SECONDS + 1
    look()
    assert asked == {0: 2, 1: 2, 2: 3, 3: 2}
    ask.forget_refusals()
    look()
    assert asked == {0: 3, 1: 3, 2: 4, 3: 3}
    assert ask.noted.failed == {}


def test_a_refusal_that_is_raised_again_keeps_the_frames_of_one_look():
    ask, _ = refusing()
    frames = []
    for _ in range(5):
        with pytest.raises(NVMLError_NotSupported) as caught:
            ask("nvmlDeviceGetFanSpeed_v2", 0)
        frames.append(len(list(traceback.walk_tb(caught.tb))))
    assert len(set(frames[1:])) == 1


# --- processes


def write_process(root: Path, pid: int, state: str, started: int, ticks: int = 0) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = " ".join(["0"] * 10 + [str(ticks)] + ["0"] * 7)
    (folder / "stat").write_text(f"{pid} (a b) {state} {rest} {started} 0 0\n")


def test_of_a_process_that_stays_only_the_state_is_read_again(tmp_path: Path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(tiers, "monotonic", lambda: now)
    read: list[int] = []

    def facts(pid: int, root: str) -> dict[str, Any]:
        read.append(pid)
        return {"user": "ann", "state": "R"}

    sheet = DeviceSheet()
    sheet.values["processes"] = [{"pid": 7}, {"pid": 7}, {"pid": 8}]
    known, ask = ProcessFacts(str(tmp_path), facts), WatchedAsk(None, None)
    write_process(tmp_path, 7, "R", 5000)
    known.describe(ask, sheet)
    assert read == [7, 8]  # 8 is another machine's, or has ended
    write_process(tmp_path, 7, "D", 5000)
    described = known.describe(ask, sheet)[7]
    assert (described["user"], described["state"]) == ("ann", "D")
    assert read == [7, 8, 8]
    write_process(tmp_path, 7, "R", 6000)  # another process of that number
    known.describe(ask, sheet)
    assert read == [7, 8, 8, 7, 8]
    now += FIXED_SECONDS + 1
    known.describe(ask, sheet)
    assert read == [7, 8, 8, 7, 8, 7, 8]


class Driver:
    """A pynvml that answers the question for processes' shares, or refuses it."""

    def __init__(self, answer: list[Any] | Exception) -> None:
        self.answer = answer
        self.asked = 0

    def nvmlDeviceGetProcessUtilization(self, _handle: object, _since: int) -> list[Any]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def refusal(code: int) -> Exception:
    error = type("NVMLError_Other", (Exception,), {})()
    error.value = code  # type: ignore[attr-defined]
    return error


def shares(driver: Driver, tmp_path: Path, *, times: int = 1) -> tuple[dict[str, Any], WatchedAsk]:
    """What is described of pid 7 on a GPU of that driver."""
    sheet, ask = DeviceSheet(), WatchedAsk(driver, None)
    sheet.values["processes"] = [{"pid": 7}]
    write_process(tmp_path, 7, "R", 5000)
    known = ProcessFacts(str(tmp_path), lambda _pid, _root: {"user": "ann"})
    for _ in range(times):
        described = known.describe(ask, sheet)[7]
    return described, ask


def test_a_process_has_its_share_of_the_sms_or_the_reason_for_none(tmp_path: Path):
    sample_of = lambda pid, share, at: SimpleNamespace(pid=pid, smUtil=share, timeStamp=at)  # noqa: E731
    newest = 10_000_000
    samples = [
        sample_of(7, 61, newest),
        sample_of(8, 4_000_000_000, newest),
        sample_of(7, 99, newest - 5_000_000),
    ]
    described, ask = shares(Driver(samples), tmp_path)
    assert described["sm_utilization_percent"] == 61  # neither an old sample nor an impossible one
    assert ask.noted.failed == {}
    for code in (6, 0):  # not found, and pynvml's error for an empty answer: it did no work
        described, ask = shares(Driver(refusal(code)), tmp_path)
        assert described["sm_utilization_percent"] == 0
        assert ask.noted.failed == {}  # which would be a finding
    driver = Driver(refusal(3))
    described, ask = shares(driver, tmp_path, times=3)
    assert described["missing"]["sm_utilization_percent"] == "not_supported"
    assert driver.asked == 1  # though each question has another time in it
    described, _ = shares(Driver(refusal(4)), tmp_path)
    assert described["missing"]["sm_utilization_percent"] == "no_permission"


def test_a_process_that_has_anothers_number_has_no_share_of_a_processor_yet(tmp_path: Path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(tiers, "monotonic", lambda: now)
    sheet, ask = DeviceSheet(), WatchedAsk(Driver([]), None)
    sheet.values["processes"] = [{"pid": 7}]
    known = ProcessFacts(str(tmp_path), lambda _pid, _root: {"user": "ann"})
    write_process(tmp_path, 7, "R", 5000, ticks=100)
    assert known.describe(ask, sheet)[7]["missing"]["processor_percent"] == "not_asked"
    now += 5
    write_process(tmp_path, 7, "R", 5000, ticks=100 + 15 * os.sysconf("SC_CLK_TCK"))
    assert known.describe(ask, sheet)[7]["processor_percent"] == 300.0
    now += 5
    write_process(tmp_path, 7, "R", 9000, ticks=10**6)
    assert known.describe(ask, sheet)[7]["missing"]["processor_percent"] == "not_asked"


# --- the sampler's own process, on a library whose calls cost what a driver's do


def sample(spec: str, ticks: int, log: Path | None = None) -> tuple[NvmlPicture, list[str | None]]:
    """The picture after so many ticks of the sampler's child, and after each why it was slow."""
    with open_session(load_scenario(spec)) as session:
        environment = {**session.environment} | (
            {} if log is None else {"GPUDIAG_SIMULATED_CALL_LOG": str(log)}
        )
        with subprocess.Popen(
            [sys.executable, "-m", "gpudiag.sampler.child", str(os.getpid())],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            picture, told = NvmlPicture(), []
            while len(told) < ticks:
                message = json.loads(child.stdout.readline())
                picture.add(message)
                if message["kind"] == "tick":
                    told.append(picture.slow)
            child.kill()
    return picture, told


def test_calls_that_cost_what_a_drivers_do_are_not_slow():
    picture, told = sample("gh200+busy:0+driver-costs", 8)
    assert told == [None] * 8
    assert all(device.responding is True for device in picture.answer().devices)


def test_a_call_that_takes_long_is_slow_and_named():
    _, told = sample("a10x1+slow:0:0.3", 9)
    assert told[:2] == [None, None]
    assert told[-1] is not None
    assert "nvml" in told[-1]


def test_a_tick_out_of_turn_comes_at_once_and_a_prompt_one_brings_what_is_judged():
    """On dear calls, where nobody looks: the child is asked for one, and goes on at its pace."""
    with (
        open_session(load_scenario("gh200+driver-costs")) as session,
        subprocess.Popen(
            [sys.executable, "-m", "gpudiag.sampler.child", str(os.getpid())],
            env={**session.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b'{"interval": 3600.0, "paused": false}\n')
        child.stdin.flush()
        picture, was_read, bare, found = NvmlPicture(), False, [], None
        while found is None:
            message = json.loads(child.stdout.readline())
            changed = picture.add(message)
            if message["kind"] != "tick":
                continue
            fast = message["fast"].get("0", {})
            assert changed or not (message["slow"] or message["prompt"])
            if was_read and fast and not (message["slow"] or message["prompt"]):
                bare.append(fast)  # at this pace no tick is due that brings no more
            if was_read and message["prompt"] and fast.get("recovery_action") == "gpu_reset":
                found = fast
            if message["slow"] and not was_read:
                was_read = True
                child.stdin.write(b'{"now": true}\n')
                child.stdin.flush()
                session.update(load_scenario("gh200+driver-costs+recovery:0:gpu_reset"))
        child.kill()
    assert bare
    assert all("recovery_action" not in fast for fast in bare)
    assert {"ecc_uncorrected_volatile", "row_remap_failed", "clocks_event_reasons"} <= found.keys()
    assert picture.answer().devices[0].recovery_action == "gpu_reset"


def test_a_fast_tick_makes_few_calls_and_a_later_slow_one_repeats_nothing_in_vain(tmp_path: Path):
    """Each tick's calls, by the library's own log: the first reads all, the others what may have changed."""
    log = tmp_path / "calls"
    sample("gh200+busy:0", 7, log)
    of_gpu = [line.split()[2] for line in log.read_text().splitlines() if line.split()[3] == "0"]
    # At the end of each tick.
    proofs = [place for place, name in enumerate(of_gpu) if name == "nvmlDeviceGetUUID"]
    calls = [end - start for start, end in pairwise(proofs)]
    assert calls[0] > 60
    assert max(calls[1:]) <= 50
    assert sorted(calls[1:])[2] <= 8
    assert Counter(of_gpu)["nvmlDeviceGetNumGpuCores"] == 1
