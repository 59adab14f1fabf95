"""SXids: the three lines in which an NVSwitch tells one error, with and without a GPU that saw it too."""

from tests.scenarios.kinds.kernel_log import HOUR, logged, xid
from tests.scenarios.kinds.trial import Kind, Trial

MACHINES = ("h100x8", "a100x8", "h200x8", "b200x8")


def sxid(code: int, word: str, link: int = 28, lines: tuple[int, ...] = (0, 1, 2)) -> str:
    """Those of the three lines of one SXid."""
    texts = (
        f"{word}, Link {link:02d} what happened (First)",
        f"Severity 1 Engine instance {link:02d} Sub-engine instance 00",
        "Data {0x0000001c, 0x00000000, 0x00000000, 0x10000000}",
    )
    prefix = f"nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): {code:05d}, "
    return "".join(logged(prefix + texts[line], 2 * HOUR - line / 1000) for line in lines)


def _told(words: str, machine: str, lines: str, *codes: str) -> Trial:
    return Trial(words, machine, codes, differs=lines)


NVLINK_ON_A_GPU = xid(74, age_seconds=2 * HOUR + 5, rest="NVLink: fatal error detected on link 4(0x0, 0x0)")

KINDS = (
    Kind(
        "an SXid",
        (
            *(_told("a halted controller", m, sxid(22003, "Fatal"), "sxid.fatal") for m in MACHINES),
            *(_told("a link that no GPU misses", m, sxid(20034, "Fatal"), "sxid.error") for m in MACHINES),
            _told("not its first line", "h100x8", sxid(19084, "Non-fatal", lines=(1, 2)), "sxid.error"),
            _told("an access without an answer", "a100x8", sxid(12028, "Non-fatal"), "sxid.error"),
            _told("too hot, and shut down", "h200x8", sxid(10006, "Fatal"), "sxid.fatal"),
            _told("one that nobody knows", "b200x8", sxid(31999, "Fatal"), "sxid.unknown"),
            _told(
                *("a link that a GPU misses", "h100x8", NVLINK_ON_A_GPU + sxid(20034, "Fatal")),
                *("sxid.fatal", "xid.hardware 1"),
            ),
            *(_told("a corrected bit", m, sxid(11012, "Non-fatal")) for m in MACHINES),
            _told("a switch that is cool again", "h100x8", sxid(10005, "Non-fatal")),
        ),
    ),
)
