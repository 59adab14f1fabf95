"""What differs between two looks at one machine, or at two of a kind; what matters, and whose it is.

The facts are those that `--expect` compares (`expected.py`), and a few that only a person wants to know.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gpudiag.checks.expected import GPU_FACTS, MEMORY_SHARE, name_ports, pair_gpus
from gpudiag.checks.ranks.speed_list import speeds_of
from gpudiag.checks.subjects import name_device
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, PEER_COPY
from gpudiag.model.comparison import Difference, Whose
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject, LinkSubject, RankSubject, Subject
from gpudiag.model.finding import WORST_FIRST, Category, Finding, MeasuredSpeed, Outcome, Owner
from gpudiag.model.host_state import HostState
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Report
from gpudiag.model.untrusted_text import MASK, names_secret
from gpudiag.reference.speeds import speed_limits
from gpudiag.units import BYTES_PER_GB, format_size, significant

_ANSWERS = "answers"
_SETTING = "a setting: align it, or take it as wanted"
_MEANS_NOTHING = "two boards are never alike in it"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: the snapshot, and the report with its speeds where there is one."""

    snapshot: Snapshot
    report: Report | None = None
    speeds: tuple[MeasuredSpeed, ...] = ()

    @classmethod
    def of(cls, report: Report, speeds: tuple[MeasuredSpeed, ...] = ()) -> "Side":
        """The side of a report; with the judged speeds of its receipt."""
        return cls(report.snapshot, report, speeds or speeds_of(report))


@dataclass(frozen=True, slots=True)
class Compared:
    """All differences, worst first; how many facts are alike; and what could not be compared."""

    same_machine: bool
    differences: tuple[Difference, ...]
    alike: int
    not_compared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fact:
    """One fact of both sides, and what a difference in it means."""

    whose: Whose
    where: str
    name: str
    before: Reading[Any]
    now: Reading[Any]
    outcome: Outcome
    why: str
    index: int | None = None  # of the GPU


def compare_sides(before: Side, now: Side) -> Compared:
    """Everything that differs between the two sides, with its part and whether it matters."""
    pairs = tuple(pair_gpus(before.snapshot, now.snapshot))
    same = is_same_machine(before.snapshot, now.snapshot)
    facts = [*_host_facts(before.snapshot, now.snapshot), *_gpu_facts(pairs, same_machine=same)]
    known = [one for one in facts if not isinstance(one.before, Missing) and not isinstance(one.now, Missing)]
    different = [one for one in known if str(one.before) != str(one.now)]
    found = [*_count(before.snapshot, now.snapshot, pairs, same_machine=same), *_grouped(different)]
    not_compared = [*_only_one(facts)]
    alike = len(known) - len(different)
    if before.report is None or now.report is None:
        both = before.report is None and now.report is None
        not_compared.append(
            f"checks and speeds: {'both are snapshots' if both else 'one of the two is a snapshot'}"
        )
    else:
        found += _finding_differences(before.report, now.report, pairs)
        slower, equal, alone = _speed_differences(before, now, pairs, found)
        found += slower
        alike += equal
        not_compared += alone
    order = sorted(found, key=lambda one: WORST_FIRST.index(one.outcome))
    return Compared(same, tuple(order), alike, tuple(not_compared))


def is_same_machine(before: Snapshot, now: Snapshot) -> bool:
    """Whether both are of one machine: they have a GPU in common; without GPUs, the name."""
    known = [
        {one.id.uuid for one in side.devices if not isinstance(one.id.uuid, Missing)}
        for side in (before, now)
    ]
    if all(known):
        return bool(known[0] & known[1]) or (before.host == now.host and len(known[0]) != len(known[1]))
    return before.host == now.host


# --- the host, its driver, and its software


