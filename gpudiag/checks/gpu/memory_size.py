"""The check of how much memory each GPU has: as much as equal boards, and as its data sheet says."""

from collections.abc import Iterator

from gpudiag.checks import limits
from gpudiag.checks.per_device import alike, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing
from gpudiag.reference.gpu_models import find_memory
from gpudiag.units import GIB, format_size

MEMORY_TOO_SMALL = FindingKind(
    code="memory.too_small",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_MEMORY,
    owner=Owner.HARDWARE,
    meaning="The GPU has less memory than others of its board have here, or than its model is sold with.",
    remedy="Drain the GPU and power-cycle the machine; if the memory does not come back, have the GPU replaced.",
    basis=Basis(
        reads="NVML's total memory of the GPU, against GPUs of the same product, board"
        " and ECC mode here, and against the product's data sheet.",
        limit="98 % of the most that equal boards have; 90 % of the data sheet, since"
        " ECC of GDDR takes a sixteenth and the driver a little.",
        look_also=("nvidia-smi -q -d MEMORY", "xid 63", "dmesg -T | grep -i nvrm"),
    ),
)


@check(
    "memory.size",
    title="every GPU has the memory of its model",
    needs=("gpus",),
    reports=(MEMORY_TOO_SMALL,),
    readings=("memory_total_bytes", "name", "ecc_mode"),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4",
)
def memory_size(context: Context) -> Judgement:
    """FAIL for a GPU with less memory than equal boards have here, or than its data sheet says."""
    return judge_devices(context.snapshot, ("memory_total_bytes", "name"), _judge_size)


def _judge_size(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    memory = device.memory_total_bytes
    if isinstance(memory, Missing) or device.memory_kind == "unified":
        return
    for share, whole, says in _opinions(snapshot, device):
        if memory < share * whole:
            message = (
                f"{name_device(device)} has {format_size(memory)} of memory, {says} {format_size(whole)}"
            )
            evidence = Evidence("memory_total_bytes", memory, "bytes", whole, f"NVML; limit: {says}")
            yield MEMORY_TOO_SMALL.finding(device_subject(snapshot, device), message, evidence)
            return


def _opinions(snapshot: Snapshot, device: Device) -> Iterator[tuple[float, int, str]]:
    """Each opinion on the memory: the least share, the expected size, and its source."""
    peers = [
        peer.memory_total_bytes
        for peer in alike(snapshot, device)
        if peer.ecc_mode == device.ecc_mode and not isinstance(peer.memory_total_bytes, Missing)
    ]
    if peers:
        yield limits.MEMORY_OF_PEERS_SHARE, max(peers), "others of its kind here have"
    model = None if isinstance(device.name, Missing) else find_memory(device.name)
    if model is not None:
        yield limits.MEMORY_OF_MODEL_SHARE, model.gib * GIB, "its model has"
