"""A collective run, judged: is the data right, whose is wrong, was everything measured, and how fast was it?

Only the plateau is judged, never an average over sizes: small messages measure latency. There is
no finding where nothing is known. Ranks on CPUs are never judged by their speed.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gpudiag.checks.benchmarks.collective_speeds import (
    NVLS,
    PLATEAU_BYTES,
    RING,
    TREE,
    expect_published,
    fits_ring,
)
from gpudiag.checks.ranks.incidents import RANK_FINDINGS
from gpudiag.checks.ranks.localisation import LOCALISATION_FINDINGS, judge_localisation
from gpudiag.checks.ranks.measured_speeds import HISTORY_RUNS, Opinion, judge_speed
from gpudiag.checks.ranks.own_ranks import judge_ranks
from gpudiag.checks.ranks.rising_counters import explain_by
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.device import Device
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, Scalar, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity, worst_first
from gpudiag.model.history import Baseline, Sample
from gpudiag.model.measure import (
    CollectiveMeasurement,
    CollectiveResult,
    Incident,
    IncidentKind,
    InjectedFault,
)
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.reference.speeds import speed_limits
from gpudiag.units import MIB, format_rate, format_seconds, format_size

# --- speed

_BASIS = Basis(
    reads="busbw of the largest messages, from the slowest rank of each iteration.",
    limit="Published figures for this GPU, count and algorithm, with their source; then this machine's"
    " own earlier runs.",
    look_also=("gpudiag history", "gpudiag nccl-test --all-sizes", "NCCL_DEBUG=INFO", "nvidia-smi nvlink -s"),
)
COLLECTIVE_SLOW = FindingKind(
    code="collective.slow",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.PERF_THRESHOLD,
    owner=Owner.HARDWARE,
    meaning="A collective is slower than on machines of this kind, or than before on this machine.",
    remedy="See what changed during the run (throttling, replays, NVLink errors); then find the slow "
    "GPU, node or link: `gpudiag nccl-test --localise`.",
    basis=_BASIS,
)
COLLECTIVE_SPEED = FindingKind(
    code="collective.speed",
    outcome=Outcome.PASS,
    severity=Severity.NONE,
    category=Category.NONE,
    owner=Owner.HARDWARE,
    meaning="A collective is as fast as on machines of this kind, or as before on this machine.",
    remedy="No action is needed.",
    basis=_BASIS,
)

# Results below this are latency, and too noisy to be compared with earlier ones.
STORED_BYTES = MIB


def judge_collective_speed(
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    earlier: Mapping[str, Baseline],
) -> tuple[Finding, ...]:
    """A finding per operation whose speed can be compared: slow, or as it should be.

    `devices` are the GPUs that took part, all of them on this host; `earlier` has this machine's own
    baselines by metric.
    """
    found = judge_each_speed(measurement, devices, environment, earlier)
    return explain_by([finding for _, finding in found if finding is not None], measurement.moved)


def judge_each_speed(
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    earlier: Mapping[str, Baseline],
) -> tuple[tuple[CollectiveResult, Finding | None], ...]:
    """The largest result of each operation, with the finding about its speed; None without a figure."""
    if measurement.backend != "nccl" or measurement.world_size < 2 or measurement.ranks_share_gpu:
        return ()
    return tuple(
        (result, _judge_result(result, measurement, devices, environment, earlier))
        for result in largest_results(measurement.results)
    )


def samples_of(measurement: CollectiveMeasurement) -> tuple[Sample, ...]:
    """The samples that later runs are compared with: each operation's bus bandwidth at its largest size."""
    return tuple(
        Sample(metric_name(result, measurement), result.busbw_bytes_per_second, "B/s")
        for result in largest_results(measurement.results)
        if not isinstance(result.busbw_bytes_per_second, Missing)
    )


def metric_name(result: CollectiveResult, measurement: CollectiveMeasurement) -> str:
    """The metric of a result, with the method: `all_reduce.float32.8388608.nccl.4.busbw`."""
    reduce = "" if isinstance(result.reduce, Missing) or result.reduce == "sum" else f".{result.reduce}"
    placement = "" if result.in_place else ".out_of_place"
    method = f"{measurement.backend}.{measurement.world_size}"
    return f"{result.op}{reduce}{placement}.{result.dtype}.{result.size_bytes}.{method}.busbw"


