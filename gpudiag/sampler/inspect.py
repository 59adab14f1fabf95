"""`python -m gpudiag.sampler.inspect PARENT_PID [SOURCES]`: the machine around the GPUs, once, as one line.

The host with its state, the kernel log, the driver's files, and GPUtil and torch where SOURCES names them.
NVML is left to the sampler. The line is {"kind": "inspection", "snapshot": {...}, "uuids": {...}}.
"""

import json
import os
import sys

from gpudiag.model.codec import to_document
from gpudiag.probe.guard import die_with
from gpudiag.probe.inventory import read_driver_uuids, take_snapshot
from gpudiag.probe.start import host_root


def main() -> None:
    """Take one snapshot, write it and exit."""
    die_with(int(sys.argv[1]))
    sources = tuple(sys.argv[2].split(",")) if len(sys.argv) > 2 else ()
    snapshot = take_snapshot(sources, host_state=True, kernel_log=True)
    uuids = read_driver_uuids(host_root(os.environ))
    message = {"kind": "inspection", "snapshot": to_document(snapshot), "uuids": uuids}
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a probe that hangs must not keep the process


if __name__ == "__main__":
    main()
