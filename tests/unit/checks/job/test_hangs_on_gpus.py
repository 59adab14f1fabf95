"""Jobs on real GPUs, recorded: six hangs of seven were called healthy, because a wait for a GPU takes a whole
processor.
"""

from dataclasses import dataclass, replace

import pytest

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import is_decided, judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import GpuLook, Job, JobVerdict, ProcessLook, RankSeen
from gpudiag.model.reading import Missing, MissingReason
from tests.recorded_hangs import ON_GPUS, looked_at_again, recorded_on_gpus, seen_early, with_native, with_ras
from tests.walking import walk

FAIL, WARN, ERROR, PASS = Outcome.FAIL, Outcome.WARN, Outcome.ERROR, Outcome.PASS


@dataclass(frozen=True)
class OnGpu:
    """A recording, and what must be said of it once it was looked at thrice: outcome, code, rank (None: no
    one rank), words.
    """

    name: str
    outcome: Outcome
    code: str = ""
    rank: int | None = None
    words: tuple[str, ...] = ()

    def says(self, *words: str) -> "OnGpu":
        return replace(self, words=words)


RECORDED = (
    OnGpu("spin", ERROR, "hang.unknown", None).says(
        "ranks 0 and 1", "train.py:90", "the same 47 collectives", "long, or never ends"
    ),
    OnGpu("skip", FAIL, "hang.other_collective", 1).says(
        "step 21", "step 20", "42 AllReduce", "rank 1 43", "train.py:90"
    ),
    OnGpu("fifo", FAIL, "hang.file", 1).says(
        "opens the FIFO", "train.py:15 in load_batch", "rank 0 waits for its GPU"
    ),
    OnGpu("pyloop", FAIL, "hang.loop", 1).says(
        "train.py:38 in tokenize", "while True", "rank 0 waits for its GPU"
    ),
    OnGpu("size", FAIL, "hang.other_size", None).says(
        "rank 0", "float32 []", "rank 1", "float32 [1048576]", "train.py:90"
    ),
    OnGpu("order", FAIL, "hang.other_collective", None).says(
        "process group 1", "process group 2", "train.py:52", "another order"
    ),
    OnGpu("stop", FAIL, "hang.stopped", 1).says("SIGSTOP", "train.py:69"),
    OnGpu("slow", PASS, words=("not hanging",)),
    OnGpu("healthy", PASS, words=("not hanging",)),
    OnGpu("loader", FAIL, "hang.loader", 1).says(
        "worker", "the FIFO", "train2.py:21 in Shards.read_shard", "train2.py:107"
    ),
    OnGpu("uneven", FAIL, "hang.other_collective", 1).says(
        "barrier at train2.py:110", "left the loop", "step 20", "rank 0 42"
    ),
    OnGpu("lit_callback", FAIL, "hang.file", 1).says(
        "lit.py:20 in Upload.on_train_batch_end", "barrier", "the FIFO"
    ),
    OnGpu("jax_hang", ERROR, "hang.unknown", 0).says("jaxjob.py:13", "its kernel is long, or never ends"),
    OnGpu("evalok", WARN, "hang.works_alone", 0).says(
        "evaluates (validate)", "train2.py:48", "rank 1 waits in", "300 s"
    ),
    OnGpu("longkernel", PASS, words=("step 20 -> 21",)),
)
_MOVE = ("slow", "healthy", "longkernel")


def name_of(case: OnGpu) -> str:
    return case.name


def check(case: OnGpu, verdict: JobVerdict) -> None:
    first = verdict.findings[0] if verdict.findings else None
    told = (
        verdict.outcome,
        first.code if first else "",
        getattr(first.subject, "rank", None) if first else None,
    )
    assert told == (case.outcome, case.code, case.rank), verdict.headline
    for words in case.words:
        assert words in verdict.headline, verdict.headline


def later(name: str) -> Job:
    """The job looked at thrice; once more where a loop must have been seen for five seconds."""
    job = looked_at_again(recorded_on_gpus(name), name)
    return looked_at_again(job, name) if name == "pyloop" else job


def test_every_recording_is_judged() -> None:
    assert {case.name for case in RECORDED} == {
        path.name.removesuffix(".job.json.gz") for path in ON_GPUS.glob("*.job.json.gz")
    }


@walk(RECORDED, name_of)
def test_rank_line_and_reason_are_named_with_what_nccl_and_the_c_functions_say(case: OnGpu) -> None:
    check(case, judge_job(with_native(with_ras(later(case.name), case.name), case.name)))


@walk([case for case in RECORDED if case.name not in ("spin", "jax_hang")], name_of)
def test_lines_and_counts_are_enough_where_no_c_function_was_read(case: OnGpu) -> None:
    check(case, judge_job(with_ras(later(case.name), case.name)))


@walk(RECORDED, name_of)
def test_rass_text_tells_as_much_as_its_json_where_ranks_differ(case: OnGpu) -> None:
    verdict = judge_job(with_ras(later(case.name), case.name, as_json=False))
    assert (verdict.outcome, verdict.findings[0].code if verdict.findings else "") == (
        case.outcome,
        case.code,
    )


