"""A table of a collective that another program measured: is its bus bandwidth right for what it ran on?"""

import re
from dataclasses import dataclass

from gpudiag.checks.benchmarks.collective_speeds import (
    PLATEAU_BYTES,
    RING,
    SMALLEST_BYTES,
    Bound,
    expect_published,
    fits_ring,
    link_bound,
    network_bound,
)
from gpudiag.checks.benchmarks.kinds import (
    FAR_TOO_SLOW,
    KNOWN_SETTING,
    NO_REFERENCE,
    NOT_A_MEASUREMENT,
    PLATFORM_UNKNOWN,
    RIGHT,
    SLOW,
    TOO_SMALL,
)
from gpudiag.checks.ranks.measured_speeds import Opinion
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Nics, Setup
from gpudiag.model.evidence import Evidence, FileSubject
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing
from gpudiag.reference.expected_speeds import Board, curves, find_board, parse_nics
from gpudiag.reference.speeds import speed_limits
from gpudiag.units import GIB, format_rate, format_size

ONE_RANK, MIXED, REAL_JOB, NO_WARM_UP = "one_rank", "mixed", "real_job", "no_warm_up"
NO_GPU, SHARED_GPU, ONLY_AVERAGE = "no_gpu", "shared_gpu", "only_average"
# Settings that make NCCL slower by design, with what they do (NCCL's documentation of its variables).
_SLOWING = (
    (r"NCCL_P2P_DISABLE=1", "GPUs do not read each other's memory"),
    (r"NCCL_P2P_LEVEL=(?:LOC|0)\b", "GPUs do not read each other's memory"),
    (r"NCCL_SHM_DISABLE=1", "data between GPUs without peer access passes through the network"),
    (r"NCCL_IB_DISABLE=1", "data between nodes passes through TCP sockets"),
    (r"NCCL_NET=Socket", "data between nodes passes through TCP sockets"),
    (r"NCCL_NET_GDR_LEVEL=(?:LOC|0)\b", "network cards do not read GPU memory"),
    (r"NCCL_MAX_NCHANNELS=[1-4]\b", "few channels are allowed"),
    (r"NCCL_PROTO=LL\b", "the protocol for small messages is used for all"),
)
_NO_NVLS = re.compile(r"NCCL_NVLS_ENABLE=0|NCCL_ALGO=(?:Ring|RING|ring|Tree|TREE|tree)\b")
# Whose published figures agree so well that a confirmed algorithm and size make a slow machine certain.
_CERTAIN_GPUS = 8
_CARDS_ASKED = "Give the network cards of a node: `--nics 8x400` for eight of 400 Gb/s."
_FEWER_CARDS = "fewer or slower cards give less"
_JOB_SHARE = 0.7  # our choice: a job computes while it sends


@dataclass(frozen=True, slots=True)
class _Run:
    """A table with what is needed to judge it."""

    table: MeasuredTable
    largest: MeasuredValue
    size: int
    model: str
    board: Board | None
    gpus: int
    nodes: int

    @property
    def busbw(self) -> float:
        return self.largest.value

    @property
    def subject(self) -> FileSubject:
        return FileSubject(self.table.file, self.table.line)

    @property
    def what(self) -> str:
        """The measurement in words, for a message."""
        nodes = f" of {self.nodes} nodes" if self.nodes > 1 else ""
        return (
            f"{self.table.operation} of {format_size(self.size)} on {self.gpus} x"
            f" {short_gpu(self.model)}{nodes}: {format_rate(self.busbw)} busbw"
        )


def short_gpu(name: str) -> str:
    """The name of a GPU without its maker's."""
    return name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("GeForce ")


