"""Checks of how fast GPUs copy: their own memory, to and from the host, to each other."""

from collections.abc import Callable, Sequence
from functools import partial

from gpudiag.checks.gpu.settings import describe_exclusive
from gpudiag.checks.links.peers import NVLINK, NVSWITCH, PeerPath, path_between
from gpudiag.checks.ranks.active import active_of, has_all, why_not_tested
from gpudiag.checks.ranks.measured_speeds import (
    NOT_ON_CPU,
    Opinion,
    SpeedVerdict,
    any_opinion,
    device_of,
    host_link_opinions,
    is_long_enough,
    is_shared,
    is_slow,
    judge_against,
    memory_opinions,
    name_evidence,
    peer_link_opinions,
    peers_opinion,
    same_product,
    slow_by_rank,
    subject_of,
    why_shared,
)
from gpudiag.checks.ranks.speed_list import judged_speeds
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    Level,
    check,
    could_not_look,
    does_not_apply,
    in_use,
    judged,
)
from gpudiag.model.active import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    MEMORY_COPY,
    NOT_TESTED,
    PEER_COPY,
    BandwidthResult,
    metric_of,
)
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, LinkSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing
from gpudiag.reference.speeds import least_size
from gpudiag.units import format_rate, format_seconds

_NO_LIMIT = "nothing to compare the speed with: no limit from the device, no identical GPU, no history yet"
_TOO_SHORT = (
    "not judged: each copy took less than"
    f" {format_seconds(least_size().call_seconds)}, and its start is a part of that"
)
_kind = partial(FindingKind, outcome=Outcome.WARN, severity=Severity.TRIAGE, owner=Owner.HARDWARE)
MEMORY_SLOW = _kind(
    code="bandwidth.memory_slow",
    category=Category.HW_MEMORY,
    meaning="The GPU's memory is slower than its clock and bus allow, than its peers, or than before.",
    remedy=(
        "[host] Look for throttling and ECC errors (`gpudiag list --wide`); compare after a reset of the GPU."
    ),
    basis=Basis(
        reads="active.bandwidth, memory_clock_max_mhz, memory_bus_width_bits",
        limit=(
            "copies of at least 250 us on a GPU that nobody else uses: 68 % of 2 x memory clock x bus width;"
            " identical GPUs here; this machine's history; the data sheet"
        ),
        look_also=(
            "gpudiag list --wide",
            "gpudiag history",
            "nvidia-smi -q -d CLOCK,PERFORMANCE",
            "pcie.width",
        ),
    ),
)
HOST_SLOW = _kind(
    code="bandwidth.host_slow",
    category=Category.HW_PCIE,
    meaning="Copies between the host and this GPU are slower than its PCIe link, its peers, or its history.",
    remedy=(
        "[hardware] Look at the link's width and generation (`gpudiag list --wide`), at the riser, and at"
        " NUMA binding."
    ),
    basis=Basis(
        reads="active.bandwidth, active.telemetry",
        limit="65 % of PCIe generation x width as read during the copy; identical GPUs"
        " here; this machine's history; not judged with confidential computing on",
        look_also=(
            "gpudiag list --wide",
            "gpudiag history",
            "nvidia-smi -q -d CLOCK,PERFORMANCE",
            "pcie.width",
        ),
    ),
)
PEER_SLOW = _kind(
    code="bandwidth.peer_slow",
    category=Category.HW_NVLINK,
    meaning="Copies from one GPU to another are slower than their links, than similar pairs, or than before.",
    remedy="Look at both GPUs' NVLinks and PCIe links (`gpudiag list --wide`), and for ACS between them.",
    basis=Basis(
        reads="active.bandwidth, nvlinks, nvlink_bytes_per_second, peers",
        limit="70 % of what the NVLinks of that pair carry; pairs with the same path; this machine's history",
        look_also=(
            "gpudiag list --wide",
            "gpudiag history",
            "nvidia-smi -q -d CLOCK,PERFORMANCE",
            "pcie.width",
        ),
    ),
)

Opinions = Callable[[Context, BandwidthResult], tuple[Opinion, ...]]


