"""The shipped tables of speeds are plausible: recomputed, in order, and within what physics allows."""

from datetime import date
from itertools import pairwise

import pytest

from gpudiag.reference.gpu_models import (
    CORES_PER_MULTIPROCESSOR,
    RATE_OF_DTYPE,
    TENSOR_FLOPS_PER_CLOCK,
    GpuModel,
    find_links,
    find_model,
    gpu_models,
    link_tables,
)
from gpudiag.reference.speeds import (
    nvlink_bytes_per_second,
    nvlink_payload,
    pcie_bytes_per_second,
    published_speeds,
)
from gpudiag.reference.tables import read_table
from gpudiag.simulate.loader import base_machines, load_scenario
from tests.walking import walk

MODELS = gpu_models()
OF_NVLINKS = {"volta": 2, "ampere": 3, "hopper": 4, "blackwell": 5}


def name(model: GpuModel) -> str:
    return model.names[0]


def halved(model: GpuModel) -> float:
    return 2.0 if "GeForce" in model.names[0] else 1.0


@walk(MODELS, name)
def test_memory_speed_follows_from_bus_and_clock(model: GpuModel):
    computed = 2 * model.memory_clock_mhz * 1e6 * model.memory_bus_width_bits / 8
    assert computed == pytest.approx(model.memory_bytes_per_second, rel=0.03)


@walk(MODELS, name)
def test_matrix_speed_follows_from_processors_and_clock(model: GpuModel):
    clocks = model.multiprocessors * model.boost_clock_mhz * 1e6
    for dtype, rate in RATE_OF_DTYPE.items():
        if dtype in model.dense_flops_per_second:
            computed = clocks * TENSOR_FLOPS_PER_CLOCK[model.compute_capability] * rate / halved(model)
            assert model.dense_flops_per_second[dtype] == pytest.approx(computed, rel=0.03), dtype
    # float32 does not use tensor cores, and is given at a clock of its own on some products.
    computed = clocks * CORES_PER_MULTIPROCESSOR[model.compute_capability] * 2
    assert model.dense_flops_per_second["float32"] == pytest.approx(computed, rel=0.10)


@walk(MODELS, name)
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


@walk(MODELS, name)
def test_every_model_has_a_source(model: GpuModel):
    assert model.source


@walk(MODELS, name)
def test_nvlinks_are_those_of_the_architecture(model: GpuModel):
    if model.nvlink_count:
        assert model.nvlink_bytes_per_second == nvlink_bytes_per_second(OF_NVLINKS[model.architecture])
        assert model.nvlink_count in (6, 12, 18)


@walk(MODELS, name)
def test_what_a_model_has_of_nvlinks_is_said_alike_in_both_tables(model: GpuModel):
    counts = {links.count if (links := find_links(product)) else 0 for product in model.names}
    assert counts == {model.nvlink_count}


def test_every_kind_of_wiring_is_known_and_no_product_is_listed_twice():
    names = [product for links in link_tables() for product in links.names]
    assert len(names) == len(set(names))
    assert {links.wiring for links in link_tables()} == {"board", "mesh", "bridge"}
    assert all(links.source for links in link_tables())


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


@walk(base_machines())
def test_the_table_agrees_with_the_simulated_machines(base: str):
    for gpu in load_scenario(base).gpus[:1]:
        model = find_model(gpu.readings["name"])
        if model is None:
            continue
        readings = gpu.readings
        # The driver of a real H200 says 6,016 bits, its data sheet 6,144.
        width = readings.get("memory_bus_width_bits", model.memory_bus_width_bits)
        assert width == pytest.approx(model.memory_bus_width_bits, rel=0.03)
        assert readings["memory_clock_max_mhz"] == pytest.approx(model.memory_clock_mhz, rel=0.01)
        assert readings["compute_capability"] == model.compute_capability
        assert readings["power_limit_default_watts"] == pytest.approx(model.power_watts, rel=0.03)


def test_each_pcie_generation_is_about_twice_the_one_before():
    rates = [pcie_bytes_per_second(generation, 16) for generation in range(1, 7)]
    assert all(1.85 <= later / earlier <= 2.05 for earlier, later in pairwise(rates))
    assert rates[4] == pytest.approx(63e9, rel=0.01)


def test_the_payload_of_a_link_is_less_than_the_rate_that_nvml_gives():
    lines = (25_781e6, 26_562e6, 53_125e6)
    assert [nvlink_payload(line) for line in lines] == [25e9, 25e9, 50e9]
    # A bridge of a workstation card: no version carries as little.
    assert nvlink_payload(14_062e6) == 14_062e6


def test_published_speeds_are_plausible():
    for speed in published_speeds():
        emulated = "emulated" in speed.setup
        assert emulated or 0.3 <= speed.value / speed.ideal <= 0.95, speed
        assert speed.kind in ("floor", "measured", "sustained")
        assert bool(speed.confirmed) is (speed.kind == "sustained")
        assert speed.test in ("memory_copy", "h2d", "d2h", "p2p", "matmul")
        assert speed.source


def test_a_product_that_was_timed_has_the_data_sheet_as_its_ideal():
    for speed in published_speeds():
        for model in filter(None, (find_model(product) for product in speed.models)):
            if speed.dtype in model.dense_flops_per_second:
                assert speed.ideal == model.dense_flops_per_second[speed.dtype], speed


def test_a_floor_is_not_above_what_was_measured():
    measured = {
        (speed.test, speed.models): speed.value for speed in published_speeds() if speed.kind == "measured"
    }
    for floor in published_speeds():
        if floor.kind == "floor" and floor.models:
            assert floor.value <= measured.get((floor.test, floor.models), floor.value)


def test_every_table_says_of_what_date_it_is():
    for table in ("speeds", "gpu_models", "interconnects", "nccl_variables", "cuda_compatibility"):
        read = date.fromisoformat(read_table(f"{table}.toml")["source_date"])
        assert date(2026, 11, 20) <= read <= date.today()
