"""One snapshot of the machine: every wanted source asked at once, joined and compared."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any

from gpudiag.compat import UTC
from gpudiag.model.codec import noun
from gpudiag.model.device import Device, DeviceView, Snapshot, SourceState, SourceStatus
from gpudiag.model.host import Machine
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.attaching import deadline_of
from gpudiag.probe.given_time import deadline_for
from gpudiag.probe.gputil import answer as gputil_answer
from gpudiag.probe.guard import GuardedChild, collect, raise_shortage, run_guarded
from gpudiag.probe.host.answer import machine_of
from gpudiag.probe.nvml.answer import NvmlAnswer, explain_failure, explain_no_devices, nvml_answer_of
from gpudiag.probe.sources import (
    Gathered,
    complete_identities,
    find_disagreements,
    lacks_identity,
    rows_of_pci,
)
from gpudiag.probe.start import SIMULATED, StartedProbes, TorchStarter, start_probes
from gpudiag.probe.torch import answer as torch_answer
from gpudiag.probe.torch.answer import CPU_BUILD, TorchAnswer
from gpudiag.probe.visibility import explain_given, was_given_any

# Processors with a GPU on the same memory, by NVIDIA's product pages (DGX Spark, Jetson), November 2026.
_PRODUCTS = ("GB10", "Thor", "Orin", "Xavier")
_TOLERANCE = 0.02
_PCIE_FIELDS = (
    "pcie_generation",
    "pcie_generation_gpu_max",
    "pcie_generation_slot_max",
    "pcie_width",
    "pcie_width_gpu_max",
    "pcie_width_slot_max",
)
_NO_LINK = Missing(MissingReason.NOT_SUPPORTED, "no PCIe link lies between this GPU and its memory")

# NVML answers 0 at any load (mostlygeek/llama-swap pull request 782, rwlove/home-ops pull request 13238).
_NO_CONTROLLER = Missing(MissingReason.NOT_SUPPORTED, "the memory's controller is the processor's")

SOURCES = ("nvml", "gputil", "torch")
DEADLINE_SECONDS = 5.0
_DRIVER_FILES_SECONDS = 0.5  # for the driver's own files about GPUs that NVML cannot name


def with_ordinal(device: Device, torch: TorchAnswer, views: tuple[DeviceView, ...]) -> Device:
    """The device with its CUDA ordinal, or with the reason why it has none."""
    if torch.facts == NOT_ASKED:
        return device
    return replace(device, id=replace(device.id, cuda_ordinal=_ordinal(device, torch, views)))


def _ordinal(device: Device, torch: TorchAnswer, views: tuple[DeviceView, ...]) -> Reading[int]:
    facts = torch.facts
    if isinstance(facts, Missing):
        return facts
    for view in views:
        if view.source == torch.status.name and is_same_gpu(view, device):
            return view.source_index
        if view.source == torch.status.name and view.bus_id == device.id.bus_id:
            return Missing(MissingReason.NOT_SUPPORTED, "CUDA numbers its MIG instances instead")
    if isinstance(facts.cuda_runtime_version, Missing):
        return Missing(MissingReason.SOURCE_ABSENT, CPU_BUILD)
    if isinstance(facts.context_starts, Missing):
        return facts.context_starts
    return Missing(MissingReason.SOURCE_ABSENT, "torch does not list this GPU")


def is_same_gpu(view: DeviceView, device: Device) -> bool:
    """Whether a view is of that GPU as a whole: by UUID, else by bus id."""
    uuids = (view.uuid, device.id.uuid)
    if not any(isinstance(uuid, Missing) for uuid in uuids):
        return uuids[0] == uuids[1]
    return not isinstance(view.bus_id, Missing) and view.bus_id == device.id.bus_id


def views_of_mig(views: tuple[DeviceView, ...], devices: tuple[Device, ...]) -> tuple[DeviceView, ...]:
    """Torch's views with the UUIDs of MIG instances as NVML writes them: CUDA gives them without a prefix."""
    instances = {
        str(instance.uuid).removeprefix("MIG-"): instance.uuid
        for device in devices
        if not isinstance(device.mig_instances, Missing)
        for instance in device.mig_instances
    }
    return tuple(
        view
        if isinstance(view.uuid, Missing)
        else replace(view, uuid=instances.get(view.uuid.removeprefix("GPU-"), view.uuid))
        for view in views
    )