def largest_results(results: Sequence[CollectiveResult]) -> list[CollectiveResult]:
    """The largest verified result of each operation, dtype and placement, if above latency sizes."""
    largest: dict[tuple[object, ...], CollectiveResult] = {}
    for result in results:
        key = (result.op, result.reduce, result.dtype, result.in_place, result.unaligned)
        good = result.verified is True and result.size_bytes >= STORED_BYTES
        if good and (key not in largest or largest[key].size_bytes < result.size_bytes):
            largest[key] = result
    return list(largest.values())


def find_algorithm(
    result: CollectiveResult, devices: Sequence[Device], environment: Mapping[str, str]
) -> Reading[str]:
    """NCCL's algorithm where it is known: by its settings, or by a speed that only one can reach.

    With NVLS the switches add up, so that busbw may exceed what the links of one GPU carry.
    """
    chosen = environment.get("NCCL_ALGO", "")
    if chosen and "," not in chosen and ":" not in chosen and not chosen.startswith("^"):
        return chosen
    link_rates = [_link_bytes_per_second(device) for device in devices]
    known = [rate for rate in link_rates if rate is not None]
    busbw = result.busbw_bytes_per_second
    if result.op == "all_reduce" and known and not isinstance(busbw, Missing) and busbw > max(known):
        return "NVLS"
    return Missing(MissingReason.NOT_SUPPORTED, "neither NCCL_ALGO nor the speed shows it")


def _judge_result(
    result: CollectiveResult,
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    earlier: Mapping[str, Baseline],
) -> Finding | None:
    busbw = result.busbw_bytes_per_second
    if isinstance(busbw, Missing):
        return None
    opinions = [
        *_history_opinions(earlier.get(metric_name(result, measurement))),
        *_table_opinions(result, measurement, devices, environment),
    ]
    if not opinions:
        return None
    verdict = judge_speed("busbw", busbw, "B/s", opinions)
    kind = COLLECTIVE_SPEED if verdict.outcome is Outcome.PASS else COLLECTIVE_SLOW
    algorithm = find_algorithm(result, devices, environment)
    chosen = () if isinstance(algorithm, Missing) else (Evidence("algorithm", algorithm, source="NCCL"),)
    message = (
        f"{result.op} {result.dtype} of {format_size(result.size_bytes)} on {measurement.world_size} GPUs: "
        f"{format_rate(busbw)} busbw, expected {format_rate(max(opinion.expected for opinion in opinions))}"
    )
    return kind.finding(HostSubject(measurement.host), message, *verdict.evidence, *chosen)


def _history_opinions(before: Baseline | None) -> list[Opinion]:
    if before is None or before.count < HISTORY_RUNS or not before.median > 0:
        return []
    return [
        Opinion("history", before.median, f"median of {before.count} earlier runs", speed_limits()["history"])
    ]


def _table_opinions(
    result: CollectiveResult,
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
) -> list[Opinion]:
    """Published figures for exactly these GPUs, this number of them, and NCCL's algorithm."""
    if result.size_bytes < PLATEAU_BYTES or len(devices) != measurement.world_size:
        return []
    names = frozenset(device.name for device in devices if isinstance(device.name, str))
    found = expect_published(result.op, result.size_bytes, names, len(devices))
    rings = [opinion.expected for curve, opinion in found if curve.algorithm == RING]
    algorithm = _algorithm_of(result, rings, devices, environment)
    if all(curve.algorithm != NVLS for curve, _ in found):  # such GPUs have no choice
        algorithm = RING
    return [opinion for curve, opinion in found if curve.algorithm in ("", algorithm)]


def _algorithm_of(
    result: CollectiveResult,
    rings: Sequence[float],
    devices: Sequence[Device],
    environment: Mapping[str, str],
) -> str:
    """The algorithm whose figures count: NCCL_ALGO's, else NVLS, which NCCL takes where the GPUs support it.

    A speed that NVLS would be slow for and a ring would not is a ring's.
    """
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return RING
    forced = {"ring": RING, "tree": TREE, "nvls": NVLS}.get(environment.get("NCCL_ALGO", "").lower())
    if forced is not None or not isinstance(find_algorithm(result, devices, environment), Missing):
        return forced or NVLS
    busbw = result.busbw_bytes_per_second
    return RING if not isinstance(busbw, Missing) and fits_ring(busbw, rings) else NVLS


