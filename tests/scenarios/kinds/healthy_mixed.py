"""Machines that are well and unlike others: boards of several makers, older drivers, idle cards, slower
storage ports.

Each healthy one has its fault beside it: what is a difference between boards is a fault between equal ones.
"""

from tests.scenarios.kinds.trial import Kind, Trial

_SEVERAL = ("a100x8", "h100x8", "l40sx8", "rtx4090x2", "v100x8")
_MIB = 1024**2


def _gpu(index: int, *lines: str) -> str:
    return "\n".join((f"[gpus.{index}]", *lines, ""))


_OTHER_BOARD = 'pci_subsystem_id = "40191458"'
_VBIOS = 'vbios_version = "90.00.00.00.01"'
_BOARDS = tuple(
    trial
    for machine in _SEVERAL
    for trial in (
        Trial("a card of another maker with another VBIOS", machine, differs=_gpu(1, _OTHER_BOARD, _VBIOS)),
        Trial(
            "an equal card with another VBIOS", machine, ("driver.vbios_differs 1",), differs=_gpu(1, _VBIOS)
        ),
    )
    if trial.near_miss or machine != "rtx4090x2"  # of two cards nobody knows which is the other one
)
_MIXED_POWER = (("a100x8", 400, 500), ("h100x8", 700, 800), ("l40sx8", 350, 400))


def _other_maker(watts: int, index: int) -> str:
    return _gpu(
        index, _OTHER_BOARD, f"power_limit_enforced_watts = {watts}", f"power_limit_default_watts = {watts}"
    )


_POWER = (
    *(
        Trial(
            "all other cards are another maker's, with a higher limit",
            machine,
            differs="".join(_other_maker(higher, index) for index in range(8) if index != 1),
        )
        for machine, _, higher in _MIXED_POWER
    ),
    *(
        Trial(
            "one of equal cards has a lower limit",
            machine,
            ("power.limit_lowered 1",),
            differs=_gpu(1, f"power_limit_enforced_watts = {lower // 2}"),
        )
        for machine, lower, _ in _MIXED_POWER
    ),
    Trial("a small card in P0 beside one in P8", "rtx4090x2", differs="[each]\npower_draw_watts = [9, 45]\n"),
)
_LEFT = tuple(
    trial
    for machine in ("a100x8", "v100x8", "t4x1", "a10x1")
    for trial in (
        Trial(
            "an older driver's own use", machine, faults="old-driver",
            differs=f"[gpu]\nmemory_used_bytes = {300 * _MIB}\nmemory_reserved_bytes = {600 * _MIB}\n",
        ),
        Trial(
            "left by a dead job under an older driver", machine, ("memory.leftover 0",), faults="old-driver",
            differs=_gpu(0, f"memory_used_bytes = {4096 * _MIB}"),
        ),
        Trial(
            "left by a dead job", machine, ("memory.leftover 0",),
            differs=_gpu(0, f"memory_used_bytes = {900 * _MIB}")
        ),
    )
)  # fmt: skip

KINDS = (
    Kind("healthy and mixed: boards of several makers", _BOARDS),
    Kind("healthy and mixed: power of unlike cards", _POWER),
    Kind("healthy and mixed: what an older driver uses itself", _LEFT),
)