def unify_memory(device: Device, machine: Machine, view: DeviceView | None) -> Device:
    """The device, with the machine's memory as its own if they share it; `view` is torch's view of it."""
    absent = device.memory_total_bytes
    total, available = machine.memory_total_bytes, machine.memory_available_bytes
    if not isinstance(absent, Missing) or absent.reason is not MissingReason.NOT_SUPPORTED:
        return device
    if isinstance(total, Missing) or isinstance(available, Missing):
        return device
    if not (_is_known(device) or _shows_all(view, total)):
        return device
    no_link: dict[str, Any] = dict.fromkeys(_PCIE_FIELDS, _NO_LINK)
    return replace(
        device,
        memory_kind="unified",
        memory_total_bytes=total,
        memory_used_bytes=Missing(
            MissingReason.NOT_SUPPORTED, "programs on the processor use this memory too"
        ),
        memory_free_bytes=available,
        memory_reserved_bytes=Missing(MissingReason.NOT_SUPPORTED, "unified memory"),
        memory_utilization_percent=_NO_CONTROLLER,
        **no_link,
    )


def _is_known(device: Device) -> bool:
    name = device.name
    return not isinstance(name, Missing) and any(product in name.split() for product in _PRODUCTS)


def _shows_all(view: DeviceView | None, total: int) -> bool:
    theirs = view.memory_total_bytes if view is not None else None
    return isinstance(theirs, int) and abs(theirs - total) <= total * _TOLERANCE


def take_snapshot(
    sources: Collection[str] = ("nvml",),
    deadline_seconds: float = DEADLINE_SECONDS,
    *,
    environment: Mapping[str, str] | None = None,
    root: str | None = None,
    python: str | None = None,
    host_state: bool = False,
    kernel_log: bool = False,
    started: StartedProbes | None = None,
    patient: bool = True,
    wake: bool = True,
    now: datetime | None = None,
    ask_torch: TorchStarter | None = None,
) -> Snapshot:
    """This machine's GPUs as the wanted sources (of SOURCES) see them, and where the sources differ.

    A source that fails has a status. `deadline_seconds` bounds NVML and the host, without the time in which a
    busy host gave a child no processor; GPUtil has at least 5 s, torch 30 s. `started` are probes of
    `start_probes` for the same environment and root, `python` the interpreter whose torch is asked.
    `host_state` asks for `Machine.state`, `kernel_log` for this boot's log. With `patient`, NVML's deadline
    counts from the last GPU attached (`probe.attaching`). `ask_torch` starts the child that asks torch.
    Without `wake`, GPUs stay asleep.

    Raises:
        ShortageError: gpudiag was refused processes, threads, memory, files or /proc.
    """
    environment = os.environ if environment is None else environment
    started = started or start_probes(sources, environment=environment, root=root, wake=wake)
    log_seconds = deadline_seconds if kernel_log else None
    asked = _Asked(
        started,
        sources,
        environment,
        python,
        ask_torch or torch_answer.start_torch,
        host_state=host_state,
        log_seconds=log_seconds,
    )
    asked.wait(deadline_seconds, patient=patient)
    machine, host_status = machine_of(started.host, environment)
    machine = asked.with_host_state(machine)
    gputil_status, gputil_views = asked.gputil_answer()
    kernel_events, kernel_statuses = asked.kernel_log_answer()
    answers = Answers(
        nvml_answer_of(started.nvml),
        machine,
        host_status,
        gputil_status,
        gputil_views,
        asked.torch_answer(),
        kernel_events,
        kernel_statuses,
    )
    uuids = _driver_uuids(answers.nvml, machine, started.root)
    return join_answers(answers, uuids, environment.get(SIMULATED) or None, now or datetime.now(UTC))


@noun
class Answers:
    """What each source answered, before the answers are joined."""

    nvml: NvmlAnswer
    machine: Machine
    host_status: SourceStatus
    gputil_status: SourceStatus
    gputil_views: tuple[DeviceView, ...]
    torch: TorchAnswer
    kernel_events: Reading[tuple[KernelEvent, ...]]
    kernel_statuses: tuple[SourceStatus, ...]


