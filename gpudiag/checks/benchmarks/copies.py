"""Tables of copies that another program measured: host to GPU, GPU to GPU, and within a GPU's memory."""

from collections.abc import Sequence
from statistics import median

from gpudiag.checks.benchmarks.collective_speeds import host_bytes_per_second, host_words, link_bound
from gpudiag.checks.benchmarks.collectives import short_gpu
from gpudiag.checks.benchmarks.kinds import (
    FAR_TOO_SLOW,
    NO_REFERENCE,
    NOT_A_MEASUREMENT,
    PLATFORM_UNKNOWN,
    RIGHT,
    SLOW,
    SLOW_PART,
)
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue
from gpudiag.model.evidence import Evidence, FileSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import Missing
from gpudiag.reference.expected_speeds import Board, find_board
from gpudiag.reference.gpu_models import find_links, find_model
from gpudiag.reference.speeds import (
    SpeedLimit,
    least_size,
    nvlink_bytes_per_second,
    speed_limits,
)
from gpudiag.units import format_rate, format_size

# What a table of copies is of, whatever its program calls it.
TO_GPU, FROM_GPU, PEER, LOCAL = "host to GPU", "GPU to host", "GPU to GPU", "within a GPU"
# Facts of a table that bear on its judgement.
BY_KERNEL = "by_kernel"  # processors copy, not the copy engines
# One direction of two, or beside the copies of other GPUs.
BOTH_WAYS, WITH_OTHERS = (
    "both_ways",
    "with_others",
)
# Bytes of a copy within a GPU, which are read and written.
COUNTED_ONCE, COUNTED_TWICE = (
    "counted_once",
    "counted_twice",
)
WITHOUT_PEER_ACCESS, FASTER_WITHOUT, MULTI_NODE = "without_peer_access", "faster_without", "multi_node"
# Of host and link: kernels that read host memory, copies both ways, and beside other GPUs reach less
# (nvbandwidth issue 24: 35 of 63 GB/s on sound H100, H20 and H800; 34 of 63 both ways on an H800).
_HARDER_SHARE = 0.55


def judge_copies(table: MeasuredTable) -> list[Finding]:
    """Findings for a table of copies."""
    subject = FileSubject(table.file, table.line)
    if not table.values:
        why = next((one.message for one in table.results), "the program printed no value")
        remedy = "Check whether the GPUs have peer access: `gpudiag topo`." if kind_of(table) == PEER else ""
        return [NOT_A_MEASUREMENT.finding(subject, f"{table.operation}: {why}", remedy=remedy)]
    if not table.complete:
        return [NOT_A_MEASUREMENT.finding(subject, f"{table.operation}: the matrix ends before its last row")]
    kind = kind_of(table)
    if FASTER_WITHOUT in table.remarks:
        return [_judge_detour(table)]
    if isinstance(table.setup.gpu, Missing):
        seen = f"{table.operation}: {_range(table.values)}"
        apart = _slow_parts(table)
        words = f"{seen}, but the output does not name the GPUs"
        return [
            *apart,
            PLATFORM_UNKNOWN.finding(subject, words, remedy="Add --gpu NAME, such as `--gpu h100`."),
        ]
    if table.operation.endswith("latency_sm") or kind is None:
        return [NO_REFERENCE.finding(subject, f"{table.operation}: gpudiag knows no figure for this test")]
    found = {TO_GPU: _judge_host, FROM_GPU: _judge_host, PEER: _judge_peers, LOCAL: _judge_local}[kind](
        table, table.setup.gpu, find_board(table.setup.gpu)
    )
    if any(finding.outcome is Outcome.FAIL for finding in found):
        return found
    parts = _slow_parts(table)
    if parts and all(finding.outcome is Outcome.PASS for finding in found):
        return parts
    return [*found, *parts]


def kind_of(table: MeasuredTable) -> str | None:
    """What of the machine a table is about; None for what is none of the four."""
    name = table.operation
    if name.startswith(("host_to_device", "host_to_all")) or name == TO_GPU:
        return TO_GPU
    if name.startswith(("device_to_host", "all_to_host")) or name == FROM_GPU:
        return FROM_GPU
    if "device_to_device_memcpy" in name or "device_to_device_bidirectional" in name or name.startswith(PEER):
        return PEER
    return LOCAL if name.startswith("device_local_copy") or name == LOCAL else None


