"""torch's answer as nouns: its build, what it counts, and on which GPUs a context really starts."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpudiag.model.codec import all_missing, decode, missing_of, noun, read_sheet, readings_of
from gpudiag.model.device import DeviceView, SourceState, SourceStatus, TorchFacts
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, start_program

SOURCE = "torch"
_ABSENT_MODULE = re.compile(r"No module named '([\w.]+)'")
# `import torch` takes 1.4 to 2.3 s of processor time, and many times that from a cold network file
# system; a first context on an idle GPU without persistence mode takes seconds more.
DEADLINE_SECONDS = 30.0
CPU_BUILD = "CPU build of torch"
_NO_GPUS = "No CUDA GPUs are available"  # torch's words for a driver that works and lists none
_PROGRAM = os.path.join(os.path.dirname(__file__), "program.py")
# On a simulated machine torch's answer is read from the file that this variable names, as
# {"facts": {...}, "devices": [...]} in the form of the JSON documents, or {"absent": true}.
SIMULATED_ANSWER = "GPUDIAG_SIMULATED_TORCH"


@noun
class TorchAnswer:
    """How torch answered, what it is, and its view of each GPU."""

    status: SourceStatus
    facts: Reading[TorchFacts]
    views: tuple[DeviceView, ...] = ()


def start_torch(environment: Mapping[str, str], python: str | None = None) -> GuardedChild:
    """A child that asks torch, in this interpreter or in `python`, the one whose torch is judged."""
    return start_program([python or sys.executable, _PROGRAM], environment)


def torch_answer_of(child: GuardedChild, python: str | None = None) -> TorchAnswer:
    """The answer of an ended child of `start_torch`; what did not come in time is TIMED_OUT."""
    answers = {kind: content for kind, *content in child.messages if kind != "device"}
    if "absent" in answers:
        return _absent(answers["absent"][0], python, child.seconds)
    if "build" not in answers:
        return _without_build(child, python)
    counts = answers["counts"][0] if "counts" in answers else None
    documents = {message[1]: message[2] for message in child.messages if message[0] == "device"}
    expected = counts["device_count"] if counts and counts["cuda_available"] else 0
    late = _why_late(child)
    views = tuple(_view(ordinal, documents.get(ordinal), late) for ordinal in range(expected))
    facts = _facts(answers["build"][0], counts, views, late)
    return TorchAnswer(_status(facts, views, child.seconds), facts, views)


def simulated_torch_answer(path: str) -> TorchAnswer:
    """Torch's answer on a simulated machine, from the scenario's file."""
    with open(path) as file:
        answer: dict[str, Any] = json.load(file)
    if answer.get("absent"):
        return _absent("torch is not installed", None, NOT_ASKED)
    facts = decode(TorchFacts, answer["facts"])
    views = tuple(decode(DeviceView, view) for view in answer.get("devices", []))
    return TorchAnswer(_status(facts, views, NOT_ASKED), facts, views)


def _why_late(child: GuardedChild) -> Missing:
    """Why an ended child did not give an answer."""
    if child.ending == "timed_out":
        return Missing(MissingReason.TIMED_OUT, f"no answer within {child.seconds:.1f} s")
    return Missing(MissingReason.ERROR, f"asking torch failed: {_last_line(child)}")


def _absent(words: str, python: str | None, seconds: Reading[float]) -> TorchAnswer:
    from gpudiag.installed import pip_command  # late, as in gputil/answer.py

    reason = f"{words}: {pip_command('torch', python=python or sys.executable)}"
    status = SourceStatus(SOURCE, SourceState.LIBRARY_ABSENT, reason, seconds)
    return TorchAnswer(status, Missing(MissingReason.SOURCE_ABSENT, words))


def _without_build(child: GuardedChild, python: str | None) -> TorchAnswer:
    """Torch could not be imported, or not in time."""
    if child.ending == "timed_out":
        words = f"`import torch` gave no answer within {child.seconds:.1f} s"
        status = SourceStatus(SOURCE, SourceState.TIMED_OUT, words, child.seconds)
        return TorchAnswer(status, Missing(MissingReason.TIMED_OUT, words))
    words = f"`import torch` failed: {_last_line(child)}"
    absent = _ABSENT_MODULE.search(words)
    if absent:
        from gpudiag.installed import repair_command

        words += f": {repair_command(absent[1], python=python or sys.executable)}"
    status = SourceStatus(SOURCE, SourceState.FAILED, words, child.seconds)
    return TorchAnswer(status, Missing(MissingReason.ERROR, words))


def _last_line(child: GuardedChild) -> str:
    """The last line of the child's output: of a traceback, the error itself."""
    return child.detail.splitlines()[-1] if child.detail else str(child.ending)


