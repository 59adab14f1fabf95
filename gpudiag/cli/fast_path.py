"""The fast path of `gpudiag list`, the bare command and an instant preflight: every trick for speed.

A listing runs in prologs and prompts, and its time is imports (docs/decisions/0005). So children ask NVML and
the host while we import, flags without values need no click, no garbage is collected while modules load, and
the interpreter is not torn down. tests/meta/test_import_weight.py holds all other files to what may load.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from gpudiag.errors import ExitStatus
    from gpudiag.probe.start import StartedProbes

_PLAIN_FLAGS = ("--json", "--wide")
_CHANGE_THE_GATE = ("--store", "--deadline", "--only", "--skip")


def load_without_collecting() -> None:
    """Collect no garbage until the command's own work starts: it takes 5 ms, and finds nothing."""
    gc.disable()


def collect_from_here() -> None:
    """Collect garbage from here on, except what the imports made: it stays."""
    gc.freeze()
    gc.enable()


def start_early(argv: Sequence[str]) -> StartedProbes | None:
    """Probes of NVML and the host where these arguments will need them, else None; others end with us."""
    if argv and not (_asks_nvml(argv) if argv[0] in ("list", "watch") else _is_instant(argv)):
        return None
    from gpudiag.probe.start import start_probes

    if argv and argv[0] in ("list", "watch"):
        return start_probes(wake=False)
    if not argv:
        return _start_overview()
    return _start_gate(argv)


def _start_overview() -> StartedProbes:
    """All that the bare command waits for: it judges the machine as an instant preflight does."""
    from gpudiag.probe.start import LOOK_SECONDS, start_probes

    started = start_probes(wake=False)
    started.start_judging(os.environ, LOOK_SECONDS, host_state=True)
    return started


def _start_gate(argv: Sequence[str]) -> StartedProbes:
    """All that an instant preflight waits for, the longest first, with what its flags may change."""
    from gpudiag.probe.start import INSTANT_SECONDS, start_probes
    from gpudiag.store.history_child import StartedHistory
    from gpudiag.store.state_folder import default_store, own_machine_key

    if any(word.startswith(_CHANGE_THE_GATE) for word in argv):
        return start_probes()
    history = StartedHistory(default_store(), own_machine_key())
    started = start_probes()
    started.start_judging(os.environ, INSTANT_SECONDS, host_state=True)
    started.history = history
    return started


def list_unparsed(argv: Sequence[str], started: StartedProbes | None) -> ExitStatus | None:
    """The exit status of a listing without a parser, which scripts call often; None where one is needed."""
    if not argv or argv[0] != "list" or not set(argv[1:]).issubset(_PLAIN_FLAGS):
        return None
    from gpudiag.cli.listing import ListOptions, list_machine
    from gpudiag.runs.devices import DEADLINE_SECONDS, DeviceRequest

    if len(set(argv[1:])) > 1:  # --wide is about text: refused where flags are parsed
        return None
    request = DeviceRequest(deadline_seconds=DEADLINE_SECONDS)
    return list_machine(ListOptions(request, wide="--wide" in argv, as_json="--json" in argv), started)


def leave_at_once(status: int) -> NoReturn:
    """End the process: a listing has nothing to clean up, and the kernel kills its children with it."""
    os._exit(status)


def _asks_nvml(argv: Sequence[str]) -> bool:
    """Whether `list` or `watch` with these arguments seems to ask NVML here: they are not parsed yet."""
    elsewhere = ("--sources", "--hosts", "--replay")
    return not any(word in ("-h", "--help") or word.startswith(elsewhere) for word in argv)


def _is_instant(argv: Sequence[str]) -> bool:
    """Whether this is a preflight that must end within two seconds, even if a GPU hangs."""
    if argv[0] != "preflight" or any(word in ("-h", "--help", "--list") for word in argv):
        return False
    if "--level" not in argv:
        return "--level=instant" in argv
    place = argv.index("--level")
    return list(argv[place + 1 : place + 2]) == ["instant"]
