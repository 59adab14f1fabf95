"""Every threshold that a check holds a reading against, each with its source.

A limit is derived where it can be: from what the device itself reports (bus width, clocks, links,
generation and width), then from its peers in the machine, then from this machine's history, then from a
table. `ranks/measured_speeds.py` judges measured speeds; here are the other limits. Sources named DCGM are
its DcgmHealthWatch.cpp and nvvs; "our choice" marks what nobody prescribes.
"""

from gpudiag.units import GIB, MIB

# Memory reliability
SRAM_UNCORRECTED_REPLACE = 4  # NVIDIA's RMA policy for A100/H100 as cited by stas00/ml-engineering
REMAPPED_ROWS_WARN = 512  # of 640 (A100) a GPU can hold; DCGM: DCGM_LIMIT_MAX_UNCORRECTABLE_REMAPPED_ROWS
RETIRED_PAGES_REPLACE = 63  # of 64; NVIDIA "Dynamic Page Retirement", RMA policy, as in DCGM
RETIRED_PAGES_DOUBLE_BIT = 15  # the same policy's count of pages retired for double-bit errors
CORRECTED_RATE_FACTOR = 10.0  # our choice: an outlier is ten times the next GPU's rate ...
CORRECTED_MIN_PER_HOUR = 100.0  # ... and not a handful; absolute limits elsewhere differ 5,000-fold

# Memory size: NVML's total is the data sheet's less what ECC and the driver take. ECC of GDDR takes 1/16
# (L40S 46068, A10 23028 MiB); the T4 capture has 94 % of 16 GiB, older drivers 92 %. A dead HBM stack is 1/8
# or more.
MEMORY_OF_MODEL_SHARE = 0.9
MEMORY_OF_PEERS_SHARE = 0.98  # our choice: equal boards under one driver show the same number

# Leftovers
LEFTOVER_BYTES = 500 * MIB  # our choice: above what a driver keeps for itself (captures: 0 MiB used)
UNUSED_MEMORY_BYTES = 64 * MIB  # our choice: a CUDA context alone takes more
# Where the driver counts what it keeps as used (nvmlMemory_t of version 1): 480 to 728 MiB in the captures,
# about 1 GB on newer GPUs (scitix/sichek pull request 113, 2026-06).
LEFTOVER_OLD_DRIVER_BYTES = 1536 * MIB
# Of a GPU that a job is to use. Our choice: idle GPUs in the captures have all of it free, and what a context
# takes of a GPU of 16 GB and more (0.3 to 0.6 GiB) is less than a twentieth.
LEAST_FREE_MEMORY_SHARE = 0.90
# Of a CUDA context with torch's kernels: 621 MiB on an H100 and an H200 (driver 580.159.04).
CONTEXT_BYTES = 640 * MIB
DEAD_PROCESS_SECONDS = 300.0  # facebookresearch/gcm, check of zombie processes

# Load: what counts as working, for readings that mean nothing on an idle GPU
LOADED_PERCENT = 50  # our choice
IDLE_PERCENT = 5  # our choice

# Clocks and power
THROTTLED_SHARE = 0.1  # our choice: a tenth of the time between two readings
STUCK_CLOCK_RATIO = 0.6  # sichek, SmClkStuckLow
STUCK_CLOCK_SECONDS = 60.0  # the same
PEER_CLOCK_RATIO = 0.8  # our choice: power capping is normal while the GPUs stay equally fast
# Our choice: a GPU that its own power limit holds back draws about that, if it works without a break.
CAPPED_LOAD_PERCENT = 90
CAPPED_CLOCK_RATIO = 0.7
CAPPED_DRAW_RATIOS = (0.75, 1.25)
POWER_LIMIT_RATIO = 0.95  # our choice: 5 % below the default is not rounding
IDLE_POWER_PEER_RATIO = 3.0  # our choice, from checks of idle nodes in the field ...
IDLE_POWER_MORE_WATTS = 50.0  # ... and that much more: 9 W in P8 and 30 W in P0 are both idle on a small card

# Temperature
MARGIN_CELSIUS = 5  # NVSentinel ADR-042 and our choice
PEER_CELSIUS = 20  # our choice: an idle, healthy 8x B200 machine (capture) has GPUs 14 C apart by their place

# PCIe: DCGM's limits on replays per minute and lane, by generation (DcgmHealthWatch.cpp)
REPLAYS_PER_MINUTE_AND_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
REPLAYS_FAIL_FACTOR = 10.0  # our choice
CORRECTED_PCIE_ERRORS_PER_MINUTE = 32.0  # DCGM: 480 in 15 minutes

# NVLink: DCGM fails at this rate of CRC errors; a bit error rate of the same origin
NVLINK_CRC_PER_SECOND = 100.0
NVLINK_BIT_ERROR_RATE = 1e-12

# InfiniBand, per hour: symbol errors as in NVSentinel's NIC monitor (InfiniBand specification, 10e-12)
SYMBOL_ERRORS_PER_HOUR = 120.0
LINK_RECOVERIES_PER_HOUR = 300.0  # 5 a minute, Azure's node health checks

# Host
SHARED_MEMORY_PER_RANK_BYTES = 64 * MIB  # NCCL's own needs per GPU; Docker's default is this for all
SHARED_MEMORY_BYTES = GIB  # DataLoader workers pass batches through it; NCCL's guide asks for 1 GiB
OPEN_FILES = 4096  # our choice: a socket or file per peer, worker and shared tensor; 1024 is a common default
# Our choice: ranks come near such a limit by themselves, with CUDA and NCCL loaded. That the host has less
# memory than a GPU is a rule of thumb and no fault: checkpoints are read in pieces, and cloud machines are
# sold so (decision 37).
HOST_MEMORY_PER_RANK_BYTES = 4 * GIB
PROCESSES = 16384  # our choice: threads of ranks, NCCL proxies and DataLoader workers
DISK_FULL_SHARE = 0.05
DISK_LOW_SHARE = 0.10


def replays_per_minute(generation: int, width: int) -> float:
    """The most PCIe replays per minute that a good link of that generation and width may have."""
    newest = max(REPLAYS_PER_MINUTE_AND_LANE)
    return width * REPLAYS_PER_MINUTE_AND_LANE[min(max(generation, 1), newest)]
