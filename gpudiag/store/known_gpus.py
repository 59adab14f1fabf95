"""The GPUs that this machine had in its last good run: a small file beside the history.

`gpudiag list` and the bare command cannot wait for the database. A guarded child reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from select import select
from time import monotonic
from typing import TYPE_CHECKING, Any

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import decode, encode
from gpudiag.model.history import KnownGpus
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.guard import GuardedChild, start_guarded
from gpudiag.store.state_folder import SYSTEM_DIRECTORY, VARIABLE, own_machine_key, state_directory

if TYPE_CHECKING:
    from gpudiag.model.reading import Reading

# It is usually read long before the GPUs are; a hung disk costs no more than this.
_GRACE_SECONDS = 0.1
_NOTING_SECONDS = 0.5


def known_gpus_file(machine: str, directory: Path | None = None) -> Path:
    """The path of the file of that machine's GPUs; machines that share a home have a file each."""
    import zlib

    return (directory or state_directory()) / f"gpus-{zlib.crc32(machine.encode()):08x}.json"


def write_known_gpus(machine: str, known: KnownGpus) -> None:
    """Write the GPUs of a good run to the file, atomically. Raises OSError: the file cannot be written."""
    path = known_gpus_file(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(f"{machine}\n{json.dumps(encode(known))}\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def start_noting(machine: str, known: KnownGpus) -> GuardedChild:
    """A child that writes the GPUs of a good run to the file; give it to `finish_noting`."""
    return start_guarded("gpudiag.store.known_gpus:note_known_gpus", machine, encode(known))


def note_known_gpus(emit: Any, machine: str, known: dict[str, Any]) -> None:
    """In a guarded child: write the file; if it cannot be written, the history's warning reports it."""
    with contextlib.suppress(OSError):
        write_known_gpus(machine, decode(KnownGpus, known))
    emit(("noted",))


def finish_noting(child: GuardedChild) -> None:
    """Wait until the file is written, for at most `_NOTING_SECONDS`, then end the child."""
    _await_message(child, _NOTING_SECONDS)
    child.give_up()


def start_known_gpus() -> GuardedChild:
    """A child that reads this machine's known GPUs; give it to `finish_known_gpus` after the snapshot."""
    return start_guarded("gpudiag.store.known_gpus:stream_known_gpus")


def stream_known_gpus(emit: Any) -> None:
    """In a guarded child: emit `("known", text)`, or `("none", why)`."""
    machine = own_machine_key()
    # A prolog writes the file as root; any user's listing needs it.
    elsewhere = () if os.environ.get(VARIABLE) else (SYSTEM_DIRECTORY,)
    for directory in (state_directory(), *elsewhere):
        try:
            whose, _, text = known_gpus_file(machine, directory).read_text(encoding="utf-8").partition("\n")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            emit(("none", f"this machine's known GPUs cannot be read: {error}"))
        else:
            emit(
                ("known", text)
                if whose == machine
                else ("none", "the GPUs recorded there are another machine's")
            )
        return
    emit(("none", "no good run of this machine is recorded"))


def finish_known_gpus(child: GuardedChild) -> Reading[KnownGpus]:
    """The known GPUs that the child has read, or why there are none; waits `_GRACE_SECONDS` at most."""
    _await_message(child, _GRACE_SECONDS)
    child.give_up()
    for kind, text in child.messages:
        if kind == "known":
            return _parse(text)
        return Missing(MissingReason.SOURCE_ABSENT, text)
    return Missing(MissingReason.SOURCE_ABSENT, "this machine's known GPUs were not read in time")


def _await_message(child: GuardedChild, seconds: float) -> None:
    until = monotonic() + seconds
    while child.ending is None and not child.messages:
        ready, _, _ = select(child.descriptors(), [], [], max(0.0, until - monotonic()))
        if not ready:
            return
        for descriptor in ready:
            if descriptor in child.descriptors():
                child.receive(descriptor)


def _parse(text: str) -> Reading[KnownGpus]:
    try:
        return decode(KnownGpus, json.loads(text))
    except (GpudiagError, ValueError, RecursionError) as error:
        return Missing(MissingReason.SOURCE_ABSENT, f"this machine's known GPUs cannot be read: {error}")