def judge_collective(table: MeasuredTable) -> list[Finding]:
    """Findings for the speed of a collective; wrong data is judged elsewhere."""
    subject = FileSubject(table.file, table.line)
    refused = _not_a_measurement(table)
    if refused is not None:
        return [NOT_A_MEASUREMENT.finding(subject, *refused[:1], remedy=refused[1])]
    largest, setup = table.largest(), table.setup
    if largest is None or isinstance(largest.size_bytes, Missing):
        return [NOT_A_MEASUREMENT.finding(subject, f"{table.operation}: no row with a size was found")]
    if not isinstance(setup.gpu, Missing) and setup.gpu.startswith("AMD "):
        message = (
            f"{table.operation} on {setup.gpu}: gpudiag knows figures of NVIDIA's GPUs and of NCCL alone"
        )
        return [NO_REFERENCE.finding(subject, message)]
    if largest.size_bytes < SMALLEST_BYTES:
        message = (
            f"{table.operation}: the largest message is {format_size(largest.size_bytes)}; up to 64 MiB a"
            " run measures the start of operations, and sound machines differ by up to 2 times"
        )
        return [TOO_SMALL.finding(subject, message, remedy=_larger(table))]
    if isinstance(setup.gpu, Missing) or isinstance(setup.gpus, Missing) or isinstance(setup.nodes, Missing):
        words, flags = _unknown(setup)
        seen = f"{table.operation} of {format_size(largest.size_bytes)}: {format_rate(largest.value)} busbw"
        return [
            PLATFORM_UNKNOWN.finding(
                subject, f"{seen}, but the output does not show {words}", remedy=f"Add {flags}."
            )
        ]
    run = _Run(table, largest, largest.size_bytes, setup.gpu, find_board(setup.gpu), setup.gpus, setup.nodes)
    return [_judge(run)]


def _not_a_measurement(table: MeasuredTable) -> tuple[str, str] | None:
    """Why the table measures nothing that can be compared, with what to do; None where it does."""
    remarks = table.remarks
    if MIXED in remarks:
        return (
            f"{table.operation}: several runs are printed among each other, each of its own rank or ranks;"
            " they are not one run over all ranks",
            (
                "Build nccl-tests with `make clean && make MPI=1`, so that the processes"
                " of mpirun or srun make one run."
            ),
        )
    if ONE_RANK in remarks:
        return (
            f"{table.operation} ran on one rank: nothing was sent, and its bus bandwidth is 0 by definition",
            "Use more ranks: `all_reduce_perf -g 8`, or with mpirun a build by `make clean && make MPI=1`.",
        )
    if NO_GPU in remarks or SHARED_GPU in remarks:
        where = "on processors" if NO_GPU in remarks else "of ranks that share a GPU"
        return (
            (
                f"{table.operation} {where}: the run shows whether results are"
                " right, and no speed of a GPU or link"
            ),
            "Run it with one rank on each GPU: `gpudiag nccl-test`.",
        )
    if ONLY_AVERAGE in remarks:
        return (
            f"{table.operation}: only the average over all sizes is there, which small messages pull down by"
            " an amount that depends on the sizes; the row of the largest size is what counts",
            "Give the whole output of the run.",
        )
    if any(one.value < 0 for one in table.values):
        return (
            f"{table.operation}: the program printed a negative speed",
            "Run it again with a current version.",
        )
    if not table.complete:
        largest = table.largest()
        until = f" after {format_size(_size(largest))}" if largest is not None else " before its first row"
        return (
            f"{table.operation}: the table ends{until}, and larger sizes were to come: the run stopped",
            "Find out why it stopped: `gpudiag explain` on the whole log. Then run it again.",
        )
    if NO_WARM_UP in remarks:
        return (
            (
                f"{table.operation} was measured without warm-up: the first operations open"
                " connections, which is no speed"
            ),
            "Run it again with `-w 5 -n 20`.",
        )
    return None


def _size(value: MeasuredValue) -> int:
    return 0 if isinstance(value.size_bytes, Missing) else value.size_bytes


def _unknown(setup: Setup) -> tuple[str, str]:
    """What is not known of a setup, in words, and the flags that set it."""
    missing = [
        (words, flag)
        for reading, words, flag in (
            (setup.gpu, "which GPUs", "--gpu NAME, such as `--gpu h100`"),
            (setup.gpus, "how many GPUs", "--gpus N"),
            (setup.nodes, "how many nodes", "--nodes N"),
        )
        if isinstance(reading, Missing)
    ]
    return " nor ".join(words for words, _ in missing), " and ".join(flag for _, flag in missing)


def _larger(table: MeasuredTable) -> str:
    program = f"{table.operation}_perf" if table.tool == "nccl-tests" else table.tool
    return f"Run it again up to 8 GiB: `{program} -b 1G -e 8G -f 2`."