@walk([case for case in RECORDED if case.name not in _MOVE], name_of)
def test_two_looks_alone_never_call_a_job_healthy_of_which_nothing_moved(case: OnGpu) -> None:
    blind = with_native(_without_lines(later(case.name)), case.name)
    for job in (recorded_on_gpus(case.name), later(case.name), blind):
        verdict = judge_job(job)
        assert verdict.outcome is not PASS, verdict.headline
        assert "not hanging" not in verdict.headline
        assert (
            verdict.outcome is FAIL
            or not is_decided(verdict)
            or verdict.findings[0].code == "hang.works_alone"
        )


def _without_lines(job: Job) -> Job:
    """The job without the text of its lines, as where its source is not there: `.item()` is not seen."""
    return replace(job, ranks=tuple(_map_looks(rank) for rank in job.ranks))


def _map_looks(rank: RankSeen) -> RankSeen:
    return replace(rank, looks=tuple(_no_text(look) for look in rank.looks))


def _no_text(look: ProcessLook) -> ProcessLook:
    threads = (
        replace(thread, frames=tuple(replace(frame, text="", inside=()) for frame in thread.frames))
        for thread in look.threads
    )
    return replace(look, threads=tuple(threads))


@walk([case for case in RECORDED if case.name in ("fifo", "loader", "pyloop", "lit_callback")], name_of)
def test_counts_do_not_take_the_place_of_what_a_rank_does_that_stands_still_not_yet_for_long(
    case: OnGpu,
) -> None:
    job = with_ras(seen_early(recorded_on_gpus(case.name)), case.name)
    verdict = judge_job(job)
    assert (verdict.outcome, verdict.findings[0].code, is_decided(verdict)) == (WARN, "hang.still", False)
    assert getattr(verdict.findings[0].subject, "rank", None) == 1
    assert any("behind" in str(fact.value) for fact in verdict.findings[0].evidence)


@walk([case for case in RECORDED if case.name in _MOVE], name_of)
def test_a_job_that_moves_is_called_so_by_its_counters(case: OnGpu) -> None:
    verdict = judge_job(recorded_on_gpus(case.name))
    assert (verdict.outcome, is_decided(verdict)) == (PASS, True)
    assert "step" in verdict.headline


@walk([case for case in RECORDED if case.name not in _MOVE], name_of)
def test_the_c_functions_alone_show_a_wait_for_the_gpu(case: OnGpu) -> None:
    """The same jobs without a source line: each rank that spins is found by `cuStreamSynchronize`, or within
    NCCL.
    """
    job = with_native(_without_lines(recorded_on_gpus(case.name)), case.name)
    for place in judge_job(job).places:
        spins = [
            rank
            for rank in job.ranks
            if rank.rank in place.ranks and rank.last.main and rank.last.main.state == "R"
        ]
        if spins and case.name != "pyloop":
            assert place.kind in ("gpu", "ranks", "evaluation"), place


def test_the_rank_behind_that_evaluates_is_healthy_until_the_limit() -> None:
    job = with_ras(recorded_on_gpus("evalok"), "evalok")
    told = next(iter(judge_job(job).findings))
    assert any("1 behind" in str(fact.value) for fact in told.evidence)
    # By its place before the barrier, whatever the function is called.
    unnamed = _renamed(job, "validate", "sample_images")
    verdict = judge_job(unnamed)
    assert (verdict.outcome, verdict.findings[0].code) == (WARN, "hang.works_alone"), verdict.headline


def test_who_left_the_loop_of_a_rank_that_waits_for_its_gpu_had_fewer_steps_also_where_no_counts_are_known() -> (
    None
):
    job = later("uneven")
    soon = judge_job(job)
    assert (soon.outcome, soon.findings[0].code) == (WARN, "hang.works_alone"), soon.headline
    assert "after 60 s it is called a hang" in soon.headline
    late = judge_job(job, HangLimits(idle=1.0))
    check(OnGpu("uneven", FAIL, "hang.other_collective", 1).says("left the loop", "for more than 1 s"), late)
    works = judge_job(with_gpus(job, WORKING, BUSY), HangLimits(idle=1.0))
    assert (works.outcome, works.findings[0].code) == (WARN, "hang.works_alone"), works.headline


def _renamed(job: Job, old: str, new: str) -> Job:
    def rename(look: ProcessLook) -> ProcessLook:
        threads = (
            replace(
                one,
                frames=tuple(
                    replace(frame, function=frame.function.replace(old, new)) for frame in one.frames
                ),
            )
            for one in look.threads
        )
        return replace(look, threads=tuple(threads))

    return replace(
        job, ranks=tuple(replace(rank, looks=tuple(map(rename, rank.looks))) for rank in job.ranks)
    )


