"""The check of GPUs that this machine had and has no more, neither in the driver's list nor on the bus."""

from collections.abc import Iterator

from gpudiag.checks.gpu.availability import granted
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged
from gpudiag.checks.subjects import short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.history import KnownGpu, KnownGpus
from gpudiag.model.reading import Missing, MissingReason

GPU_GONE = FindingKind(
    code="gpu.gone",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="A GPU that this machine had is no longer here, neither in the driver's list nor on the bus. "
    "If it was taken out on purpose, accept that once: "
    "`gpudiag list --json --output now.json; gpudiag preflight --expect now.json`.",
    remedy=(
        "[hardware] Look for its bus id in `dmesg` and [power cycle: power-cycle the machine];"
        " if it does not come back, reseat or"
        " replace it. Taken out on purpose: `gpudiag explain gpu.gone`."
    ),
    basis=Basis(
        reads="UUIDs and bus ids of the GPUs, RDMA ports, driver, VBIOS, kernel, processor and"
        " memory, now and in the last good run.",
        limit="the GPUs of this machine's last good run, or of --expect",
        look_also=("gpu.missing", "lspci -d 10de:", "dmesg -T | grep -i -e NVRM -e mlx5"),
    ),
)


@check(
    "machine.gpus",
    title="every GPU of the last good run is still here",
    needs=("known_gpus",),
    reports=(GPU_GONE,),
    readings=("devices", "pci_devices", "what the last good run noted"),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4 (UUIDs)",
)
def machine_gpus(context: Context) -> Judgement:
    """FAIL for each GPU of the machine's last good run that nothing shows now."""
    known = context.known_gpus
    assert not isinstance(known, Missing)  # noqa: S101 - the runner answers for the need
    if known.share != share_of(context.snapshot) or known.in_container != in_container(context.snapshot):
        return does_not_apply("what was recorded is of another part of this machine")
    return judged(*_gone(context.snapshot, known))


def known_gpus_of(snapshot: Snapshot) -> KnownGpus:
    """The GPUs that answered in that snapshot, which later snapshots are compared with."""
    gpus = tuple(
        KnownGpu(
            device.id.uuid,
            "" if isinstance(device.id.bus_id, Missing) else device.id.bus_id,
            "" if isinstance(device.name, Missing) else device.name,
            snapshot.taken_at,
            "" if isinstance(device.serial, Missing) else device.serial,
            None if isinstance(device.id.nvml_index, Missing) else device.id.nvml_index,
        )
        for device in snapshot.devices
        if not isinstance(device.responding, Missing) and not isinstance(device.id.uuid, Missing)
    )
    return KnownGpus(snapshot.host, gpus, share_of(snapshot), in_container(snapshot))


def share_of(snapshot: Snapshot) -> int | None:
    """How many of the machine's GPUs this process was given; None where unknown."""
    grant = granted(snapshot.machine.allocation)
    return None if grant is None else grant[1]


def in_container(snapshot: Snapshot) -> bool:
    """Whether the snapshot was taken inside a container."""
    return snapshot.machine.container is not None


def find_gone(snapshot: Snapshot, known: KnownGpus) -> list[KnownGpu]:
    """The GPUs of the last good run that nothing shows now; none where all are others, and no fewer."""
    if has_others_instead(snapshot, known):
        return []
    here = {device.id.uuid for device in snapshot.devices}
    pci = snapshot.machine.pci_devices
    # gpu.lost and gpu.count report what is still on the bus.
    places = {device.id.bus_id for device in snapshot.devices}
    places |= set() if isinstance(pci, Missing) else {device.bus_id for device in pci}
    return [gpu for gpu in known.gpus if gpu.uuid not in here and gpu.bus_id not in places]


def has_others_instead(snapshot: Snapshot, known: KnownGpus) -> bool:
    """Whether as many GPUs answer as were known, and each is another: a machine of the same name.

    For instance a virtual machine on another host (github.com/NVIDIA/k8s-device-plugin/issues/373).
    """
    answering = {device.id.uuid for device in snapshot.devices if device.responding is True}
    before = {gpu.uuid for gpu in known.gpus}
    return 0 < len(before) <= len(answering) and not before & {device.id.uuid for device in snapshot.devices}


def _gone(snapshot: Snapshot, known: KnownGpus) -> Iterator[Finding]:
    gone = find_gone(snapshot, known)
    if len(gone) <= unnamed_rows(snapshot):
        return
    if len(gone) == len(known.gpus) > 1:
        yield _all_gone(snapshot, gone)
    else:
        yield from (_one_gone(snapshot, gpu) for gpu in gone)


def gone_subject(snapshot: Snapshot, gpu: KnownGpu) -> DeviceSubject:
    """The subject for a GPU that is gone: its index may be another's by now."""
    absent = Missing(MissingReason.SOURCE_ABSENT)
    return DeviceSubject(gpu.uuid, gpu.bus_id or absent, absent, snapshot.host)


def unnamed_rows(snapshot: Snapshot) -> int:
    """How many GPUs are listed without UUID and bus id: each may be one that seems to be gone."""
    return sum(
        isinstance(device.id.uuid, Missing) and isinstance(device.id.bus_id, Missing)
        for device in snapshot.devices
    )


def _all_gone(snapshot: Snapshot, gone: list[KnownGpu]) -> Finding:
    """One finding: what takes all GPUs away at once is no fault of eight GPUs."""
    uuids = (Evidence("uuid", gpu.uuid, source=_recorded(gpu)) for gpu in gone)
    return GPU_GONE.finding(
        HostSubject(snapshot.host),
        f"all {len(gone)} GPUs that were here are gone",
        *uuids,
        remedy=(
            "Look at what they share: power and cables of the GPU board, the PCIe switch, the virtual"
            " machine's devices. Taken out on purpose: `gpudiag explain gpu.gone`."
        ),
    )


def _one_gone(snapshot: Snapshot, gpu: KnownGpu) -> Finding:
    where = f" at {short_bus_id(gpu.bus_id)}" if gpu.bus_id else ""
    who = (
        f"the GPU{where} that was here"
        if gpu.nvml_index is None
        else f"the GPU{where} that was GPU {gpu.nvml_index}"
    )
    subject = gone_subject(snapshot, gpu)
    facts = [Evidence("uuid", gpu.uuid, source=_recorded(gpu))]
    facts += [Evidence("serial", gpu.serial)] if gpu.serial else []
    facts += (
        [Evidence("nvml_index", gpu.nvml_index, source=_recorded(gpu))] if gpu.nvml_index is not None else []
    )
    return GPU_GONE.finding(subject, f"{who} ({gpu.uuid}) is gone", *facts)


def _recorded(gpu: KnownGpu) -> str:
    return f"recorded {gpu.last_seen:%Y-%m-%d %H:%M}"