def _judge(run: _Run) -> Finding:
    if run.nodes == 1:
        return _judge_published(run) or _judge_bound(run, _link(run))
    setup = run.table.setup
    if not isinstance(setup.nics, Missing):
        allowed = _allowed_cards(setup.settings)
        if 0 < allowed < setup.nics.count:
            return _judge_allowed(run, Nics(allowed, setup.nics.gbits_per_second))
        network = network_bound(run.table.operation, setup.nics, run.gpus, run.nodes, run.board)
        return _judge_bound(run, network)
    return _judge_published(run) or _judge_like_scale(run)


def _allowed_cards(settings: tuple[str, ...]) -> int:
    """How many network cards NCCL_IB_HCA names; 0 where it is not set, or names those to leave out."""
    named = next((one.partition("=")[2] for one in settings if one.startswith("NCCL_IB_HCA=")), "")
    cards = {card.partition(":")[0] for card in named.lstrip("=").split(",") if card}
    # `mlx5` alone is the beginning of every card's name.
    return 0 if named.startswith("^") or any(not re.search(r"_\d+$", card) for card in cards) else len(cards)


def _judge_allowed(run: _Run, nics: Nics) -> Finding:
    """By the cards that NCCL_IB_HCA allows, where those are not all."""
    bound = network_bound(run.table.operation, nics, run.gpus, run.nodes, run.board)
    limit, share = speed_limits()[bound.limit], run.busbw / bound.bytes_per_second
    evidence = Evidence(
        "busbw", run.busbw, "B/s", limit.warn * bound.bytes_per_second, f"{bound.words}: {limit.source}"
    )
    cards = "1 card" if nics.count == 1 else f"{nics.count} cards"
    words = (
        f"{run.what}. NCCL_IB_HCA allows {cards} of a node: {share:.0%} of {bound.words}"
        f" ({format_rate(bound.bytes_per_second)})"
    )
    if share >= limit.warn:
        message = f"{words}, which is right for that. Without the setting NCCL uses all cards"
        return KNOWN_SETTING.finding(run.subject, message, evidence)
    return SLOW.finding(
        run.subject, f"{words}; {limit.warn:.0%} and more is usual", evidence, remedy=_causes(run)
    )


def _link(run: _Run) -> Bound | None:
    return link_bound(run.model, run.board) if run.board is not None else None


def _judge_published(run: _Run) -> Finding | None:
    """By the published curves of just such machines; None where there is none."""
    algorithm = _algorithm(run)
    found = expect_published(
        run.table.operation, run.size, frozenset({run.model}), run.gpus, run.nodes, algorithm or ""
    )
    if not found:
        return None
    rings = [opinion.expected for curve, opinion in found if curve.algorithm == RING]
    others = [opinion for curve, opinion in found if curve.algorithm != RING]
    if not algorithm and rings and others:
        slowest = min(opinion.expected * opinion.shares.warn for opinion in others)
        if run.busbw < slowest and fits_ring(run.busbw, rings):
            return _ring(run, max(rings), max(one.expected for one in others))
    opinions = others or [opinion for _, opinion in found]
    cards = next((curve.nics for curve, _ in found if run.nodes > 1 and parse_nics(curve.nics)), "")
    return _against(run, opinions, cards, confirmed=bool(algorithm))


def _algorithm(run: _Run) -> str:
    """NCCL's algorithm, from its settings or its log; empty where neither shows it."""
    algorithm = run.table.setup.algorithm
    if not isinstance(algorithm, Missing):
        return algorithm
    return RING if any("NCCL_NVLS_ENABLE=0" in one for one in run.table.setup.settings) else ""


def _ring(run: _Run, ring: float, nvls: float) -> Finding:
    message = (
        f"{run.what}. That is the speed of a ring ({format_rate(ring)} is published): NVLS is off."
        f" With NVLS it would be {format_rate(nvls)}; no link is slow"
    )
    remedy = (
        "Look for NVLS in the log of `NCCL_DEBUG=INFO`, and unset NCCL_ALGO and NCCL_NVLS_ENABLE."
        " Where NVLS is not available: the fabric manager runs (`systemctl status nvidia-fabricmanager`),"
        " NCCL is 2.18 or later, and the virtual machine has whole NVSwitches."
    )
    return KNOWN_SETTING.finding(run.subject, message, _measured(run, ring, "a ring"), remedy=remedy)


