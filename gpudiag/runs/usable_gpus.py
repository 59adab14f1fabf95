"""Which GPUs NCCL ranks can run on here, and what they have to be told for it."""

from collections.abc import Sequence

from gpudiag.checks.traces import gpu_traces, pci_gpus
from gpudiag.errors import SourceFailedError, UsageError
from gpudiag.model.device import Device, DeviceView, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, Reading

# Of NCCL, of torch (before, it refuses to reduce them on GPUs of 9.0), and of GPUs.
_FLOAT8_NCCL, _FLOAT8_TORCH, _FLOAT8_CAPABILITY = (2, 24), (2, 8), (9, 0)
_SHARING_SINCE = (2, 30)  # of NCCL: several ranks may share a GPU


def require_context(snapshot: Snapshot) -> None:
    """Return where torch can use at least one of the GPUs.

    Raises:
        SourceFailedError: it can use none, with the trace of a GPU and the cause; or they are simulated.
    """
    if snapshot.simulated is not None:
        raise SourceFailedError(
            f"the GPUs of {snapshot.simulated} are simulated: they answer NVML and compute nothing",
            hint="--backend gloo runs on the CPU",
        )
    trace = gpu_traces(snapshot)[0].text
    torch = snapshot.torch
    if isinstance(torch, Missing):
        cause = torch.detail or snapshot.source("torch").reason or torch.reason.value
    elif isinstance(torch.cuda_runtime_version, Missing):
        cause = f"torch {torch.version} is a build without CUDA"
    elif torch.context_starts is True or any(_starts(view) for view in snapshot.views):
        return
    elif isinstance(torch.context_starts, Missing):
        cause = torch.context_starts.detail or "no CUDA context starts"
    else:
        cause = "no CUDA context starts"
    raise SourceFailedError(
        f"a GPU is here ({trace}), and torch cannot use it: {cause}",
        hint="see `gpudiag list --sources all`; --backend gloo runs on the CPU all the same",
    )


def usable_devices(snapshot: Snapshot, findings: Sequence[Finding]) -> list[Device]:
    """The GPUs that answer, without a fault that a check found, on which torch starts a context; as CUDA numbers them."""
    faulty = {
        finding.subject.uuid
        for finding in findings
        if finding.outcome is Outcome.FAIL and isinstance(finding.subject, DeviceSubject)
    }
    found = [
        (view.source_index, device)
        for device in snapshot.devices
        if not isinstance(device.responding, Missing) and device.id.uuid not in faulty
        if (view := _torch_view(snapshot, device)) is not None
    ]
    return [device for _, device in sorted(found, key=lambda pair: pair[0])]


def free_bytes(snapshot: Snapshot, device: Device) -> Reading[int]:
    """Free memory for a rank on that GPU: what torch has, which on a MIG instance is a part of it."""
    view = _torch_view(snapshot, device)
    if view is None or isinstance(view.memory_free_bytes, Missing):
        return device.memory_free_bytes
    return view.memory_free_bytes


def _starts(view: DeviceView) -> bool:
    return view.source == "torch" and view.context_starts is True


def _torch_view(snapshot: Snapshot, device: Device) -> DeviceView | None:
    """The GPU as torch shows it; a MIG instance has a UUID of its own, and its GPU's bus id."""
    for view in snapshot.views:
        same = view.uuid == device.id.uuid or view.bus_id == device.id.bus_id
        if _starts(view) and same:
            return view
    return None


def visibility_for(snapshot: Snapshot, usable: Sequence[Device]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES with the usable GPUs only, where torch counts one that is not usable."""
    counted = [view for view in snapshot.views if view.source == "torch"]
    if len(counted) == len(usable):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(device.id.uuid) for device in usable)}


def may_have_own_gpus(snapshot: Snapshot, ranks: int, usable: Sequence[Device]) -> bool:
    """Whether a launcher may have shown each of its ranks here a GPU of its own: this process sees one of several.

    Whether it has, the ranks find out together (ranks/rank/device.py).
    """
    return len(usable) == 1 and max(len(snapshot.devices), len(pci_gpus(snapshot))) >= ranks


def sharing_for(snapshot: Snapshot, ranks: int, usable: Sequence[Device]) -> dict[str, str]:
    """What lets two NCCL ranks share the only GPU.

    Source: NCCL 2.30 release notes and docs, NCCL_MULTI_RANK_GPU_ENABLE (experimental).

    Raises:
        UsageError: they cannot, with what they would need.
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


def has_float8(snapshot: Snapshot, usable: Sequence[Device]) -> bool:
    """Whether torch, NCCL and every GPU are new enough for 8-bit floats (NCCL 2.24 release notes)."""
    torch = snapshot.torch
    if isinstance(torch, Missing) or _version(torch.version.partition("+")[0]) < _FLOAT8_TORCH:
        return False
    if isinstance(torch.nccl_version, Missing) or _version(torch.nccl_version) < _FLOAT8_NCCL:
        return False
    capabilities = [device.compute_capability for device in usable]
    return all(
        not isinstance(found, Missing) and _version(found) >= _FLOAT8_CAPABILITY for found in capabilities
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _told(version: Reading[str]) -> str:
    return "no NCCL" if isinstance(version, Missing) else f"NCCL {version}"
