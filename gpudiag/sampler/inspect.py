"""`python -m gpudiag.sampler.inspect PARENT_PID [SOURCES]`: the machine around the GPUs, once, as one line.

The host with its state and the kernel log; the driver's files, GPUtil and torch where SOURCES names them
(`driver`, `gputil`, `torch`). NVML is left to the sampler. The line is {"kind": "inspection", "snapshot":
{...}, "uuids": {...}}, with null for the UUIDs where the driver's files were not wanted.
"""

import json
import os
import sys

from gpudiag.linux.child import die_with_parent
from gpudiag.model.codec import to_document
from gpudiag.probe.inventory import read_driver_uuids, take_snapshot
from gpudiag.probe.start import host_root

DRIVER = "driver"  # among the sources: the driver's own files about its GPUs


def main() -> None:
    """Take one snapshot, write it and exit."""
    die_with_parent(int(sys.argv[1]))
    wanted = sys.argv[2].split(",") if len(sys.argv) > 2 else []
    sources = tuple(name for name in wanted if name != DRIVER)
    snapshot = take_snapshot(sources, host_state=True, kernel_log=True)
    uuids = read_driver_uuids(host_root(os.environ)) if DRIVER in wanted else None
    message = {"kind": "inspection", "snapshot": to_document(snapshot), "uuids": uuids}
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a probe that hangs must not keep the process


if __name__ == "__main__":
    main()
