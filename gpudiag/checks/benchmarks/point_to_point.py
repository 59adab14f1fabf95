"""Tables of messages between two nodes: perftest (ib_write_bw ...) and OSU's point-to-point tests."""

from gpudiag.checks.benchmarks.collective_speeds import host_bytes_per_second, host_words, link_bound
from gpudiag.checks.benchmarks.collectives import short_gpu
from gpudiag.checks.benchmarks.kinds import (
    NO_REFERENCE,
    NOT_A_MEASUREMENT,
    PLATFORM_UNKNOWN,
    RIGHT,
    SLOW,
    TOO_SMALL,
)
from gpudiag.model.benchmark import BITS_PER_BYTE, MeasuredTable, MeasuredValue
from gpudiag.model.evidence import Evidence, FileSubject
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing
from gpudiag.reference.expected_speeds import find_board, latency_limit
from gpudiag.reference.speeds import speed_limits
from gpudiag.units import KIB, format_rate, format_size

GPU_MEMORY, HOST_MEMORY, SOFTWARE_DEVICE, SMALL_MTU, BOTH_DIRECTIONS = (
    "gpu_memory",
    "host_memory",  # of one end, where the other one's is of a GPU
    "software_device",
    "small_mtu",
    "both_directions",
)
# Line rates of ports that are sold, in Gb/s.
_PORTS = (1, 10, 25, 40, 50, 56, 100, 200, 400, 800)
_LEAST_BYTES = 64 * KIB  # perftest's own default for bandwidth
_LEAST_OSU_BYTES = 1024 * KIB


def judge_messages(table: MeasuredTable) -> list[Finding]:
    """Findings for a table of bandwidth between two nodes, by the rate of the port."""
    subject, largest = FileSubject(table.file, table.line), table.largest()
    if largest is None or isinstance(largest.size_bytes, Missing):
        return [
            NOT_A_MEASUREMENT.finding(
                subject, f"{table.operation}: the table has no row: the run did not end"
            )
        ]
    if any(one.value < 0 for one in table.values):
        message = f"{table.operation}: the program printed a negative speed, which is its own fault"
        return [
            NOT_A_MEASUREMENT.finding(
                subject, message, remedy="Run it again with a shorter -D, or a newer perftest."
            )
        ]
    best = max(table.values, key=lambda one: one.value)
    if largest.size_bytes < _LEAST_BYTES:
        message = (
            f"{table.operation}: the largest message is {format_size(largest.size_bytes)}, where the rate of"
            " messages counts and not the port"
        )
        return [
            TOO_SMALL.finding(
                subject,
                message,
                remedy=f"Run it again with 64 KiB and more: `{table.tool} -s 1048576 --report_gbits`.",
            )
        ]
    return [_judge_port(table, best)]


def _judge_port(table: MeasuredTable, best: MeasuredValue) -> Finding:
    subject, limit, nics = FileSubject(table.file, table.line), speed_limits()["nic"], table.setup.nics
    ways = 2 if BOTH_DIRECTIONS in table.remarks else 1
    gbits = best.value * BITS_PER_BYTE / 1e9
    summary = f"{table.operation}: {gbits:.1f} Gb/s ({format_rate(best.value)})"
    if isinstance(nics, Missing):
        port = next(
            (rate for rate in _PORTS if limit.warn * rate * ways <= gbits <= 1.02 * rate * ways), None
        )
        if port is None:
            message = (
                f"{summary}, which fits no port that is sold, and the output does not show the port's rate"
            )
            return PLATFORM_UNKNOWN.finding(
                subject, message, remedy="Give it: `--nics 1x400` for a port of 400 Gb/s (`ibstat`)."
            )
        evidence = Evidence(
            "bandwidth",
            best.value,
            "B/s",
            limit.warn * ways * port * 1e9 / BITS_PER_BYTE,
            f"port: {limit.source}",
        )
        message = (
            f"{summary}, {gbits / port / ways:.0%} of a port of {port} Gb/s."
            " Where the port is faster, give `--nics 1x400`"
        )
        return RIGHT.finding(subject, message, evidence)
    rate = nics.gbits_per_second * ways
    evidence = Evidence(
        "bandwidth", best.value, "B/s", limit.warn * rate * 1e9 / BITS_PER_BYTE, f"port: {limit.source}"
    )
    words = f"{summary}, {gbits / rate:.0%} of {rate:g} Gb/s"
    if gbits >= limit.warn * rate:
        return RIGHT.finding(subject, words, evidence)
    return SLOW.finding(
        subject, f"{words}; {limit.warn:.0%} and more is usual", evidence, remedy=_port_causes(table)
    )


def _port_causes(table: MeasuredTable) -> str:
    causes = []
    if SMALL_MTU in table.remarks:
        causes.append(
            "the MTU is 1024: set 4096 on the port and its switch (for RoCE an Ethernet MTU of 4200 and more)"
        )
    if GPU_MEMORY in table.remarks:
        causes.append(
            "the data lies in GPU memory: GPU and card must be behind one PCIe switch (`nvidia-smi topo -m`:"
            " PIX or PXB), ACS off; compare with host memory"
        )
    causes += [
        "one queue pair is too few for a bond or two halves of a card: `-q 4`",
        "the card's own PCIe link: `lspci -vv -s BUS`, LnkSta",
        "the port's rate: `ibstat`",
    ]
    return "Look in this order. " + " ".join(f"{place}. {cause}." for place, cause in enumerate(causes, 1))