def _judge_host(table: MeasuredTable, gpu: str, board: Board | None) -> list[Finding]:
    """Copies between host and GPU, by the link of the board."""
    subject = FileSubject(table.file, table.line)
    rate = host_bytes_per_second(board) if board is not None else 0.0
    if board is None or not rate:
        return [_no_reference(table, gpu)]
    limit, words = speed_limits()["host_link.table"], host_words(board)
    harder = bool({BY_KERNEL, BOTH_WAYS, WITH_OTHERS} & set(table.remarks))
    share = limit.warn * (_HARDER_SHARE if harder else 1.0)
    slow = [one for one in table.values if one.value < share * rate]
    summary = (
        f"{table.operation} on {short_gpu(gpu)}: {_range(table.values)} over"
        f" {words} ({format_rate(rate)} one way)"
    )
    evidence = _evidence(table.values, limit, rate, words)
    if not slow:
        why = (
            "; processors that read host memory reach less than copy engines"
            if BY_KERNEL in table.remarks
            else ""
        )
        if min(one.value for one in table.values) > 1.02 * rate:
            why = ": more than that, so another link joins this GPU to the processor"
        return [RIGHT.finding(subject, f"{summary}{why}", evidence)]
    remedy = (
        "Look in this order. 1. The link's width and generation while it is in use:"
        " `nvidia-smi -q -d PERFORMANCE`, then `nvidia-smi"
        " --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv`. 2. The NUMA node:"
        " bind the program to that of the GPU, `numactl -N NODE -m NODE` (`nvidia-smi topo -m`). 3."
        " Confidential computing encrypts each copy: `nvidia-smi conf-compute -f`. 4. A virtual machine"
        " may have a slower link by design."
    )
    message = f"{summary}; {share:.0%} and more is usual{_those_below(slow, table)}"
    return [SLOW.finding(subject, message, evidence, remedy=remedy)]


def _judge_detour(table: MeasuredTable) -> Finding:
    """Copies with peer access that are slower than the same program's copies through host memory."""
    gpu = table.setup.gpu
    where = "" if isinstance(gpu, Missing) else f" on {short_gpu(gpu)}"
    message = (
        f"{table.operation}{where}: {_range(table.values)}; copies through host"
        " memory are faster than with peer access"
    )
    remedy = (
        "Peer traffic takes a detour: turn ACS off on the PCIe bridges and the IOMMU off or to pass-through"
        " (`lspci -vvv | grep ACSCtl`: SrcValid- is right), and run it again."
    )
    return SLOW.finding(FileSubject(table.file, table.line), message, _fact(table), remedy=remedy)