@check(
    "bandwidth.memory",
    title="the memory of every GPU is as fast as it should be",
    needs=("active",),
    level=Level.QUICK,
    reports=(MEMORY_SLOW,),
    readings=("active.bandwidth", "memory_clock_max_mhz", "memory_bus_width_bits"),
    confirmed=BOTH_GPUS,
)
def bandwidth_memory(context: Context) -> Judgement:
    """WARN for each GPU whose memory is slow."""
    return _judge_gpus(context, (MEMORY_COPY,), _by_memory, MEMORY_SLOW)


@check(
    "bandwidth.host_device",
    title="copies between host and GPU are as fast as the link",
    needs=("active",),
    level=Level.QUICK,
    reports=(HOST_SLOW,),
    readings=("active.bandwidth", "active.telemetry"),
    confirmed=BOTH_GPUS,
)
def bandwidth_host_device(context: Context) -> Judgement:
    """WARN for each GPU that copies slowly from or to the host, alone on its link."""
    if context.snapshot.confidential_computing == "enabled":
        return does_not_apply("confidential computing encrypts every copy: the link does not limit it")
    return _judge_gpus(context, (HOST_TO_DEVICE, DEVICE_TO_HOST), _by_host_link, HOST_SLOW)


@check(
    "bandwidth.peer",
    title="copies from GPU to GPU are as fast as their links",
    needs=("active",),
    level=Level.STANDARD,
    reports=(PEER_SLOW,),
    readings=("active.bandwidth", "nvlinks", "nvlink_bytes_per_second", "peers"),
)
def bandwidth_peer(context: Context) -> Judgement:
    """WARN for each slow pair of GPUs."""
    measured = active_of(context)
    if measured.device_kind != "cuda":
        return does_not_apply(NOT_ON_CPU)
    if measured.world_size < 2:
        return does_not_apply("one GPU is tested, and it has no peer")
    exclusive = describe_exclusive(context.snapshot.devices)
    if PEER_COPY not in measured.tests and exclusive is not None:
        return does_not_apply(exclusive)
    results = [result for result in measured.bandwidth if result.test == PEER_COPY]
    without = {one.rank for one in measured.not_tested if one.test == PEER_COPY}
    others = measured.world_size - 1
    if len([one for one in results if one.rank not in without]) < (others + 1 - len(without)) * others:
        return could_not_look("not every pair of GPUs gave a result")
    if not results:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, (PEER_COPY,))}")
    results = [one for one in results if not is_shared(measured, one.device_uuid, one.peer_uuid)]
    if not results:
        return in_use(why_shared(measured))
    results = [one for one in results if is_long_enough(one)]
    if not results:
        return does_not_apply(_TOO_SHORT)
    paths = [(result, _path(context, result)) for result in results]
    verdicts = [_judge_pair(context, result, path, paths) for result, path in paths]
    if not any_opinion(verdicts):
        return does_not_apply(_NO_LIMIT)
    pairs = list(zip(results, verdicts, strict=True))
    return judged(
        *(_slow_pair(context, result, verdict) for result, verdict in pairs if is_slow(verdict)),
        speeds=judged_speeds(context.snapshot, pairs),
    )


def _judge_gpus(context: Context, tests: tuple[str, ...], opinions: Opinions, kind: FindingKind) -> Judgement:
    measured = active_of(context)
    if measured.device_kind != "cuda":
        return does_not_apply(NOT_ON_CPU)
    results = [
        result
        for result in measured.bandwidth
        if result.test in tests and (not result.concurrent or result.test == MEMORY_COPY)
    ]
    for test in tests:
        if not has_all(context, test, [result.rank for result in results if result.test == test]):
            return could_not_look("not every GPU gave a result")
    if not results:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, tests)}")
    results = [result for result in results if not is_shared(measured, result.device_uuid)]
    if not results:
        return in_use(why_shared(measured))
    results = [result for result in results if is_long_enough(result)]
    if not results:
        return does_not_apply(_TOO_SHORT)
    verdicts = [_judge_one(context, result, results, opinions) for result in results]
    if not any_opinion(verdicts):
        return does_not_apply(_NO_LIMIT)
    return judged(
        *(_slow_gpu(context, slow, kind) for slow in slow_by_rank(results, verdicts)),
        speeds=judged_speeds(context.snapshot, zip(results, verdicts, strict=True)),
    )


