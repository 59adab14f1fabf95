"""Every reading of one GPU through NVML: who it is, how it is set, and what it is doing.

The order is the one that serves a GPU that hangs half way: identity first, then what decides whether
it can be used, what moves, and the long lists last.
"""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet
from gpudiag.probe.nvml_declared import plan_of, plan_of_tier, read_plan
from gpudiag.probe.nvml_details import conclude_inforom
from gpudiag.probe.nvml_links import add_recovery
from gpudiag.reference.declaration import ByHand

_ONCE = plan_of_tier("once")
_FAST = plan_of_tier("fast")
_DECIDES = plan_of("recovery_action")  # whether it can be used
_SLOW = [asked for asked in plan_of_tier("slow") if asked not in _DECIDES]
_STATE = [*_DECIDES, *_FAST, *sorted(_SLOW, key=lambda asked: isinstance(asked[0], ByHand))]
# What a test wants to see of the GPU that it strains: 7 calls.
_STRAINED = plan_of(
    "temperature_celsius", "memory_temperature_celsius", "power_draw_watts", "sm_clock_mhz",
    "clocks_event_reasons", "pcie_generation", "pcie_width",
)  # fmt: skip


def read_device(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill `sheet` with every reading of model.Device that NVML gives, and the raw list of processes."""
    read_identity(ask, sheet)
    read_state(ask, sheet)


def read_identity(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in who the GPU is; UUID and bus id first, for they name the row if nothing else comes."""
    read_plan(ask, sheet, _ONCE)


def read_state(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in everything but the identity: what may change while the driver stays loaded."""
    read_plan(ask, sheet, _STATE)
    add_recovery(ask, sheet)
    conclude_inforom(ask, sheet)


def read_fast(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in only what changes from second to second, in as few calls as it takes (9 on a new driver)."""
    read_plan(ask, sheet, _FAST)


def read_sensors(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in clock, heat, power and PCIe link of a GPU that a test strains."""
    read_plan(ask, sheet, _STRAINED)
