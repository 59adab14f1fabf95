"""Xids after which the GPU was restarted, by what of it is left to see; and those after which it was not."""

from tests.scenarios.kinds.kernel_log import HOUR, logged, up_for, xid
from tests.scenarios.kinds.trial import Kind, Trial

MACHINES = ("a100x8", "h100x8", "rtx4090x2", "b200x8")
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
FOUND = "pci {gpu}.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint"
TOLD = "gpudiag: {gpu}.0 was reset"
UNASKED = '\n[gpu]\nmissing.not_supported = ["recovery_action"]\n'
ROW = "Row Remapper: New row marked for remapping, reset gpu to activate."
ROW_AND_FAULT = xid(63, rest=ROW) + xid(95, age_seconds=2 * HOUR - 1)


def after(machine: str, code: int, line: str, *finds: str, hours_ago: float = 1, gpu: int = 1) -> Trial:
    """That Xid two hours ago, on a driver that cannot be asked, and that line so many hours ago."""
    differs = f"{up_for(3)}{UNASKED}{xid(code)}{logged(line, hours_ago * HOUR, gpu)}"
    return Trial(f"Xid {code}, and {hours_ago:g} h ago {line}", machine, finds, differs=differs)


KINDS = (
    Kind(
        "a GPU that was restarted after its Xid",
        (
            *(after(machine, 119, LOADED, "xid.settled 1") for machine in MACHINES),
            *(after(machine, 79, FOUND, "xid.settled 1") for machine in MACHINES),
            *(after(machine, 62, TOLD, "xid.settled 1") for machine in MACHINES),
            after("a100x8", 119, TOLD, "xid.hardware 1", gpu=0),
            after("h100x8", 119, LOADED, "xid.hardware 1", hours_ago=3),
            after("b200x8", 64, LOADED, "xid.hardware 1"),
            after("a100x8", 43, LOADED),
            Trial("a row that was replaced", "a100x8", ("xid.settled 1",), differs=up_for(3) + ROW_AND_FAULT),
            Trial("only a new load of the driver", "h100x8", differs=up_for(3) + logged(LOADED)),
        ),
    ),
)