def judge_latency(table: MeasuredTable) -> list[Finding]:
    """Findings for a table of latencies of small messages."""
    subject = FileSubject(table.file, table.line)
    if not table.values:
        return [
            NOT_A_MEASUREMENT.finding(
                subject, f"{table.operation}: the table has no row: the run did not end"
            )
        ]
    smallest = min(table.values, key=lambda one: 0 if isinstance(one.size_bytes, Missing) else one.size_bytes)
    summary = f"{table.operation}: {smallest.value * 1e6:.2f} us"
    limit = latency_limit(
        next((word for word in ("write", "send", "read", "atomic") if word in table.operation.lower()), "")
    )
    if table.tool.startswith("osu") or limit is None:
        return [NO_REFERENCE.finding(subject, f"{summary}; gpudiag knows no figure for this test")]
    seconds, source = limit
    evidence = Evidence("latency", smallest.value, "s", seconds, source)
    if smallest.value <= seconds:
        return [RIGHT.finding(subject, f"{summary}, at most {seconds * 1e6:g} us is usual", evidence)]
    causes = "RoCE in software (rxe) has no hardware to help it. " if SOFTWARE_DEVICE in table.remarks else ""
    remedy = (
        f"{causes}Look in this order. 1. Power saving of the CPU: `cpupower frequency-set -g"
        " performance`. 2. The NUMA node of the card: `numactl -N NODE`. 3. Hops: compare two nodes of"
        " one switch. 4. GPU memory costs 1 to 2 us more."
    )
    return [
        SLOW.finding(subject, f"{summary}, at most {seconds * 1e6:g} us is usual", evidence, remedy=remedy)
    ]


def judge_point_to_point(table: MeasuredTable) -> list[Finding]:
    """Findings for osu_bw and osu_bibw; the path comes from `--nodes`, `--gpu` or `--nics`."""
    subject, largest, setup = FileSubject(table.file, table.line), table.largest(), table.setup
    if largest is None or isinstance(largest.size_bytes, Missing):
        return [
            NOT_A_MEASUREMENT.finding(
                subject, f"{table.operation}: the table has no row: the run did not end"
            )
        ]
    if largest.size_bytes < _LEAST_OSU_BYTES:
        message = (
            f"{table.operation}: the largest message is {format_size(largest.size_bytes)}, which is too"
            " small to show the rate of a link"
        )
        return [
            TOO_SMALL.finding(
                subject, message, remedy=f"Run it again with `{table.tool} -m 4194304:67108864`."
            )
        ]
    large = {
        one: one.size_bytes
        for one in table.values
        if not isinstance(one.size_bytes, Missing) and one.size_bytes >= _LEAST_OSU_BYTES
    }
    best = max(large, key=lambda one: one.value)
    summary = f"{table.operation}: {format_rate(best.value)} at {format_size(large[best])}"
    if not isinstance(setup.nics, Missing) and setup.nodes != 1:
        return [_judge_port(table, best)]
    if setup.nodes != 1 or isinstance(setup.gpu, Missing):
        remedy = (
            "Give the path: `--nodes 1 --gpu NAME` for two GPUs of one machine,"
            " `--nodes 2 --nics 1x200` for two machines."
        )
        return [
            PLATFORM_UNKNOWN.finding(
                subject, f"{summary}, but the output does not show which path was measured", remedy=remedy
            )
        ]
    board = find_board(setup.gpu)
    rate = host_bytes_per_second(board) if board is not None else 0.0
    if board is None or not rate:
        return [
            NO_REFERENCE.finding(
                subject, f"{summary} on {short_gpu(setup.gpu)}; gpudiag knows no data sheet of this GPU"
            )
        ]
    limit, ways = speed_limits()["host_link.table"], 2 if BOTH_DIRECTIONS in table.remarks else 1
    evidence = Evidence(
        "bandwidth", best.value, "B/s", limit.warn * rate * ways, f"{host_words(board)}: {limit.source}"
    )
    if best.value > 1.02 * rate * ways:
        return [
            RIGHT.finding(
                subject,
                f"{summary} on {short_gpu(setup.gpu)}, more than"
                f" {host_words(board)} carries: NVLink is in use",
                evidence,
            )
        ]
    words = f"{summary} on {short_gpu(setup.gpu)}, {best.value / rate / ways:.0%} of {host_words(board)}"
    if HOST_MEMORY in table.remarks and best.value < limit.warn * rate * ways:
        remedy = (
            "Compare with a plain copy: `nvbandwidth -t host_to_device_memcpy_ce`. Where that is faster it"
            " is MPI's way of copying: try `UCX_RNDV_SCHEME=get_zcopy` with UCX."
        )
        return [
            SLOW.finding(subject, f"{words}; {limit.warn:.0%} and more is usual", evidence, remedy=remedy)
        ]
    if HOST_MEMORY not in table.remarks and link_bound(setup.gpu, board).limit == "collective.links":
        remedy = (
            "Let MPI use the links: `UCX_TLS=rc,sm,cuda_copy,cuda_ipc` with"
            " UCX, and a large `UCX_RNDV_THRESH`."
        )
        return [
            SLOW.finding(
                subject, f"{words}: NVLink joins these GPUs, and MPI does not use it", evidence, remedy=remedy
            )
        ]
    if best.value >= limit.warn * rate * ways:
        return [RIGHT.finding(subject, words, evidence)]
    remedy = (
        "Look for `cuda_ipc` in `UCX_LOG_LEVEL=info`; without peer access MPI copies through host memory."
    )
    return [SLOW.finding(subject, f"{words}; {limit.warn:.0%} and more is usual", evidence, remedy=remedy)]
