"""The check of the fabric manager, which sets up NVSwitches: does it run, in the driver's version?"""

from functools import partial

from gpudiag.checks.host.findings import host_finding, host_state
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.traces import nvswitches
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_MANAGER = "Look at `systemctl status nvidia-fabricmanager` and its log; its version must match the driver's."
_BASIS = Basis(
    reads="Whether nv-fabricmanager is among the processes, and the version in its log.",
    limit="running, and of the driver's version, where NVSwitches are on the bus",
    look_also=(
        "systemctl status nvidia-fabricmanager",
        "tail /var/log/fabricmanager.log",
        "fabric.not_ready",
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
MANAGER_NOT_RUNNING = _kind(
    code="fabric.manager_not_running",
    meaning="The machine has NVSwitches, and the fabric manager that sets them up is not running.",
)
MANAGER_VERSION_DIFFERS = _kind(
    code="fabric.manager_version_differs",
    meaning="The fabric manager's version is not the driver's; it refuses to work with any other.",
    remedy="Install the fabric manager with the driver's version, then restart nvidia-fabricmanager.",
)


@check(
    "fabric.manager",
    title="the fabric manager runs, and its version is the driver's",
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
        return does_not_apply("it runs outside this container")
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
