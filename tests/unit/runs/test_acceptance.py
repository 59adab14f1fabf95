"""Where level acceptance measures pairs of network cards, and how it tests a disk."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.checks.ranks.acceptance import host_disk_data
from gpudiag.model.context import Context
from gpudiag.model.finding import Outcome
from gpudiag.model.host_state import Filesystem
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures
from gpudiag.runs import disks
from gpudiag.runs.active import plan_active
from gpudiag.runs.disks import measure_disks, places_to_test, write_and_read
from gpudiag.runs.placement import Placement
from gpudiag.runs.preflight_measures import why_no_card_pairs
from gpudiag.units import GIB, MIB
from tests.scenarios.situations import look_at_machine

FOUR = Placement("nccl", 4)


def with_ports(change):
    """Eight H100s, whose RDMA ports are others."""
    look = look_at_machine("h100x8")
    state = look.machine.state
    ports = change(state.infiniband_ports)
    return replace(look, machine=replace(look.machine, state=replace(state, infiniband_ports=ports)))


@pytest.mark.parametrize(
    ("change", "place", "reason", "words"),
    [
        (lambda ports: ports, Placement("gloo", 4), MissingReason.NOT_SUPPORTED, "CPUs use no network card"),
        (lambda ports: ports, Placement("nccl", 3), MissingReason.NOT_SUPPORTED, "4 GPUs are needed"),
        (lambda ports: ports[:1], FOUR, MissingReason.NOT_SUPPORTED, "a pair needs two cards"),
        (
            lambda ports: tuple(replace(one, state="DOWN") for one in ports),
            FOUR,
            MissingReason.NOT_SUPPORTED,
            "0 RDMA ports of 8",
        ),
        (
            lambda ports: Missing(MissingReason.SOURCE_ABSENT),
            FOUR,
            MissingReason.NOT_SUPPORTED,
            "no RDMA card",
        ),
        (lambda ports: Missing(MissingReason.TIMED_OUT), FOUR, MissingReason.TIMED_OUT, "RDMA ports"),
    ],
)
def test_cards_are_measured_in_pairs_only_where_there_are_pairs(change, place, reason, words):
    why = why_no_card_pairs(place, with_ports(change))
    assert why is not None
    assert why.reason is reason
    assert words in why.detail


def test_four_gpus_with_active_cards_are_measured():
    assert why_no_card_pairs(FOUR, with_ports(lambda ports: ports)) is None


def test_acceptance_repeats_in_every_type_that_the_gpu_has():
    float8 = plan_active("acceptance", replace(FOUR, float8=True), None)
    older = plan_active("acceptance", FOUR, None)
    long = plan_active("long", FOUR, None)
    assert float8.repeat_dtypes == ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")
    assert older.repeat_dtypes == float8.repeat_dtypes[:-1]
    assert (long.repeat_dtypes, float8.tests) == ((), long.tests)
    assert plan_active("acceptance", FOUR, None, 30.0).sustained_seconds == 30.0


# --- disks


def place_of(path: Path, available_bytes: int = GIB) -> Filesystem:
    return Filesystem(str(path), 10 * GIB, available_bytes, 0, 0, False)


def test_a_sound_disk_is_measured_and_nothing_is_left(tmp_path):
    [found] = measure_disks([place_of(tmp_path)])
    assert (found.failure, found.wrong_bytes, found.path) == (None, 0, str(tmp_path))
    assert 64 * MIB <= found.size_bytes <= GIB // 10
    assert min(found.write_bytes_per_second, found.read_bytes_per_second) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_full_or_absent_is_no_fault_of_the_disk(tmp_path):
    full, absent = measure_disks([place_of(tmp_path, 8 * MIB), place_of(tmp_path / "absent")])
    assert (full.failure, full.is_fault) == ("No space left on device", False)
    assert (absent.failure, absent.is_fault) == ("No such file or directory", False)
    assert isinstance(full.write_bytes_per_second, Missing)


def test_a_disk_that_gives_no_answer_is_not_passed_for_a_sound_one_beside_it(tmp_path, monkeypatch):
    """A network file system hangs like this."""
    sound = measure_disks([place_of(tmp_path)])
    monkeypatch.setattr(disks, "_DEADLINE_SECONDS", 0.0)
    silent = measure_disks([place_of(tmp_path)])
    monkeypatch.undo()
    full = measure_disks([place_of(tmp_path, 8 * MIB)])
    assert isinstance(silent[0].write_bytes_per_second, Missing)
    look = look_at_machine("h100x8")
    outcomes = [
        host_disk_data.judge(Context(look, Measures(disks=found))).outcome
        for found in (sound, sound + full, full, sound + silent, silent)
    ]
    assert outcomes == [Outcome.PASS, Outcome.PASS, Outcome.SKIP, Outcome.ERROR, Outcome.ERROR]


def test_a_byte_that_comes_back_wrong_is_counted_and_an_error_of_the_device_is_a_fault(tmp_path, monkeypatch):
    emitted: list[dict] = []

    def read_wrong(file: int, buffers: list) -> int:
        count = os.preadv(file, buffers, 0)
        buffers[0][100] ^= 1
        return count

    monkeypatch.setattr(disks.os, "readv", read_wrong)
    write_and_read(lambda message: emitted.append(message[1]), str(tmp_path), 64 * MIB)
    monkeypatch.setattr(
        disks.os, "fsync", lambda file: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    )
    write_and_read(lambda message: emitted.append(message[1]), str(tmp_path), 64 * MIB)
    wrong, failed = emitted
    assert wrong["wrong_bytes"] >= 8
    assert (failed["failure"], failed["is_fault"]) == ("Input/output error", True)
    assert list(tmp_path.iterdir()) == []


def test_a_simulated_machine_s_disks_are_left_alone():
    found = places_to_test(look_at_machine("h100x8"))
    assert isinstance(found, Missing)
    assert found.reason is MissingReason.NOT_SUPPORTED
