"""What people write instead of `gpudiag bandwidth`: copies and products in a plain torch loop.

Its argument names sizes as JSON: {"memory_copy": bytes, "host_to_device": bytes, "matmul.bfloat16": n, ...}.
Prints one JSON line: for each name the speeds of its rounds, in bytes or floating-point operations per
second.
"""

import json
import sys
from collections.abc import Callable
from time import monotonic

import torch

_ROUNDS = 3
_WARMUP = 3
_TIMED_ONCE = 5  # calls whose mean shows how many fill the time: by the host's clock, which never gives 0
_COPY_SECONDS = 0.5
# As long under load as gpudiag's products are: a GPU at its power limit is faster in its first tenths of a
# second than it stays, and two loops of other lengths are not the same measurement.
_SETTLE_SECONDS, _PRODUCT_SECONDS = 0.75, 1.5


def main() -> None:
    """Take one round of each after the other, three times over, so that all see the same clocks."""
    sizes: dict[str, int] = json.loads(sys.argv[1])
    works = {name: build_work(name, size) for name, size in sizes.items()}
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(_ROUNDS):
        for name, (amount, call) in works.items():
            load = (_SETTLE_SECONDS, _PRODUCT_SECONDS) if name.startswith("matmul") else (0.0, _COPY_SECONDS)
            found[name].append(amount / seconds_of(call, *load))
    print(json.dumps(found), flush=True)


def build_work(name: str, size: int) -> tuple[float, Callable[[], object]]:
    """How many bytes or operations one call of the named work is, and the call."""
    test, _, dtype = name.partition(".")
    if test == "matmul":
        left, right = (torch.randn(size, size, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(left)
        return 2.0 * size**3, lambda: torch.matmul(left, right, out=out)
    on_device = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    if test == "memory_copy":  # read and written
        other = torch.empty_like(on_device)
        return 2.0 * size, lambda: other.copy_(on_device)
    on_host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    on_host.random_(0, 256)
    if test == "host_to_device":
        return float(size), lambda: on_device.copy_(on_host, non_blocking=True)
    return float(size), lambda: on_host.copy_(on_device, non_blocking=True)


def seconds_of(call: Callable[[], object], settle_seconds: float, seconds: float) -> float:
    """How long one call takes, by CUDA's events around `seconds` of them, once settled."""
    for _ in range(_WARMUP):
        call()
    started = monotonic()
    _time(call, _TIMED_ONCE)
    once = (monotonic() - started) / _TIMED_ONCE
    if settle_seconds:
        _time(call, max(1, int(settle_seconds / once)))
    return _time(call, max(5, int(seconds / once)))


def _time(call: Callable[[], object], count: int) -> float:
    start, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000.0 / count


if __name__ == "__main__":
    main()
