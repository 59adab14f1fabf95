"""Where gpudiag keeps what it remembers on this machine, and under which name."""

import os
from collections.abc import Mapping
from pathlib import Path

from gpudiag.probe.start import SIMULATED

VARIABLE = "GPUDIAG_STATE_DIR"
SYSTEM_DIRECTORY = Path("/var/lib/gpudiag")


def state_directory(environment: Mapping[str, str] | None = None, user_id: int | None = None) -> Path:
    """$GPUDIAG_STATE_DIR, else /var/lib/gpudiag as root, else the XDG state directory; not yet made.

    XDG Base Directory Specification 0.8: $XDG_STATE_HOME, by default ~/.local/state; a path that is not
    absolute is to be ignored.
    """
    environment = os.environ if environment is None else environment
    own = environment.get(VARIABLE, "")
    if own:
        return Path(own)
    if (os.geteuid() if user_id is None else user_id) == 0:
        return SYSTEM_DIRECTORY
    base = Path(environment.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        base = Path(environment.get("HOME") or "/nonexistent") / ".local" / "state"
    return base / "gpudiag"


def own_machine_key() -> str:
    """The name under which what is known of this machine is kept; a simulated one has its own."""
    simulated = os.environ.get(SIMULATED)
    return f"simulated {simulated}" if simulated else os.uname().nodename
