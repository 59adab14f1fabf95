"""A check of virtual GPUs: one without its license is slowed down, and later refuses CUDA."""

from collections.abc import Iterator

from gpudiag.checks.per_device import answering, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity

_SOURCE = "nvmlDeviceGetGridLicensableFeatures"
UNLICENSED = FindingKind(
    code="vgpu.unlicensed",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning=(
        "The virtual GPU has no license: its driver works at full speed for a while after boot,"
        " then slows it down and refuses CUDA."
    ),
    remedy=(
        "Run `nvidia-smi -q -i INDEX | grep License` and `journalctl -u nvidia-gridd -n 50` in this guest;"
        " give it the client token in /etc/nvidia/ClientConfigToken and restart nvidia-gridd."
    ),
    basis=Basis(
        reads=f"{_SOURCE}: whether the GPU needs a license, and whether any licensable feature is on.",
        limit=(
            "None: a GPU that needs a license has one. NVIDIA's vGPU client licensing guide: an unlicensed"
            " vGPU is slowed down 20 minutes after boot."
        ),
        look_also=("nvidia-smi -q | grep License", "journalctl -u nvidia-gridd"),
    ),
)


@check(
    "vgpu.license",
    title="every virtual GPU has its license",
    needs=("gpus",),
    reports=(UNLICENSED,),
    readings=("vgpu_license",),
)
def vgpu_license(context: Context) -> Judgement:
    """WARN for a virtual GPU that needs a license and has none."""
    if all(device.vgpu_license == "not_needed" for device in answering(context.snapshot)):
        return does_not_apply("no GPU here needs a license")
    return judge_devices(context.snapshot, ("vgpu_license",), _judge)


def _judge(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    if device.vgpu_license == "unlicensed":
        evidence = Evidence("vgpu_license", "unlicensed", limit="licensed", source=_SOURCE)
        yield UNLICENSED.finding(
            device_subject(snapshot, device),
            f"{name_device(device)} is a virtual GPU without its license",
            evidence,
        )
