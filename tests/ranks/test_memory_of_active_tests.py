"""Which size each active test takes of the memory that is free, and what it says where that is too little.

The sizes are those of the product, on GPUs that are stood for by their cache and free memory alone; the tests
themselves run on the stand-in (tests/stand_in/test_gpu_in_use.py).
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudiag.bandwidth import compute, copies, memory, patterns
from gpudiag.model.active import MEMORY_COPY, ActivePlan, NotTested
from gpudiag.model.codec import decode, encode
from gpudiag.reference.speeds import least_size
from gpudiag.units import GIB, MIB

pytestmark = pytest.mark.ranks

# Second-level caches, and memory: of their data sheets.
GPUS = {"T4": (4 * MIB, 16 * GIB), "A100": (40 * MIB, 80 * GIB), "H100": (50 * MIB, 80 * GIB)} | {
    "RTX 4090": (72 * MIB, 24 * GIB),
    "H200": (50 * MIB, 141 * GIB),
    "B200": (126 * MIB, 180 * GIB),
}


class GpuBench:
    """A rank on a GPU that has so much cache and so much free memory."""

    is_cuda = True
    rank = 0
    device = torch.device("cpu")
    device_uuid = "GPU-0"

    def __init__(self) -> None:
        self.emitted: list[Any] = []
        self.plan = ActivePlan((), "cuda")

    def emit(self, kind: str, result: Any) -> None:
        self.emitted.append((kind, result))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(name: str, free: int) -> GpuBench:
        cache, total = GPUS[name]
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
        properties = SimpleNamespace(L2_cache_size=cache)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return GpuBench()

    return make


def copied(bench: Any) -> int:
    return memory.buffer_bytes(bench, copies._GPU_COPY_BYTES, copies._COPY_BUFFERS, beyond_cache=True)


@pytest.mark.parametrize("name", GPUS)
def test_copies_on_a_free_gpu_are_of_two_gibibytes_and_never_within_the_cache(gpu: Any, name: str):
    cache, total = GPUS[name]
    assert copied(gpu(name, int(0.98 * total))) == 2 * GIB
    for free in (0, 50 * MIB, 900 * MIB, total // 16, total // 2):
        bench = gpu(name, free)
        if free < copies._COPY_BUFFERS * least_size().cache_times * cache + memory.WORKSPACE_BYTES:
            with pytest.raises(memory.TooLittleMemoryError, match="are free, and it needs"):
                copied(bench)
        else:
            size = copied(bench)
            assert size >= least_size().cache_times * cache
            assert size * copies._COPY_BUFFERS + memory.WORKSPACE_BYTES <= free
    assert copied(gpu(name, total // 2)) > 0  # with half of it free each of them is tested


def test_what_a_full_h200_could_copy_is_not_tested(gpu: Any):
    with pytest.raises(
        memory.TooLittleMemoryError, match=r"900 MiB of memory are free, and it needs 1(\.0)? GiB"
    ):
        copied(gpu("H200", 900 * MIB))


def test_a_copy_too_short_for_its_start_not_to_count_is_not_tested(gpu: Any):
    bench, wanted = gpu("H100", GIB), 2 * GIB
    memory.require_long_enough(bench, 300e-6, 500 * MIB, wanted)
    # As large as it is to be: that is what limits are for.
    memory.require_long_enough(bench, 100e-6, wanted, wanted)
    with pytest.raises(
        memory.TooLittleMemoryError, match=r"500 MiB of memory are free, and it needs 1\.2 GiB"
    ):
        memory.require_long_enough(bench, 100e-6, 500 * MIB, wanted)


def test_matrices_and_chains_have_the_one_size_that_limits_and_digests_are_for(gpu: Any):
    for free, fits in ((0, False), (50 * MIB, False), (768 * MIB, False), (900 * MIB, True)):
        bench = gpu("H100", free)
        needed = 3 * 8192**2 * 4 + memory.WORKSPACE_BYTES
        if fits:
            memory.require_free(bench, needed)
            continue
        with pytest.raises(memory.TooLittleMemoryError, match="products of 8192 x 8192"):
            compute._operands(bench, "bfloat16")
        if free < 300 * MIB:
            with pytest.raises(memory.TooLittleMemoryError, match="chains of 2048 x 2048"):
                compute._repeat(bench, "matmul", compute.CHAINS["matmul"], "float32")
    assert compute._MATMUL_GPU_SIZE == 8192


@pytest.mark.parametrize(
    ("free", "tested"), [(0, False), (50 * MIB, False), (900 * MIB, True), (70 * GIB, True)]
)
def test_patterns_go_over_more_than_the_cache_or_are_not_tested(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, free: int, tested: bool
):
    bench, found = gpu("H100", free), patterns._Memory()
    monkeypatch.setattr(torch, "empty", lambda words, **_: SimpleNamespace(nbytes=words * 8))
    if not tested:
        with pytest.raises(memory.TooLittleMemoryError, match="beyond its cache"):
            patterns._allocate(bench, found)
        return
    patterns._allocate(bench, found)
    assert found.wanted_bytes > max(0.5 * free, 4 * 50 * MIB)
    assert sum(block.nbytes for block in found.blocks) == found.wanted_bytes


def test_what_is_left_out_is_emitted_with_its_reason_and_the_rest_goes_on(gpu: Any):
    def no_room() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    bench = gpu("H100", 300 * MIB)
    memory.attempt(bench, MEMORY_COPY, no_room)
    memory.attempt(bench, MEMORY_COPY, lambda: bench.emit("bandwidth", "one"))
    (kind, left_out), (_, after) = bench.emitted
    assert (kind, after) == ("not_tested", "one")
    assert isinstance(left_out, NotTested)
    assert left_out.reason == "memory ran out in it, 300 MiB are free now"
    assert decode(NotTested, encode(left_out)) == left_out


def test_memory_that_runs_out_though_it_is_free_and_other_errors_are_raised(gpu: Any):
    def raising(error: Exception) -> Any:
        def call() -> None:
            raise error

        return call

    for free, error in (
        (40 * GIB, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
        (300 * MIB, RuntimeError("CUDA error: an illegal memory access was encountered")),
    ):
        with pytest.raises(type(error)):
            memory.attempt(gpu("H100", free), MEMORY_COPY, raising(error))