def _judge_peers(table: MeasuredTable, gpu: str, board: Board | None) -> list[Finding]:
    """Copies between GPUs, by NVLink where the board has it, else by PCIe."""
    subject = FileSubject(table.file, table.line)
    if board is None:
        return [_no_reference(table, gpu)]
    bound, links = link_bound(gpu, board), find_links(gpu)
    if WITHOUT_PEER_ACCESS in table.remarks:
        message = (
            f"{table.operation} on {short_gpu(gpu)}: {_range(table.values)}, through host"
            " memory: these GPUs have no peer access"
        )
        if bound.limit == "collective.links":
            remedy = "Check `nvidia-smi topo -p2p r`, the fabric manager, and that one process sees all GPUs."
            return [
                SLOW.finding(subject, f"{message}, although NVLink joins them", _fact(table), remedy=remedy)
            ]
        return [RIGHT.finding(subject, f"{message}; the driver gives none to such cards", _fact(table))]
    if bound.limit != "collective.links":
        return [_judge_cards(table, gpu, board, links is not None)]
    limit, rate = speed_limits()["peer_link.table"], bound.bytes_per_second
    both = 2.0 if BOTH_WAYS in table.remarks and _sums_both_ways(table) else 1.0
    rate *= both
    middle = median(one.value for one in table.values)
    summary = (
        f"{table.operation} on {short_gpu(gpu)}: {_range(table.values)} by"
        f" {bound.words.replace(', one way', '')} ({format_rate(rate)})"
    )
    evidence = _evidence(table.values, limit, rate, bound.words)
    slow = [one for one in table.values if one.value < limit.warn * rate]
    if not slow:
        return [RIGHT.finding(subject, summary, evidence)]
    certain = limit.fail is not None and middle >= limit.warn * rate
    broken = [one for one in slow if certain and one.value < (limit.fail or 0.0) * rate]
    if broken:
        message = (
            f"{summary}; {_pairs(broken)} below {limit.fail:.0%}, while the"
            " others show that the links are there"
        )
        return [FAR_TOO_SLOW.finding(subject, message, evidence)]
    remedy = (
        "Count the links that are up: `nvidia-smi nvlink -s`. A pair joined by"
        " part of the links gives that part."
    )
    message = f"{summary}; {limit.warn:.0%} and more is usual{_those_below(slow, table)}"
    return [SLOW.finding(subject, message, evidence, remedy=remedy)]


def _sums_both_ways(table: MeasuredTable) -> bool:
    """Whether a table of both directions has their sum: CUDA's samples do, nvbandwidth has one of the two."""
    return table.tool == "p2pBandwidthLatencyTest" or table.operation.endswith(("_sm", "total"))


def _judge_cards(table: MeasuredTable, gpu: str, board: Board, bridged: bool) -> Finding:
    """Pairs of cards: by a bridge where the speed shows one, else by PCIe."""
    subject = FileSubject(table.file, table.line)
    both = 2.0 if BOTH_WAYS in table.remarks and _sums_both_ways(table) else 1.0
    rate, limit = both * host_bytes_per_second(board), speed_limits()["host_link.table"]
    if not rate:
        return _no_reference(table, gpu)
    words = host_words(board)
    fastest = max(one.value for one in table.values)
    summary = f"{table.operation} on {short_gpu(gpu)}: {_range(table.values)}"
    if bridged and fastest > rate:
        links = find_links(gpu)
        bridge = both * links.count * nvlink_bytes_per_second(board.nvlink_version or 3) if links else rate
        evidence = _evidence(table.values, speed_limits()["peer_link.table"], bridge, "bridge")
        if fastest >= speed_limits()["peer_link.table"].warn * bridge:
            return RIGHT.finding(
                subject,
                f"{summary}; the fastest pair uses its NVLink bridge ({format_rate(bridge)})",
                evidence,
            )
    evidence = _evidence(table.values, limit, rate, words)
    middle = median(one.value for one in table.values)
    if middle >= limit.warn * rate:
        return RIGHT.finding(subject, f"{summary}, over {words} ({format_rate(rate)})", evidence)
    remedy = (
        "Look in this order. 1. Each card's link: `nvidia-smi"
        " --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv`. 2. ACS and IOMMU off. 3."
        " Cards on two sockets share the link between them."
    )
    return SLOW.finding(
        subject,
        f"{summary}, over {words}; {limit.warn:.0%} of {format_rate(rate)} is usual",
        evidence,
        remedy=remedy,
    )


