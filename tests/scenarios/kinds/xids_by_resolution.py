"""Xids that only the kernel log has, by what NVIDIA's catalogue has done about them."""

from tests.scenarios.kinds.kernel_log import HOUR, logged, xid
from tests.scenarios.kinds.trial import Kind, Trial

MACHINES = ("h100x8", "a100x8", "b200x8", "rtx4090x2")
UNIT = "{unit} {word} XC0 i0 Link 03 ({first} {second} 0x00000000)"


def nvlink5(code: int, unit: str, word: str, first: str = "0x00000001", second: str = "0x00000000") -> str:
    return xid(code, rest=UNIT.format(unit=unit, word=word, first=first, second=second))


def jobs(place: str, count: int) -> str:
    """Xid 13 of so many jobs, half an hour after one another."""
    return "".join(
        logged(
            f"NVRM: Xid (PCI:{{gpu}}): 13, pid={4000 + job}, name=python3, Graphics SM Warp Exception on "
            f"({place.format(job)}, SM 1): Out Of Range Address",
            (10 - job / 2) * HOUR,
            gpu=1,
        )
        for job in range(count)
    )


def on(machine: str, words: str, differs: str, *finds: str) -> Trial:
    return Trial(words, machine, tuple(f"{code} 1" for code in finds), differs=differs)


KINDS = (
    Kind(
        "an Xid that only the kernel log has",
        (
            *(
                on(m, "79: power-cycle", xid(79, rest="GPU has fallen off the bus."), "xid.hardware")
                for m in MACHINES
            ),
            on("h100x8", "119: reset", xid(119), "xid.hardware"),
            on("a100x8", "61, of an older driver: reset", xid(61), "xid.hardware"),
            on("b200x8", "173, of a newer driver: power-cycle", xid(173), "xid.hardware"),
            on("b200x8", "175, of a newer driver: reset", xid(175), "xid.hardware"),
            on("rtx4090x2", "176, of a newer driver: look at the slot", xid(176), "xid.wear"),
            on("h100x8", "157: nothing at once, then support", xid(157), "xid.wear"),
            on("a100x8", "67: nothing at once, then support", xid(67), "xid.driver"),
            on("rtx4090x2", "31: the job's", xid(31), "xid.application"),
            on("b200x8", "149, fatal", nvlink5(149, "NETIR_LINK_EVT", "Fatal", "0x004505c6"), "xid.hardware"),
            on("h100x8", "13 in one place, three jobs: the GPU", jobs("GPC 2, TPC 3", 3), "xid.repeated"),
            on("a100x8", "13 in one place, four jobs: the GPU", jobs("GPC 0, TPC 0", 4), "xid.repeated"),
            on("rtx4090x2", "13 in other places: the jobs'", jobs("GPC {}, TPC 3", 4), "xid.application"),
            on("h100x8", "43: after the job", xid(43)),
            on("a100x8", "174, of a newer driver: after the job", xid(174)),
            *(
                on("b200x8", f"{code}, nonfatal: ignore", nvlink5(code, unit, "Nonfatal"))
                for code, unit in (
                    *((144, "SAW_MVB"), (145, "RLW_RXPIPE"), (146, "TLW_CTRL"), (147, "TREX")),
                    *((148, "NVLPW_CTRL"), (149, "NETIR_LINK_EVT")),
                )
            ),
            on(
                "rtx4090x2",
                "154, from something to none",
                xid(154, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            ),
        ),
    ),
)