def _against(run: _Run, opinions: list[Opinion], cards: str, *, confirmed: bool) -> Finding:
    """Right, slow or far too slow, by the opinions of published curves; `cards`: those that these are of."""
    expected = max(one.expected for one in opinions)
    lowest = min(opinions, key=lambda one: one.expected)
    evidence = [_of_opinion(run, one) for one in opinions]
    share = _JOB_SHARE if REAL_JOB in run.table.remarks else 1.0
    slow = any(share * one.shares.warn * one.expected > run.busbw for one in opinions)
    range_of = f"{run.what}, {format_rate(lowest.expected)}"
    range_of += f" to {format_rate(expected)}" if expected > lowest.expected * 1.01 else ""
    words = f"{range_of} is published"
    if not slow:
        return RIGHT.finding(run.subject, f"{words}{_small(run)}{_ring_asked(run)}", *evidence)
    setting = _slowing_setting(run)
    if setting:
        return KNOWN_SETTING.finding(run.subject, f"{words}. {setting}", *evidence)
    one_node = run.table.setup.nodes == 1 and not run.table.setup.assumed
    whole = (
        one_node
        and run.gpus == _CERTAIN_GPUS
        and run.size >= PLATEAU_BYTES
        and REAL_JOB not in run.table.remarks
    )
    limit = speed_limits()["collective.far"]
    half = limit.fail is not None and run.busbw < limit.fail * _slowest_algorithm(run, lowest.expected)
    below = confirmed and run.model in _agreeing() and run.busbw < limit.warn * lowest.expected
    if whole and (half or below):
        why = (
            "that is below half of what any algorithm gives on NVLink"
            if half
            else "NCCL's algorithm is confirmed"
        )
        return FAR_TOO_SLOW.finding(run.subject, f"{words}: {why}", *evidence, remedy=_causes(run))
    if cards:
        words = f"{words} for {cards} Gb/s; {_FEWER_CARDS}"
        return SLOW.finding(run.subject, words, *evidence, remedy=f"{_CARDS_ASKED} {_causes(run)}")
    return SLOW.finding(run.subject, f"{words}{_small(run)}", *evidence, remedy=_causes(run))


def _slowest_algorithm(run: _Run, otherwise: float) -> float:
    """The lowest published figure of any algorithm on such a machine."""
    found = expect_published(run.table.operation, run.size, frozenset({run.model}), run.gpus, run.nodes)
    return min((opinion.expected for _, opinion in found), default=otherwise)


def _agreeing() -> frozenset[str]:
    """The GPUs whose sources agree within 1.5 % on the plateau."""
    return frozenset(name for curve in curves() if "within 1.5 %" in curve.agreement for name in curve.models)


def _judge_bound(run: _Run, bound: Bound | None) -> Finding:
    """By what links or network cards carry, where nothing is published of such a machine."""
    if bound is None or not bound.bytes_per_second:
        message = f"{run.what}. Neither a published figure nor the links of this GPU are known"
        return NO_REFERENCE.finding(run.subject, message)
    limit = speed_limits()[bound.limit]
    evidence = Evidence(
        "busbw", run.busbw, "B/s", limit.warn * bound.bytes_per_second, f"{bound.words}: {limit.source}"
    )
    share = run.busbw / bound.bytes_per_second
    words = f"{run.what}, {share:.0%} of {bound.words} ({format_rate(bound.bytes_per_second)})"
    if share >= limit.warn:
        return RIGHT.finding(run.subject, f"{words}{_small(run)}", evidence)
    setting = _slowing_setting(run)
    if setting:
        return KNOWN_SETTING.finding(run.subject, f"{words}. {setting}", evidence)
    message = f"{words}; {limit.warn:.0%} and more is usual"
    return SLOW.finding(run.subject, message, evidence, remedy=_causes(run))


