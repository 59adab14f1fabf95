"""Which GPUs a preflight may test: healthy ones that nobody uses; on a machine without any, the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpudiag.checks.gpu.availability import judge_availability
from gpudiag.checks.gpu.modes import tell_exclusive
from gpudiag.checks.traces import gpu_traces
from gpudiag.model.active import Untested
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.runs.placement import DEFAULT_CPU_RANKS

TORCH_HINT = "torch is not installed: pip install torch"
_CPU_BUILD = "without a GPU: PyTorch's CPU build, as pytorch.org shows under Start Locally"


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where tests run: how many ranks on which kind of device, and which GPUs are left alone, and why."""

    device_kind: str  # cpu or cuda
    world_size: int
    devices: tuple[Device, ...] = ()
    untested: tuple[Untested, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)  # for the ranks: only the GPUs that are tested


def why_no_peers(place: Workplace) -> str | None:
    """Why no rank can copy to another one's GPU; None where all can."""
    if place.world_size < 2:
        return "there is one GPU to test, and no peer"
    return tell_exclusive(place.devices)


def choose_workplace(
    snapshot: Snapshot, findings: Sequence[Finding], expected_gpus: Reading[int], *, force: bool
) -> Reading[Workplace]:
    """Where tests may run, or why nowhere.

    NOT_ASKED where GPUs are in use and nobody said `--force`; NOT_SUPPORTED where there is nothing that
    could compute; ERROR where it should be possible and is not.
    """
    absent = _without_torch(snapshot)
    if absent is not None:
        return absent
    if not gpu_traces(snapshot, expected_gpus):
        return Workplace("cpu", DEFAULT_CPU_RANKS)
    if snapshot.simulated is not None:
        words = f"the GPUs of {snapshot.simulated} are simulated: they answer NVML and compute nothing"
        return Missing(MissingReason.NOT_SUPPORTED, words)
    broken = _without_context(snapshot)
    return _on_gpus(snapshot, findings, force=force) if broken is None else broken


def _on_gpus(snapshot: Snapshot, findings: Sequence[Finding], *, force: bool) -> Reading[Workplace]:
    chosen: list[Device] = []
    untested: list[Untested] = []
    busy = 0
    for device in snapshot.devices:
        unfit = _unfit(snapshot, device, findings)
        used = None if unfit or force else _in_use(snapshot, device)
        if unfit is None and used is None:
            chosen.append(device)
            continue
        busy += used is not None
        untested.append(Untested(device.id.uuid, _name(device), unfit or used or "", used is not None))
    if not chosen:
        reason = MissingReason.NOT_ASKED if busy else MissingReason.ERROR
        words = "; ".join(f"{one.name}: {one.reason}" for one in untested) or "no GPU can be used"
        hint = " (--force tests GPUs in use)" if busy else ""
        return Missing(reason, f"no GPU is free to be tested: {words}{hint}")
    visible = ",".join(str(device.id.uuid) for device in chosen)
    return Workplace("cuda", len(chosen), tuple(chosen), tuple(untested), {"CUDA_VISIBLE_DEVICES": visible})


def _unfit(snapshot: Snapshot, device: Device, findings: Sequence[Finding]) -> str | None:
    """Why no test can run on that GPU, also with `--force`; None: one can."""
    if isinstance(device.responding, Missing):
        return "it gives no readings"
    if isinstance(device.id.uuid, Missing):
        return "its UUID is not known"
    faults = [
        finding.code
        for finding in findings
        if finding.outcome is Outcome.FAIL
        and isinstance(finding.subject, DeviceSubject)
        and finding.subject.uuid == device.id.uuid
    ]
    if faults:
        return f"it is faulty ({faults[0]})"
    if device.mig_mode == "enabled":
        return "MIG is on: its instances belong to jobs"
    view = next(
        (view for view in snapshot.views if view.source == "torch" and view.uuid == device.id.uuid), None
    )
    if view is None:
        return "torch does not see it"
    return None if view.context_starts is True else "no CUDA context starts on it"


def _in_use(snapshot: Snapshot, device: Device) -> str | None:
    """Who or what a test would disturb; None: nobody."""
    for candidate in judge_availability(snapshot, ()):
        if candidate.uuid == device.id.uuid and candidate.against:
            return ", ".join(candidate.against)
    return None


def _without_torch(snapshot: Snapshot) -> Missing | None:
    if not isinstance(snapshot.torch, Missing):
        return None
    if snapshot.torch.reason is MissingReason.SOURCE_ABSENT:
        return Missing(MissingReason.ERROR, f"{snapshot.source('torch').reason or TORCH_HINT} ({_CPU_BUILD})")
    words = snapshot.torch.detail or snapshot.source("torch").reason or snapshot.torch.reason.value
    return Missing(MissingReason.ERROR, f"torch gave no answer: {words}")


def _without_context(snapshot: Snapshot) -> Missing | None:
    """Why torch can use none of the GPUs that there are traces of."""
    torch = snapshot.torch
    assert not isinstance(torch, Missing)  # noqa: S101 - _without_torch has answered for it
    if isinstance(torch.cuda_runtime_version, Missing):
        return Missing(
            MissingReason.ERROR, f"torch {torch.version} is a build without CUDA, and a GPU is here"
        )
    views = [view for view in snapshot.views if view.source == "torch"]
    if torch.context_starts is True or any(view.context_starts is True for view in views):
        return None
    cause = torch.context_starts.detail if isinstance(torch.context_starts, Missing) else ""
    return Missing(MissingReason.ERROR, f"torch cannot use the GPUs: {cause or 'no CUDA context starts'}")


def _name(device: Device) -> str:
    return "a GPU" if isinstance(device.id.nvml_index, Missing) else f"GPU {device.id.nvml_index}"