def _host_facts(before: Snapshot, now: Snapshot) -> Iterator[_Fact]:
    in_container = now.machine.container is not None or before.machine.container is not None
    software = Whose.CONTAINER if in_container else Whose.SOFTWARE

    def fact(
        whose: Whose,
        name: str,
        read: Callable[[Snapshot], Reading[Any]],
        why: str,
        outcome: Outcome = Outcome.WARN,
    ) -> _Fact:
        return _Fact(whose, now.host, name, read(before), read(now), outcome, why)

    version = "another version: speeds and faults of the one need not be those of the other"
    yield fact(Whose.DRIVER, "driver", lambda one: one.driver_version, version)
    yield fact(Whose.DRIVER, "kernel module", lambda one: one.machine.kernel_driver_flavor, version)
    yield fact(Whose.DRIVER, "fabric manager", _fabric_manager, version)
    yield fact(Whose.HOST, "kernel", lambda one: one.machine.kernel_release, version)
    yield fact(
        software if in_container else Whose.HOST,
        "operating system",
        lambda one: one.machine.operating_system,
        version,
    )
    yield fact(Whose.HOST, "processor", lambda one: one.machine.processor, "another processor")
    yield fact(
        Whose.HOST,
        "logical processors",
        lambda one: one.machine.logical_processors,
        "more or fewer processors",
    )
    yield _memory(before, now)
    yield fact(Whose.NETWORK, "RDMA ports", name_ports, "a card or port is gone, or new")
    yield fact(Whose.HOST, "IOMMU", _iommu, "it decides whether GPUs reach each other and cards directly")
    yield fact(
        Whose.HOST,
        "bridges that redirect (ACS)",
        _bridges,
        "they send traffic between GPUs through the processor",
    )
    for name, field in (
        ("torch", "version"),
        ("CUDA of torch", "cuda_runtime_version"),
        ("NCCL", "nccl_version"),
    ):
        yield fact(software, name, lambda one, field=field: _torch(one, field), version)  # type: ignore[misc]
    yield fact(
        Whose.CONTAINER,
        "container",
        lambda one: _container(one),
        "it decides which files, limits and devices there are",
    )
    where = Whose.CONTAINER if in_container else Whose.HOST
    yield fact(
        where,
        "allowed processors",
        lambda one: one.machine.logical_processors_allowed,
        "the job may use more or fewer",
    )
    yield fact(
        where,
        "shared memory",
        lambda one: _size(one.machine.shared_memory_total_bytes),
        "NCCL and data loaders share memory there",
    )
    yield fact(where, "memory limit", _memory_limit, "the job may use more or less")
    yield from _variables(before, now)


def _memory(before: Snapshot, now: Snapshot) -> _Fact:
    """The host's memory: firmware and kernel keep a little more or less of it for themselves."""
    first, second = before.machine.memory_total_bytes, now.machine.memory_total_bytes
    if isinstance(first, int) and isinstance(second, int):
        second = first if min(first, second) >= MEMORY_SHARE * max(first, second) else second
    why = "a memory module is gone, or new"
    return _Fact(Whose.HOST, now.host, "memory", _size(first), _size(second), Outcome.WARN, why)


def _variables(before: Snapshot, now: Snapshot) -> Iterator[_Fact]:
    """Every variable that steers CUDA, NCCL, gloo and torch."""
    first, second = _environment(before), _environment(now)
    if first is None or second is None:
        return
    why = "a variable of the job: unset it, or set it on both"
    for name in sorted({*first, *second}):
        was, is_now = (MASK if names_secret(name) else one.get(name, "not set") for one in (first, second))
        yield _Fact(Whose.JOB, now.host, name, was, is_now, Outcome.WARN, why)


def _environment(snapshot: Snapshot) -> Mapping[str, str] | None:
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.settings, Missing):
        return None
    return state.settings.environment


def _torch(snapshot: Snapshot, field: str) -> Reading[Any]:
    return snapshot.torch if isinstance(snapshot.torch, Missing) else getattr(snapshot.torch, field)


