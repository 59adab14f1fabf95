"""`python -m gpudiag.probe.guarded MODULE:FUNCTION ARGUMENTS`: a guarded probe for multi-threaded callers."""

import json
import os
import sys
from threading import Lock
from typing import Any

from gpudiag.probe.guard import RESULT_FD, run_entry


def main() -> None:
    """Run the probe that the command line names; its messages go to the guard's pipe."""
    entry, arguments = sys.argv[1:]
    lock = Lock()

    def emit(message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        with lock:
            while line:
                line = line[os.write(RESULT_FD, line) :]

    run_entry(entry, json.loads(arguments), emit)
    os._exit(0)  # a probe may leave a thread behind that never returns


if __name__ == "__main__":
    main()
