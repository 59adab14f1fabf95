"""The end of a process that is no child of ours: the kernel reports it as it happens, and how it ended.

A pidfd becomes readable when its process ends. The exit status is in /proc until the parent has collected it,
and after that, from Linux 6.15 on, at the pidfd (PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h).
"""

import fcntl
import os
import struct
from contextlib import suppress

from gpudiag.linux.proc import DEAD_STATES, read_stat
from gpudiag.model.reading import Missing, MissingReason, Reading

# struct pidfd_info as of its first version: the mask first, the exit code last.
_INFO = struct.Struct("=QQ11Ii")
_ASK = 0xC000FF0B | _INFO.size << 16  # _IOWR(0xFF, 11, struct pidfd_info)
_WITH_EXIT = 1 << 3


class Pidfd:
    """A process that is watched for its end."""

    def __init__(self, pid: int) -> None:
        """Open it.

        Raises:
            OSError: there is no such process, or the kernel has no pidfds (before Linux 5.3).
        """
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)

    def read_status(self) -> Reading[int]:
        """The wait status of a process that has ended, as waitpid(2) gives it."""
        with suppress(OSError, ValueError, IndexError):
            stat = read_stat(self.pid)
            if stat.state in DEAD_STATES:
                return stat.exit_code
        asked = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(self.descriptor, _ASK, asked)
        except OSError as error:
            return Missing(MissingReason.NOT_SUPPORTED, f"its parent had collected it: {error.strerror}")
        mask, *_, code = _INFO.unpack(asked)
        if mask & _WITH_EXIT:
            return int(code)
        return Missing(MissingReason.NOT_SUPPORTED, "its parent had collected it before it could be read")

    def close(self) -> None:
        """Stop watching."""
        with suppress(OSError):
            os.close(self.descriptor)
