"""Which GPUs ranks can run on here, and the environment variables they need: shared by all commands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.gpu.availability import why_not_free
from gpudiag.checks.traces import gpu_traces, pci_gpus
from gpudiag.errors import UsageError
from gpudiag.model.active import Untested
from gpudiag.model.device import Device, DeviceView, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading

# Of NCCL, of torch (before, it refuses to reduce them on GPUs of 9.0), and of GPUs.
_FLOAT8_NCCL, _FLOAT8_TORCH, _FLOAT8_CAPABILITY = (2, 24), (2, 8), (9, 0)
UNNAMED = "its UUID is not known"
_SHARING_SINCE = (2, 30)  # of NCCL: several ranks may share a GPU


@dataclass(frozen=True, slots=True)
class GpuFitness:
    """One GPU as ranks could use it."""

    device: Device
    view: DeviceView | None  # torch's; of a MIG instance, where it shows one
    unfit: str | None  # why no rank can run there
    in_use: str | None  # who or what a test would disturb

    @property
    def name(self) -> str:
        """The GPU, for people."""
        index = self.device.id.nvml_index
        return "a GPU" if isinstance(index, Missing) else f"GPU {index}"

    @property
    def cuda_name(self) -> str | None:
        """What CUDA_VISIBLE_DEVICES calls it: a MIG instance by its own UUID; None where no source has one.

        A number would count from another GPU wherever the variable is set already.
        """
        uuid = (
            self.device.id.uuid
            if self.view is None or isinstance(self.view.uuid, Missing)
            else self.view.uuid
        )
        return None if isinstance(uuid, Missing) else uuid

    def as_untested(self) -> Untested:
        """The GPU as one that no test runs on, with the reason."""
        in_use = self.unfit is None
        return Untested(self.device.id.uuid, self.name, self.unfit or self.in_use or "", in_use)


def why_no_cuda(snapshot: Snapshot, expected_gpus: Reading[int] = NOT_ASKED) -> Missing | None:
    """Why ranks can use none of the GPUs found here; None if torch starts a context on at least one.

    NOT_SUPPORTED if they are simulated, ERROR otherwise.
    """
    if snapshot.simulated is not None:
        words = f"the GPUs of {snapshot.simulated} are simulated: they answer NVML and compute nothing"
        return Missing(MissingReason.NOT_SUPPORTED, words)
    torch = snapshot.torch
    if isinstance(torch, Missing):
        cause = torch.detail or snapshot.source("torch").reason or torch.reason.value
    elif isinstance(torch.cuda_runtime_version, Missing):
        cause = f"torch {torch.version} is a build without CUDA"
    elif torch.context_starts is True or any(_starts(view) for view in snapshot.views):
        return None
    else:
        cause = torch.context_starts.detail if isinstance(torch.context_starts, Missing) else ""
    trace = gpu_traces(snapshot, expected_gpus)[0].text
    words = f"a GPU is here ({trace}), and torch cannot use it: {cause or 'no CUDA context starts'}"
    return Missing(MissingReason.ERROR, words)


def judge_gpus(snapshot: Snapshot, findings: Sequence[Finding]) -> tuple[GpuFitness, ...]:
    """Every GPU, in the order in which CUDA numbers those that torch sees; `findings` are of the checks of GPUs.

    Where torch counts one that must be hidden, one that cannot be named is not fit either: the others could not be
    shown without it.
    """
    judged = []
    for device in snapshot.devices:
        view = _torch_view(snapshot, device)
        unfit = _why_unfit(device, view, findings)
        in_use = ", ".join(why_not_free(snapshot, device)) or None
        judged.append(GpuFitness(device, view, unfit, in_use))
    if _must_hide(snapshot, [gpu for gpu in judged if gpu.unfit is None]):
        judged = [
            replace(gpu, unfit=UNNAMED) if gpu.unfit is None and gpu.cuda_name is None else gpu
            for gpu in judged
        ]
    return tuple(sorted(judged, key=_cuda_order))


def free_bytes(gpu: GpuFitness) -> Reading[int]:
    """Free memory for a rank on that GPU: what torch has, which on a MIG instance is a part of it."""
    view = gpu.view
    if view is None or (isinstance(view.memory_free_bytes, Missing) and gpu.device.mig_mode != "enabled"):
        return gpu.device.memory_free_bytes
    return view.memory_free_bytes  # the whole GPU's says nothing of an instance's


def visibility_for(snapshot: Snapshot, chosen: Sequence[GpuFitness]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES with the chosen GPUs only, where torch counts others too."""
    if not _must_hide(snapshot, chosen):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu.cuda_name) for gpu in chosen)}


