"""The shipped tables of speeds are plausible: recomputed, in order, and within what physics allows."""

from itertools import pairwise

import pytest

from gpudiag.reference.gpu_models import (
    CORES_PER_MULTIPROCESSOR,
    RATE_OF_DTYPE,
    TENSOR_FLOPS_PER_CLOCK,
    GpuModel,
    find_model,
    gpu_models,
)
from gpudiag.reference.interconnects import nvlink_bytes_per_second, pcie_bytes_per_second, published_rates
from gpudiag.reference.tables import read_table
from gpudiag.simulate.loader import base_machines, load_scenario

MODELS = gpu_models()
OF_NVLINKS = {"volta": 2, "ampere": 3, "hopper": 4, "blackwell": 5}


def name(model: GpuModel) -> str:
    return model.names[0]


def halved(model: GpuModel) -> float:
    return 2.0 if "GeForce" in model.names[0] else 1.0


@pytest.mark.parametrize("model", MODELS, ids=name)
def test_memory_speed_follows_from_bus_and_clock(model: GpuModel):
    computed = 2 * model.memory_clock_mhz * 1e6 * model.memory_bus_width_bits / 8
    assert computed == pytest.approx(model.memory_bytes_per_second, rel=0.03)


@pytest.mark.parametrize("model", MODELS, ids=name)
def test_matrix_speed_follows_from_processors_and_clock(model: GpuModel):
    clocks = model.multiprocessors * model.boost_clock_mhz * 1e6
    for dtype, rate in RATE_OF_DTYPE.items():
        if dtype in model.dense_flops_per_second:
            computed = clocks * TENSOR_FLOPS_PER_CLOCK[model.compute_capability] * rate / halved(model)
            assert model.dense_flops_per_second[dtype] == pytest.approx(computed, rel=0.03), dtype
    # float32 does not use tensor cores, and is given at a clock of its own on some products.
    computed = clocks * CORES_PER_MULTIPROCESSOR[model.compute_capability] * 2
    assert model.dense_flops_per_second["float32"] == pytest.approx(computed, rel=0.10)


@pytest.mark.parametrize("model", MODELS, ids=name)
def test_types_are_in_the_order_of_their_cost(model: GpuModel):
    order = [
        dtype
        for dtype in ("float64", "float32", "tfloat32", "bfloat16", "float8")
        if dtype in model.dense_flops_per_second
    ]
    speeds = [model.dense_flops_per_second[dtype] for dtype in order]
    assert speeds == sorted(speeds)
    if "bfloat16" in model.dense_flops_per_second:
        assert model.dense_flops_per_second["bfloat16"] == model.dense_flops_per_second["float16"]


@pytest.mark.parametrize("model", MODELS, ids=name)
def test_published_figures_lie_between_a_third_and_all_of_the_data_sheet(model: GpuModel):
    for figure in model.published:
        assert 0.3 <= figure.value / model.dense_flops_per_second[figure.test] <= 0.95
        assert figure.source
    assert model.source


@pytest.mark.parametrize("model", MODELS, ids=name)
def test_nvlinks_are_those_of_the_architecture(model: GpuModel):
    if model.nvlink_count:
        assert model.nvlink_bytes_per_second == nvlink_bytes_per_second(OF_NVLINKS[model.architecture])
        assert model.nvlink_count in (6, 12, 18)


def test_a_family_is_ordered_like_its_products():
    def memory(product: str) -> float:
        model = find_model(product)
        assert model is not None
        return model.memory_bytes_per_second

    assert memory("NVIDIA A100-SXM4-40GB") < memory("NVIDIA A100 80GB PCIe") < memory("NVIDIA A100-SXM4-80GB")
    assert (
        memory("NVIDIA A100-SXM4-80GB")
        < memory("NVIDIA H100 80GB HBM3")
        < memory("NVIDIA H200")
        < memory("NVIDIA B200")
    )
    same_die = [model for model in MODELS if model.names[0].startswith("NVIDIA A100")]
    assert len({model.dense_flops_per_second["bfloat16"] for model in same_die}) == 1


def test_no_name_stands_for_two_products():
    names = [one for model in MODELS for one in model.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("base", base_machines())
def test_the_table_agrees_with_the_simulated_machines(base: str):
    for gpu in load_scenario(base).gpus[:1]:
        model = find_model(gpu.readings["name"])
        if model is None:
            continue
        readings = gpu.readings
        assert (
            readings.get("memory_bus_width_bits", model.memory_bus_width_bits) == model.memory_bus_width_bits
        )
        assert readings["memory_clock_max_mhz"] == pytest.approx(model.memory_clock_mhz, rel=0.01)
        assert readings["compute_capability"] == model.compute_capability
        assert readings["power_limit_default_watts"] == pytest.approx(model.power_watts, rel=0.03)


def test_each_pcie_generation_is_about_twice_the_one_before():
    rates = [pcie_bytes_per_second(generation, 16) for generation in range(1, 7)]
    assert all(1.85 <= later / earlier <= 2.05 for earlier, later in pairwise(rates))
    assert rates[4] == pytest.approx(63e9, rel=0.01)


def test_published_rates_lie_between_a_third_and_all_of_what_the_links_carry():
    for rate in published_rates():
        assert 0.3 <= rate.bytes_per_second / rate.ideal_bytes_per_second <= 0.95, rate
        assert rate.kind in ("floor", "measured")
        assert rate.source


def test_a_floor_is_not_above_what_was_measured():
    measured = {
        (rate.test, rate.setup): rate.bytes_per_second
        for rate in published_rates()
        if rate.kind == "measured"
    }
    floors = [rate for rate in published_rates() if rate.kind == "floor"]
    assert all(
        floor.bytes_per_second <= measured.get((floor.test, floor.setup), floor.bytes_per_second)
        for floor in floors
    )


def test_every_table_says_of_what_date_it_is():
    for table in ("gpu_models.toml", "interconnects.toml", "nccl_variables.toml", "cuda_compatibility.toml"):
        assert read_table(table)["source_date"] == "2026-11-20"
