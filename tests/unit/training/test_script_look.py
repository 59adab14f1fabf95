"""What a look from outside shows of a script that hangs: what a rank waits for, a rank where none was blamed,
never a PASS.
"""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.checks.training.script_hang import ScriptLimits, judge_hang
from gpudiag.model.evidence import HostSubject, ranks_of
from gpudiag.model.finding import Finding
from gpudiag.model.job import Frame, Job
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.script import OWN_STACKS, OwnLook
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.runs import script_look
from gpudiag.runs.script_look import OutsideLook, without_own_frames
from gpudiag.training.script_main import read_pid_namespace
from tests.own_looks import ALL_REDUCE, own_look
from tests.recorded_hangs import recorded

BARRIER = own_look("train.py:5 in step", ALL_REDUCE)
LOADS = own_look("train.py:40 in load")


def hang(odd: OwnLook, outside: Job | None = None, size: int = 4) -> Finding:
    """The finding where rank 2 is at that place, and the others at a barrier."""
    still = {rank: odd if rank == 2 else BARRIER for rank in range(size)}
    hosts = dict.fromkeys(range(size), "a1")
    return judge_hang(still, {}, {}, hosts, ScriptLimits(60.0, 1800.0), outside)


def each_frames(job: Job, change: Callable[[tuple[Frame, ...]], tuple[Frame, ...]]) -> Job:
    """The job with the stack of every main thread changed."""
    return replace(
        job,
        ranks=tuple(
            replace(
                rank,
                looks=tuple(
                    replace(
                        look,
                        threads=tuple(
                            replace(one, frames=change(one.frames)) if one.tid == look.pid else one
                            for one in look.threads
                        ),
                    )
                    for look in rank.looks
                ),
            )
            for rank in job.ranks
        ),
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fifo", "the FIFO"),
        ("lock", "waits for a lock or another thread"),
        ("sleep", "sleeps at"),
        ("loader_deadlock", "waits for its data loader's workers"),
        ("sigstop", "is stopped by a signal"),
    ],
)
def test_what_the_blamed_rank_waits_for_is_told(name: str, words: str) -> None:
    blind, seen = hang(LOADS), hang(LOADS, recorded(name))
    assert (seen.code, seen.outcome, seen.subject.kind) == (blind.code, blind.outcome, "rank")
    assert ranks_of(seen.subject) == ranks_of(blind.subject) == (2,)
    assert words in seen.message
    assert "stands still at train.py:40 in load" in blind.message
    for finding, source in ((seen, "py-spy"), (blind, OWN_STACKS)):
        assert {one.source for one in finding.evidence if one.name == "line of rank 2"} <= {source}
        assert source in [one.source for one in finding.evidence]


def test_where_the_reports_blame_nobody_the_tensors_that_the_look_shows_do() -> None:
    assert hang(BARRIER).subject == HostSubject("a1")
    told = hang(BARRIER, recorded("other_size"))
    assert ranks_of(told.subject) == (2,)
    assert "float32 [8388608]" in told.message


def test_a_look_that_saw_only_some_of_the_ranks_blames_nobody() -> None:
    assert hang(BARRIER, recorded("other_size"), 8) == hang(BARRIER, size=8)


def test_of_a_look_at_some_of_the_ranks_what_the_odd_one_does_is_taken() -> None:
    told = hang(LOADS, recorded("fifo"), 8)
    assert ranks_of(told.subject) == (2,)
    assert "the FIFO" in told.message
    assert "7 ranks" not in told.message
    assert "ranks 0, 1 and 3-7 wait in" in told.message


def test_a_look_to_which_the_stacks_are_refused_changes_nothing() -> None:
    job = recorded("fifo")
    refused = Missing(MissingReason.NO_PERMISSION, "ptrace is refused")
    blind = replace(
        job,
        ranks=tuple(
            replace(rank, looks=tuple(replace(look, stacks=refused) for look in rank.looks))
            for rank in each_frames(job, lambda _: ()).ranks
        ),
    )
    for odd in (LOADS, BARRIER):
        assert hang(odd, blind) == hang(odd)


def test_gpudiags_own_frames_are_no_part_of_the_scripts_stack() -> None:
    own = Path(script_look.__file__).parents[1]
    hook = Frame(f"{own}/training/script_look.py", "looked", 7)
    started = (
        Frame("<frozen runpy>", "run_path", 291),
        Frame(f"{own}/training/script_main.py", "run", 46, inside=("try: (line 45)",)),
        Frame("/usr/bin/outer.py", "main", 3),
    )
    job = recorded("lock")
    covered = each_frames(job, lambda frames: (frames[0], hook, *frames[1:], *started))
    assert without_own_frames(covered, "/x/train.py") == job
    below = Frame(f"{own}/examples/train.py", "main", 3)
    kept = without_own_frames(each_frames(job, lambda _: (below,)), below.file)
    assert kept.ranks[0].last.main is not None
    assert kept.ranks[0].last.main.frames == (below,)


def make_look(namespace: str) -> OutsideLook:
    """A look at this very process as rank 0, whose time is up at once."""
    look = OutsideLook("/x/train.py", 1, clock=lambda: math.inf)
    look.add(RankEvent(0, 0.0, {"kind": "process", "pid": os.getpid(), "namespace": namespace}))
    return look


def test_a_look_that_is_late_or_cannot_be_made_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    late = make_look(read_pid_namespace())
    assert late.is_done()
    elsewhere = make_look("another machine's")
    monkeypatch.setattr(script_look, "start_looks_at", lambda *_: pytest.fail("nothing is there to look at"))
    assert elsewhere.is_done()
    ended = make_look(read_pid_namespace())
    ended.add(RankEvent(0, 1.0, {"kind": "done", "size": 1}))
    assert ended.is_done()
    monkeypatch.setattr(script_look, "find_py_spy", lambda: None)
    without = make_look(read_pid_namespace())
    assert without.is_done()
    assert [one.job for one in (late, elsewhere, ended, without)] == [None] * 4
