"""GPUtil's answer as nouns: its status, each failure with its own state, and its view of each GPU."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from gpudiag.model.device import DeviceView, SourceState, SourceStatus
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, start_program
from gpudiag.units import MIB

SOURCE = "gputil"
DEADLINE_SECONDS = 5.0
_PROGRAM = os.path.join(os.path.dirname(__file__), "program.py")

# The messages of nvidia-smi, and the state that each means. Exit statuses: nvidia-smi(1), "RETURN VALUE".
_SENTENCES = (
    ("No devices were found", None, SourceState.NO_DEVICES),
    ("couldn't communicate with the NVIDIA driver", 9, SourceState.DRIVER_NOT_LOADED),
    ("version mismatch", 18, SourceState.VERSION_MISMATCH),
    ("Insufficient Permissions", 4, SourceState.NO_PERMISSION),
    ("couldn't find libnvidia-ml.so", 12, SourceState.LIBRARY_ABSENT),
)
_MEANINGS = {
    6: ", a query for a GPU failed",
    8: ", a GPU's power cables are not attached",
    14: ", an infoROM is corrupted",
    15: ", a GPU is off the bus",
}
# Where nvidia-smi writes no value, and why; `[GPU is lost]` and so on.
_REASON_OF_CELL = (
    ("gpu is lost", MissingReason.DEVICE_LOST),
    ("n/a", MissingReason.NOT_SUPPORTED),
    ("not supported", MissingReason.NOT_SUPPORTED),
    ("permission", MissingReason.NO_PERMISSION),
)
# The columns of the query that GPUtil 1.4.0 runs, as far as they matter here.
_COLUMNS = {"uuid": 1, "load": 2, "memoryTotal": 3, "memoryUsed": 4, "memoryFree": 5, "driver": 6, "name": 7}
_COLUMN_COUNT = 12


def start_gputil(environment: Mapping[str, str]) -> GuardedChild:
    """A child that runs GPUtil, and with it nvidia-smi, which would outlive a plain kill."""
    return start_program([sys.executable, _PROGRAM], {**environment, "LC_ALL": "C"})


def gputil_answer_of(child: GuardedChild) -> tuple[SourceStatus, tuple[DeviceView, ...]]:
    """The status and the views of an ended child of `start_gputil`."""
    answers = {kind: content for kind, *content in child.messages}
    if "gpus" in answers:
        gpus, run = answers["gpus"]
        cells = {line.split(", ")[0]: line.split(", ") for line in run["lines"] if is_row(line)}
        views = tuple(_view(gpu, cells.get(str(gpu["id"]), [])) for gpu in gpus)
        state, reason = classify_run(run, len(views))
        return _status(child, state, reason, len(views)), views
    if "not_installed" in answers:
        from gpudiag.installed import pip_command  # late: a list in which GPUtil answers needs none of it

        words = f"GPUtil is not installed: {pip_command('GPUtil')}"
        return _status(child, SourceState.LIBRARY_ABSENT, words), ()
    if "absent" in answers:
        return _status(child, SourceState.LIBRARY_ABSENT, answers["absent"][0]), ()
    if child.ending == "timed_out":
        words = f"nvidia-smi, which GPUtil runs, gave no answer within {child.seconds:.1f} s"
        return _status(child, SourceState.TIMED_OUT, words), ()
    last_line = child.detail.splitlines()[-1] if child.detail else child.ending
    return _status(child, SourceState.FAILED, f"GPUtil failed: {last_line}"), ()


def _status(
    child: GuardedChild, state: SourceState, reason: str | None, count: int | None = None
) -> SourceStatus:
    answered = state in (SourceState.OK, SourceState.NO_DEVICES)
    why = Missing(MissingReason.TIMED_OUT if state is SourceState.TIMED_OUT else MissingReason.SOURCE_ABSENT)
    device_count = count if answered and count is not None else why
    return SourceStatus(SOURCE, state, reason, child.seconds, device_count)


def classify_run(run: Mapping[str, Any], view_count: int) -> tuple[SourceState, str | None]:
    """The state, and what nvidia-smi printed besides rows; `run`: exit status, lines, GPUtil's error."""
    sentences = [line.strip() for line in run["lines"] if line.strip() and not is_row(line)]
    message = sentences[0] if sentences else ""
    status, error = run["status"], run["error"]
    crashes = f" (GPUtil raises {error.partition(':')[0]})" if error else ""
    for sentence, exit_status, state in _SENTENCES:
        if view_count == 0 and (sentence in message or (exit_status is not None and status == exit_status)):
            return state, f"nvidia-smi: {message or f'exit status {status}'}{crashes}"
    if view_count and not message and not status and not error:
        return SourceState.OK, None
    exit_words = f"exit status {status}{_MEANINGS.get(status, '')}"
    words = message or (exit_words if status else error or "it printed nothing")
    return (SourceState.OK if view_count else SourceState.FAILED), f"nvidia-smi: {words}{crashes}"