def _link_bytes_per_second(device: Device) -> float | None:
    """What the NVLinks of a GPU carry in one direction together; None where it is not known."""
    links, rate = device.nvlinks, device.nvlink_bytes_per_second
    if isinstance(links, Missing) or isinstance(rate, Missing):
        return None
    return rate * sum(link.active is True for link in links)


# --- data

COLLECTIVE_CORRUPTED = FindingKind(
    code="collective.corrupted",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning="A collective returned wrong data without an error: training on it learns from noise.",
    remedy="Keep this host out of jobs; run it again on fewer ranks to find the device or link at fault.",
    basis=Basis(
        reads="Every element of the timed buffers, against the exact result for a"
        " pattern that depends on rank and offset.",
        limit="None: exact equality; the pattern is chosen so that no rounding can happen.",
        look_also=("gpu.peer_access_broken", "xid.hardware", "cuda.uncorrectable_ecc"),
    ),
)
WRONG_REDUCTION = FindingKind(
    code="collective.wrong_reduction",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning=(
        "A collective added up the ranks' data where another reduction was asked"
        " for: the library ignores the request."
    ),
    remedy=(
        "No device is at fault. Use another version of torch; with gloo, `reduce_scatter` does this up to"
        " torch 2.8, and FSDP on the CPU with it."
    ),
    basis=Basis(
        reads="The timed buffers, against the sum of the pattern over all ranks.",
        limit="None: every wrong element that is looked at is that sum.",
        look_also=(
            "collective.corrupted",
            "train.gradients_summed",
            "gpudiag nccl-test --op all --reduce max",
        ),
    ),
)
BARRIER_PASSED = FindingKind(
    code="collective.barrier_passed",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning="A rank left a barrier before another rank had entered it: the barrier does not synchronise.",
    remedy=(
        "Run `gpudiag nccl-test --op barrier` again; if it happens again, try"
        " another version of torch or NCCL."
    ),
    basis=Basis(
        reads="The moments right before and right after each timed barrier, on the clock"
        " that all ranks of one machine share.",
        limit="None: no rank may leave before every rank has entered.",
        look_also=("gpudiag nccl-test --op barrier", "collective.corrupted", "NCCL_DEBUG=INFO"),
    ),
)

# What happened to one rank's data, by the diagnosis of the rank that saw it.
_FATES: Mapping[str, str] = MappingProxyType(
    {
        "dropped": "is missing",
        "duplicated": "is counted twice",
        "replaced": "stands where another rank's belongs",
        "stale": "is of another round",
        "misplaced": "lies in another block's place",
        "shifted": "arrived at the wrong offset",
    }
)
_EVERYWHERE = "everywhere"
_SUMMED = "summed"

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
    meaning="Fewer sizes were measured than planned, and gpudiag found no reason.",
    remedy="Run it again; if it happens again, report it with `--json` output.",
    basis=_COLLECTIVE_ALL_REDUCE_BASIS,
)
COLLECTIVE_TIMED_OUT = FindingKind(
    code="collective.timed_out",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="The time for the whole run ran out before every size was measured, with no rank to blame.",
    remedy=(
        "Give it more time, for example with `gpudiag nccl-test --timeout 300`,"
        " or fewer sizes with `--max-bytes`."
    ),
    basis=_COLLECTIVE_ALL_REDUCE_BASIS,
)
COLLECTIVE_NOT_VERIFIED = FindingKind(
    code="collective.not_verified",
    outcome=Outcome.WARN,
    severity=Severity.NONE,
    category=Category.NONE,
    owner=Owner.JOB,
    meaning="Speeds were measured, but the data was not verified, because of `--verify off`.",
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
    meaning=(
        "This machine has no GPU and no trace of one, so NCCL was not tested:"
        " the ranks ran on the CPU, with gloo."
    ),
    remedy=(
        "To test the CPU: `--backend gloo`. If a GPU should be here: `lspci -d 10de:`,"
        " and `--gpus all` for a container."
    ),
    basis=Basis(
        reads="Every trace of a GPU: NVML, the PCI bus, /dev, the driver, the allocation.",
        limit="One trace is enough; `--backend gloo` looks for none.",
        look_also=("gpudiag list --sources all", "gpudiag preflight --expect-gpus 0"),
    ),
)