def test_a_kernel_that_never_ends_is_a_hang_once_it_was_watched_for_a_minute_or_no_backward_ran_for_long() -> (
    None
):
    job = with_ras(later("spin"), "spin")
    last = tuple(replace(rank, looks=(*rank.looks, _after(rank.last, 70.0))) for rank in job.ranks)
    verdict = judge_job(replace(job, ranks=last))
    assert (verdict.outcome, verdict.findings[0].code) == (FAIL, "hang.gpu"), verdict.headline
    idle = tuple(
        replace(rank, looks=tuple(_no_backward(look, 400.0) for look in rank.looks)) for rank in job.ranks
    )
    verdict = judge_job(replace(job, ranks=idle))
    assert (verdict.outcome, verdict.findings[0].code) == (FAIL, "hang.gpu"), verdict.headline
    assert "no backward pass has run for 7 min" in verdict.headline


def _after(look: ProcessLook, seconds: float) -> ProcessLook:
    return replace(look, at_seconds=look.at_seconds + seconds)


def _no_backward(look: ProcessLook, seconds: float) -> ProcessLook:
    threads = (
        replace(one, last_ran_seconds_ago=seconds) if one.name.startswith("pt_autograd") else one
        for one in look.threads
    )
    return replace(look, threads=tuple(threads))


BUSY = GpuLook(0.0, "GPU-0", 100, power_draw_watts=124.0, power_limit_watts=700.0)
IDLE = replace(BUSY, utilization_percent=0, power_draw_watts=113.0)
WORKING = replace(BUSY, power_draw_watts=480.0)


def with_gpus(job: Job, *looks: GpuLook) -> Job:
    """The job with a GPU of its own for each rank, seen twice."""
    ranks = tuple(
        replace(rank, gpu_looks=tuple(replace(look, gpu=f"GPU-{place}", at_seconds=at) for at in (0.0, 1.0)))
        for place, (rank, look) in enumerate(zip(job.ranks, looks, strict=True))
    )
    return replace(job, ranks=ranks)


def test_the_gpu_that_does_nothing_names_the_rank_that_is_not_in_the_collective() -> None:
    verdict = judge_job(with_gpus(later("spin"), BUSY, IDLE))
    assert (verdict.outcome, verdict.findings[0].code) == (FAIL, "hang.gpu"), verdict.headline
    assert getattr(verdict.findings[0].subject, "rank", None) == 1
    assert "the GPU of rank 1 runs no kernel" in verdict.headline


@pytest.mark.parametrize(
    "looks",
    [
        (BUSY, BUSY),
        (BUSY, WORKING),
        (IDLE, IDLE),
        (replace(BUSY, power_draw_watts=Missing(MissingReason.NOT_SUPPORTED)), IDLE),
    ],
)
def test_gpus_at_full_utilization_prove_nothing(looks: tuple[GpuLook, ...]) -> None:
    """A kernel that waits runs too: without one GPU that is idle while all others only wait, no rank is
    named.
    """
    verdict = judge_job(with_gpus(later("spin"), *looks))
    assert (verdict.outcome, verdict.findings[0].code) == (ERROR, "hang.unknown"), verdict.headline


def test_a_shared_gpu_tells_no_rank() -> None:
    job = with_gpus(later("spin"), BUSY, IDLE)
    shared = tuple(
        replace(rank, gpu_looks=tuple(replace(one, gpu="GPU-0") for one in rank.gpu_looks))
        for rank in job.ranks
    )
    assert judge_job(replace(job, ranks=shared)).outcome is ERROR


def test_a_rank_behind_whose_gpu_works_is_not_blamed() -> None:
    """`skip` is blamed by the same line in an earlier step.

    At 480 W the rank behind computes, and may be slow.
    """
    job = with_gpus(with_ras(later("skip"), "skip"), WORKING, BUSY)
    verdict = judge_job(job)
    assert (verdict.outcome, verdict.findings[0].code) == (WARN, "hang.works_alone"), verdict.headline
    assert "480 W of 700 W" in verdict.headline


def test_counts_that_move_show_a_job_that_goes_on_whatever_its_lines() -> None:
    job = with_ras(recorded_on_gpus("spin"), "spin")
    assert job.state is not None
    (looks,) = job.state.ras
    (communicator,) = looks.looks[0].communicators
    fewer = replace(
        communicator, counts=tuple(replace(one, launched=one.launched - 1) for one in communicator.counts)
    )
    moving = (replace(looks.looks[0], communicators=(fewer,)), looks.looks[1])
    verdict = judge_job(replace(job, state=replace(job.state, ras=(replace(looks, looks=moving),))))
    assert (verdict.outcome, verdict.findings) == (PASS, ())
    assert "NCCL's counts of collectives move" in verdict.headline


def test_a_rank_behind_on_another_machine_is_named_and_not_accused_unseen() -> None:
    """It may evaluate there: only a look at its machine tells."""
    job = with_ras(later("uneven"), "uneven")
    here = replace(job, ranks=job.ranks[:1], expected=(0,))
    verdict = judge_job(here)
    assert (verdict.outcome, verdict.findings[0].code) == (ERROR, "hang.unknown"), verdict.headline
    assert "rank 1 has launched 41 AllReduce" in verdict.headline
    assert "gpudiag merge" in verdict.findings[0].remedy
