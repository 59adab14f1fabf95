"""What the ranks' GPUs do, by NVML: which of them works, and which is the odd one out.

100 % utilization proves no work: a kernel of NCCL that waits, or one that never ends, runs too. Power, the
activity of tensor cores and memory, and traffic show work.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.model.job import GpuLook, Job, RankSeen
from gpudiag.model.reading import Missing, Reading

# An H100 SXM of 700 W draws 120 W idle, and 125 W with NCCL kernels that wait (18 %); 170 to 240 W with light
# training (24 to 34 %).
_WORK_POWER_SHARE = 0.30
_WAIT_POWER_SHARE = 0.25
_WORK_ACTIVITY_PERCENT = 5.0  # of tensor cores or memory: a kernel that waits polls one address
_WORK_BYTES_PER_SECOND = 1e9  # over PCIe or NVLink
_RUNS_PERCENT = 90
_IDLE_PERCENT = 5


@dataclass(frozen=True, slots=True)
class OddGpu:
    """The rank whose GPU does nothing while those of all others run kernels at the power of a wait."""

    rank: int
    words: str


def describe_use(seen: RankSeen) -> str:
    """`100 % utilization, 124 W of 700 W`; empty where nothing was read of its GPU."""
    look = seen.gpu_looks[-1] if seen.gpu_looks else None
    if look is None:
        return ""
    parts = [
        f"{value:.0f} {words}"
        for value, words in (
            (look.utilization_percent, "% utilization"),
            (look.process_utilization_percent, "% of it by this process"),
            (look.sm_activity_percent, "% of the SMs active"),
            (look.tensor_activity_percent, "% of the tensor cores"),
            (look.memory_activity_percent, "% of the memory's bandwidth"),
        )
        if not isinstance(value, Missing)
    ]
    if not isinstance(look.power_draw_watts, Missing):
        limit = look.power_limit_watts
        of = f" of {limit:.0f} W" if not isinstance(limit, Missing) else ""
        parts.append(f"{look.power_draw_watts:.0f} W{of}")
    return ", ".join(parts)


def gpu_works(seen: RankSeen) -> bool | None:
    """Whether the GPU of a rank works, for no other process; None if unknown; utilization is no proof."""
    works = [_works(look) for look in seen.gpu_looks]
    known = [one for one in works if one is not None]
    return None if not known else all(known)


def _works(look: GpuLook) -> bool | None:
    if not isinstance(look.processes, Missing) and look.processes != 1:
        return None
    signs = [
        _above(look.tensor_activity_percent, _WORK_ACTIVITY_PERCENT),
        _above(look.memory_activity_percent, _WORK_ACTIVITY_PERCENT),
        _above(look.pcie_bytes_per_second, _WORK_BYTES_PER_SECOND),
        _above(look.nvlink_bytes_per_second, _WORK_BYTES_PER_SECOND),
    ]
    share = _power_share(look)
    signs.append(None if share is None else share >= _WORK_POWER_SHARE)
    known = [one for one in signs if one is not None]
    return any(known) if known else None


def find_odd_gpu(job: Job) -> OddGpu | None:
    """The one rank whose GPU is idle while all others' only wait; None if not so, or if ranks share a GPU."""
    looks = {seen.rank: seen.gpu_looks for seen in job.ranks if isinstance(seen.rank, int) and seen.gpu_looks}
    if len(looks) < 2 or len(looks) < len(job.ranks):
        return None
    users = Counter(some[-1].gpu for some in looks.values())
    if any(count > 1 for count in users.values()):
        return None
    idle = [rank for rank, some in looks.items() if all(_is_idle(look) for look in some)]
    waiting = [rank for rank, some in looks.items() if all(_only_waits(look) for look in some)]
    if len(idle) != 1 or len(waiting) != len(looks) - 1:
        return None
    words = (
        f"the GPU of rank {idle[0]} runs no kernel, and those of the other {len(waiting)} run kernels that"
        f" only wait ({_words(looks[waiting[0]])})"
    )
    return OddGpu(idle[0], words)


def _words(looks: Sequence[GpuLook]) -> str:
    last = looks[-1]
    power = last.power_draw_watts
    watts = f" at {power:.0f} W" if not isinstance(power, Missing) else ""
    return f"{last.utilization_percent} % utilization{watts}"


def _is_idle(look: GpuLook) -> bool:
    share = look.utilization_percent
    return not isinstance(share, Missing) and share <= _IDLE_PERCENT


def _only_waits(look: GpuLook) -> bool:
    """Whether kernels run, and nothing shows that they work."""
    share = _power_share(look)
    return (
        _above(look.utilization_percent, _RUNS_PERCENT) is True
        and share is not None
        and share < _WAIT_POWER_SHARE
        and _works(look) is not True
    )


def _power_share(look: GpuLook) -> float | None:
    draw, limit = look.power_draw_watts, look.power_limit_watts
    return None if isinstance(draw, Missing) or isinstance(limit, Missing) or limit <= 0 else draw / limit


def _above(value: Reading[int] | Reading[float], limit: float) -> bool | None:
    return None if isinstance(value, Missing) else value >= limit