def _container(snapshot: Snapshot) -> str:
    container = snapshot.machine.container
    return "none" if container is None else container.runtime


def _fabric_manager(snapshot: Snapshot) -> Reading[Any]:
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.fabric_manager, Missing):
        return NOT_ASKED
    manager = state.fabric_manager
    version = "" if isinstance(manager.version, Missing) else f" {manager.version}"
    return f"{'runs' if manager.running else 'does not run'}{version}"


def _iommu(snapshot: Snapshot) -> Reading[Any]:
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.iommu, Missing):
        return NOT_ASKED
    return ", ".join(state.iommu.kinds) or "off"


def _bridges(snapshot: Snapshot) -> Reading[Any]:
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.redirecting_bridges, Missing):
        return NOT_ASKED
    return len(state.redirecting_bridges)


def _memory_limit(snapshot: Snapshot) -> Reading[Any]:
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.cgroup, Missing):
        return NOT_ASKED
    limit = state.cgroup.memory_limit_bytes
    return limit if isinstance(limit, Missing) else "none" if limit is None else format_size(limit)


def _size(reading: Reading[int]) -> Reading[str]:
    return reading if isinstance(reading, Missing) else format_size(reading)


# --- GPUs

_OF_LINKS = ("highest PCIe generation", "highest PCIe width", "active NVLinks")
_OF_THE_BOARD = ("model", "memory", "VBIOS")
_IDENTITIES: tuple[tuple[str, Callable[[Device], Reading[Any]]], ...] = (
    ("UUID", lambda device: device.id.uuid),
    ("serial number", lambda device: device.serial),
    ("slot", lambda device: device.id.bus_id),
)
_FIRMWARE: tuple[tuple[str, Callable[[Device], Reading[Any]]], ...] = (
    ("board", lambda device: device.board_part_number),
    ("GSP firmware", lambda device: device.gsp_firmware_version),
    ("InfoROM", lambda device: device.inforom_version),
)
# Counts over a board's life: a rise is news of that board, and two boards are not comparable.
_COUNTS: tuple[tuple[str, Callable[[Device], Reading[Any]], Outcome], ...] = (
    ("uncorrected ECC errors", lambda device: device.ecc_uncorrected_aggregate, Outcome.WARN),
    ("corrected ECC errors", lambda device: device.ecc_corrected_aggregate, Outcome.PASS),
    ("rows remapped for uncorrected errors", lambda device: device.row_remap_uncorrectable, Outcome.WARN),
    ("rows remapped for corrected errors", lambda device: device.row_remap_correctable, Outcome.PASS),
    ("pages retired for uncorrected errors", lambda device: device.retired_pages_uncorrected, Outcome.WARN),
)


def _gpu_facts(pairs: Sequence[tuple[Device, Device]], *, same_machine: bool) -> Iterator[_Fact]:
    for before, now in pairs:
        yield from _facts_of(before, now, same_machine=same_machine)


def _facts_of(before: Device, now: Device, *, same_machine: bool) -> Iterator[_Fact]:
    index = None if isinstance(now.id.nvml_index, Missing) else now.id.nvml_index
    where = name_device(now) if index is None else f"GPU {index}"
    for name, read in GPU_FACTS:
        whose = Whose.LINK if name in _OF_LINKS else Whose.GPU
        outcome = Outcome.FAIL if name == "model" else Outcome.WARN
        why = (
            "another board"
            if name in _OF_THE_BOARD
            else "fewer lanes or links"
            if whose is Whose.LINK
            else _SETTING
        )
        yield _Fact(whose, where, name, read(before), read(now), outcome, why, index)
    for name, read in _FIRMWARE:
        yield _Fact(
            Whose.GPU, where, name, read(before), read(now), Outcome.WARN, "another board or firmware", index
        )
    replaced = before.id.uuid != now.id.uuid
    for name, read in _IDENTITIES:
        why = "the board was replaced, or moved" if same_machine else _MEANS_NOTHING
        outcome = Outcome.WARN if same_machine else Outcome.PASS
        yield _Fact(Whose.GPU, where, name, read(before), read(now), outcome, why, index)
    for name, read, outcome in () if replaced else _COUNTS:
        why = (
            "it happened between the two"
            if outcome is Outcome.WARN
            else "ECC corrected them, or spare rows took their place"
        )
        yield _Fact(Whose.GPU, where, name, read(before), read(now), outcome, why, index)


