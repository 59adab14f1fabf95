"""Every NVML function that gpudiag calls, misbehaving in every way in which one can: what the checks make of
it.

A cell is a function, a way to fail and a GPU. What is asked is taken from the simulated library's own counts,
so a new call is walked by itself. To be cheap, a walk starts no interpreter: the probe runs in a forked child
on a simulated library, and on a machine of several GPUs each GPU has a cell of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import Level
from gpudiag.checks.runner import run_checks
from gpudiag.compat import UTC
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot, SourceState, SourceStatus
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.reading import NOT_ASKED, Missing
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.host.answer import machine_of
from gpudiag.probe.inventory import Answers, join_answers
from gpudiag.probe.nvml.answer import nvml_answer_of
from gpudiag.probe.torch.answer import TorchAnswer
from gpudiag.reference.nvml import exported_functions
from gpudiag.runs.gate import judge_results
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.nvml.answers import ANY_SUBJECT, SUBJECTS_PER_GPU
from gpudiag.simulate.nvml.state import place_gpus
from gpudiag.simulate.session import Session, open_session

HANG = "hang"
LOST = "lost"  # the nth call answers 15, and all after it
CHECKS = tuple(check for check in BUILTIN if check.level is Level.INSTANT)

# nvmlReturn_t (nvml.h). What each says of a call on one GPU.
NOT_FOR_THIS_GPU = (3, 13, 22, 24, 25, 26, 30)  # not supported, not known to the driver, deprecated
NOT_FOR_THIS_USER = (4, 17)
GONE = {15: "gpu.lost", 28: "gpu.lost", 16: "gpu.recovery_needed"}
ERRORS = (1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 14, 18, 19, 20, 21, 23, 27, 29, 999)
CODES = (*NOT_FOR_THIS_GPU, *NOT_FOR_THIS_USER, *GONE, *ERRORS)

# Questions about no GPU's readings: texts of errors, the end.
_NOT_WALKED = ("nvmlErrorString", "nvmlShutdown")
_LOOK_UP = "nvmlDeviceGetHandleBy"
_ABOUT_NO_GPU = re.compile(r"nvml(Init|Shutdown|System|DeviceGetCount)")
# An invalid argument tells that a driver does not know this link, place, policy or field, where gpudiag asks
# for many.
_ENUMERATED = tuple(
    """
    nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkErrorCounter
    nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetViolationStatus nvmlDeviceGetFieldValues
    nvmlDeviceGetMigDeviceHandleByIndex
    """.split()
)
# Readings without which a check has looked all the same: by another of its readings, or they only refine.
_LOOKED_OTHERWISE = {
    name: frozenset(fields.split())
    for name, fields in {
        "gpu.lost": "recovery_action",  # the return codes say that it is lost
        "temperature.gpu": "temperature_margin_celsius temperature_margin_slowdown_celsius temperature_celsius"
        " temperature_slowdown_celsius",  # by margin or by degrees
        "temperature.memory": "temperature_memory_max_celsius",  # its model's
        # One of the two; where.
        "ecc.uncorrected": "ecc_uncorrected_volatile ecc_uncorrected_aggregate ecc_locations",
        "ecc.sram": "ecc_sram_threshold_exceeded ecc_locations",  # one of the two
        "ecc.mode": "brand",  # the name tells what is a data-center GPU as well
        "memory.size": "ecc_mode",  # how much ECC takes
        "memory.row_remap": "row_remap_histogram",  # the driver's own flags
        # Each by itself.
        "memory.repair": "memory_unrepairable memory_channel_repair_pending tpc_repair_pending",
        "driver.firmware": "vbios_version inforom_version inforom_valid gsp_firmware_version gsp_firmware_mode"
        " gsp_firmware_mode_default",  # each by itself
        "pcie.width": "pcie_width_slot_max",  # what the GPU can
        "pcie.generation": "pcie_generation_slot_max",
        # A link that is listed and down, NVSwitches: the model only adds how many there are.
        "nvlink.state": "name",
        "peer.access": "nvlinks",  # a link that is down is the cause
        # Any number without a word: it looks at whatever is there.
        "driver.values": " ".join(Device.__dataclass_fields__),
    }.items()
}
# Asked of two GPUs, both of which answer.
PAIRS = (
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetTopologyCommonAncestor",
)
_HEADER = struct.Struct("<8sIIQIIIIQQQQQ")  # gpudiag/simulate/nvml/answers.py
_FAULT = struct.Struct("<QQIiIIII")
_FOREVER = 0xFFFFFFFF
_PATIENT_SECONDS = 10.0
_NUMBERS = {name: number for number, name in enumerate(exported_functions())}


@dataclass(frozen=True, slots=True)
class Cell:
    """One way in which one function fails on one GPU; `nvml_index` None: on every GPU, or the library itself.

    `way` is HANG, LOST or a return code; `nth` the call from which a GPU is lost.
    """

    function: str
    way: str | int
    nvml_index: int | None = None
    nth: int = 1

    def __str__(self) -> str:
        """As a person reads it."""
        where = "" if self.nvml_index is None else f" on GPU {self.nvml_index}"
        way = f"lost from call {self.nth} on" if self.way == LOST else f"{self.function} {self.way}"
        return f"{way}{where}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the checks made of one experiment."""

    snapshot: Snapshot
    results: tuple[CheckResult, ...]
    verdict: Outcome

    def findings_on(self, nvml_index: int) -> list[Finding]:
        """Those about that GPU that are more than an observation."""
        return [
            finding
            for result in self.results
            for finding in result.findings
            if finding.outcome is not Outcome.PASS
            and isinstance(finding.subject, DeviceSubject)
            and finding.subject.nvml_index == nvml_index
        ]


