"""What a plan makes the ranks measure."""

from dataclasses import replace

import pytest

from gpudiag.collectives.cases import plan_sweep, sizes_bytes
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, encode
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.plan import DTYPES, NcclTestPlan

MIB = 1024**2


def test_the_default_sweep_on_cpu_has_24_sizes_from_8_bytes_to_64_mib() -> None:
    sweep = plan_sweep(NcclTestPlan(), "gloo", 4, 64 * MIB)
    assert [case.size_bytes for case in sweep.cases] == [8 << step for step in range(24)]
    assert all(case.elements == case.size_bytes // 4 for case in sweep.cases)


def test_the_step_factor_multiplies_and_the_largest_size_is_not_exceeded() -> None:
    assert sizes_bytes(NcclTestPlan(min_bytes=5, step_factor=10), 600) == [5, 50, 500]


def test_sizes_that_hold_the_same_elements_count_once() -> None:
    sweep = plan_sweep(NcclTestPlan(dtype=("float64",), min_bytes=1), "gloo", 4, 16)
    assert [case.size_bytes for case in sweep.cases] == [8, 16]


def test_each_dtype_has_its_own_cases() -> None:
    sweep = plan_sweep(NcclTestPlan(dtype=("int8", "float32")), "gloo", 2, 8)
    assert [(case.dtype, case.elements) for case in sweep.cases] == [("int8", 8), ("float32", 2)]


def test_nothing_fits_below_the_smallest_size() -> None:
    with pytest.raises(UsageError):
        plan_sweep(NcclTestPlan(min_bytes=1024), "gloo", 2, 8)


def test_sizes_of_whole_arrays_are_cut_into_equal_parts() -> None:
    (case, *_) = plan_sweep(NcclTestPlan(op=("all_gather",), min_bytes=1000), "gloo", 3, 1000).cases
    assert (case.elements, case.size_bytes, case.part_elements(3)) == (249, 996, 83)


def test_operations_that_can_be_in_place_or_not_are_run_both_ways() -> None:
    sweep = plan_sweep(NcclTestPlan(op=("all_gather", "all_to_all", "broadcast")), "gloo", 2, 8)
    placements = [(case.op, case.in_place) for case in sweep.cases]
    assert placements == [
        ("all_gather", False),
        ("all_gather", True),
        ("all_to_all", False),
        ("broadcast", True),
    ]


def test_only_reducing_operations_take_the_reduction() -> None:
    sweep = plan_sweep(NcclTestPlan(op=tuple(OPERATIONS), reduce="max"), "gloo", 2, 8)
    reducing = {case.op for case in sweep.cases if case.reduce == "max"}
    assert reducing == {op for op, operation in OPERATIONS.items() if operation.reduces}
    assert all(case.reduce is None for case in sweep.cases if case.op not in reducing)


def test_a_barrier_is_measured_once() -> None:
    sweep = plan_sweep(NcclTestPlan(op=("barrier",), dtype=("all",)), "gloo", 2, 1024)
    assert [(case.op, case.size_bytes) for case in sweep.cases] == [("barrier", 0)]


def test_nobody_sends_to_itself() -> None:
    assert [
        case.op for case in plan_sweep(NcclTestPlan(op=("send_recv", "barrier")), "gloo", 1, 8).cases
    ] == ["barrier"]
    with pytest.raises(UsageError) as refused:
        plan_sweep(NcclTestPlan(op=("send_recv",)), "gloo", 1, 8)
    assert "send_recv needs 2 ranks" in refused.value.hint


def test_every_operation_says_how_many_ranks_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as refused:
        plan_sweep(NcclTestPlan(op=("hypercube",)), "gloo", 6, 1024)
    assert "hypercube needs 2, 4, 8, 16, ... ranks" in refused.value.hint
    pair = replace(OPERATIONS["all_gather"], least_ranks=3)  # one that no list here names
    monkeypatch.setattr("gpudiag.collectives.cases.OPERATIONS", {**OPERATIONS, "all_gather": pair})
    for size in (1, 2):
        with pytest.raises(UsageError):
            plan_sweep(NcclTestPlan(op=("all_gather",)), "gloo", size, 8)
    assert plan_sweep(NcclTestPlan(op=("all_gather",)), "gloo", 3, 24).cases


def test_zero_bytes_come_before_the_sizes_that_follow_from_8() -> None:
    sweep = plan_sweep(NcclTestPlan(min_bytes=0), "gloo", 2, 32)
    assert [case.size_bytes for case in sweep.cases] == [0, 8, 16, 32]


def test_all_dtypes_are_those_that_the_backend_and_the_reduction_have() -> None:
    def dtypes(backend: str, reduce: str, *, float8: bool = False) -> set[str]:
        sweep = plan_sweep(NcclTestPlan(dtype=("all",), reduce=reduce), backend, 2, 8, float8=float8)
        return {case.dtype for case in sweep.cases}

    assert dtypes("nccl", "sum", float8=True) == set(DTYPES)
    assert dtypes("nccl", "sum") == dtypes("gloo", "sum")
    assert dtypes("gloo", "sum") == {dtype for dtype in DTYPES if not dtype.startswith("float8")}
    assert dtypes("gloo", "avg") == {"float64", "float32", "float16", "bfloat16"}


def test_a_dtype_that_the_backend_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError):
        plan_sweep(NcclTestPlan(dtype=("float8_e5m2",)), "gloo", 2, 8)


def test_a_sweep_travels_to_the_ranks_as_json() -> None:
    sweep = plan_sweep(NcclTestPlan(iterations=7, verify="last"), "gloo", 2, 1024)
    assert decode(type(sweep), encode(sweep)) == sweep