def _count(
    before: Snapshot, now: Snapshot, pairs: Sequence[tuple[Device, Device]], *, same_machine: bool
) -> Iterator[Difference]:
    """GPUs that one of the two has alone, and those that answer in one alone."""
    paired = {id(one) for pair in pairs for one in pair}
    for first, second, outcome, words in (
        (before, now, Outcome.FAIL, ("here", "not here")),
        (now, before, Outcome.WARN, ("not here", "here")),
    ):
        for device in first.devices:
            if id(device) in paired:
                continue
            silent = device.responding is not True
            counterpart = any(
                one.id.uuid == device.id.uuid or one.id.bus_id == device.id.bus_id for one in second.devices
            )
            if silent and first is before and counterpart:
                continue  # it did not answer before; now it is compared as a new one
            if counterpart and first is before:
                reason = "it answered before"
                yield Difference(Whose.GPU, name_device(device), _ANSWERS, "yes", "no", Outcome.FAIL, reason)
            elif not silent and not (counterpart and first is now):
                why = "a GPU is gone" if first is before else "there is one more"
                yield Difference(
                    Whose.GPU, f"{name_device(device)} {_identity(device)}", "GPU", *words, outcome, why
                )


def _identity(device: Device) -> str:
    named = (("serial", device.serial), ("", device.id.uuid))
    known = (f"{name} {value}".strip() for name, value in named if not isinstance(value, Missing))
    return f"({', '.join(known)})"


def _grouped(different: Iterable[_Fact]) -> Iterator[Difference]:
    """One difference for each fact; GPUs that differ alike are named together."""
    groups: dict[tuple[object, ...], list[_Fact]] = {}
    for one in different:
        key = (one.whose, one.name, str(one.before), str(one.now), one.outcome) + (
            () if one.index is not None else (one.where,)
        )
        groups.setdefault(key, []).append(one)
    for facts in groups.values():
        first = facts[0]
        indices = [one.index for one in facts if one.index is not None]
        where = f"GPUs {number_ranges(indices)}" if len(indices) > 1 else first.where
        yield Difference(
            first.whose, where, first.name, str(first.before), str(first.now), first.outcome, first.why
        )


def _only_one(facts: Iterable[_Fact]) -> Iterator[str]:
    """Facts that one side gives and the other should have given too."""
    seen: set[tuple[str, str]] = set()
    for one in facts:
        for side, other, words in ((one.before, one.now, "second"), (one.now, one.before, "first")):
            lost = isinstance(other, Missing) and other.reason not in (
                MissingReason.NOT_ASKED,
                MissingReason.NOT_SUPPORTED,
            )
            if lost and not isinstance(side, Missing) and (one.name, words) not in seen:
                seen.add((one.name, words))
                yield f"{one.name}: not read in the {words}"


# --- findings

_BY_TOPIC = {
    **dict.fromkeys(("network", "infiniband", "rendezvous"), Whose.NETWORK),
    **dict.fromkeys(("driver", "fabric"), Whose.DRIVER),
    **dict.fromkeys(("pcie", "nvlink", "peer"), Whose.LINK),
    **dict.fromkeys(("gpu", "ecc", "memory", "clocks", "power", "temperature"), Whose.GPU),
}
_OF_GPUS = (Category.HW_THERMAL, Category.HW_MEMORY, Category.HW_POWER, Category.SW_XID)
_LINKS = (Category.HW_NVLINK, Category.HW_NVSWITCH, Category.HW_PCIE)
_BY_OWNER = {
    Owner.HARDWARE: Whose.GPU,
    Owner.HOST: Whose.HOST,
    Owner.SOFTWARE: Whose.SOFTWARE,
    Owner.JOB: Whose.JOB,
}