@dataclass
class Walk:
    """A simulated machine on which experiments are made; see `walking`."""

    name: str
    session: Session
    answers: Answers
    places: list[Path]
    image: bytes
    subjects: Mapping[int, int]
    healthy: Seen = field(init=False)

    def functions(self) -> list[str]:
        """What gpudiag calls on this machine when all is well."""
        return sorted(name for name in self.session.call_counts() if name not in _NOT_WALKED)

    def calls_per_gpu(self) -> int:
        """How many calls each GPU gets, its look-up aside; the last are about it and another GPU."""
        counts = self.session.call_counts()
        total = sum(
            count for name, count in counts.items() if is_about_a_gpu(name) and not name.startswith(_LOOK_UP)
        )
        return total // max(1, len(self.healthy.snapshot.devices))

    def try_all(
        self, experiments: Sequence[tuple[Cell, ...]], deadline_seconds: float
    ) -> Iterator[tuple[tuple[Cell, ...], Seen]]:
        """Each experiment and what was seen of it, some at a time."""
        for start in range(0, len(experiments), len(self.places)):
            batch = experiments[start : start + len(self.places)]
            children = [self._start(place, cells) for place, cells in zip(self.places, batch, strict=False)]
            collect([(child, child.started_at + deadline_seconds) for child in children])
            for cells, child in zip(batch, children, strict=True):
                yield cells, self.see(child)

    def _start(self, place: Path, cells: tuple[Cell, ...]) -> GuardedChild:
        newer = place / "nvml.state.new"
        newer.write_bytes(with_faults(self.image, cells, self.subjects))
        newer.replace(place / "nvml.state")
        library = os.fspath(place / self.session.library.name)
        entry = "tests.scenarios.nvml_walk:ask_library"
        return start_guarded(entry, library, os.fspath(self.session.root))

    def see(self, child: GuardedChild) -> Seen:
        """What the checks make of what that child has sent."""
        answers = self.answers
        joined = Answers(
            nvml_answer_of(child),
            answers.machine,
            answers.host_status,
            answers.gputil_status,
            (),
            answers.torch,
            NOT_ASKED,
            (),
        )
        snapshot = join_answers(joined, {}, self.name, datetime.now(UTC))
        results = run_checks(Context(snapshot), CHECKS)
        return Seen(snapshot, results, judge_results(results))


def ask_library(emit: Any, library: str, root: str) -> None:
    """In a guarded child: the probe, on the simulated library at that path."""
    from gpudiag.probe.nvml.child import stream_nvml

    ctypes.CDLL(library)  # its SONAME satisfies pynvml's own search
    stream_nvml(emit, root)


