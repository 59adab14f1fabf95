"""Xids of days ago, after which the GPU works; and those of damage that lasts."""

from tests.scenarios.kinds.kernel_log import DAY, xid
from tests.scenarios.kinds.kernel_log import up_for as up
from tests.scenarios.kinds.trial import Kind, Trial

MACHINES = ("h100x8", "a100x8", "rtx4090x2", "b200x8")
UP = up(40)


def ago(machine: str, code: int, days: float, *finds: str, old: bool = False) -> Trial:
    """That Xid so many days ago; `old`: the driver cannot be asked what it wants done."""
    words = f"Xid {code}, {days:g} days ago{', a driver that cannot be asked' if old else ''}"
    silent = '\n[gpu]\nmissing.not_supported = ["recovery_action"]\n' if old else ""
    differs = f"{UP}{silent}{xid(code, age_seconds=days * DAY)}"
    return Trial(words, machine, tuple(f"{code} 1" for code in finds), differs=differs)


KINDS = (
    Kind(
        "an Xid of days ago",
        (
            *(ago(machine, 48, 18, old=old) for machine in MACHINES for old in (False, True)),
            ago("h100x8", 79, 18, old=True),
            ago("a100x8", 119, 10, old=True),
            ago("rtx4090x2", 31, 2),
            ago("b200x8", 94, 8),
            ago("h100x8", 48, 0.5, "xid.hardware", old=True),
            ago("h100x8", 79, 3, "xid.settled", old=True),
            ago("a100x8", 95, 3, "xid.settled"),
            ago("rtx4090x2", 94, 6, "xid.wear"),
            ago("b200x8", 64, 18, "xid.hardware", old=True),
            ago("a100x8", 168, 18, "xid.hardware"),
            ago("h100x8", 157, 18, "xid.wear"),
        ),
    ),
)
