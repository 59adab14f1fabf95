"""Checks of the NVLink fabric: is every GPU registered, is it healthy, and does the fabric manager run?"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gpu.board import describe_shortage
from gpudiag.checks.links.fabric_place import advise_on_fabric, describe_status, is_of_rack, missing_modules
from gpudiag.checks.per_device import answering, conclude, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import device_subject, host_finding, host_state, name_device
from gpudiag.checks.traces import nvswitches
from gpudiag.model.context import Context
from gpudiag.model.device import Device, FabricState, Snapshot
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, Reading

# --- the fabric's own word

_MANAGER = (
    "[driver] Look at `systemctl status nvidia-fabricmanager` and its log;"
    " its version must match the driver's."
)
_BASIS = Basis(
    reads="nvmlDeviceGetGpuFabricInfo: state, status, health and faults; NVSwitches on the PCI bus.",
    limit="the driver's own words: completed, success, healthy",
    look_also=(
        "nvidia-smi -q | grep -A12 Fabric",
        "systemctl status nvidia-fabricmanager",
        "cuda.system_not_ready",
    ),
)
_kind = partial(
    FindingKind,
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.HW_NVSWITCH,
    owner=Owner.HOST,
    remedy=_MANAGER,
    basis=_BASIS,
)
NOT_READY = _kind(
    code="fabric.not_ready",
    outcome=Outcome.FAIL,
    meaning=(
        "The driver reports that the GPU is not registered with the NVLink"
        " fabric: CUDA will refuse to start (802)."
    ),
    stated=True,
)
UNHEALTHY = _kind(
    code="fabric.unhealthy",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    owner=Owner.HARDWARE,
    meaning="The driver reports that the GPU's connection to the NVLink fabric is unhealthy.",
    remedy=(
        "Drain the machine and [reset: reset all of its GPUs]; if it comes back, have the"
        " switch tray and the GPU examined."
    ),
    stated=True,
)
LIMITED = _kind(
    code="fabric.limited",
    severity=Severity.TRIAGE,
    owner=Owner.HARDWARE,
    meaning="The driver reports that the GPU's connection to the NVLink fabric works at reduced capacity.",
    remedy="Look at NVLinks and switches; collectives will be slower than on a whole fabric.",
)
CLIQUE_DIFFERS = _kind(
    code="fabric.clique_differs",
    meaning=(
        "GPUs of one machine are in different NVLink domains: NVLink does not reach from one to the other."
    ),
    remedy="Look at the fabric's partitions; in one job use GPUs of one domain.",
)

NO_DOMAIN = _kind(
    code="fabric.no_domain",
    meaning=(
        "A GPU of a rack (NVL72) is registered with the NVLink fabric, and its cluster UUID or clique is"
        " zero: it is in no NVLink domain, and NVLink does not reach the other trays."
    ),
)


@check(
    "fabric.state",
    title="every GPU is registered with a healthy NVLink fabric",
    needs=("gpus",),
    reports=(NOT_READY, UNHEALTHY, LIMITED, CLIQUE_DIFFERS, NO_DOMAIN),
    readings=("fabric", "pci_devices (NVSwitches)"),
    confirmed="nvidia-smi -q of H100 and B200",
)
def fabric_state(context: Context) -> Judgement:
    """FAIL where the driver calls the registration unfinished or unhealthy; WARN where it is limited."""
    snapshot = context.snapshot
    states = [device.fabric for device in answering(snapshot) if isinstance(device.fabric, FabricState)]
    if states and not _has_fabric(snapshot, states):
        return does_not_apply("no NVSwitch is here, and no GPU is joining a fabric")
    joining = [device for device in answering(snapshot) if _is_unready(device)]
    if len(joining) == len(states) > 1:
        return conclude([_none_ready(snapshot, joining)], len(joining), [])
    return judge_devices(snapshot, ("fabric",), _judge_state)


def _has_fabric(snapshot: Snapshot, states: list[FabricState]) -> bool:
    """Whether there is a fabric: NVSwitches on the bus, or a GPU that joins or has joined one.

    A GPU without a fabric (a PCIe card, a single GPU, GH200) may report `not started` for good.
    """
    return bool(nvswitches(snapshot)) or any(state.state != "not_started" for state in states)


def _is_unready(device: Device) -> bool:
    fabric = device.fabric
    return isinstance(fabric, FabricState) and (fabric.state != "completed" or fabric.status != "success")


def _none_ready(snapshot: Snapshot, devices: list[Device]) -> Finding:
    """One finding for a fabric that no GPU has joined: it is the fabric, not the GPUs."""
    fabric = devices[0].fabric
    words = describe_status(fabric) if isinstance(fabric, FabricState) else ""
    message = f"none of {len(devices)} GPUs is registered with the NVLink fabric ({words})"
    facts = [Evidence("fabric.state", words, limit="completed", source="nvmlDeviceGetGpuFabricInfo")]
    missing, shortage = missing_modules(snapshot), describe_shortage(snapshot)
    if missing:
        message += f": the kernel modules {' and '.join(missing)} are not loaded"
        facts += [Evidence(name, False, limit=True, source="/proc/modules") for name in missing]
    if shortage:
        message += f"; {shortage}"
    return NOT_READY.finding(HostSubject(snapshot.host), message, *facts, remedy=advise_on_fabric(snapshot))


def _judge_state(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    fabric, subject, name = device.fabric, device_subject(snapshot, device), name_device(device)
    if isinstance(fabric, Missing) or device.mig_mode == "enabled":
        return
    source = "nvmlDeviceGetGpuFabricInfo"
    if _is_unready(device):
        message = f"{name}: fabric registration is {describe_status(fabric)}"
        state = Evidence("fabric.state", fabric.state, limit="completed", source=source)
        yield NOT_READY.finding(
            subject,
            message,
            state,
            Evidence("fabric.status", fabric.status, source=source),
            remedy=advise_on_fabric(snapshot),
        )
        return
    faults = () if isinstance(fabric.faults, Missing) else fabric.faults
    words = Evidence("fabric.faults", ", ".join(faults) or "none", source=source)
    if fabric.health == "unhealthy" or (isinstance(fabric.health, Missing) and faults):
        message = (
            f"{name}: the fabric is unhealthy ({', '.join(faults).replace('_', ' ') or 'no cause given'})"
        )
        yield UNHEALTHY.finding(subject, message, words)
    elif fabric.health == "limited_capacity":
        yield LIMITED.finding(subject, f"{name}: the fabric works at limited capacity", words)
    if is_of_rack(device) and not (_is_set(fabric.cluster_uuid) and fabric.clique_id):
        zero = Evidence("fabric.cluster_uuid", str(fabric.cluster_uuid), source=source)
        message = f"{name} is in no NVLink domain of its rack: cluster UUID or clique is zero"
        clique = Evidence("fabric.clique_id", str(fabric.clique_id), limit="not 0", source=source)
        yield NO_DOMAIN.finding(subject, message, zero, clique, remedy=advise_on_fabric(snapshot))
    usual = _usual_domain(snapshot)
    if usual is not None and (fabric.cluster_uuid, fabric.clique_id) != usual:
        evidence = Evidence("fabric.clique_id", str(fabric.clique_id), limit=str(usual[1]), source=source)
        yield CLIQUE_DIFFERS.finding(
            subject, f"{name} is in another NVLink domain than most GPUs here", evidence
        )


def _is_set(uuid: Reading[str]) -> bool:
    """Whether a UUID has another digit than 0; one that was not read counts as set."""
    return isinstance(uuid, Missing) or any(digit not in "0-" for digit in uuid)


def _usual_domain(snapshot: Snapshot) -> tuple[object, object] | None:
    """Cluster and clique of most GPUs; None where no domain has a majority."""
    domains = Counter(
        (device.fabric.cluster_uuid, device.fabric.clique_id)
        for device in answering(snapshot)
        if isinstance(device.fabric, FabricState)
    )
    domain, votes = domains.most_common(1)[0]
    return domain if votes > domains.total() / 2 else None


# --- what sets it up

_MANAGER_BASIS = Basis(
    reads="Whether nv-fabricmanager is among the processes, and the version in its log.",
    limit="running, and of the driver's version, where NVSwitches are on the bus",
    look_also=(
        "systemctl status nvidia-fabricmanager",
        "tail /var/log/fabricmanager.log",
        "fabric.not_ready",
    ),
)
_manager_kind = partial(_kind, basis=_MANAGER_BASIS)
MANAGER_NOT_RUNNING = _manager_kind(
    code="fabric.manager_not_running",
    meaning="The machine has NVSwitches, and the fabric manager that sets them up is not running.",
)
MANAGER_VERSION_DIFFERS = _manager_kind(
    code="fabric.manager_version_differs",
    meaning="The fabric manager's version differs from the driver's; it works with the same version only.",
    remedy=(
        "[driver] Install the fabric manager with the driver's version, then restart nvidia-fabricmanager."
    ),
)


@check(
    "fabric.manager",
    title="the fabric manager runs in the driver's version",
    needs=("gpus", "host_state"),
    reports=(MANAGER_NOT_RUNNING, MANAGER_VERSION_DIFFERS),
    readings=("/proc/*/comm (nv-fabricmanager)", "/var/log/fabricmanager.log", "driver_version"),
)
def fabric_manager(context: Context) -> Judgement:
    """WARN where there are NVSwitches and their manager does not run, or is of another version."""
    snapshot = context.snapshot
    if not nvswitches(snapshot):
        return does_not_apply("there are no NVSwitches on the bus")
    if snapshot.machine.container is not None:
        return does_not_apply(f"it runs outside this container ({snapshot.machine.container.words})")
    manager = host_state(context).fabric_manager
    if isinstance(manager, Missing):
        return not_readable("the fabric manager", manager)
    if not manager.running:
        message = f"{len(nvswitches(snapshot))} NVSwitches are here and the fabric manager is not running"
        running = Evidence("running", False, limit=True, source="/proc/*/comm")
        return judged(host_finding(context, MANAGER_NOT_RUNNING, message, running))
    version, driver = manager.version, snapshot.driver_version
    if isinstance(version, Missing) or isinstance(driver, Missing) or version == driver:
        return judged()
    message = f"the fabric manager has version {version}, the driver version {driver}"
    evidence = Evidence("fabric_manager_version", version, limit=driver, source="its log; limit: NVML")
    return judged(host_finding(context, MANAGER_VERSION_DIFFERS, message, evidence))