def whose_finding(finding: Finding) -> Whose:
    """The part that a finding is about."""
    by_topic = _BY_TOPIC.get(finding.code.partition(".")[0])
    if by_topic is not None and finding.owner in (Owner.HARDWARE, Owner.HOST):
        return by_topic
    if finding.category in _LINKS:
        return Whose.LINK
    return Whose.GPU if finding.category in _OF_GPUS else _BY_OWNER[finding.owner]


def _finding_differences(
    before: Report, now: Report, pairs: Sequence[tuple[Device, Device]]
) -> Iterator[Difference]:
    """Findings that one of the two has alone."""
    names = _old_indices(pairs)
    first = {
        (one.code, _label(one.subject, {})): one
        for one in before.findings()
        if one.outcome is not Outcome.PASS
    }
    second = {
        (one.code, _label(one.subject, names)): one
        for one in now.findings()
        if one.outcome is not Outcome.PASS
    }
    new: dict[tuple[str, Outcome], list[Finding]] = {}
    for key, finding in second.items():
        if key not in first:
            new.setdefault((finding.code, finding.outcome), []).append(finding)
    for alike in new.values():
        one, where = alike[0], _join_places([_label(finding.subject, {}) for finding in alike])
        more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
        yield Difference(
            whose_finding(one), where, one.code, "not found", f"{one.message}{more}", one.outcome, one.remedy
        )
    judged = {result.check for result in now.results if result.outcome is not Outcome.SKIP}
    by_check = {finding.code: result.check for result in before.results for finding in result.findings}
    for (code, place), finding in first.items():
        if (code, place) not in second:
            gone = by_check.get(code) in judged
            words, why = (
                ("no longer found", "it is better")
                if gone
                else ("not looked at", "the second one does not answer it")
            )
            yield Difference(whose_finding(finding), place, code, finding.message, words, Outcome.PASS, why)


def _old_indices(pairs: Sequence[tuple[Device, Device]]) -> dict[int, int]:
    """The GPU's index in the first of the two, by that in the second."""
    return {
        now.id.nvml_index: before.id.nvml_index
        for before, now in pairs
        if not isinstance(now.id.nvml_index, Missing) and not isinstance(before.id.nvml_index, Missing)
    }


def _label(subject: Subject, old: Mapping[int, int]) -> str:
    """The part by its index, which two machines share: `GPU 3`, `GPU 0 to GPU 3`, `rank 2`; else the host."""
    if isinstance(subject, DeviceSubject):
        index = subject.nvml_index
        return "a GPU" if isinstance(index, Missing) else f"GPU {old.get(index, index)}"
    if isinstance(subject, LinkSubject):
        return " to ".join(_old_name(end.partition(" (")[0], old) for end in subject.ends)
    return f"rank {subject.rank}" if isinstance(subject, RankSubject) else "the machine"


def _old_name(name: str, old: Mapping[int, int]) -> str:
    word, _, number = name.partition(" ")
    return f"{word} {old.get(int(number), int(number))}" if word == "GPU" and number.isdecimal() else name


# --- speeds

_ALL_GPUS = "all GPUs alike: no single one of them"
_SHARED = (Whose.DRIVER, Whose.CONTAINER, Whose.SOFTWARE, Whose.HOST, Whose.JOB)


@dataclass(frozen=True, slots=True)
class _Change:
    speed: MeasuredSpeed
    place: str
    before: float
    now: float

    @property
    def share(self) -> float:
        return self.now / self.before


