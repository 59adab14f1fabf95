"""The anonymous form of a report: what a maintainer needs, and nothing that names machine or users.

    python -m tools.confirm_on_gpu.anonymous FOLDER    # of a report that is there already

It is made by what may leave (`public_text.py`), not by what must stay: numbers, truth values, enumerations,
and texts that have a known form. Everything else of the report and of the machine's record is left out,
whatever it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_args

from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, dumps, field_type
from gpudiag.model.device import Device, DeviceView, MigInstance, Snapshot
from gpudiag.model.documents import loads
from gpudiag.model.reading import NOT_ASKED, Missing
from gpudiag.model.receipt import NO_DIGEST
from tools.confirm_on_gpu.markdown import SHARED_FILE
from tools.confirm_on_gpu.public_text import INVENTED_UUID, LEFT_OUT, REASONS, TEXTS
from tools.confirm_on_gpu.report import (
    AnonymousConfirmation,
    CheckOutcome,
    Confirmation,
    HangOutcome,
    ReadingOutcome,
    StepOutcome,
)

_T = TypeVar("_T")

# Fields that are left out as a whole: nothing in them is the GPU's.
_ONLY_OF_THE_MACHINE = {
    ("Snapshot", "kernel_log"),
    ("Machine", "interfaces"),
    ("Machine", "state"),
    ("Machine", "preloaded_libraries"),
    ("Device", "processes"),
}
_EMPTY: dict[tuple[str, str], Any] = {("Snapshot", "disagreements"): (), ("Machine", "allocation"): {}}


def make_anonymous(report: Confirmation, machine: Snapshot) -> AnonymousConfirmation:
    """The anonymous form of a report and of the machine that was recorded with it."""
    made = AnonymousConfirmation(
        digest=NO_DIGEST,
        outcome=report.outcome,
        day=report.day,
        seconds=report.seconds,
        finished=report.finished,
        simulated=report.simulated is not None,
        gpudiag_version=report.gpudiag_version,
        python_version=report.python_version,
        torch_version=report.torch_version,
        cuda_runtime_version=report.cuda_runtime_version,
        nccl_version=report.nccl_version,
        driver_version=report.driver_version,
        machine=_with_invented_uuids(machine),
        steps=tuple(StepOutcome(step.name, step.outcome, step.seconds) for step in report.steps),
        speeds=report.speeds,
        checks=tuple(
            CheckOutcome(check.check, check.outcome, check.codes, check.read, check.missing)
            for check in report.checks
        ),
        readings=tuple(
            ReadingOutcome(one.nvml_index, one.reading, one.kind, one.outcome) for one in report.readings
        ),
        costs=report.costs,
        starts=report.starts,
        hangs=tuple(HangOutcome(one.kind, one.right, one.seconds) for one in report.hangs),
    )
    made = without_private(made)
    return replace(made, digest=digest_of(made))


def digest_of(form: AnonymousConfirmation) -> str:
    """The digest that belongs into the form."""
    return f"sha256:{sha256(dumps(replace(form, digest=NO_DIGEST)).encode()).hexdigest()}"


def _with_invented_uuids(machine: Snapshot) -> Snapshot:
    """The machine with a number for each UUID: the views of a GPU still name the same one."""
    invented: dict[object, str] = {}

    def invent(kind: str, uuid: object) -> Any:
        if isinstance(uuid, Missing):
            return NOT_ASKED
        return invented.setdefault(uuid, INVENTED_UUID.format(kind=kind, number=len(invented)))

    def of_instance(one: MigInstance) -> MigInstance:
        return replace(one, uuid=invent("MIG", one.uuid))

    def of_device(device: Device) -> Device:
        instances = device.mig_instances
        if not isinstance(instances, Missing):
            instances = tuple(map(of_instance, instances))
        return replace(
            device, id=replace(device.id, uuid=invent("GPU", device.id.uuid)), mig_instances=instances
        )

    def of_view(view: DeviceView) -> DeviceView:
        return replace(view, uuid=invented.get(view.uuid, NOT_ASKED))

    devices = tuple(map(of_device, machine.devices))
    return replace(machine, devices=devices, views=tuple(map(of_view, machine.views)))


# --- what may leave


def without_private(noun: _T) -> _T:
    """The noun with only what may leave; one that has nothing else stays as it is."""
    made: Any = noun
    kept = {one.name: _kept_field(made, one.name) for one in fields(made)}
    return type(made)(**kept)  # type: ignore[no-any-return]


def _kept_field(noun: Any, name: str) -> Any:
    place = type(noun).__name__, name
    value = getattr(noun, name)
    if place in _EMPTY:
        return _EMPTY[place]
    if place in _ONLY_OF_THE_MACHINE:
        return NOT_ASKED
    if place == ("CheckOutcome", "missing"):
        readings = TEXTS["CheckOutcome", "read"]
        return {key: text for key, text in value.items() if readings(key) and REASONS(text)}
    keep = TEXTS.get(place, lambda text: None)
    kept = _kept(value, keep)
    return _instead(noun, name) if kept is None and value is not None else kept


def _kept(value: Any, keep: Callable[[str], str | None]) -> Any:
    """The value as it may leave; None where it may not."""
    if value is None or isinstance(value, Enum | bool | int | float):
        return value
    if isinstance(value, Missing):
        return Missing(value.reason)  # the source's own words stay
    if isinstance(value, str):
        return keep(value)
    if isinstance(value, datetime):
        return value.replace(hour=0, minute=0, second=0, microsecond=0)
    if isinstance(value, tuple):
        kept = (_kept(one, keep) for one in value)
        return tuple(one for one in kept if one is not None)
    return without_private(value) if is_dataclass(value) else None


def _instead(noun: Any, name: str) -> Any:
    """What stands for a text that stays: a reason, None, or a word, as the field allows."""
    kind: Any = type(noun)
    allowed = get_args(field_type(kind, name))
    if Missing in allowed:
        return NOT_ASKED
    return None if type(None) in allowed else LEFT_OUT


# --- its file


def write_anonymous(folder: Path) -> Path:
    """Write the form beside the report of that folder, and return its path.

    Raises:
        UsageError: the folder has no report and record of one machine.
    """
    report = decode(Confirmation, _document(folder / "report.json", Confirmation.SCHEMA))
    machine = loads((folder / "machine.json").read_text())
    if not isinstance(machine, Snapshot):
        raise UsageError(f"{folder / 'machine.json'} is not a recorded machine")
    path = folder / SHARED_FILE
    path.write_text(dumps(make_anonymous(report, machine), indent=1) + "\n")
    return path


def _document(path: Path, schema: str) -> Any:
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise UsageError(f"{path} is not a {schema}")
    return document


def main(arguments: Iterable[str]) -> int:
    """Write the form of a report that is there already."""
    parser = argparse.ArgumentParser(prog="python -m tools.confirm_on_gpu.anonymous", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(list(arguments)).folder
    try:
        print(write_anonymous(folder))
    except (OSError, ValueError, UsageError) as error:
        print(f"{folder}: no anonymous form: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
