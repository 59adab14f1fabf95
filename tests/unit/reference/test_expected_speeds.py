"""Every published curve and every board: plausible, with a source and a date, and of products that the tables
know.
"""

import re
from itertools import pairwise

import pytest

from gpudiag.model.benchmark import Nics
from gpudiag.reference.expected_speeds import (
    FLOOR,
    Board,
    Curve,
    boards,
    curves,
    find_board,
    find_curves,
    find_reported_failure,
    known_gpus,
    latency_limit,
    parse_nics,
)
from gpudiag.reference.gpu_models import find_links, find_model
from gpudiag.reference.speeds import nvlink_bytes_per_second
from gpudiag.reference.tables import read_table
from gpudiag.units import GIB, MIB
from tests.walking import walk

SECOND_LEAST = 4 * GIB  # sources of one machine agree from here on


def name(curve: Curve) -> str:
    return f"{curve.operation}, {curve.setup}, {curve.source[:20]}"


@walk(curves(), name)
def test_a_curve_says_where_and_when_it_was_read_and_how_far_others_are(curve: Curve) -> None:
    assert curve.source
    assert curve.agreement
    assert curve.setup
    assert re.fullmatch(r"2026-1[01]-\d\d", curve.date)
    assert curve.kind in (FLOOR, "measured")
    assert curve.algorithm in ("", "ring", "NVLS")
    assert re.fullmatch(r"|2\.\d{1,2}\.\d", curve.nccl)


@walk(curves(), name)
def test_a_curve_rises_and_stays_below_what_its_links_allow(curve: Curve) -> None:
    speeds = [speed for _, speed in curve.points]
    # Once a ring of full size is reached, it may lose 2 % again.
    assert all(later >= 0.97 * earlier for earlier, later in pairwise(speeds))
    assert 0 < max(speeds) <= 0.98 * curve.ideal
    assert all(size % MIB == 0 for size, _ in curve.points)


@walk(curves(), name)
def test_a_curve_is_of_known_boards_in_possible_numbers(curve: Curve) -> None:
    assert curve.gpus % curve.nodes == 0
    assert (curve.nodes > 1) == bool(curve.nics)
    assert not curve.nics.startswith(tuple("123456789")) or parse_nics(curve.nics.split(",")[0]) is not None
    for model in curve.models:
        board = find_board(model)
        assert board is not None, model
        if board.gpus_per_node:
            assert curve.gpus // curve.nodes <= board.gpus_per_node


@walk(curves(), name)
def test_a_curve_is_found_by_what_it_ran_on_and_read_between_its_points(curve: Curve) -> None:
    assert curve in find_curves(curve.operation, frozenset(curve.models), curve.gpus, curve.nodes)
    assert curve not in find_curves(
        curve.operation, frozenset({*curve.models, "NVIDIA X1"}), curve.gpus, curve.nodes
    )
    for size, speed in curve.points:
        assert curve.at(size) == pytest.approx(speed)
    assert curve.at(curve.points[0][0] - 1) is None
    for (low, slow), (high, fast) in pairwise(curve.points):
        between = curve.at((low + high) // 2)
        assert between is not None
        assert min(slow, fast) <= between <= max(slow, fast)


def test_sources_of_one_machine_agree_on_the_plateau() -> None:
    for curve in curves():
        for other in find_curves(curve.operation, frozenset(curve.models), curve.gpus, curve.nodes):
            one, two = curve.at(8 * GIB), other.at(8 * GIB)
            if curve.algorithm == other.algorithm and one and two and FLOOR not in (curve.kind, other.kind):
                assert one == pytest.approx(two, rel=0.06), (curve.setup, other.source)


def test_wrong_floors_of_others_are_not_repeated() -> None:
    """800 of two p5 and 900 of a B200 node at 128 MiB, where 289 and 568 are reached.

    440 of a B200 node, half of 846.
    """
    two_nodes = [
        curve.at(128 * MIB)
        for curve in find_curves("all_reduce", frozenset({"NVIDIA H100 80GB HBM3"}), 16, 2)
    ]
    assert max(filter(None, two_nodes)) < 350e9
    b200 = find_curves("all_reduce", frozenset({"NVIDIA B200"}), 8, 1)
    assert [curve.at(128 * MIB) for curve in b200 if curve.algorithm == "NVLS"] == [568e9]
    assert min(curve.points[-1][1] for curve in b200) > 650e9


@walk(boards(), lambda board: board.names[0])
def test_a_board_agrees_with_the_other_tables(board: Board) -> None:
    assert board.source
    assert board.called
    assert bool(board.host_gb_per_second) + bool(board.pcie_generation) <= 1
    for product in board.names:
        model, links = find_model(product), find_links(product)
        if model is not None and model.nvlink_count:
            assert nvlink_bytes_per_second(board.nvlink_version) == model.nvlink_bytes_per_second
        if links is not None and links.wiring == "board":
            assert board.nvlink_version, product
    for called in board.called:
        assert known_gpus()[called.lower()] in board.names


def test_no_product_and_no_nickname_is_of_two_boards() -> None:
    products = [product for board in boards() for product in board.names]
    nicknames = [called.lower() for board in boards() for called in board.called]
    assert len(products) == len(set(products))
    assert len(nicknames) == len(set(nicknames))


def test_network_cards_are_read_as_people_write_them() -> None:
    for text in ("8x400", "8 x 400", "8x400G", "8X400Gb/s", "8*400Gbps"):
        assert parse_nics(text) == Nics(8, 400.0)
    assert parse_nics("1x12.5") == Nics(1, 12.5)
    for text in ("", "400", "8x", "x400", "0x400", "8x0", "eight x 400", "8x400x2"):
        assert parse_nics(text) is None


def test_other_programs_faults_are_found_by_their_words() -> None:
    found = find_reported_failure("dcgmi diag", "Persistence mode for GPU 0 is currently disabled.")
    assert found is not None
    assert found.status == "config"
    assert found.source
    assert find_reported_failure("dcgmi diag", "Uncorrectable ECC error") is None
    statuses = {entry["status"] for entry in read_table("boards.toml")["reported_failure"]}
    assert statuses == {"config", "busy", "known"}


def test_latencies_have_a_limit_by_the_operation() -> None:
    write, read = latency_limit("write"), latency_limit("read")
    assert write is not None
    assert read is not None
    assert 1e-6 < write[0] < read[0] < 1e-5
    assert latency_limit("unknown") is None
