"""What a plan makes the ranks measure."""

from gpudiag.collectives.cases import plan_sweep, sizes_bytes
from gpudiag.model.codec import decode, encode
from gpudiag.model.plan import NcclTestPlan

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
    assert plan_sweep(NcclTestPlan(min_bytes=1024), "gloo", 2, 8).cases == ()


def test_a_sweep_travels_to_the_ranks_as_json() -> None:
    sweep = plan_sweep(NcclTestPlan(iterations=7, verify="last"), "gloo", 2, 1024)
    assert decode(type(sweep), encode(sweep)) == sweep
