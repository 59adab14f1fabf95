"""What a job that was ended still waits for is told while it lasts."""

from dataclasses import dataclass

import pytest

from gpudiag.model.job_run import Glance
from gpudiag.runs.job_run.ending import Ending


@dataclass
class Rank:
    """What is told of a rank that lives."""

    rank: int | None
    pid: int
    last_seen: Glance | None = None


SEEN = Glance(1.0, True, "train.py:9 in load", "")


@pytest.fixture
def ending():
    followed = Ending(("/opt/bin/torchrun", "--nproc-per-node", "2", "train.py"))
    followed.note("SIGINT", 100.0)
    return followed


def test_it_is_told_after_some_seconds_and_again_while_it_lasts(ending):
    told = [second for second in range(100, 140) if ending.describe([Rank(1, 12, SEEN)], float(second))]
    assert told == [103, 113, 123, 133]


def test_the_rank_its_line_and_what_torchrun_does_are_told(ending):
    sentence = ending.describe([Rank(1, 12, SEEN)], 105.0)
    assert sentence == (
        "SIGINT came 5 s ago, and rank 1 (pid 12, last seen at train.py:9 in load) has not ended; "
        "torchrun kills what is left in 25 s; to end it now: kill -KILL 12"
    )
    assert "kills" not in ending.describe([Rank(0, 11), Rank(1, 12)], 140.0)
    assert (
        ending.describe([], 160.0)
        == "SIGINT came 60 s ago, and torchrun has not ended yet; it has no rank left"
    )


def test_other_launchers_are_not_said_to_kill():
    followed = Ending(("srun", "python", "train.py"))
    followed.note("SIGTERM", 0.0)
    assert followed.describe([Rank(None, 12)], 4.0) == (
        "SIGTERM came 4 s ago, and pid 12 has not ended; to end it now: kill -KILL 12"
    )


def test_a_job_that_nobody_ends_is_not_told_of():
    followed = Ending(("torchrun", "train.py"))
    followed.note("SIGWINCH", 0.0)
    followed.note("SIGUSR1", 0.0)
    assert followed.describe([Rank(0, 11)], 900.0) is None