class walking:
    """The walk of one base machine, as a context."""

    def __init__(self, machine: str, at_once: int = 4) -> None:
        """Know the machine; `at_once` experiments run at a time."""
        self._opened = open_session(load_scenario(machine))
        self._name = machine
        self._at_once = at_once

    def __enter__(self) -> Walk:
        """The machine, looked at once while all is well."""
        import pynvml  # noqa: F401 - loaded once, for all children

        import gpudiag.probe.nvml.child  # noqa: F401

        session = self._opened.__enter__()
        host = start_guarded("gpudiag.probe.host.machine:stream_machine", os.fspath(session.root))
        collect([(host, monotonic() + 20.0)])
        machine, host_status = machine_of(host, session.environment)
        asked = SourceStatus("gputil", SourceState.NOT_ASKED)
        torch = TorchAnswer(SourceStatus("torch", SourceState.NOT_ASKED), NOT_ASKED)
        answers = Answers(nvml_answer_of(None), machine, host_status, asked, (), torch, NOT_ASKED, ())
        image = (session.library.parent / "nvml.state").read_bytes()
        places = []
        for number in range(self._at_once):
            place = session.folder / f"place-{number}"
            place.mkdir()
            os.link(session.library, place / session.library.name)
            places.append(place)
        subjects = {placed.nvml_index: placed.subject for placed in place_gpus(session.scenario)}
        walk = Walk(self._name, session, answers, places, image, subjects)
        counted = start_guarded(
            "tests.scenarios.nvml_walk:ask_library", os.fspath(session.library), os.fspath(session.root)
        )
        collect([(counted, monotonic() + 20.0)])
        walk.healthy = walk.see(counted)
        return walk

    def __exit__(self, *_: object) -> None:
        """Remove the machine."""
        self._opened.__exit__(None, None, None)