def is_row(line: str) -> bool:
    """Whether a line of nvidia-smi is a row of the query: it starts with a GPU's index."""
    cells = line.split(", ")
    return len(cells) >= _COLUMN_COUNT and cells[0].isdecimal()


def _view(gpu: Mapping[str, Any], cells: list[str]) -> DeviceView:
    """One GPU as GPUtil shows it; `cells` are the row of nvidia-smi that it was made from."""
    load = _number(gpu, "load", cells)
    return DeviceView(
        source=SOURCE,
        source_index=gpu["id"],
        uuid=_text(gpu, "uuid", cells),
        bus_id=Missing(MissingReason.NOT_SUPPORTED, "GPUtil does not ask for it"),
        name=_name(gpu, cells),
        memory_total_bytes=_bytes(gpu, "memoryTotal", cells),
        memory_used_bytes=_bytes(gpu, "memoryUsed", cells),
        memory_free_bytes=_bytes(gpu, "memoryFree", cells),
        utilization_percent=load if isinstance(load, Missing) else round(load * 100),
        driver_version=_text(gpu, "driver", cells),
    )


def _bytes(gpu: Mapping[str, Any], member: str, cells: list[str]) -> Reading[int]:
    """GPUtil's MiB as bytes; a total of 0 is no total."""
    number = _number(gpu, member, cells)
    if isinstance(number, Missing):
        return number
    if member == "memoryTotal" and number == 0:
        return Missing(MissingReason.NOT_SUPPORTED, "nvidia-smi reports 0")
    return round(number * MIB)


def _number(gpu: Mapping[str, Any], member: str, cells: list[str]) -> Reading[float]:
    """A number of GPUtil's; where it has NaN, the reason that nvidia-smi wrote in its place."""
    number = gpu[member]
    return reason_of_cell(_cell(member, cells)) if number is None else float(number)


def _text(gpu: Mapping[str, Any], member: str, cells: list[str]) -> Reading[str]:
    text: str = gpu[member]
    return reason_of_cell(text) if text.startswith("[") or not text else text


def _name(gpu: Mapping[str, Any], cells: list[str]) -> Reading[str]:
    if len(cells) > _COLUMN_COUNT:
        return Missing(MissingReason.ERROR, "the name contains a comma, and GPUtil cuts it there")
    return _text(gpu, "name", cells)


def _cell(member: str, cells: list[str]) -> str:
    return cells[_COLUMNS[member]] if len(cells) > _COLUMNS[member] else ""


def reason_of_cell(cell: str) -> Missing:
    """Why nvidia-smi wrote words such as `[N/A]` in place of a value."""
    for words, reason in _REASON_OF_CELL:
        if words in cell.lower():
            return Missing(reason, cell)
    return Missing(MissingReason.ERROR, cell or "nvidia-smi wrote nothing")
