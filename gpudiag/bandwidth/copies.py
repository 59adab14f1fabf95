"""Copies: within one device's memory, between it and the host, and from GPU to GPU."""

from functools import partial

import torch

from gpudiag.bandwidth.bench import Bench, Timing, differing_bytes, random_bytes
from gpudiag.bandwidth.memory import attempt, buffer_bytes, require_free, require_long_enough
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MEMORY_COPY, PEER_COPY, BandwidthResult
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.units import GIB, MIB

# Beyond every cache: an H100 has 50 MiB of L2, a server processor up to some hundred.
_GPU_COPY_BYTES = 2 * GIB
_CPU_COPY_BYTES = 256 * MIB
_HOST_COPY_BYTES = 256 * MIB
_PEER_COPY_BYTES = 256 * MIB
_SECONDS_ON_GPU = 1.0
_SECONDS_ON_CPU = 0.3
# Long enough for several readings of the link's generation and width while it works.
_HOST_COPY_SECONDS = 1.5
_PEER_COPY_SECONDS = 0.1
# Of a GPU's free memory the buffers take at most about half, as others may need some during the test: two of
# them are copied, and comparing them takes as much again. On the host's side of a copy there is one, and one
# to compare with.
_COPY_BUFFERS, _HOST_COPY_BUFFERS, _PEER_COPY_BUFFERS = 5, 4, 4


def measure_memory_copy(bench: Bench) -> None:
    """Time copies within each rank's own device memory, on all ranks at once."""

    def work() -> None:
        wanted = _GPU_COPY_BYTES if bench.is_cuda else _CPU_COPY_BYTES
        size = buffer_bytes(bench, wanted, _COPY_BUFFERS, beyond_cache=True)
        source = random_bytes(size, bench.device, seed=bench.rank)
        target = torch.empty_like(source)
        seconds = bench.seconds(_SECONDS_ON_GPU, _SECONDS_ON_CPU)
        timing = bench.time(lambda: target.copy_(source), at_least_seconds=seconds)
        bench.corrupt(target)
        wrong = differing_bytes(target, source)
        if not wrong:
            require_long_enough(bench, timing.p50_seconds, size, wanted)
        _emit_result(bench, MEMORY_COPY, size, timing, wrong, moved=2 * size)

    bench.together(MEMORY_COPY, lambda: attempt(bench, MEMORY_COPY, work))


def measure_host_to_device(bench: Bench) -> None:
    """Time copies from the host's pinned memory, each GPU alone, then all at once."""
    _measure_host_copies(bench, HOST_TO_DEVICE)


def measure_device_to_host(bench: Bench) -> None:
    """Time copies to the host's pinned memory, each GPU alone, then all at once."""
    _measure_host_copies(bench, DEVICE_TO_HOST)


def measure_peer_copy(bench: Bench) -> None:
    """Time copies from each GPU to each other one, one pair at a time."""

    def work() -> None:
        for peer in range(bench.world_size):
            if peer != bench.rank:
                attempt(bench, PEER_COPY, partial(_copy_to_peer, bench, peer), torch.device("cuda", peer))

    bench.in_turn(PEER_COPY, work)


def _measure_host_copies(bench: Bench, test: str) -> None:
    buffers: list[torch.Tensor] = []  # on the host and on the device; none where there is no room for them

    def allocate() -> None:
        size = buffer_bytes(bench, _HOST_COPY_BYTES, _HOST_COPY_BUFFERS, beyond_cache=False)
        on_host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        on_host.copy_(random_bytes(size, torch.device("cpu"), seed=bench.rank))
        buffers.extend((on_host, on_host.to(bench.device)))

    def work(*, concurrent: bool) -> None:
        if not buffers:
            return
        on_host, on_device = buffers
        source, target = (on_host, on_device) if test == HOST_TO_DEVICE else (on_device, on_host)
        target.zero_()
        timing = bench.time(
            lambda: target.copy_(source, non_blocking=True), at_least_seconds=_HOST_COPY_SECONDS
        )
        bench.corrupt(target)
        wrong = differing_bytes(on_device, on_host.to(bench.device))
        size = source.nbytes
        if not wrong:
            require_long_enough(bench, timing.p50_seconds, size, _HOST_COPY_BYTES)
        _emit_result(bench, test, size, timing, wrong, moved=size, concurrent=concurrent)
        source.copy_(target)  # make both equal again, whatever was found

    bench.step(f"{test} allocate", lambda: attempt(bench, test, allocate))
    bench.in_turn(test, lambda: attempt(bench, test, lambda: work(concurrent=False)))
    if bench.world_size > 1:
        bench.together(test, lambda: attempt(bench, test, lambda: work(concurrent=True)))


def _copy_to_peer(bench: Bench, peer: int) -> None:
    other = torch.device("cuda", peer)
    require_free(bench, _PEER_COPY_BUFFERS * _PEER_COPY_BYTES, f" on the GPU of rank {peer}", other)
    size = buffer_bytes(bench, _PEER_COPY_BYTES, _PEER_COPY_BUFFERS, beyond_cache=False)
    source = random_bytes(size, bench.device, seed=bench.rank)
    target = torch.empty(size, dtype=torch.uint8, device=other)

    # torch queues the copy on this GPU's stream: when that is done, the bytes are there.
    timing = bench.time(lambda: target.copy_(source, non_blocking=True), at_least_seconds=_PEER_COPY_SECONDS)
    torch.cuda.synchronize(other)
    wrong = differing_bytes(target, source.to(other))
    if not wrong:
        require_long_enough(bench, timing.p50_seconds, size, _PEER_COPY_BYTES)
    result = BandwidthResult(
        test=PEER_COPY,
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        size_bytes=size,
        iterations=timing.iterations,
        time_p50_seconds=timing.p50_seconds,
        time_best_seconds=timing.best_seconds,
        bytes_per_second=size / timing.p50_seconds,
        wrong_bytes=wrong,
        peer=peer,
        peer_uuid=_uuid(other),
        direct=torch.cuda.can_device_access_peer(bench.device, other),
        began_seconds=timing.began_seconds,
        ended_seconds=timing.ended_seconds,
    )
    bench.emit("bandwidth", result)


def _emit_result(
    bench: Bench, test: str, size: int, timing: Timing, wrong: int, *, moved: int, concurrent: bool = False
) -> None:
    result = BandwidthResult(
        test=test,
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        size_bytes=size,
        iterations=timing.iterations,
        time_p50_seconds=timing.p50_seconds,
        time_best_seconds=timing.best_seconds,
        bytes_per_second=moved / timing.p50_seconds,
        wrong_bytes=wrong,
        concurrent=concurrent or (test == MEMORY_COPY and bench.world_size > 1),
        numa_node=bench.numa_node,
        began_seconds=timing.began_seconds,
        ended_seconds=timing.ended_seconds,
    )
    bench.emit("bandwidth", result)


def _uuid(device: torch.device) -> str | Missing:
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return Missing(MissingReason.FUNCTION_NOT_FOUND, "this torch does not report a GPU's UUID")
    return f"GPU-{uuid}"
