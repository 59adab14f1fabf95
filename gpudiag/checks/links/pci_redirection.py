"""Checks of what PCIe does to traffic between GPUs: ACS redirection, an IOMMU that translates."""

from functools import partial

from gpudiag.checks.host.findings import host_finding, host_state, is_virtual
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_kind = partial(FindingKind, outcome=Outcome.WARN, severity=Severity.CONFIG, owner=Owner.HOST)
ACS_REDIRECTS = _kind(
    code="host.acs_redirects",
    category=Category.HW_PCIE,
    meaning="PCI bridges above GPUs send traffic between GPUs up to the processor (ACS redirection is on).",
    remedy="On bare metal, turn ACS off for these bridges in the firmware set-up, or with `setpci` at boot.",
    basis=Basis(
        reads="The ACS control register of every PCI bridge above a GPU; the kernel shows it to root only.",
        limit="no bridge with ACS P2P Request or Completion Redirect (NCCL's guide)",
        look_also=("lspci -vvv | grep ACSCtl (as root)", "gpu.peer_access_broken"),
    ),
)
IOMMU_TRANSLATES = _kind(
    code="host.iommu_translates",
    category=Category.SW_CONFIG,
    meaning="The IOMMU translates what the GPUs read and write, which slows traffic between them, or stops it.",
    remedy="On bare metal add `iommu=pt` to the kernel's command line and reboot.",
    basis=Basis(
        reads="The type of the IOMMU groups that GPUs are in, /sys/kernel/iommu_groups/*/type.",
        limit="pass-through (identity) on bare metal with several GPUs (NCCL's guide)",
        look_also=("cat /proc/cmdline", "gpu.peer_access_broken"),
    ),
)


@check(
    "host.acs",
    title="no bridge sends GPU traffic up to the processor",
    needs=("gpus", "host_state"),
    reports=(ACS_REDIRECTS,),
    readings=("PCI configuration space of the bridges above GPUs (root)",),
)
def host_acs(context: Context) -> Judgement:
    """WARN for ACS redirection above GPUs of a machine with two or more, on bare metal."""
    state = host_state(context)
    if len(context.snapshot.devices) < 2 or is_virtual(state):
        return does_not_apply("it matters only between GPUs on bare metal")
    bridges = state.redirecting_bridges
    if isinstance(bridges, Missing):
        return not_readable("ACS settings of the bridges", bridges)
    if not bridges:
        return judged()
    message = f"ACS redirects traffic at {len(bridges)} bridges above GPUs: {', '.join(map(short_bus_id, bridges[:4]))}"
    evidence = Evidence("redirecting_bridges", len(bridges), "bridges", 0, "PCI configuration space")
    return judged(host_finding(context, ACS_REDIRECTS, message, evidence))


@check(
    "host.iommu",
    title="the IOMMU lets GPU traffic pass",
    needs=("gpus", "host_state"),
    reports=(IOMMU_TRANSLATES,),
    readings=("/sys/kernel/iommu_groups/*/type",),
)
def host_iommu(context: Context) -> Judgement:
    """WARN where the IOMMU translates for GPUs of a machine with two or more, on bare metal."""
    state = host_state(context)
    if len(context.snapshot.devices) < 2 or is_virtual(state):
        return does_not_apply("it matters only between GPUs on bare metal")
    iommu = state.iommu
    if isinstance(iommu, Missing):
        return not_readable("IOMMU groups", iommu)
    translating = [kind for kind in iommu.kinds if kind.lower() != "identity"]
    if not translating:
        return judged()
    message = f"the IOMMU translates for the GPUs (domain type {', '.join(translating)})"
    evidence = Evidence(
        "iommu_domain", translating[0], limit="identity", source="/sys/kernel/iommu_groups/*/type"
    )
    return judged(host_finding(context, IOMMU_TRANSLATES, message, evidence))
