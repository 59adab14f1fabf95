"""GPUs that the kernel has put to sleep (PCI runtime suspend, D3cold), which asking NVML would wake.

Awake, a laptop's GPU takes 5 to 7 W more, some for minutes (henrygd/beszel-docs pull request 35,
corecoding/Vitals issue 442). sysfs shows it without waking them.
"""

from __future__ import annotations

import os

_DRIVER = "sys/bus/pci/drivers/nvidia"
ASLEEP = "asleep: the kernel has suspended it, and asking would wake it"  # why it gives no reading
_SUSPENDED = "suspended"  # Documentation/ABI/testing/sysfs-devices-power: runtime_status


def read_sleeping(root: str = "/") -> tuple[int, dict[int, str]]:
    """How many GPUs the driver has, and the bus ids of those asleep by NVML index, which follows bus ids."""
    folder = os.path.join(root, _DRIVER)
    try:
        bound = sorted(name for name in os.listdir(folder) if ":" in name)
    except OSError:
        return 0, {}
    asleep = {index: name for index, name in enumerate(bound) if is_asleep(os.path.join(folder, name))}
    return len(bound), {index: bus_id_of_address(name) for index, name in asleep.items()}


def bus_id_of_address(address: str) -> str:
    """A PCI address of the kernel, `0000:19:00.0`, as the model writes it: `00000000:19:00.0`."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain:0>8}:{rest}"


def is_asleep(device: str) -> bool:
    """Whether the PCI device of that folder in sysfs is suspended."""
    try:
        with open(os.path.join(device, "power/runtime_status")) as file:
            return file.read().strip() == _SUSPENDED
    except OSError:
        return False
