"""A collective run, judged: is the data right, and is everything measured that was to be measured?"""

from collections.abc import Iterable

from gpudiag.checks.collective_speed import COLLECTIVE_SLOW, COLLECTIVE_SPEED
from gpudiag.checks.ranks import RANK_FINDINGS, judge_ranks
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.checks.wrong_data import BARRIER_PASSED, COLLECTIVE_CORRUPTED, judge_data
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity, worst_first
from gpudiag.model.measure import CollectiveMeasurement, InjectedFault
from gpudiag.model.reading import NOT_ASKED

_COLLECTIVE_ALL_REDUCE_BASIS = Basis(
    reads="Where every rank is: its stage, the collective that it is inside, and whether anything moves.",
    limit="Stall: 9 s longer than max(1 s, 10 times the predicted time), times the load of the host."
    " Whole run: `--timeout`.",
    look_also=("network.no_route", "network.wrong_interface", "gpu.peer_access_broken", "NCCL_DEBUG=INFO"),
)
_COLLECTIVE_NOT_VERIFIED_BASIS = Basis(
    reads="What the command line asked for, against what happened.",
    limit="None.",
    look_also=("gpudiag nccl-test --help",),
)
COLLECTIVE_INCOMPLETE = FindingKind(
    code="collective.incomplete",
    outcome=Outcome.ERROR,
    severity=Severity.UNKNOWN,
    category=Category.INTERNAL,
    owner=Owner.SOFTWARE,
    meaning="Fewer sizes were measured than planned, and nothing that was seen explains it.",
    remedy="Run it again; if it stays so, report it with `--json` output.",
    basis=_COLLECTIVE_ALL_REDUCE_BASIS,
)
COLLECTIVE_TIMED_OUT = FindingKind(
    code="collective.timed_out",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="The time for the whole run was over before every size was measured, with no rank to blame.",
    remedy="Give it more time, as with `gpudiag nccl-test --timeout 300`, or fewer sizes with `--max-bytes`.",
    basis=_COLLECTIVE_ALL_REDUCE_BASIS,
)
COLLECTIVE_NOT_VERIFIED = FindingKind(
    code="collective.not_verified",
    outcome=Outcome.WARN,
    severity=Severity.NONE,
    category=Category.NONE,
    owner=Owner.JOB,
    meaning="Speeds were measured and the data was not looked at, because `--verify off` said so.",
    remedy="Leave out `--verify off`.",
    basis=_COLLECTIVE_NOT_VERIFIED_BASIS,
)
INJECT_NOT_FIRED = FindingKind(
    code="inject.not_fired",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="A fault that `--inject` asked for never happened, so the run proves nothing about it.",
    remedy="Choose a rank, an iteration or a stage that the run reaches; see `--iterations` and `--nproc`.",
    basis=_COLLECTIVE_NOT_VERIFIED_BASIS,
)
COLLECTIVE_WITHOUT_GPU = FindingKind(
    code="collective.without_gpu",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="No GPU and no trace of one is here, so NCCL was not tested: the ranks ran on the CPU, with gloo.",
    remedy="To test the CPU: `--backend gloo`. Should a GPU be here: `lspci -d 10de:`, and `--gpus all` for a container.",
    basis=Basis(
        reads="Every trace of a GPU: NVML, the PCI bus, /dev, the driver, the allocation.",
        limit="One trace is enough; `--backend gloo` asks for none.",
        look_also=("gpudiag list --sources all", "gpudiag preflight --expect-gpus 0"),
    ),
)

# Of a run that gpudiag itself plans: nothing is injected, everything is verified, and no message is so long
# that its speed could be held against published ones.
PLANNED_FINDINGS = (
    *RANK_FINDINGS,
    COLLECTIVE_CORRUPTED,
    BARRIER_PASSED,
    COLLECTIVE_INCOMPLETE,
    COLLECTIVE_TIMED_OUT,
)
COLLECTIVE_FINDINGS = (
    *PLANNED_FINDINGS,
    COLLECTIVE_NOT_VERIFIED,
    INJECT_NOT_FIRED,
    COLLECTIVE_WITHOUT_GPU,
    COLLECTIVE_SLOW,
    COLLECTIVE_SPEED,
)


def tell_missing_gpu(measurement: CollectiveMeasurement) -> Finding:
    """The finding of a run that should use GPUs where there are any, and met none."""
    ranks = f"{measurement.world_size} {measurement.backend} ranks"
    return COLLECTIVE_WITHOUT_GPU.finding(
        HostSubject(measurement.host),
        f"no GPU and no trace of one, so NCCL was not tested; what follows is of {ranks} on the CPU",
        Evidence("gpus", 0, source="NVML, PCI bus, /dev, driver, allocation"),
    )


def judge_collective(measurement: CollectiveMeasurement) -> tuple[Finding, ...]:
    """Everything wrong with a run, worst and most certain first: the first finding is the cause.

    No finding means that every planned size was measured on every rank, and verified.
    """
    findings = [
        *judge_ranks(measurement),
        *judge_data(measurement),
        *judge_injection(measurement.injected, measurement.host),
        *_judge_verification(measurement),
    ]
    explained = any(finding.outcome in (Outcome.FAIL, Outcome.ERROR) for finding in findings)
    if not explained:
        findings += _judge_completeness(measurement)
    return worst_first(findings)


def judge_injection(injected: Iterable[InjectedFault], host: str) -> list[Finding]:
    """A finding for each fault that `--inject` asked for and that never happened."""
    return [
        INJECT_NOT_FIRED.finding(
            HostSubject(host),
            f"the injected fault {fault.specification} never happened",
            Evidence("fired", value=False, source=f"--inject {fault.specification}"),
        )
        for fault in injected
        if not fault.fired
    ]


def _judge_verification(measurement: CollectiveMeasurement) -> list[Finding]:
    unverified = [result for result in measurement.results if result.verified == NOT_ASKED]
    if not unverified:
        return []
    evidence = Evidence("unverified_sizes", len(unverified), limit=0, source="--verify off")
    message = f"the data of {len(unverified)} sizes was not verified"
    return [COLLECTIVE_NOT_VERIFIED.finding(HostSubject(measurement.host), message, evidence)]


def _judge_completeness(measurement: CollectiveMeasurement) -> list[Finding]:
    measured, planned = len(measurement.results), measurement.sizes_planned
    if measured == planned and planned > 0:
        return []
    evidence = Evidence("sizes_measured", measured, limit=planned, source="ranks")
    if measurement.timed_out:
        message = f"the time was over after {measured} of {planned} sizes"
        return [COLLECTIVE_TIMED_OUT.finding(HostSubject(measurement.host), message, evidence)]
    message = f"{measured} of {planned} planned sizes were measured, and nothing seen explains the rest"
    return [COLLECTIVE_INCOMPLETE.finding(HostSubject(measurement.host), message, evidence)]