def _view(ordinal: int, sheet: dict[str, Any] | None, late: Missing) -> DeviceView:
    """One GPU as torch shows it; `late` is the reason where its sheet did not come."""
    given: dict[str, Any] = {"source": SOURCE, "source_index": ordinal}
    for field in ("memory_used_bytes", "utilization_percent", "driver_version"):
        given[field] = Missing(MissingReason.NOT_SUPPORTED, "torch does not report it")
    if sheet is None:
        return all_missing(DeviceView, late, **given)
    why = missing_of(sheet, "context_starts")
    if why is not None:
        known = {field: sheet[field] for field in ("uuid", "bus_id") if field in sheet}
        return all_missing(DeviceView, why, **given, **known)
    return replace(read_sheet(DeviceView, sheet), **given)


def _facts(
    build: dict[str, Any], counts: dict[str, Any] | None, views: tuple[DeviceView, ...], late: Missing
) -> TorchFacts:
    given: dict[str, Any]
    if missing_of(build, "cuda_runtime_version") is not None:
        cpu = Missing(MissingReason.NOT_SUPPORTED, CPU_BUILD)
        given = {"cuda_available": False, "device_count": 0, "nvml_device_count": cpu, "context_starts": cpu}
    elif counts is None:
        names = ("cuda_available", "device_count", "nvml_device_count", "context_starts")
        given = dict.fromkeys(names, late)
    else:
        given = readings_of(TorchFacts, counts)
        given["context_starts"] = _context_starts(counts["init_error"], views)
    return replace(read_sheet(TorchFacts, build), **given)


def _context_starts(init_error: str | None, views: tuple[DeviceView, ...]) -> Reading[bool]:
    """True where a context started on every GPU that torch counts, else the first reason why not."""
    if init_error is not None:
        return Missing(MissingReason.ERROR, init_error)
    if not views:
        return Missing(MissingReason.ERROR, "CUDA lists no GPU")
    failed = [view.context_starts for view in views if isinstance(view.context_starts, Missing)]
    if not failed:
        return True
    where = "" if len(failed) == len(views) else f"on {len(failed)} of {len(views)} GPUs: "
    return Missing(failed[0].reason, f"{where}{failed[0].detail}")


def _status(facts: TorchFacts, views: Sequence[DeviceView], seconds: Reading[float]) -> SourceStatus:
    """How torch answered, from what it is and what it counts."""
    count, starts = facts.device_count, facts.context_starts
    if isinstance(facts.cuda_runtime_version, Missing):
        state, reason = SourceState.NO_DEVICES, f"{CPU_BUILD} {facts.version}: it uses no GPU"
    elif isinstance(count, Missing):
        late = count.reason is MissingReason.TIMED_OUT
        state, reason = SourceState.TIMED_OUT if late else SourceState.FAILED, count.detail
    elif isinstance(starts, Missing) and _NO_GPUS in starts.detail:
        state, reason = SourceState.NO_DEVICES, starts.detail
    elif isinstance(starts, Missing):
        state = SourceState.OK if facts.cuda_available is True else SourceState.FAILED
        some_start = any(view.context_starts is True for view in views)
        reason = f"no CUDA context starts{'' if some_start else ':'} {starts.detail}"
    else:
        return SourceStatus(SOURCE, SourceState.OK, None, seconds, count)
    return SourceStatus(SOURCE, state, reason, seconds, count)