def _judge_like_scale(run: _Run) -> Finding:
    """Nodes with unknown cards, by the published figure of the nearest number of nodes with 8 x 400 Gb/s."""
    alike = [
        curve
        for curve in curves()
        if curve.operation == run.table.operation
        and run.model in curve.models
        and curve.nodes > 1
        and curve.gpus // curve.nodes == run.gpus // run.nodes
        and curve.at(run.size)
        and (curve.nodes == 2) == (run.nodes == 2)
    ]
    if not alike:
        message = (
            f"{run.what}. What it should be depends on the network cards of a"
            " node, which the output does not show"
        )
        return PLATFORM_UNKNOWN.finding(run.subject, message, remedy=_CARDS_ASKED)
    nearest = min(alike, key=lambda curve: abs(curve.nodes - run.nodes))
    expected = nearest.at(run.size) or 0.0
    limit = speed_limits()["collective.measured"]
    evidence = Evidence(
        "busbw", run.busbw, "B/s", limit.warn * expected, f"table: {nearest.setup}: {nearest.source}"
    )
    words = f"{run.what}, {format_rate(expected)} is published for {nearest.setup}"
    if run.busbw >= limit.warn * expected:
        return RIGHT.finding(run.subject, f"{words}{_small(run)}", evidence)
    setting = _slowing_setting(run)
    if setting:
        return KNOWN_SETTING.finding(run.subject, f"{words}. {setting}", evidence)
    return SLOW.finding(
        run.subject, f"{words}; {_FEWER_CARDS}", evidence, remedy=f"{_CARDS_ASKED} {_causes(run)}"
    )


def _small(run: _Run) -> str:
    """A clause for sizes below the plateau."""
    if run.size >= PLATEAU_BYTES // 4 or run.table.tool == "NCCL Inspector":
        return ""
    return f". {format_size(run.size)} is below the plateau: measure with 4 GiB and more for the full speed"


def _ring_asked(run: _Run) -> str:
    asked = [one for one in run.table.setup.settings if _NO_NVLS.search(one)]
    return f". It is right for {asked[0]}; without it NCCL may be faster" if asked else ""


def _slowing_setting(run: _Run) -> str:
    """A sentence on a setting that explains a slow run; empty where none does."""
    for pattern, effect in _SLOWING:
        setting = next((one for one in run.table.setup.settings if re.match(pattern, one)), None)
        if setting is not None:
            return f"{setting} is set: {effect}. Unset it to measure the machine"
    return ""


def _measured(run: _Run, expected: float, words: str) -> Evidence:
    return Evidence("busbw", run.busbw, "B/s", expected, f"table: {words}")


def _of_opinion(run: _Run, opinion: Opinion) -> Evidence:
    share = opinion.shares.warn
    source = f"{opinion.origin}: {share:.0%} of {format_rate(opinion.expected)} ({opinion.source})"
    return Evidence("busbw", run.busbw, "B/s", share * opinion.expected, source)


def _causes(run: _Run) -> str:
    """The usual causes of a slow collective of this kind, most likely first, each with its command."""
    again = f"Then run it again at {format_size(8 * GIB)}."
    if run.nodes > 1:
        return (
            "Look in this order. 1. NCCL_DEBUG=INFO: `Using network IB`, all cards, GDRDMA"
            " (`gpudiag explain LOG`). 2. Each card alone: `ib_write_bw --report_gbits`. 3. ACS and IOMMU"
            " are off; GPU and card are behind one PCIe switch (`nvidia-smi topo -m`), NUMA nodes per socket"
            f" in the BIOS. 4. One slow node: `gpudiag nccl-test --localise`. {again}"
        )
    if run.board is not None and link_bound(run.model, run.board).limit == "collective.links":
        return (
            "Look in this order. 1. No NCCL_ variable is set: `env | grep NCCL_`. 2. All NVLinks up:"
            " `nvidia-smi nvlink -s`. 3. The fabric manager runs: `systemctl status nvidia-fabricmanager`."
            " 4. No other program on the GPUs, clocks not held down: `nvidia-smi -q -d PERFORMANCE`. 5."
            " NCCL_DEBUG=INFO shows P2P and NVLS, not SHM (`gpudiag explain LOG`). On Blackwell, compare"
            f" with NCCL_MAX_CTAS=32: NCCL 2.28 halved the thread blocks. {again}"
        )
    return (
        "Look in this order. 1. PCIe links at full speed and width: `gpudiag preflight`. 2. Peer access:"
        " `nvidia-smi topo -p2p r`. 3. ACS and IOMMU off; NUMA nodes per socket (NPS4) in an EPYC's BIOS. 4."
        f" With and without NCCL_P2P_DISABLE=1. {again}"
    )