def _judge_one(
    context: Context, result: BandwidthResult, results: Sequence[BandwidthResult], opinions: Opinions
) -> SpeedVerdict:
    peers = [
        other.bytes_per_second
        for other in results
        if other is not result
        and other.test == result.test
        and same_product(context.snapshot, result.device_uuid, other.device_uuid)
    ]
    expectations = (*opinions(context, result), *peers_opinion(peers))
    return judge_against(
        context, metric_of(result), result.device_uuid, result.bytes_per_second, "B/s", expectations
    )


def _by_memory(context: Context, result: BandwidthResult) -> tuple[Opinion, ...]:
    device = device_of(context.snapshot, result.device_uuid)
    return () if device is None else memory_opinions(device)


def _by_host_link(context: Context, result: BandwidthResult) -> tuple[Opinion, ...]:
    """Opinions by the best link that was read: an idle link saves power at a low generation."""
    read = [
        (point.pcie_generation, point.pcie_width)
        for point in active_of(context).telemetry
        if point.device_uuid == result.device_uuid
    ]
    known = [
        (generation, width)
        for generation, width in read
        if not isinstance(generation, Missing) and not isinstance(width, Missing)
    ]
    return host_link_opinions(*max(known)) if known else ()


def _judge_pair(
    context: Context,
    result: BandwidthResult,
    path: PeerPath | None,
    pairs: Sequence[tuple[BandwidthResult, PeerPath | None]],
) -> SpeedVerdict:
    """The verdict by the links of this pair, and by pairs of like GPUs joined in the same way."""
    device = device_of(context.snapshot, result.device_uuid)
    by_link: tuple[Opinion, ...] = ()
    if device is not None and path is not None and path.kind in (NVLINK, NVSWITCH):
        by_link = peer_link_opinions(device, path.links)
    alike = [
        other.bytes_per_second
        for other, its_path in pairs
        if other is not result
        and path is not None
        and its_path == path
        and same_product(context.snapshot, result.device_uuid, other.device_uuid)
    ]
    expectations = (*by_link, *peers_opinion(alike))
    return judge_against(
        context, metric_of(result), result.device_uuid, result.bytes_per_second, "B/s", expectations
    )


def _path(context: Context, result: BandwidthResult) -> PeerPath | None:
    """The path that the copy took; None where a GPU of the pair is not in the snapshot."""
    source = device_of(context.snapshot, result.device_uuid)
    target = device_of(context.snapshot, result.peer_uuid)
    return (
        None if source is None or target is None else path_between(context.snapshot, source, target, result)
    )


def _slow_gpu(
    context: Context, slow: Sequence[tuple[BandwidthResult, SpeedVerdict]], kind: FindingKind
) -> Finding:
    first = slow[0][0]
    subject, name = subject_of(context, first.rank, first.device_uuid)
    speeds = (f"{one.test.replace('_', ' ')} at {format_rate(one.bytes_per_second)}" for one, _ in slow)
    evidence = name_evidence(slow, lambda result: result.test)
    return kind.finding(subject, f"{name}: {', '.join(speeds)}", *evidence, _best(first), _method(first))


def _slow_pair(context: Context, result: BandwidthResult, verdict: SpeedVerdict) -> Finding:
    _, source = subject_of(context, result.rank, result.device_uuid)
    peer = -1 if isinstance(result.peer, Missing) else result.peer
    _, target = subject_of(context, peer, result.peer_uuid)
    way = "" if result.direct is True else " through the host"
    message = f"{source} to {target}{way}: {format_rate(result.bytes_per_second)}"
    subject = LinkSubject((source, target), context.snapshot.host)
    return PEER_SLOW.finding(subject, message, *verdict.evidence, _method(result))


def _method(result: BandwidthResult) -> Evidence:
    bound = "" if isinstance(result.numa_node, Missing) else f", rank bound to NUMA node {result.numa_node}"
    how = f"median of {result.iterations} copies, verified{bound}"
    return Evidence("size_bytes", result.size_bytes, "bytes", source=how)


def _best(result: BandwidthResult) -> Evidence:
    """The best burst beside the median: where they differ much, the GPU changed its pace in between."""
    best = result.bytes_per_second * result.time_p50_seconds / result.time_best_seconds
    return Evidence("best_bytes_per_second", best, "B/s", source="best of the same run")