def join_answers(
    answers: Answers, uuids: Mapping[str, str | None], simulated: str | None, now: datetime
) -> Snapshot:
    """The snapshot of the sources' answers; `uuids` are from the driver's files, by bus id. No I/O."""
    nvml, machine, torch = answers.nvml, answers.machine, answers.torch
    status = _explained(nvml, machine)
    views = (*answers.gputil_views, *views_of_mig(torch.views, nvml.devices))
    devices = _devices(nvml, status, machine, views, uuids)
    statuses = (status, answers.gputil_status, torch.status)
    gathered = Gathered(
        machine,
        {answer.name: answer for answer in statuses},
        nvml.driver_version,
        devices[: len(nvml.devices)],
        views,
        torch.facts,
    )
    return Snapshot(
        host=machine.hostname,
        taken_at=now,
        simulated=simulated,
        driver_version=_driver_version(nvml, machine),
        cuda_driver_version=nvml.cuda_driver_version,
        nvml_version=nvml.nvml_version,
        sources=(*statuses, answers.host_status, *answers.kernel_statuses),
        devices=tuple(with_ordinal(device, torch, views) for device in devices),
        views=views,
        disagreements=find_disagreements(gathered),
        torch=torch.facts,
        machine=machine,
        kernel_log=answers.kernel_events,
        confidential_computing=nvml.confidential_computing,
        failed_calls=nvml.failed_calls,
    )


class _Asked:
    """The children that ask the other sources, besides those in `started` for NVML and the host."""

    def __init__(
        self,
        started: StartedProbes,
        sources: Collection[str],
        environment: Mapping[str, str],
        python: str | None,
        ask_torch: TorchStarter,
        *,
        host_state: bool,
        log_seconds: float | None,
    ) -> None:
        self._started = started
        self._python = python
        self._torch_wanted = "torch" in sources
        self._torch_file = _simulated_torch(environment)
        self._gputil: GuardedChild | None = None
        self._torch: GuardedChild | None = None
        self._host_state: GuardedChild | None = None
        self._kernel_log: GuardedChild | None = None
        started.start_judging(environment, log_seconds, host_state=host_state)
        if host_state:
            self._host_state = started.host_state
        if log_seconds is not None:
            self._kernel_log = started.kernel_log
        if "gputil" in sources:
            self._gputil = gputil_answer.start_gputil(environment)
        if self._torch_wanted and self._torch_file is None:
            self._torch = ask_torch(environment, python)

    def wait(self, deadline_seconds: float, *, patient: bool) -> None:
        """Wait for every child, each until its own deadline."""
        started, nvml = self._started, self._started.nvml
        deadlines = [(started.host, deadline_seconds)]
        if nvml is not None and not patient:
            deadlines.append((nvml, deadline_seconds))
        if self._gputil is not None:
            deadlines.append((self._gputil, max(deadline_seconds, gputil_answer.DEADLINE_SECONDS)))
        if self._torch is not None:
            deadlines.append((self._torch, max(deadline_seconds, torch_answer.DEADLINE_SECONDS)))
        waits: list[tuple[GuardedChild, float | Callable[[], float]]] = [
            (child, deadline_for(child, seconds)) for child, seconds in deadlines
        ]
        # They may have been started early, before the imports that they overlap with.
        until = monotonic() + deadline_seconds
        waits += [
            (child, deadline_for(child, deadline_seconds, lambda: until))
            for child in (self._host_state, self._kernel_log)
            if child is not None
        ]
        if nvml is not None and patient:
            attached = partial(deadline_of, nvml.messages, nvml.started_at, deadline_seconds)
            waits.append((nvml, deadline_for(nvml, deadline_seconds, attached)))
        collect(waits)
        if nvml is not None and nvml.ending == "crashed":
            from gpudiag.probe.nvml.careful import ask_around_crashes  # rare, and a listing is in a hurry

            started.nvml = ask_around_crashes(nvml, started.root, deadline_seconds)
        raise_shortage((started.nvml, started.host, self._host_state, self._kernel_log))

    def with_host_state(self, machine: Machine) -> Machine:
        """The machine, with its state if that was asked for."""
        if self._host_state is None:
            return machine
        from gpudiag.probe.host.answer import host_state_of  # a listing does not need it

        return replace(machine, state=host_state_of(self._host_state))

    def kernel_log_answer(self) -> tuple[Reading[tuple[KernelEvent, ...]], tuple[SourceStatus, ...]]:
        """The events of the kernel log and its status; NOT_ASKED and none if it was not asked for."""
        if self._kernel_log is None:
            return NOT_ASKED, ()
        from gpudiag.probe.kernel_log.read import finish_kernel_log  # a listing does not need it

        log = finish_kernel_log(self._kernel_log)
        return log.events, (log.status,)

    def gputil_answer(self) -> tuple[SourceStatus, tuple[DeviceView, ...]]:
        """GPUtil's status and views."""
        if self._gputil is None:
            return SourceStatus(gputil_answer.SOURCE, SourceState.NOT_ASKED), ()
        return gputil_answer.gputil_answer_of(self._gputil)

    def torch_answer(self) -> TorchAnswer:
        """Torch's answer; on a simulated machine, the scenario's."""
        if self._torch is not None:
            return torch_answer.torch_answer_of(self._torch, self._python)
        if self._torch_wanted and self._torch_file is not None:
            return torch_answer.simulated_torch_answer(self._torch_file)
        return TorchAnswer(SourceStatus(torch_answer.SOURCE, SourceState.NOT_ASKED), NOT_ASKED)


