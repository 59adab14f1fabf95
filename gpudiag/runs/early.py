"""Start asking before the command line is even parsed: the quickest commands win what their imports take.

Whoever wants another command, or other sources, does not need what was started; it dies with us.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.probe.start import StartedProbes


def start_early(argv: Sequence[str]) -> StartedProbes | None:
    """NVML and the host being asked, where these arguments will want them; None where they may not."""
    if argv and not (_asks_nvml(argv) if argv[0] == "list" else _is_instant(argv)):
        return None
    # Loaded by this process and by both children anyway; loaded before the fork, it is loaded once.
    import re  # noqa: F401

    from gpudiag.probe.start import start_probes

    return start_probes()


def _asks_nvml(argv: Sequence[str]) -> bool:
    """Whether `list` with these arguments asks NVML, as far as can be told without parsing them."""
    return not any(word in ("-h", "--help") or word.startswith("--sources") for word in argv)


def _is_instant(argv: Sequence[str]) -> bool:
    """Whether this is a preflight that has to be done within two seconds, a GPU that hangs included."""
    if argv[0] != "preflight" or any(word in ("-h", "--help", "--list") for word in argv):
        return False
    if "--level" not in argv:
        return "--level=instant" in argv
    place = argv.index("--level")
    return list(argv[place + 1 : place + 2]) == ["instant"]
