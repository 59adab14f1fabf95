"""One grave line of the kernel log among thousands of others; and floods in which there is none."""

from tests.scenarios.kinds.kernel_log import (
    CORRECTED,
    EXCEPTIONS,
    HOUR,
    KILLS,
    NONFATAL,
    PAGE_FAULTS,
    SWITCH_ERRORS,
    UNRELATED,
    logged,
    xid,
)
from tests.scenarios.kinds.trial import Kind, Trial

MACHINES = ("h100x8", "a100x8", "b200x8", "rtx4090x2")
LINES = 4000
EVERY_SECONDS = 0.5
BEGAN = 2 * HOUR
MIDST = BEGAN - LINES * EVERY_SECONDS / 2


def flood(text: str, gpu: int = 0) -> str:
    return logged(text, BEGAN, gpu, LINES, EVERY_SECONDS)


# What is flooded, on which GPU, and what that is by itself.
FLOODS = (
    ("exceptions of the same GPU", flood(EXCEPTIONS, gpu=1), ()),
    ("page faults of another GPU", flood(PAGE_FAULTS), ("xid.application 0",)),
    ("NVSwitch errors", flood(SWITCH_ERRORS.replace("{number}", "32")), ("sxid.error",)),
    ("corrected PCIe errors", flood(CORRECTED), ()),
    ("kills for memory", flood(KILLS), ("kernel.out_of_memory_kill",)),
    ("unrelated lines", flood(UNRELATED), ()),
)

KINDS = (
    Kind(
        "a grave Xid in a flood of the kernel log",
        (
            *(
                Trial(f"Xid {code} among {words}", machine, ("xid.hardware 1", *beside), differs=more + lone)
                for machine, code in zip(MACHINES, (79, 95, 119, 62), strict=True)
                for lone in (xid(code, age_seconds=MIDST),)
                for words, more, beside in (
                    FLOODS if machine == MACHINES[0] else FLOODS[:4:2] + FLOODS[1:6:4]
                )
            ),
            *(
                Trial(f"a flood of {words}, and nothing else", machine, differs=more)
                for machine in MACHINES
                for words, more in (
                    ("corrected PCIe errors", flood(CORRECTED)),
                    ("unrelated lines", flood(UNRELATED)),
                )
            ),
            Trial("a flood of nonfatal NVLink errors", "b200x8", differs=flood(NONFATAL)),
        ),
    ),
)
