"""Run one command and print what it took: wall seconds, processor seconds, peak bytes, exit status.

    python -I -S benchmarks/measure_command.py COMMAND ...

A program of its own because of the peak: the kernel counts the memory that a process had before it
called exec, so a command started from a large benchmark would show the benchmark's own size. This one
imports next to nothing; what it holds itself (`python -c pass` shows it) is the least it can report.
"""

import os
import sys
from time import perf_counter


def main(argv: list[str]) -> None:
    """Start the command with its output thrown away, wait for it, print one line of figures."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    started = perf_counter()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet)
    _, wait_status, usage = os.wait4(pid, 0)
    wall = perf_counter() - started
    status = os.waitstatus_to_exitcode(wait_status)
    print(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, status)


if __name__ == "__main__":
    main(sys.argv[1:])