def _judge_local(table: MeasuredTable, gpu: str, board: Board | None) -> list[Finding]:
    """Copies within one GPU's memory, both reading and writing counted, by the data sheet."""
    subject, model = FileSubject(table.file, table.line), find_model(gpu)
    if model is None:
        return [_no_reference(table, gpu)]
    factor = 2.0 if COUNTED_ONCE in table.remarks else 1.0
    slowest = min(one.value for one in table.values) * factor
    sizes = [one.size_bytes for one in table.values if not isinstance(one.size_bytes, Missing)]
    if sizes and 2 * min(sizes) / slowest < least_size().call_seconds:
        message = (
            f"{table.operation} on {short_gpu(gpu)}: copies of {format_size(min(sizes))} are"
            " so short that their start counts"
        )
        return [
            NO_REFERENCE.finding(
                subject, message, remedy="Use `nvbandwidth -t device_local_copy` or `gpudiag bandwidth`."
            )
        ]
    limit, rate = speed_limits()["memory.table"], model.memory_bytes_per_second
    share = board.copy_share if board is not None and board.copy_share else limit.warn
    counted = ", counting bytes read and written" if factor > 1 else ""
    summary = (
        f"{table.operation} on {short_gpu(gpu)}: {_range(table.values, factor)}{counted},"
        f" {slowest / rate:.0%} of the data sheet"
    )
    evidence = _evidence(table.values, limit, rate / factor, model.source)
    if slowest >= share * rate:
        return [RIGHT.finding(subject, summary, evidence)]
    remedy = (
        "Check the memory clock and what holds clocks down: `nvidia-smi -q -d CLOCK,PERFORMANCE`;"
        " then `gpudiag bandwidth`, which reads both."
    )
    return [SLOW.finding(subject, f"{summary}; {share:.0%} and more is usual", evidence, remedy=remedy)]


def _slow_parts(table: MeasuredTable) -> list[Finding]:
    """The GPUs or pairs that are slower than the others of the same table."""
    if len(table.values) < 3 or {BOTH_WAYS, WITH_OTHERS, FASTER_WITHOUT} & set(table.remarks):
        return []
    limit, middle = speed_limits()["pair"], median(one.value for one in table.values)
    slow = [one for one in table.values if one.value < limit.warn * middle]
    if not slow or len(slow) * 3 > len(
        table.values
    ):  # a third and more are another kind of path, not a fault
        return []
    message = f"{table.operation}: {_pairs(slow)} at {_range(slow)}, the others around {format_rate(middle)}"
    evidence = _evidence(slow, limit, middle, "median of the table")
    return [SLOW_PART.finding(FileSubject(table.file, table.line), message, evidence)]


def _pairs(values: Sequence[MeasuredValue]) -> str:
    """The GPUs of some values with their verb: one row's, the one that all pairs share, or each pair."""
    if all(one.row is None for one in values):
        gpus = sorted(one.column or 0 for one in values)
        return f"GPU{'s' * (len(gpus) > 1)} {number_ranges(gpus)} {'are' if len(gpus) > 1 else 'is'}"
    shared = set.intersection(*({one.row, one.column} for one in values))
    if len(shared) == 1 and len(values) > 2:
        return f"all {len(values)} copies of GPU {next(iter(shared))} are"
    shown = ", ".join(f"GPU {one.row} to {one.column}" for one in values[:4])
    more = f" and {len(values) - 4} more" if len(values) > 4 else ""
    return f"{shown}{more} {'is' if len(values) == 1 else 'are'}"


def _those_below(slow: Sequence[MeasuredValue], table: MeasuredTable) -> str:
    """A clause that names the slow ones, where others of the table are not."""
    return "" if len(slow) == len(table.values) else f", and {_pairs(slow)} below it"


def _range(values: Sequence[MeasuredValue], factor: float = 1.0) -> str:
    low, high = min(one.value for one in values) * factor, max(one.value for one in values) * factor
    alike = high <= 1.01 * low
    return format_rate(high) if alike else f"{format_rate(low).removesuffix(' GB/s')} to {format_rate(high)}"


def _fact(table: MeasuredTable) -> Evidence:
    return Evidence(table.operation, min(one.value for one in table.values), "B/s", source=table.tool)


def _evidence(values: Sequence[MeasuredValue], limit: SpeedLimit, rate: float, words: str) -> Evidence:
    slowest = min(one.value for one in values)
    return Evidence(
        "slowest", slowest, "B/s", limit.warn * rate, f"table: {limit.warn:.0%} of {words} ({limit.source})"
    )


def _no_reference(table: MeasuredTable, gpu: str) -> Finding:
    message = (
        f"{table.operation} on {short_gpu(gpu)}: {_range(table.values)};"
        " gpudiag knows no data sheet of this GPU"
    )
    return NO_REFERENCE.finding(FileSubject(table.file, table.line), message)
