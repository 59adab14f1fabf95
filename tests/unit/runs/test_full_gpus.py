"""Ranks on GPUs whose memory others hold: refused or left out in one sentence, never a fault of the GPU."""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.errors import SourceFailedError, UsageError
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.runs.placement import Placement, place_tests
from tests.unit.runs.test_placement import GIB, IDLE, TRAINING, make_machine_with, place

MIB = 1024**2
TOTAL = 80 * GIB
NO_MEMORY = Missing(
    MissingReason.ERROR,
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has no memory",
)
FREE = [0, 50 * MIB, 900 * MIB]


def machine_with_full(free: int, *full: int, count: int = 1) -> Snapshot:
    """A machine on whose `full` GPUs a process leaves that much memory.

    Where it is too little, no context starts.
    """
    snapshot = make_machine_with(count)
    starts = free >= 640 * MIB
    holder = replace(TRAINING, memory_used_bytes=TOTAL - free)
    held = {**IDLE, "memory_free_bytes": free, "memory_used_bytes": TOTAL - free, "processes": (holder,)}
    devices = tuple(
        replace(device, **(held if place in full else {**IDLE, "memory_free_bytes": TOTAL}))
        for place, device in enumerate(snapshot.devices)
    )
    views = tuple(
        replace(
            view, memory_free_bytes=max(0, free - 640 * MIB), context_starts=True if starts else NO_MEMORY
        )
        if number in full
        else view
        for number, view in enumerate(snapshot.views)
    )
    torch: Any = snapshot.torch
    context = True if starts else NO_MEMORY
    return replace(snapshot, devices=devices, views=views, torch=replace(torch, context_starts=context))


def test_a_free_gpu_is_used() -> None:
    """A machine that is free is placed on: what follows is of memory alone."""
    assert place(machine_with_full(TOTAL)).world_size == 1


@pytest.mark.parametrize("free", FREE)
def test_a_full_gpu_is_said_in_one_sentence_with_its_holder_and_what_to_do(free: int) -> None:
    with pytest.raises(SourceFailedError) as raised:
        place(machine_with_full(free, 0))
    said = raised.value.message
    assert said.startswith("GPU 0: ")
    assert "of its memory are free, and a rank with NCCL needs" in said
    assert ": pid 42 (ann, train.py) holds " in said
    assert raised.value.hint == "wait for the process that holds the memory, or end it if it was left behind"


@pytest.mark.parametrize("free", FREE)
def test_of_several_the_full_one_is_left_out_where_fewer_are_asked_for_and_named_where_all_are(
    free: int,
) -> None:
    snapshot = machine_with_full(free, 1, count=3)
    placed = place(snapshot, nproc=2)
    assert [device.id.nvml_index for device in placed.devices] == [0, 2]
    assert "GPU-1" not in placed.variables["CUDA_VISIBLE_DEVICES"]
    with pytest.raises(SourceFailedError, match="GPU 1: ") as raised:
        place(snapshot)
    assert "--nproc 2" in str(raised.value.hint)


@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize("force", [False, True])
def test_no_test_runs_on_a_full_gpu_and_that_is_no_error(free: int, force: bool) -> None:
    nowhere = place_tests(machine_with_full(free, 0), (), NOT_ASKED, force=force)
    assert isinstance(nowhere, Missing)
    assert nowhere.reason is MissingReason.IN_USE  # a SKIP, with the reason
    assert nowhere.detail.startswith("not tested, because no GPU is free: GPU 0: ")
    assert "pid 42 (ann, train.py) holds" in nowhere.detail
    assert "--force" not in nowhere.detail  # it would not help


def test_the_full_one_of_several_is_left_out_of_tests_and_named() -> None:
    placed = place_tests(machine_with_full(900 * MIB, 1, count=2), (), NOT_ASKED, force=True)
    assert isinstance(placed, Placement)
    (left,) = placed.untested
    assert (left.name, left.full, left.in_use) == ("GPU 1", True, False)
    assert placed.shared == ()


def test_a_half_full_gpu_is_tested_only_by_force_and_known_to_be_shared() -> None:
    snapshot = machine_with_full(40 * GIB, 0)
    assert isinstance(place_tests(snapshot, (), NOT_ASKED, force=False), Missing)
    placed = place_tests(snapshot, (), NOT_ASKED, force=True)
    assert isinstance(placed, Placement)
    (shared,) = placed.shared
    assert "pid 42 (ann, train.py) holds 40 GiB" in shared.reason
    assert place(snapshot).max_bytes > 0  # nccl-test asks nobody, and takes less


def test_more_than_fits_beside_others_is_refused_with_what_does_and_who_has_the_rest() -> None:
    with pytest.raises(UsageError, match="; GPU 0: pid 42 ") as raised:
        place(machine_with_full(10 * GIB, 0), max_bytes=8 * GIB)
    fits = int(str(raised.value.hint).split()[1])
    assert 0 < fits < 8 * GIB
    assert place(machine_with_full(10 * GIB, 0), max_bytes=fits).max_bytes == fits


@pytest.mark.parametrize("free", FREE)
def test_a_context_that_finds_no_memory_because_others_hold_it_is_no_fault(free: int) -> None:
    check = next(check for check in BUILTIN if check.name == "cuda.context")
    (result,) = run_checks(Context(machine_with_full(free, 0)), (check,))
    assert result.findings == ()
    assert result.outcome is (Outcome.PASS if free == 900 * MIB else Outcome.SKIP)
    idle = machine_with_full(TOTAL, 0)
    torch: Any = idle.torch
    broken = replace(
        idle,
        devices=tuple(replace(one, processes=()) for one in idle.devices),
        torch=replace(torch, context_starts=NO_MEMORY),
    )
    (told,) = run_checks(Context(broken), (check,))  # NVML says that all of it is free
    assert [finding.code for finding in told.findings] == ["cuda.out_of_memory"]
