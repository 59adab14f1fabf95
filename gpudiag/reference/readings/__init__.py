"""Every reading of a GPU, declared once: queries, lists, metrics, history and the page follow.

The order is that of `gpudiag list --wide`. Units are in the names, as in `model.device`, which has the types.
To add a reading, see CONTRIBUTING.md.
"""

from gpudiag.reference.declaration import Declared
from gpudiag.reference.readings.activity import ACTIVITY
from gpudiag.reference.readings.identity import IDENTITY, MIG, MODES, USERS
from gpudiag.reference.readings.links import NVLINK, SLOT
from gpudiag.reference.readings.load import CLOCKS, HEAT, LOAD, POWER
from gpudiag.reference.readings.memory import BAD_MEMORY, ECC, MEMORY

# The headings of `gpudiag list --wide`, and what stands under each.
TOPICS: tuple[tuple[str, tuple[Declared, ...]], ...] = (
    ("identity", IDENTITY),
    ("memory", MEMORY),
    ("load", LOAD),
    ("activity", ACTIVITY),
    ("heat", HEAT),
    ("power", POWER),
    ("clocks", CLOCKS),
    ("ECC", ECC),
    ("bad memory", BAD_MEMORY),
    ("slot", SLOT),
    ("NVLink", NVLINK),
    ("modes", MODES),
    ("MIG", MIG),
    ("users", USERS),
)
# The groups of the page of a GPU, in the order in which people look for them.
PAGE_GROUPS = ("Identity", "Memory", "Heat and power", "Clocks", "Errors", "Links")
READINGS: tuple[Declared, ...] = tuple(declared for _, topic in TOPICS for declared in topic)
