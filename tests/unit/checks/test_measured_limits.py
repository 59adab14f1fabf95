"""Opinions on a measured speed: derived, peers, history, table; the worst counts, and all are shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.checks.ranks.measured_speeds import (
    Meanwhile,
    Opinion,
    history_opinion,
    host_link_opinions,
    judge_speed,
    matrix_opinions,
    memory_opinions,
    peer_link_opinions,
    peers_opinion,
)
from gpudiag.model.device import NvLink
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.speeds import SpeedLimit
from tests.unit.model.nouns import make_device

H100 = make_device(
    name="NVIDIA H100 80GB HBM3",
    memory_bus_width_bits=5120,
    memory_clock_max_mhz=2619,
    cuda_cores=16896,
    compute_capability="9.0",
    sm_clock_max_mhz=1980,
    nvlink_bytes_per_second=25e9,
    nvlinks=tuple(
        NvLink(link, link < 17, "00000000:05:00.0", 0, 0, 0, 0, NOT_ASKED, NOT_ASKED) for link in range(18)
    ),
)


def origins(opinions):
    return [opinion.origin for opinion in opinions]


def test_memory_is_derived_from_bus_and_clock_and_held_against_the_data_sheet():
    derived, table = memory_opinions(H100)
    assert derived.expected == pytest.approx(3.352e12, rel=0.001)
    assert (table.origin, table.expected) == ("table", 3350e9)
    assert derived.judge(2.2e12) is Outcome.WARN
    assert derived.judge(1.8e12) is Outcome.FAIL
    assert table.judge(1e12) is Outcome.WARN  # a table alone never fails


def test_a_gpu_that_no_table_knows_is_judged_by_what_it_reports():
    unknown = make_device(name="NVIDIA X900", memory_bus_width_bits=4096, memory_clock_max_mhz=2000)
    assert origins(memory_opinions(unknown)) == ["derived"]
    assert memory_opinions(make_device(name="NVIDIA X900")) == ()


def meanwhile(clock: float, *reasons: str) -> Meanwhile:
    return Meanwhile(clock, 690.0, reasons)


AT_BOOST = meanwhile(1830)
SIZE = 8192


def test_matrix_products_are_derived_from_processors_and_the_clock_that_was_seen():
    derived, table = matrix_opinions(H100, "bfloat16", 4096, meanwhile(1980))
    assert derived.expected == pytest.approx(132 * 1980e6 * 4096)
    assert table.expected == 989e12
    slower, half = matrix_opinions(H100, "bfloat16", 4096, meanwhile(915))
    assert slower.expected == pytest.approx(132 * 915e6 * 4096)
    assert half.expected == 989e12 / 2
    assert origins(matrix_opinions(H100, "float64", 4096, AT_BOOST)) == ["table"]
    assert matrix_opinions(H100, "int4", 4096, AT_BOOST) == ()


def test_without_a_clock_or_under_a_power_cap_no_product_is_held_against_a_limit():
    assert matrix_opinions(H100, "bfloat16", SIZE, None) == ()
    assert matrix_opinions(H100, "bfloat16", 4096, meanwhile(1400, "sw_power_cap")) == ()


def test_under_a_power_cap_a_product_is_held_against_a_healthy_gpu_of_the_kind_that_may_draw_no_more():
    at_limit = replace(H100, power_limit_enforced_watts=700.0)
    (sustained,) = matrix_opinions(at_limit, "bfloat16", SIZE, meanwhile(1400, "sw_power_cap"))
    assert sustained.origin == "sustained"
    assert [sustained.judge(speed * 1e12) for speed in (642.3, 515, 510, 1)] == [
        Outcome.PASS,
        Outcome.PASS,
        Outcome.WARN,
        Outcome.WARN,
    ]
    lower = replace(H100, power_limit_enforced_watts=500.0)
    unknown = replace(H100, power_limit_enforced_watts=NOT_ASKED)
    chosen = meanwhile(1000, "applications_clocks_setting", "sw_power_cap")
    for gpu, seen in ((lower, meanwhile(1400, "sw_power_cap")), (unknown, AT_BOOST), (at_limit, chosen)):
        assert "sustained" not in origins(matrix_opinions(gpu, "bfloat16", SIZE, seen))


@pytest.mark.parametrize(
    ("capability", "dtype", "judged"),
    [
        *(("7.0", "bfloat16", False), ("7.5", "bfloat16", False)),
        *(("8.0", "bfloat16", True), ("7.0", "float16", True), ("8.0", "float8", False)),
        *(("9.0", "float8", True), ("10.0", "bfloat16", True)),
    ],
)
def test_an_emulated_type_is_not_held_against_the_processors(capability, dtype, judged):
    gpu = make_device(name="NVIDIA X900", cuda_cores=5120, compute_capability=capability)
    assert bool(matrix_opinions(gpu, dtype, 4096, AT_BOOST)) is judged


def test_consumer_cards_are_held_against_the_data_sheet_only():
    card = make_device(
        name="NVIDIA GeForce RTX 4090", cuda_cores=16384, compute_capability="8.9", sm_clock_max_mhz=3105
    )
    assert origins(matrix_opinions(card, "bfloat16", 4096, AT_BOOST)) == ["table"]


def test_links_are_held_against_the_payload_of_those_of_the_pair():
    line = make_device(nvlink_bytes_per_second=26_562e6)
    (opinion,) = peer_link_opinions(line, 6)
    assert opinion.expected == 6 * 25e9
    assert peer_link_opinions(line, 0) == ()
    assert peer_link_opinions(make_device(), 6) == ()


def test_a_host_link_is_held_against_its_generation_and_width():
    (link,) = host_link_opinions(4, 16)
    assert link.judge(20e9) is Outcome.WARN
    assert link.judge(23.9e9) is Outcome.PASS
    (old,) = host_link_opinions(3, 16)
    assert old.judge(9e9) is Outcome.PASS


def test_one_peer_is_no_opinion():
    assert peers_opinion([100.0]) == ()
    (opinion,) = peers_opinion([100.0, 102.0, 40.0])
    assert opinion.expected == 100.0
    assert history_opinion([]) == ()
    assert history_opinion([90.0, 110.0])[0].expected == 100.0


def test_the_worst_opinion_counts_and_all_are_shown():
    opinions = (
        Opinion("derived", 100.0, "bus", SpeedLimit("a", 0.8, "x", 0.5)),
        Opinion("peers", 80.0, "peers", SpeedLimit("b", 0.9, "x", 0.7)),
        Opinion("table", 60.0, "table", SpeedLimit("c", 0.8, "x")),
    )
    verdict = judge_speed("copy", 55.0, "GB/s", opinions)
    assert verdict.outcome is Outcome.FAIL  # by the peers
    assert [evidence.source.split(":")[0] for evidence in verdict.evidence] == ["derived", "peers", "table"]
    assert judge_speed("copy", 90.0, "GB/s", opinions).outcome is Outcome.PASS


def test_without_an_opinion_nothing_passes():
    assert judge_speed("copy", 100.0, "GB/s", ()).outcome is None


@given(st.sampled_from([float("nan"), 0.0, -1.0, float("-inf")]))
def test_no_speed_is_never_a_pass(measured: float):
    assert judge_speed("copy", measured, "GB/s", memory_opinions(H100)).outcome is Outcome.FAIL


@given(st.floats(min_value=1, max_value=1e14), st.floats(min_value=1, max_value=1e14))
def test_a_slower_speed_is_never_judged_better(one: float, other: float):
    order = [Outcome.FAIL, Outcome.WARN, Outcome.PASS]
    slow, fast = sorted((one, other))
    outcomes = [judge_speed("copy", speed, "B/s", memory_opinions(H100)).outcome for speed in (slow, fast)]
    assert order.index(outcomes[0]) <= order.index(outcomes[1])