def _simulated_torch(environment: Mapping[str, str]) -> str | None:
    """The file that holds torch's answer on a simulated machine; None on a real one."""
    return environment.get(torch_answer.SIMULATED_ANSWER) if environment.get(SIMULATED) else None


def _driver_version(nvml: NvmlAnswer, machine: Machine) -> Reading[str]:
    """NVML's word for it, else, where NVML was left alone because all GPUs sleep, the kernel's."""
    absent = nvml.driver_version
    unasked = isinstance(absent, Missing) and absent.reason is MissingReason.NOT_ASKED
    return machine.kernel_driver_version if unasked and nvml.devices else absent


def _explained(nvml: NvmlAnswer, machine: Machine) -> SourceStatus:
    """NVML's status with a reason that a person can act on."""
    status = nvml.status
    reason = status.reason
    if nvml.failure is not None:
        reason = explain_failure(nvml.failure, machine)
    elif status.state is SourceState.NO_DEVICES:
        reason = explain_no_devices(machine)
    return SourceStatus(status.name, status.state, reason, status.seconds, status.device_count)


def _driver_uuids(nvml: NvmlAnswer, machine: Machine, root: str) -> dict[str, str | None]:
    """UUIDs by bus id from the driver's own files; empty if no GPU lacks its identity."""
    if nvml.status.state is SourceState.NOT_ASKED or isinstance(machine.kernel_driver_version, Missing):
        return {}
    if not lacks_identity(nvml.devices, machine):
        return {}
    return read_driver_uuids(root)


def read_driver_uuids(root: str) -> dict[str, str | None]:
    """UUIDs by bus id from the driver's own files about GPUs, read in a child with a deadline."""
    files = run_guarded("gpudiag.probe.host.pci:stream_driver_gpus", _DRIVER_FILES_SECONDS, root)
    return {bus_id: uuid for _, bus_id, uuid in files.messages}


def _devices(
    nvml: NvmlAnswer,
    status: SourceStatus,
    machine: Machine,
    views: tuple[DeviceView, ...],
    uuids: Mapping[str, str | None],
) -> tuple[Device, ...]:
    """NVML's rows with what the machine adds to them, then the GPUs that only the PCI bus shows."""
    if status.state is SourceState.NOT_ASKED:
        return ()
    torch_views = {view.uuid: view for view in views if view.source == torch_answer.SOURCE}
    devices = complete_identities(nvml.devices, machine, uuids)
    devices = tuple(unify_memory(device, machine, torch_views.get(device.id.uuid)) for device in devices)
    if explain_given(machine, len(devices)) is not None or not was_given_any(machine):
        return devices
    return devices + rows_of_pci(devices, machine, status.state, status.reason or "", uuids)