def _speed_differences(
    before: Side, now: Side, pairs: Sequence[tuple[Device, Device]], found: Sequence[Difference]
) -> tuple[list[Difference], int, list[str]]:
    """The speeds that changed, how many did not, and those that only one of the two has."""
    old = _old_indices(pairs)
    first = {(one.name, _label(one.subject, {})): one for one in before.speeds}
    second = {(one.name, _label(one.subject, old)): one for one in now.speeds}
    least = speed_limits()["history"].warn
    changed, alike = [], 0
    for key in [key for key in first if key in second]:
        was, is_now = float(first[key].value), float(second[key].value)
        if not was > 0 or least <= is_now / was <= 1 / least:
            alike += 1
        else:
            changed.append(_Change(second[key], key[1], was, is_now))
    differences = []
    for (name, slower), group in groupby(sorted(changed, key=_by_name), key=_by_name):
        of_test = sum(key[0] == name and key in second for key in first)
        differences.append(_speed_difference(name, list(group), of_test, found, least, is_slower=slower))
    tests = dict.fromkeys(name for name, _ in (*first, *second))
    alone = [name for name in tests if not any(key[0] == name and key in second for key in first)]
    return differences, alike, [f"{name}: only one of the two measured it" for name in alone]


def _by_name(change: _Change) -> tuple[str, bool]:
    return (change.speed.name, change.share < 1)


def _speed_difference(
    name: str,
    changes: Sequence[_Change],
    of_test: int,
    found: Sequence[Difference],
    least: float,
    *,
    is_slower: bool,
) -> Difference:
    unit = changes[0].speed.unit
    places = [change.place for change in changes]
    furthest = (
        min(changes, key=lambda change: change.share)
        if is_slower
        else max(changes, key=lambda change: change.share)
    )
    on_cpu = any(place.startswith("rank ") for place in places)
    everywhere = len(changes) > 1 and len(changes) == of_test
    where = _join_places(places)
    words = (
        f"{furthest.share - 1:+.0%}",
        "of the earlier speed" if len(changes) == 1 else f"at {furthest.place}, the furthest",
    )
    change = " ".join(words)
    if not is_slower:
        whose, why, outcome = _whose_speed(name), f"faster, {change}", Outcome.PASS
    elif on_cpu:
        whose, why, outcome = Whose.HOST, f"{change}; speeds of a CPU are not judged", Outcome.PASS
    else:
        outcome = Outcome.WARN
        limit = f"{change}; limit {least:.0%} of the earlier speed"
        shared = (
            [one for one in found if one.whose in _SHARED and one.outcome is not Outcome.PASS]
            if everywhere
            else []
        )
        if shared:
            named = ", ".join(
                dict.fromkeys(f"{one.name} {one.before} became {one.now}" for one in shared[:3])
            )
            whose, why = shared[0].whose, f"{limit}; {_ALL_GPUS}, and {named}"
        elif everywhere:
            whose, why = Whose.HOST, f"{limit}; {_ALL_GPUS}, and nothing else differs that was compared"
        else:
            whose, why = _whose_speed(name), limit
    return Difference(
        whose, where, name, _speed(furthest.before, unit), _speed(furthest.now, unit), outcome, why
    )


def _whose_speed(name: str) -> Whose:
    test = name.partition(",")[0].replace(" ", "_")
    if test in (HOST_TO_DEVICE, DEVICE_TO_HOST, PEER_COPY):
        return Whose.LINK
    return Whose.LINK if name.endswith("busbw") else Whose.GPU


def _join_places(places: Sequence[str]) -> str:
    indices = [int(place.removeprefix("GPU ")) for place in places if place.removeprefix("GPU ").isdecimal()]
    if len(indices) == len(places) and len(places) > 1:
        return f"GPUs {number_ranges(indices)}"
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{places[0]}{more}"


def _speed(value: float, unit: str) -> str:
    if unit == "FLOP/s":
        return f"{significant(value / 1e12)} TFLOP/s"
    return f"{significant(value / BYTES_PER_GB)} GB/s" if unit == "B/s" else f"{significant(value)} {unit}"
