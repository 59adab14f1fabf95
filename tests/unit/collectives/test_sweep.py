"""One rank's sweep: what it announces, what it repeats, what it verifies and tells."""

from pathlib import Path

import pytest
import torch

from gpudiag.collectives import sweep
from gpudiag.collectives.cases import Sweep, plan_sweep
from gpudiag.collectives.sweep import MAX_ITERATIONS, MIN_ITERATIONS, needs_lead
from gpudiag.model.plan import NcclTestPlan
from tests.unit.collectives.rank_of_one import RecordingProgress, run_sweep


def make_sweep(max_bytes: int = 64, **fields: object) -> Sweep:
    return plan_sweep(
        NcclTestPlan(**{"min_bytes": 16, "iterations": 4, "warmup": 1, **fields}), "gloo", 1, max_bytes
    )  # type: ignore[arg-type]


def test_every_case_is_told_with_a_time_per_iteration(tmp_path: Path) -> None:
    told = run_sweep(make_sweep(), tmp_path).cases()
    assert [case.case for case in told] == [0, 1, 2]
    for case in told:
        assert len(case.times_nanoseconds) == case.verified_iterations == 4
        assert all(time > 0 for time in case.times_nanoseconds)
        assert case.wrong_elements == 0


def test_timed_iterations_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    assert run_sweep(make_sweep(), tmp_path).iterations == list(range(12))


def test_every_collective_is_announced_before_and_after_in_sequence(tmp_path: Path) -> None:
    progress = run_sweep(make_sweep(), tmp_path)
    assert [sequence for sequence, _ in progress.operations] == list(range(len(progress.operations)))
    assert progress.left == list(range(len(progress.operations)))
    names = [op for _, op in progress.operations]
    assert names.count("all_reduce") == 3 * (1 + 4)
    assert names[0] == "barrier"


def test_a_barrier_is_entered_and_left_at_moments_of_one_clock_around_the_call(tmp_path: Path) -> None:
    progress = run_sweep(make_sweep(op=("barrier",)), tmp_path, preempted_seconds=0.002)
    (case,) = progress.cases()
    # Before the one in which ranks wait for each other's end.
    announced = progress.announced_nanoseconds[-5:-1]
    left = [
        entered + took for entered, took in zip(case.entered_nanoseconds, case.times_nanoseconds, strict=True)
    ]
    assert all(entered > moment for entered, moment in zip(case.entered_nanoseconds, announced, strict=True))
    # What went by before a call is in no call's time: each is left before the next one is announced.
    assert all(end < moment - 2_000_000 for end, moment in zip(left, announced[1:], strict=False))


def test_a_short_burst_on_a_gpu_follows_a_collective_that_nobody_times() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    large, small = 256 * 1024**2, 1024**2
    assert [needs_lead(gpu, count, large) for count in (1, 2, 19, 20)] == [True, True, True, False]
    assert not needs_lead(gpu, 1, small)
    assert not needs_lead(cpu, 1, large)


def test_what_is_queued_ahead_is_announced_and_neither_counted_nor_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "needs_lead", lambda device, operations, size_bytes: True)
    progress = run_sweep(make_sweep(), tmp_path)
    names = [op for _, op in progress.operations]
    assert names.count("all_reduce") == 3 * (1 + 1 + 4)
    assert progress.left == list(range(len(names)))
    assert progress.iterations == list(range(12))
    assert all(case.verified_iterations == 4 and case.wrong_elements == 0 for case in progress.cases())


def test_stages_come_in_order_and_again_for_each_case(tmp_path: Path) -> None:
    stages = run_sweep(make_sweep(), tmp_path).stages
    assert stages == ["rendezvous", "init", *["warmup", "measure", "verify"] * 3]


def test_without_numbers_the_time_decides_how_often(tmp_path: Path) -> None:
    progress = run_sweep(make_sweep(16, iterations=None, warmup=None), tmp_path)
    (case,) = progress.cases()
    assert MIN_ITERATIONS <= len(case.times_nanoseconds) <= MAX_ITERATIONS
    assert "broadcast" in [op for _, op in progress.operations]


def test_without_warm_ups_none_is_run(tmp_path: Path) -> None:
    progress = run_sweep(make_sweep(16, warmup=0), tmp_path)
    assert [op for _, op in progress.operations].count("all_reduce") == 4


@pytest.mark.parametrize(("verify", "verified"), [("every", 4), ("last", 1), ("off", 0)])
def test_as_many_buffers_are_verified_as_were_asked_for(tmp_path: Path, verify: str, verified: int) -> None:
    (case,) = run_sweep(make_sweep(16, verify=verify), tmp_path).cases()
    assert case.verified_iterations == verified


def test_a_flipped_bit_is_told_with_its_iteration_and_offset(tmp_path: Path) -> None:
    progress = run_sweep(make_sweep(), tmp_path, flip_iterations=(5,))
    (wrong,) = progress.wrong_buffers()
    assert (wrong.rank, wrong.case, wrong.iteration) == (0, 1, 5)
    assert (wrong.elements.count, wrong.elements.first_offset, wrong.elements.xor_mask) == (1, 4, 1)
    assert [case.wrong_elements for case in progress.cases()] == [0, 1, 0]


def test_wrong_data_stops_nothing_and_only_the_first_buffers_are_described(tmp_path: Path) -> None:
    progress = run_sweep(make_sweep(16, iterations=20), tmp_path, flip_iterations=tuple(range(20)))
    assert len(progress.wrong_buffers()) == 8
    assert progress.cases()[0].wrong_elements == 20


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8", "int64"])
def test_bursts_that_do_not_fit_together_are_cut(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudiag.collectives.sweep._BURST_BYTES", {"cpu": 1024})
    progress = run_sweep(make_sweep(600, min_bytes=600, dtype=(dtype,), iterations=3), tmp_path)
    assert progress.stages.count("measure") == 3  # one buffer of 768 bytes fits at a time
    assert progress.cases()[0].verified_iterations == 3


def test_the_rank_tells_what_it_runs_on(tmp_path: Path) -> None:
    progress: RecordingProgress = run_sweep(make_sweep(16), tmp_path)
    facts = progress.events[0]
    assert facts["kind"] == "facts"
    assert facts["torch_version"].startswith("2.")
    assert facts["missing"]["device_uuid"] == "not_supported"