# Of a run that gpudiag itself plans: nothing is injected, everything is verified, and no message is so long
# that its speed could be held against published ones.
PLANNED_FINDINGS = (
    *RANK_FINDINGS,
    COLLECTIVE_CORRUPTED,
    WRONG_REDUCTION,
    BARRIER_PASSED,
    COLLECTIVE_INCOMPLETE,
    COLLECTIVE_TIMED_OUT,
)
COLLECTIVE_FINDINGS = (
    *PLANNED_FINDINGS,
    COLLECTIVE_NOT_VERIFIED,
    INJECT_NOT_FIRED,
    COLLECTIVE_WITHOUT_GPU,
    *LOCALISATION_FINDINGS,
    COLLECTIVE_SLOW,
    COLLECTIVE_SPEED,
)


def judge_data(measurement: CollectiveMeasurement) -> list[Finding]:
    """One finding per rank whose data was wrong, or that alone held wrong data; earliest first.

    Wrong data that every rank holds alike was wrong before or in the reduction: it names no rank. Nor does a
    sum in the place of another reduction, which is what the library made of the request.
    """
    corrupted = [incident for incident in measurement.incidents if incident.kind is IncidentKind.CORRUPTED]
    corrupted.sort(key=lambda incident: incident.at_seconds)
    added = {one.facts["op"]: one for one in reversed(corrupted) if one.facts["diagnosis"] == _SUMMED}
    groups: dict[int | str, list[Incident]] = {}
    for incident in corrupted:
        if incident.facts["op"] not in added:
            groups.setdefault(_culprit(incident, corrupted, measurement.world_size), []).append(incident)
    findings = [
        *(_describe_reduction(first, measurement) for first in reversed(added.values())),
        *(_describe(culprit, seen, measurement) for culprit, seen in groups.items()),
    ]
    return [*(findings or _counted_only(measurement)), *_judge_barriers(measurement)]


def _judge_barriers(measurement: CollectiveMeasurement) -> list[Finding]:
    """A finding for the first barrier that did not hold ranks back; later ones add nothing."""
    passed = [incident for incident in measurement.incidents if incident.kind is IncidentKind.PASSED]
    findings = []
    for incident in passed[:1]:
        facts = incident.facts
        early = f" {format_seconds(float(facts['early_by']))}" if "early_by" in facts else ""
        other = f"rank {facts['before_rank']}" if "before_rank" in facts else "another rank"
        where = f", in iteration {facts['iteration']}" if "iteration" in facts else ""
        message = f"rank {incident.rank} left a barrier{early} before {other} had entered it{where}"
        subject = RankSubject(incident.rank, incident.host)
        findings.append(BARRIER_PASSED.finding(subject, message, *incident.evidence))
    return findings


def _describe_reduction(first: Incident, measurement: CollectiveMeasurement) -> Finding:
    """The finding for an operation that adds up, whatever it is asked for."""
    facts = first.facts
    message = (
        f"{facts['op']} over {measurement.backend} returns the sum where"
        f" {facts.get('reduce', 'another reduction')} was asked for, first with {facts['dtype']} of"
        f" {format_size(int(facts['size_bytes']))}"
    )
    return WRONG_REDUCTION.finding(HostSubject(measurement.host), message, *first.evidence)


def _culprit(incident: Incident, corrupted: Sequence[Incident], world_size: int) -> int | str:
    """The rank to name: whose data it is, else the one that saw it; no rank where all saw the same."""
    facts = incident.facts
    if "data_of_rank" in facts and facts["diagnosis"] in _FATES:
        return int(facts["data_of_rank"])
    same = {other.rank for other in corrupted if _signature(other) == _signature(incident)}
    return _EVERYWHERE if len(same) == world_size > 1 else incident.rank


def _signature(incident: Incident) -> tuple[Scalar, ...]:
    facts = incident.facts
    names = ("op", "dtype", "size_bytes", "iteration", "first_offset", "last_offset", "xor_mask")
    return tuple(facts.get(name, "") for name in names)