def _must_hide(snapshot: Snapshot, chosen: Sequence[GpuFitness]) -> bool:
    """Whether torch sees more than `chosen`: a GPU faulty, in use or unknown to NVML, or a MIG instance."""
    return sum(view.source == "torch" for view in snapshot.views) > len(chosen)


def _why_unfit(device: Device, view: DeviceView | None, findings: Sequence[Finding]) -> str | None:
    if isinstance(device.responding, Missing):
        return "it gives no readings"
    for finding in findings:
        if finding.outcome is Outcome.FAIL and _is_of(finding, device):
            return f"it is faulty ({finding.code})"
    if view is None:
        return "torch does not see it"
    return None if _starts(view) else "no CUDA context starts on it"


def _is_of(finding: Finding, device: Device) -> bool:
    subject = finding.subject
    if not isinstance(subject, DeviceSubject):
        return False
    if isinstance(subject.uuid, Missing) or isinstance(device.id.uuid, Missing):
        return not isinstance(device.id.bus_id, Missing) and subject.bus_id == device.id.bus_id
    return subject.uuid == device.id.uuid


def _torch_view(snapshot: Snapshot, device: Device) -> DeviceView | None:
    """The GPU as torch shows it; a MIG instance has a UUID of its own, and its GPU's bus id."""
    found = [
        view
        for view in snapshot.views
        if view.source == "torch"
        and (_same(view.uuid, device.id.uuid) or _same(view.bus_id, device.id.bus_id))
    ]
    return next((view for view in found if _starts(view)), found[0] if found else None)


def _same(one: Reading[str], other: Reading[str]) -> bool:
    return not isinstance(one, Missing) and one == other


def _starts(view: DeviceView) -> bool:
    return view.source == "torch" and view.context_starts is True


def _cuda_order(gpu: GpuFitness) -> tuple[bool, int]:
    return gpu.view is None, 0 if gpu.view is None else gpu.view.source_index


def may_have_own_gpus(snapshot: Snapshot, ranks: int, usable: Sequence[GpuFitness]) -> bool:
    """Whether the launcher may have shown each rank its own GPU: this process sees one of several.

    Whether it really has, the ranks find out together (ranks/rank/device.py).
    """
    return len(usable) == 1 and max(len(snapshot.devices), len(pci_gpus(snapshot))) >= ranks


def sharing_for(snapshot: Snapshot, ranks: int, usable: Sequence[GpuFitness]) -> dict[str, str]:
    """The environment variables that let two NCCL ranks share the only GPU.

    Source: NCCL 2.30 release notes and docs, NCCL_MULTI_RANK_GPU_ENABLE (experimental).

    Raises:
        UsageError: they cannot; the message says what they would need.
    """
    if (ranks, len(usable)) != (2, 1):
        raise UsageError(
            f"{ranks} NCCL ranks need {ranks} GPUs on this machine, and {len(usable)} can be used",
            hint=f"--nproc {len(usable)}, or see `gpudiag list`",
        )
    version = "unknown" if isinstance(snapshot.torch, Missing) else snapshot.torch.nccl_version
    if isinstance(version, Missing) or _version(version) < _SHARING_SINCE:
        raise UsageError(
            f"two NCCL ranks on one GPU need NCCL 2.30 or later, and torch here has {_told(version)}",
            hint="--nproc 1, or a newer torch; --backend gloo runs any number on the CPU",
        )
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def has_float8(snapshot: Snapshot, usable: Sequence[GpuFitness]) -> bool:
    """Whether torch, NCCL and every GPU are new enough for 8-bit floats (NCCL 2.24 release notes)."""
    torch = snapshot.torch
    if isinstance(torch, Missing) or _version(torch.version.partition("+")[0]) < _FLOAT8_TORCH:
        return False
    if isinstance(torch.nccl_version, Missing) or _version(torch.nccl_version) < _FLOAT8_NCCL:
        return False
    capabilities = [gpu.device.compute_capability for gpu in usable]
    return all(
        not isinstance(found, Missing) and _version(found) >= _FLOAT8_CAPABILITY for found in capabilities
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _told(version: Reading[str]) -> str:
    return "no NCCL" if isinstance(version, Missing) else f"NCCL {version}"