def with_faults(image: bytes, cells: Iterable[Cell], subjects: Mapping[int, int]) -> bytes:
    """The state file with those calls misbehaving; `subjects` are the library's numbers for the GPUs."""
    header = list(_HEADER.unpack_from(image))
    cells = tuple(cells)
    start = -(-len(image) // 8) * 8
    size = (len(_NUMBERS) + 7) // 8
    hits = [(cell, subject) for cell in cells for subject in _subjects_of(cell, subjects)]
    bitmaps = start + len(hits) * _FAULT.size
    faults, maps = b"", b""
    for number, (cell, subject) in enumerate(hits):
        hit = bytearray(size)
        for name in _functions_of(cell):
            hit[_NUMBERS[name] // 8] |= 1 << _NUMBERS[name] % 8
        code = -1 if cell.way == HANG else 15 if cell.way == LOST else int(cell.way)
        faults += _FAULT.pack(
            cells.index(cell) + 1,
            0,
            subject,
            code,
            cell.way == HANG,
            cell.nth,
            _FOREVER,
            bitmaps + number * size,
        )
        maps += bytes(hit)
    header[3], header[6], header[10] = bitmaps + len(maps), len(hits), start
    return b"".join(
        (_HEADER.pack(*header), image[_HEADER.size :].ljust(start - _HEADER.size, b"\0"), faults, maps)
    )


def _subjects_of(cell: Cell, subjects: Mapping[int, int]) -> Iterable[int]:
    """The handles that a fault is on: a GPU's own, and those of its MIG devices."""
    if cell.nvml_index is None:
        return (ANY_SUBJECT,)
    first = subjects[cell.nvml_index]
    return range(first, first + SUBJECTS_PER_GPU)


def _functions_of(cell: Cell) -> list[str]:
    if cell.way != LOST:
        return [cell.function]
    return [name for name in _NUMBERS if name.startswith("nvmlDevice") and not name.startswith(_LOOK_UP)]


def is_about_a_gpu(function: str) -> bool:
    """Whether it takes a GPU's handle, or looks one up."""
    return not _ABOUT_NO_GPU.match(function)


def wrong(cell: Cell, seen: Seen, healthy: Seen) -> str:
    """What is wrong with what was seen of that cell; empty where it was judged as it should be."""
    if cell.nvml_index is None:
        if cell.way in (*NOT_FOR_THIS_GPU, *NOT_FOR_THIS_USER):
            return passes_unread(seen, healthy)
        return "" if seen.verdict in (Outcome.FAIL, Outcome.ERROR) else f"verdict {seen.verdict}"
    found = {finding.code for finding in seen.findings_on(cell.nvml_index)}
    if cell.way == HANG:
        # A handle that does not come may be that of a GPU which the driver is attaching.
        attaching = cell.function.startswith(_LOOK_UP) and found == {"gpu.attaching"}
        wanted = {"gpu.attaching"} if attaching else {"gpu.hung"}
    elif cell.way == LOST:
        wanted = {"gpu.lost"}
    elif cell.function in PAIRS and cell.way in GONE:
        return "" if found else "nothing is said of the GPU"  # by itself it answers: it is not lost
    elif cell.way in GONE:
        wanted = {GONE[int(cell.way)]}
    elif cell.way in (*NOT_FOR_THIS_GPU, *NOT_FOR_THIS_USER) or (
        cell.way == 2 and cell.function in _ENUMERATED
    ):
        return ""  # judged where no GPU answers it
    else:
        return "" if found else "nothing is said of the GPU"
    return "" if found == wanted else f"found {sorted(found)}, not {sorted(wanted)}"


def passes_unread(seen: Seen, healthy: Seen) -> str:
    """The checks that pass although what they read is not there, on any GPU, and was there on the healthy
    machine.
    """
    gone = _missing(seen.snapshot) - _missing(healthy.snapshot)
    if not seen.snapshot.devices:
        return "" if seen.verdict is not Outcome.PASS else "passes without a GPU"
    passed = [result.check for result in seen.results if result.outcome is Outcome.PASS]
    reads = {check.name: _reads(check.readings) for check in CHECKS}
    unread = {name: (reads[name] & gone) - _LOOKED_OTHERWISE.get(name, frozenset()) for name in passed}
    told = [f"{name} ({', '.join(sorted(fields))})" for name, fields in unread.items() if fields]
    return f"passes unread: {'; '.join(told)}" if told else ""


def _missing(snapshot: Snapshot) -> set[str]:
    """The readings that no GPU gives, and those parts of lists that none of their members has."""
    if not snapshot.devices:
        return set()
    return {
        name
        for name in Device.__dataclass_fields__
        if all(isinstance(getattr(device, name), Missing) for device in snapshot.devices)
    }


def _reads(texts: Iterable[str]) -> set[str]:
    """The fields of a GPU that a check says it reads."""
    words = set(re.findall(r"[a-z_0-9]+", " ".join(texts)))
    return words & set(Device.__dataclass_fields__)


def walk_machine(
    walk: Walk, ways: Sequence[str | int], *, part: int = 0, parts: int = 1, deadline_seconds: float = 0.5
) -> tuple[int, list[str]]:
    """How many cells were walked on that machine, and what was wrong with those that were judged wrongly.

    Every function meets every `parts`-th of the ways, another one than its neighbour; `part` shifts them.
    What seems wrong may be a machine that is too busy for the deadline: it is tried once more, alone and with
    patience.
    """
    chosen = list(_plan(walk, ways, part, parts))
    suspects = [cell for cell, _ in _judged(walk, chosen, deadline_seconds)]
    sure = _judged(walk, [(cell,) for cell in suspects], _PATIENT_SECONDS)
    return sum(map(len, chosen)), [f"{walk.name}: {cell}: {words}" for cell, words in sure]


def _judged(
    walk: Walk, experiments: Sequence[tuple[Cell, ...]], deadline_seconds: float
) -> Iterator[tuple[Cell, str]]:
    for cells, seen in walk.try_all(experiments, deadline_seconds):
        for cell in cells:
            words = wrong(cell, seen, walk.healthy)
            if words:
                yield cell, words


def _plan(walk: Walk, ways: Sequence[str | int], part: int, parts: int) -> Iterator[tuple[Cell, ...]]:
    """The experiments: as many cells in one as there are GPUs, where they do not disturb each other."""
    gpus = len(walk.healthy.snapshot.devices)
    together: dict[str, list[tuple[str, str | int]]] = {"hang": [], "error": []}
    for place, function in enumerate(walk.functions()):
        for number, way in enumerate(ways):
            if way == LOST or (number + place + part) % parts:
                continue
            unanswered = way in (*NOT_FOR_THIS_GPU, *NOT_FOR_THIS_USER)
            if unanswered or not is_about_a_gpu(function):
                yield (Cell(function, way),)
            elif function in PAIRS or way in GONE:
                yield (Cell(function, way, (place + number) % gpus),)
            else:
                together["hang" if way == HANG else "error"].append((function, way))
    for pairs in together.values():
        for start in range(0, len(pairs), gpus):
            yield tuple(Cell(*pair, index) for index, pair in enumerate(pairs[start : start + gpus]))
    if LOST in ways and gpus:
        yield from _losses(walk, part, parts)


def _losses(walk: Walk, part: int, parts: int) -> Iterator[tuple[Cell, ...]]:
    gpus, calls = len(walk.healthy.snapshot.devices), walk.calls_per_gpu()
    about_two = len(PAIRS) * 3 // 2 * (gpus - 1)
    alone = calls - about_two
    nths = range(1 + part % parts, alone + 1, parts)
    for start in range(0, len(nths), gpus):
        yield tuple(Cell("", LOST, index, nth) for index, nth in enumerate(nths[start : start + gpus]))
    for nth in range(alone + 1 + part % parts, calls + 1, parts):
        yield (Cell("", LOST, nth % gpus, nth),)
