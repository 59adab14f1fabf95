"""`python -m gpudiag.service.supervised PARENT_PID ARGUMENTS...`: a command line that dies with its service.

It sets the parent-death signal and execs `python -m gpudiag ARGUMENTS`; the setting survives exec.
"""

import os
import sys

from gpudiag.linux.child import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    # No shell is the point.
    os.execv(sys.executable, [sys.executable, "-m", "gpudiag", *sys.argv[2:]])  # noqa: S606
