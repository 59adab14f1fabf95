"""C functions of a rank's main thread by pystack: the only place that runs it.

It stops the rank for about a second.
"""

import os
import re
import shutil
import subprocess
import sys

from gpudiag.installed import install_command
from gpudiag.model.reading import Missing, MissingReason, Reading

_SECONDS = 10.0
_MOST_FUNCTIONS = 8
_FRAME = re.compile(r"^\s+\((C|Python)\) File \"(.*)\", line \d+, in (.+?)(?: \((?:inlined|(.*))\).*)?$")
_THREAD = re.compile(r"^Traceback for thread (\d+) ")


def read_native(pid: int) -> Reading[tuple[str, ...]]:
    """The C functions above the main thread's last Python frame, innermost first, each with its library."""
    beside = os.path.join(os.path.dirname(sys.executable), "pystack")
    program = beside if os.access(beside, os.X_OK) else shutil.which("pystack")
    if program is None:
        return Missing(MissingReason.SOURCE_ABSENT, f"pystack is not installed: `{install_command('hang')}`")
    try:
        done = subprocess.run(
            [program, "--no-color", "remote", "--native", str(pid)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Missing(MissingReason.TIMED_OUT, f"pystack did not answer within {_SECONDS:g} s")
    except OSError as error:
        return Missing(MissingReason.SOURCE_ABSENT, f"pystack could not be started: {error.strerror}")
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())
        return Missing(MissingReason.ERROR, f"pystack: {words[-200:]}")
    return parse_native(done.stdout.decode(errors="replace"), pid)


def parse_native(text: str, tid: int) -> tuple[str, ...]:
    """The C functions behind the last Python frame of a thread in pystack's words, innermost first."""
    found: list[str] = []
    is_wanted = False
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread:
            is_wanted = int(thread[1]) == tid
        frame = _FRAME.match(line) if is_wanted else None
        if frame is None:
            continue
        if frame[1] == "Python":
            found.clear()
        else:
            library = os.path.basename(frame[4] or "")
            found.append(f"{frame[3]} ({library})" if library else frame[3])
    return tuple(found[::-1][:_MOST_FUNCTIONS])
