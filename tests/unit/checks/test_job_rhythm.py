"""The rhythm and the shares of real jobs, by pulses recorded from outside, and the rule by which a stall is
told.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.checks.job.rhythm import count_meetings, find_step_time
from gpudiag.checks.job.shares import find_odd_sleepers, find_slow_ranks, judge_glance, measure_shares
from gpudiag.checks.job.short_steps import settle_step_time, wants_burst
from gpudiag.checks.job.stall_rule import StallRule, parse_stall_rule
from gpudiag.errors import UsageError
from gpudiag.model.job import Frame
from gpudiag.model.job_run import Glance, Pulse, StepTime
from gpudiag.model.reading import NOT_ASKED, Missing
from tests.walking import walk

RECORDED = Path(__file__).with_name("pulses")
# What the jobs printed themselves, in seconds.
STEPS = {"slowrank": 0.871, "io": 0.820, "slow": 1.256}


# Short ones, on a machine with five times as much to do as it had processors: the usual readings show some
# steps as one.
SHORT_STEPS = {"short": 0.308, "shorter": 0.080}


def recorded(name: str, part: str = "ranks") -> dict[int, list[Pulse]]:
    """By rank; the file has differences, in milliseconds."""
    ranks = {}
    for rank, rows in enumerate(json.loads((RECORDED / f"{name}.json").read_text())[part]):
        sums, series = [0, 0, 0, 0, 0], []
        for row in rows:
            sums = [total + more for total, more in zip(sums, row, strict=True)]
            series.append(Pulse(sums[0] / 1e3, sums[1] / 1e3, sums[2] / 1e3, sums[3], sums[4]))
        ranks[rank] = series
    return ranks


@pytest.mark.parametrize("name", STEPS)
def test_the_step_is_found_within_a_tenth_of_what_the_job_printed(name: str) -> None:
    found = find_step_time(recorded(name))
    assert isinstance(found, StepTime)
    assert found.seconds == pytest.approx(STEPS[name], rel=0.1)


@walk(SHORT_STEPS)
def test_a_step_that_the_usual_readings_show_as_several_is_found_by_a_burst_or_not_known(name: str) -> None:
    usual, burst = recorded(name), recorded(name, "burst")
    found = find_step_time(usual)
    assert wants_burst(found, usual)
    settled = settle_step_time(found, usual, burst)
    assert isinstance(settled, StepTime)
    assert settled.seconds == pytest.approx(SHORT_STEPS[name], rel=0.3)
    assert isinstance(found, StepTime)
    assert found.seconds > 4 * SHORT_STEPS[name]
    assert isinstance(settle_step_time(found, usual, {}), Missing)  # without a burst nothing can be said


@walk(STEPS)
def test_a_long_step_needs_no_burst_and_outlives_one(name: str) -> None:
    usual = recorded(name)
    found = find_step_time(usual)
    assert not wants_burst(found, usual)
    several = StepTime(5 * STEPS[name], 9, 0.7, 30.0)
    assert wants_burst(several, usual)  # five of them told as one
    assert settle_step_time(found, usual, recorded("shorter", "burst")) is found


def test_meetings_in_one_part_of_a_step_are_no_step() -> None:
    """A second without a meeting, then eight of them within a third of one: gradients in buckets."""
    burst = {
        rank: [
            Pulse(n / 100, 0.0, 0.0, 0, sum((m % 133) >= 100 and m % 4 == 0 for m in range(n)))
            for n in range(300)
        ]
        for rank in range(4)
    }
    quick = find_step_time(burst)
    assert isinstance(quick, StepTime)
    assert quick.seconds == pytest.approx(0.04)
    assert isinstance(settle_step_time(StepTime(0.7, 9, 0.6, 20.0), burst, burst), Missing)


def test_ranks_that_only_compute_have_no_step() -> None:
    busy = {rank: [Pulse(n / 10, n / 10, 0.0, n, 0) for n in range(400)] for rank in range(4)}
    assert isinstance(find_step_time(busy), Missing)
    assert count_meetings(busy) == 0


def test_a_rank_that_polls_while_the_others_wait_has_no_step() -> None:
    """One rank sleeps a little again and again, as in `while not os.path.exists(...)`.

    The others stand still.
    """
    ranks = {rank: [Pulse(n / 10, 1.0, 0.0, 9, 9) for n in range(400)] for rank in range(3)}
    ranks[3] = [Pulse(n / 10, n / 1000, 0.0, n, n) for n in range(400)]
    assert isinstance(find_step_time(ranks), Missing)


def test_too_few_readings_are_no_answer() -> None:
    assert isinstance(find_step_time({0: recorded("io")[0][:20]}), Missing)
    assert isinstance(find_step_time({}), Missing)


def test_the_rank_with_more_work_is_the_one_that_waits_least() -> None:
    (slow,) = find_slow_ranks(recorded("slowrank"), {})
    assert (slow.rank, slow.cause) == (1, "runs")
    assert slow.waits < 0.05 < 0.15 < slow.others_wait


def test_of_ranks_that_are_alike_none_is_slow() -> None:
    for name in ("slow", "io"):
        assert find_slow_ranks(recorded(name), {}) == ()


def test_a_rank_that_sleeps_for_its_own_sake_is_told_by_its_glances() -> None:
    """Asleep as long as the others; but its stack is in a sleep of its own, and theirs in a collective."""
    alike = recorded("slowrank")
    pulses = {0: alike[0], 1: alike[2], 2: alike[3]}
    own = [Glance(float(n), True, "data.py:6 in load_batch", "sleep") for n in range(12)]
    others = [Glance(float(n), True, "train.py:30 in main", "ranks") for n in range(12)]
    (slow,) = find_slow_ranks(pulses, {0: others, 1: own, 2: others})
    assert (slow.rank, slow.cause, slow.at) == (1, "sleeps", "data.py:6 in load_batch")
    assert find_slow_ranks(pulses, {0: others[:2], 1: own[:2], 2: others[:2]}) == ()  # too little was seen


def test_the_line_is_one_where_the_rank_does_what_it_does_more() -> None:
    """It was seen at work as often as in a sleep of its own: only the sleep is why the others wait."""
    alike = recorded("slowrank")
    sleeps = [Glance(float(n), True, "data.py:6 in load_batch", "sleep") for n in range(6)]
    works = [Glance(float(n), False, f"train.py:{n % 3} in compute", "") for n in range(9)]
    others = [Glance(float(n), True, "train.py:30 in main", "ranks") for n in range(12)]
    (slow,) = find_slow_ranks(
        {0: alike[0], 1: alike[2], 2: alike[3]}, {0: others, 1: [*sleeps, *works], 2: others}
    )
    assert (slow.cause, slow.at) == ("sleeps", "data.py:6 in load_batch")
    (slow,) = find_slow_ranks(alike, {1: [*works, *others]})
    assert (slow.cause, slow.at.partition(" in ")[2]) == ("runs", "compute")


def test_a_rank_that_sleeps_elsewhere_in_the_kernel_is_worth_a_look() -> None:
    """Recorded of four gloo ranks of which one calls time.sleep in each step."""
    meets, naps = ["futex_do_wait"], ["hrtimer_nanosleep"]
    channels = {0: meets * 30, 1: meets * 28 + naps * 2, 2: meets * 30, 3: naps * 18 + meets * 12}
    assert find_odd_sleepers(channels) == (3,)
    assert find_odd_sleepers({**channels, 3: channels[3][:7]}) == ()  # too little was seen
    assert find_odd_sleepers({0: meets * 30, 1: naps * 30}) == ()  # which of the two is odd, nobody knows
    assert find_odd_sleepers({rank: [] for rank in channels}) == ()  # a kernel that does not show it


def test_no_line_is_told_of_two_glances() -> None:
    """They may be of the imports, which a rank on a busy machine takes half a minute for."""
    imports = [Glance(float(n), False, "train.py:10 in <module>", "") for n in range(3)]
    pulses = recorded("slowrank")
    assert [one.at for one in measure_shares(pulses, dict.fromkeys(pulses, imports[:2]))] == [""] * len(
        pulses
    )
    assert {one.at for one in measure_shares(pulses, dict.fromkeys(pulses, imports))} == {imports[0].place}


def test_a_gap_that_a_few_glances_made_is_none() -> None:
    """All ranks wait for their data for most of a step; which of a dozen glances saw it is chance."""
    alike = recorded("slowrank")
    pulses = {0: alike[0], 1: alike[2], 2: alike[3]}
    data = [Glance(float(n), True, "data.py:6 in load_batch", "sleep") for n in range(8)]
    meets = [Glance(float(n), True, "train.py:30 in main", "ranks") for n in range(8)]
    by_chance = {0: data[:5] + meets[:3], 1: data, 2: data[:5] + meets[:3]}
    assert find_slow_ranks(pulses, by_chance) == ()
    # Glanced at more often.
    assert [one.rank for one in find_slow_ranks(pulses, by_chance, suspects=True)] == [1]
    often = {rank: [*glances] * 8 for rank, glances in by_chance.items()}
    assert [one.rank for one in find_slow_ranks(pulses, often)] == [1]


def test_a_rank_that_was_seen_asleep_in_the_line_in_which_it_computes_computes_longer() -> None:
    """State and stack are read one after the other: it had woken up and run on.

    A wait that is known stays one.
    """
    alike = recorded("slowrank")
    pulses = {0: alike[0], 1: alike[2], 2: alike[3]}
    others = [Glance(float(n), True, "train.py:30 in main", "ranks") for n in range(12)]
    torn = [Glance(float(n), True, "train.py:28 in compute", "") for n in range(6)]
    works = [Glance(float(n), False, "train.py:28 in compute", "") for n in range(6)]
    (slow,) = find_slow_ranks(pulses, {0: others, 1: [*torn, *works], 2: others})
    assert (slow.rank, slow.cause == "sleeps", slow.at) == (1, False, "train.py:28 in compute")
    (slow,) = find_slow_ranks(pulses, {0: others, 1: [*torn, *works[:3]], 2: others})
    assert slow.cause == "sleeps"
    known = [Glance(float(n), True, "train.py:28 in compute", "file") for n in range(6)]
    (slow,) = find_slow_ranks(pulses, {0: others, 1: [*known, *works], 2: others})
    assert slow.cause == "sleeps"


def spent(runs: float, seconds: int = 60) -> list[Pulse]:
    """The pulses of a rank that runs for that share of each second and sleeps for the rest, one a second."""
    return [Pulse(float(at), at * runs, at * 0.0005, at * 40, at * 20) for at in range(seconds)]


def test_a_rank_that_spins_for_its_gpu_waits_and_the_one_that_sleeps_is_slow() -> None:
    """Two ranks of a real H100, rank 1 asleep for 0.25 s of each step: rank 0 ran 85 % of the time, in
    `.item()`.
    """
    pulses = {0: spent(0.8535), 1: spent(0.3039)}
    item = [Frame("/job/train.py", "main", 90, "log(rank, step, value.flatten()[0].item())")]
    sleep = [Frame("/job/train.py", "main", 77, "time.sleep(0.25)")]
    waits = [judge_glance(float(n), "R", True, item) for n in range(8)]
    own = [judge_glance(float(n), "S", True, sleep) for n in range(10)]
    pause = [
        judge_glance(float(n), "S", True, [Frame("/job/train.py", "main", 91, "time.sleep(0.05)")])
        for n in range(4)
    ]
    (slow,) = find_slow_ranks(pulses, {0: [*waits, *pause], 1: [*own, *waits[:3]]})
    assert (slow.rank, slow.cause, slow.at) == (1, "sleeps", "train.py:77 in main")
    # On a processor alone the same line computes: nobody waits for a GPU there.
    computes = [judge_glance(float(n), "R", False, item) for n in range(8)]
    assert {one.awaited for one in computes} == {""}


def test_who_does_nothing_more_than_the_others_is_not_slow() -> None:
    """Both sleep for their own sake in each step; that one of them waits more has another reason."""
    alike = recorded("slowrank")
    own = [Glance(float(n), True, "data.py:6 in load_batch", "sleep") for n in range(6)]
    waits = [Glance(float(n), True, "train.py:30 in main", "ranks") for n in range(6)]
    assert find_slow_ranks({0: alike[0], 1: alike[2]}, {0: [*own, *waits], 1: [*own, *waits]}) == ()


def test_a_pause_says_nothing_of_steps() -> None:
    """Rank 0 waits without waking up for 40 of 60 s, and rank 1 works on: no step was taken then."""
    still = [Pulse(float(at), min(at, 20) * 0.5, 0.0, at, min(at, 20) * 10) for at in range(60)]
    assert find_slow_ranks({0: still, 1: spent(0.5)}, {}) == ()


def test_who_evaluates_alone_while_the_others_spin_for_a_collective_is_not_slow() -> None:
    """As recorded on the stand-in for CUDA: neither sleeps once in half a minute, and the processors are
    shared.
    """
    first = spent(0.5, 12)
    last = first[-1]
    for_seconds = range(1, 31)
    alone = [
        replace(
            last,
            at_seconds=last.at_seconds + n,
            ran_seconds=last.ran_seconds + 0.45 * n,
            queued_seconds=0.55 * n,
        )
        for n in for_seconds
    ]
    spins = [replace(one, ran_seconds=one.ran_seconds - 0.01) for one in alone]
    evaluates = [Glance(15.0 + n, False, "train.py:111 in evaluate", "") for n in range(9)]
    waits = [Glance(15.0 + n, False, "train.py:155 in main", "ranks") for n in range(9)]
    assert not find_slow_ranks({0: [*first, *alone], 1: [*first, *spins]}, {0: evaluates, 1: waits})


def test_half_of_the_ranks_are_not_slow() -> None:
    pulses = recorded("slowrank")
    assert find_slow_ranks({0: pulses[0], 1: pulses[1], 2: pulses[0], 3: pulses[1]}, {}) == ()


def test_shares_add_up_to_the_time() -> None:
    for share in measure_shares(recorded("slowrank"), {}):
        assert share.waits_for_ranks + share.runs + share.queues + share.sleeps == pytest.approx(
            1.0, abs=0.05
        )


def test_the_limit_follows_the_step() -> None:
    step = StepTime(2.0, 30, 0.9, 60.0)
    assert StallRule().limit_seconds(NOT_ASKED, 0.0) == 60.0
    assert StallRule().limit_seconds(step, 0.0) == 40.0
    assert StallRule().limit_seconds(StepTime(0.1, 30, 0.9, 60.0), 0.0) == 15.0
    assert StallRule().limit_seconds(step, 100.0) == 150.0  # a pause that ended by itself may come again
    assert parse_stall_rule("5").limit_seconds(step, 0.0) == 10.0
    assert parse_stall_rule("90s").limit_seconds(step, 1000.0) == 90.0
    assert parse_stall_rule("1.5m").limit_seconds(step, 1000.0) == 90.0


@pytest.mark.parametrize("text", ["", "x", "-3", "1", "1s", "nan", "5 w", "2d", "1e9s"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_stall_rule(text)
