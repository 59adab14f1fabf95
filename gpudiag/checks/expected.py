"""The check against a known good machine (`--expect FILE`): this one, or another of its kind."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpudiag.checks.gpu.gone import in_container, share_of
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, could_not_look, judged
from gpudiag.checks.subjects import device_subject
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host_state import HostState
from gpudiag.model.number_ranges import count_of, number_ranges
from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.units import format_size

_BASIS = Basis(
    reads="Number, models, memory, VBIOS, power limits, application clocks, modes, PCIe and NVLinks of"
    " the GPUs, driver, kernel, processors, memory, RDMA ports and torch, here and in the file of"
    " --expect. GPUs are compared board by board, else slot by slot, else by NVML index.",
    limit="The machine in the file; the host's memory may differ by up to 2 %.",
    look_also=(
        "gpudiag list --json --output FILE, on the good machine",
        "gpudiag preflight --report json=FILE, which holds more of it",
        "gpu.count",
    ),
)
GPUS_DIFFER = FindingKind(
    code="machine.gpus_differ",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="The machine has fewer GPUs than the good one of --expect, or GPUs of another model.",
    remedy=(
        "Check that this is the right machine and the right file; if so, look"
        " for the GPUs with `lspci -d 10de:`."
    ),
    basis=_BASIS,
)
DIFFERS = FindingKind(
    code="machine.differs",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="The machine is set up differently from the good one of --expect.",
    remedy="Bring it into line with the good machine; if the difference is wanted, record a new file.",
    basis=_BASIS,
)
MEMORY_SHARE = 0.98  # our choice: firmware and kernel versions keep a little more or less for themselves


@check(
    "machine.expected",
    title="the machine is like the good one of --expect",
    needs=("expected_machine",),
    reports=(GPUS_DIFFER, DIFFERS),
    readings=(
        "number, models, memory, VBIOS, power limits, modes and links of the GPUs",
        "driver, kernel, processors, memory, RDMA ports, torch",
    ),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4; the Linux kernel's files",
)
def machine_expected(context: Context) -> Judgement:
    """FAIL for fewer or other GPUs, WARN for each other difference from the good machine."""
    good = context.expected_machine
    assert not isinstance(good, Missing)  # noqa: S101 - the runner answers for the need
    here = context.snapshot
    pairs = tuple(pair_gpus(good, here))
    compared = (*_compare_host(good, here), *(one for pair in pairs for one in _compare_gpus(*pair)))
    if not compared:
        return could_not_look("nothing that the file holds could be read here")
    differences = [one for one in compared if one.before != one.now]
    return judged(*_count(good, here), *_report(good, here, differences))


@dataclass(frozen=True, slots=True)
class _Compared:
    """One fact of a GPU or of the host, on both machines."""

    name: str
    before: str
    now: str
    device: Device | None = None


def pair_gpus(good: Snapshot, here: Snapshot) -> Iterator[tuple[Device, Device]]:
    """Each GPU with its counterpart in the good machine: by board, else by slot, else by number."""
    left = list(good.devices)
    ways: tuple[Callable[[Device], object], ...] = (
        lambda device: device.id.uuid,
        lambda device: device.id.bus_id,
        lambda device: device.id.nvml_index,
    )
    waiting = [device for device in here.devices if device.responding is True]
    for way in ways:
        for device in tuple(waiting):
            key = way(device)
            match = next((one for one in left if not isinstance(key, Missing) and way(one) == key), None)
            if match is not None:
                left.remove(match)
                waiting.remove(device)
                yield match, device


GPU_FACTS: tuple[tuple[str, Callable[[Device], Reading[Any]]], ...] = (
    ("model", lambda device: device.name),
    ("memory", lambda device: _size(device.memory_total_bytes)),
    ("VBIOS", lambda device: device.vbios_version),
    ("power limit", lambda device: _watts(device.power_limit_enforced_watts)),
    ("application clock", lambda device: device.graphics_clock_application_mhz),
    ("ECC mode", lambda device: device.ecc_mode),
    ("MIG mode", lambda device: device.mig_mode),
    ("compute mode", lambda device: device.compute_mode),
    ("persistence mode", lambda device: device.persistence_mode),
    ("highest PCIe generation", lambda device: _lower(device, "generation")),
    ("highest PCIe width", lambda device: _lower(device, "width")),
    ("active NVLinks", lambda device: _active_links(device)),
)


def _compare_gpus(good: Device, here: Device) -> Iterator[_Compared]:
    for name, read in GPU_FACTS:
        yield from _both(name, read(good), read(here), here)


def _compare_host(good: Snapshot, here: Snapshot) -> Iterator[_Compared]:
    before, now = good.machine, here.machine
    yield from _both("driver version", good.driver_version, here.driver_version)
    for name in (
        "kernel_driver_flavor",
        "kernel_release",
        "operating_system",
        "processor",
        "logical_processors",
    ):
        yield from _both(name.replace("_", " "), getattr(before, name), getattr(now, name))
    yield from _compare_memory(before.memory_total_bytes, now.memory_total_bytes)
    yield from _both("RDMA ports", name_ports(good), name_ports(here))
    if not isinstance(good.torch, Missing) and not isinstance(here.torch, Missing):
        yield from _both("torch", good.torch.version, here.torch.version)
        yield from _both("NCCL", good.torch.nccl_version, here.torch.nccl_version)


def _compare_memory(before: Reading[int], now: Reading[int]) -> Iterator[_Compared]:
    if isinstance(before, Missing) or isinstance(now, Missing):
        return
    alike = min(before, now) >= MEMORY_SHARE * max(before, now)
    yield _Compared("memory", format_size(before), format_size(before if alike else now))


def _both(
    name: str, before: Reading[Any], now: Reading[Any], device: Device | None = None
) -> Iterator[_Compared]:
    """The fact, where both machines give it."""
    if not isinstance(before, Missing) and not isinstance(now, Missing):
        yield _Compared(name, str(before), str(now), device)


def _count(good: Snapshot, here: Snapshot) -> Iterator[Finding]:
    """A finding for fewer GPUs than expected; on the same machine, machine.gpus names those gone."""
    there, count = len(good.devices), len(here.devices)
    same_share = share_of(good) == share_of(here) and in_container(good) == in_container(here)
    if there == count or not same_share or (good.host == here.host and count < there):
        return
    kind = GPUS_DIFFER if count < there else DIFFERS
    evidence = Evidence("gpu_count", count, "GPUs", there, _source(good))
    message = f"{_gpus(count)} here, {there} on {good.host}"
    yield kind.finding(HostSubject(here.host), message, evidence)


def _report(good: Snapshot, here: Snapshot, differences: Iterable[_Compared]) -> Iterator[Finding]:
    """One finding for each difference; GPUs that differ alike are named together."""
    groups: dict[tuple[str, str, str], list[_Compared]] = {}
    for one in differences:
        whose = "host" if one.device is None else "GPU"
        groups.setdefault((f"{whose} {one.name}", one.before, one.now), []).append(one)
    for (_, before, now), alike in groups.items():
        name = alike[0].name
        devices = [one.device for one in alike if one.device is not None]
        whose = f" of GPU {_numbers(devices)}" if devices else ""
        subject: DeviceSubject | HostSubject = HostSubject(here.host)
        if len(devices) == 1:
            subject = device_subject(here, devices[0])
        there = "it was" if good.host == here.host else f"on {good.host}"
        evidence = Evidence(name.lower().replace(" ", "_"), now, limit=before, source=_source(good))
        kind = GPUS_DIFFER if devices and name == "model" else DIFFERS
        yield kind.finding(subject, f"{name}{whose} is {now}, and {there} {before}", evidence)


def _numbers(devices: list[Device]) -> str:
    """`0-3, 5`: the NVML indices of these GPUs."""
    return number_ranges(one.id.nvml_index for one in devices if not isinstance(one.id.nvml_index, Missing))


def _source(good: Snapshot) -> str:
    return f"limit: {good.host}, recorded {good.taken_at:%Y-%m-%d %H:%M}"


def _gpus(count: int) -> str:
    return count_of(count, "GPU")


def _size(reading: Reading[int]) -> Reading[str]:
    return reading if isinstance(reading, Missing) else format_size(reading)


def _watts(reading: Reading[float]) -> Reading[str]:
    return reading if isinstance(reading, Missing) else f"{reading:.0f} W"


def _lower(device: Device, what: str) -> Reading[int]:
    """The lower maximum of GPU and slot; that of one where the other's is not known."""
    gpu, slot = getattr(device, f"pcie_{what}_gpu_max"), getattr(device, f"pcie_{what}_slot_max")
    known = [one for one in (gpu, slot) if not isinstance(one, Missing)]
    return min(known) if known else NOT_ASKED


def _active_links(device: Device) -> Reading[int]:
    links = device.nvlinks
    return links if isinstance(links, Missing) else sum(link.active is True for link in links)


def name_ports(snapshot: Snapshot) -> Reading[str]:
    """The RDMA ports of the machine, as one text."""
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.infiniband_ports, Missing):
        return NOT_ASKED
    ports = (f"{port.device}:{port.port}" for port in state.infiniband_ports)
    return ", ".join(sorted(ports)) or "none"
