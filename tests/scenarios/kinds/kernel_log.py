"""Lines of the kernel log of a simulated machine, for trials: one, or a flood of them."""

import json

HOUR = 3600.0
DAY = 24 * HOUR

JOB = "pid={number}, name=python3"
# Floods, by what makes them; each line differs from the next in its numbers only.
PAGE_FAULTS = (
    f"NVRM: Xid (PCI:{{gpu}}): 31, {JOB}, Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted"
)
EXCEPTIONS = f"NVRM: Xid (PCI:{{gpu}}): 13, {JOB}, Graphics Exception: ESR 0x50{{number}}=0x107000e"
SWITCH_ERRORS = (
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link {number} egress non-posted PRIV error"
)
CORRECTED = (
    "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID) {number}"
)
KILLS = (
    "Memory cgroup out of memory: Killed process {number} (python3) total-vm:{number}kB, anon-rss:{number}kB"
)
UNRELATED = "audit: type=1400 audit({number}): apparmor=DENIED operation=open pid={number}"
NONFATAL = "NVRM: Xid (PCI:{gpu}): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00{number} 0x80000000)"


def logged(
    text: str, age_seconds: float = 2 * HOUR, gpu: int = 0, times: int = 1, every_seconds: float = 0.0
) -> str:
    """A `[[kernel_log]]` of a scenario file: `{gpu}` in the text is that GPU's address, `{number}` counts."""
    values = {"age_seconds": age_seconds, "text": json.dumps(text), "gpu": gpu, "times": times}
    values["every_seconds"] = every_seconds
    lines = "".join(f"{key} = {value}\n" for key, value in values.items())
    return f"\n[[kernel_log]]\n{lines}"


def xid(code: int, gpu: int = 1, age_seconds: float = 2 * HOUR, rest: str = "") -> str:
    """The same for an Xid, as a driver without a process to name prints it."""
    return logged(f"NVRM: Xid (PCI:{{gpu}}): {code}, {rest}", age_seconds, gpu)


def up_for(days: float) -> str:
    """How long ago the machine was started; what a log says of before that is another boot's."""
    return f"\n[host]\nuptime_seconds = {days * DAY}\n"