def _describe(culprit: int | str, seen: Sequence[Incident], measurement: CollectiveMeasurement) -> Finding:
    first = seen[0]
    facts = first.facts
    ranks = sorted({incident.rank for incident in seen})
    plural = "s" if facts["wrong_elements"] != 1 else ""
    where = (
        f"{facts['op']} {facts['dtype']} of {format_size(int(facts['size_bytes']))},"
        f" iteration {facts['iteration']}: {facts['wrong_elements']} wrong element{plural}"
        f" from offset {facts['first_offset']}"
    )
    evidence = (*first.evidence, Evidence("seen_by_ranks", number_ranges(ranks), source="timed buffer"))
    return COLLECTIVE_CORRUPTED.finding(
        _subject(culprit, first, measurement), f"{_what(culprit, facts)} after {where}", *evidence
    )


def _what(culprit: int | str, facts: Mapping[str, Scalar]) -> str:
    if culprit == _EVERYWHERE:
        return "every rank holds the same wrong data"
    fate = _FATES.get(str(facts.get("diagnosis")))
    if fate is not None and facts.get("data_of_rank") == culprit:
        return f"the data of rank {culprit} {fate}"
    flipped = " (flipped bits)" if facts.get("diagnosis") == "flipped" else ""
    return f"rank {culprit} holds wrong data{flipped}"


def _subject(culprit: int | str, first: Incident, measurement: CollectiveMeasurement) -> Subject:
    if isinstance(culprit, str):
        return HostSubject(measurement.host)
    hosts = {report.rank: report.host for report in measurement.ranks}
    return RankSubject(culprit, hosts.get(culprit, first.host))


def _counted_only(measurement: CollectiveMeasurement) -> list[Finding]:
    """The finding for wrong data that was counted, but that no rank described."""
    wrong = [result for result in measurement.results if result.verified is False and result.elements]
    if not wrong:
        return []
    result = wrong[0]
    message = f"wrong data after {result.op} {result.dtype} of {format_size(result.size_bytes)}"
    evidence = (
        Evidence("size_bytes", result.size_bytes, unit="B", source="timed buffer"),
        Evidence("wrong_elements", str(result.wrong_elements), limit=0, source="timed buffer"),
    )
    return [COLLECTIVE_CORRUPTED.finding(HostSubject(measurement.host), message, *evidence)]


def find_missing_gpu(measurement: CollectiveMeasurement) -> Finding:
    """The finding of a run that uses GPUs where there are any, and found none."""
    ranks = (
        f"{measurement.world_size} {measurement.backend} {'rank' if measurement.world_size == 1 else 'ranks'}"
    )
    return COLLECTIVE_WITHOUT_GPU.finding(
        HostSubject(measurement.host),
        f"no GPU and no trace of one, so NCCL was not tested; the results below are of {ranks} on the CPU",
        Evidence("gpus", 0, source="NVML, PCI bus, /dev, driver, allocation"),
    )


def judge_collective(measurement: CollectiveMeasurement) -> tuple[Finding, ...]:
    """Everything wrong with a run, worst and most certain first: the first finding is the cause.

    Counters that rose during the run become evidence of the findings that they may explain.

    No finding means that every planned size was measured on every rank, and verified.
    """
    findings = [
        *judge_ranks(measurement),
        *judge_data(measurement),
        *judge_localisation(measurement),
        *judge_injection(measurement.injected, measurement.host),
        *_judge_verification(measurement),
    ]
    explained = any(finding.outcome in (Outcome.FAIL, Outcome.ERROR) for finding in findings)
    if not explained:
        findings += _judge_completeness(measurement)
    return explain_by(worst_first(findings), measurement.moved)


def judge_injection(injected: Iterable[InjectedFault], host: str) -> list[Finding]:
    """A finding for each fault that `--inject` asked for and that did not happen."""
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
        message = f"time ran out after {measured} of {planned} sizes"
        return [COLLECTIVE_TIMED_OUT.finding(HostSubject(measurement.host), message, evidence)]
    message = f"{measured} of {planned} planned sizes were measured, and gpudiag found no reason"
    return [COLLECTIVE_INCOMPLETE.finding(HostSubject(measurement.host), message, evidence)]
