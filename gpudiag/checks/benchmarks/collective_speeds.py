"""What a collective should reach (`nccl-test`, `judge`): published curves, else what links carry."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.checks.ranks.measured_speeds import Opinion
from gpudiag.model.benchmark import Nics
from gpudiag.reference.expected_speeds import FLOOR, Board, Curve, find_curves
from gpudiag.reference.gpu_models import find_links
from gpudiag.reference.speeds import nvlink_bytes_per_second, pcie_bytes_per_second, speed_limits
from gpudiag.units import GIB, MIB

# From this size on NVLink machines are on their plateau, and published figures of one kind of machine agree
# within 1.5 %; at 1 GiB eight B200 give 723 of 846 GB/s.
PLATEAU_BYTES = 4 * GIB
SMALLEST_BYTES = 64 * MIB  # below it sources differ by up to 2 times
RING, TREE, NVLS = "ring", "tree", "NVLS"
BEST_RING = 1.05  # our choice: published figures of one machine's ring are 1 to 2 % apart
_PCIE_LANES = 16
# A GPU sends over PCIe to the network: what one of it carries. 50 of 63 GB/s (NVIDIA/nccl-tests issue 232).
_PCIE_SHARE = 0.80
_SWITCHED = ("board", "mesh")


@dataclass(frozen=True, slots=True)
class Bound:
    """The most bytes per second of bus bandwidth that whatever carries the data allows, and its words."""

    bytes_per_second: float
    words: str
    limit: str  # the name of the limit in speeds.toml


def expect_published(
    operation: str,
    size_bytes: int,
    models: frozenset[str],
    gpus: int,
    nodes: int = 1,
    algorithm: str = "",
) -> tuple[tuple[Curve, Opinion], ...]:
    """An opinion for each published curve of the run at that size, on its plateau; none for mixed GPUs."""
    found = []
    if len(models) != 1:
        return ()
    for curve in find_curves(operation, models, gpus, nodes):
        on_plateau = curve.points[0][1] if size_bytes >= PLATEAU_BYTES else None
        expected = curve.at(size_bytes) or on_plateau
        other = bool(algorithm and curve.algorithm and curve.algorithm != algorithm)
        floor_too_early = curve.kind == FLOOR and size_bytes < PLATEAU_BYTES
        if expected is None or other or floor_too_early or size_bytes < SMALLEST_BYTES:
            continue
        name = f"collective.{curve.kind}" if size_bytes >= PLATEAU_BYTES else "collective.below_plateau"
        found.append(
            (curve, Opinion("table", expected, f"{curve.setup}: {curve.source}", speed_limits()[name]))
        )
    return tuple(found)


def link_bound(model: str, board: Board) -> Bound:
    """What one GPU's links to its peers carry one way: NVLink if the board has it, else PCIe or CPU links."""
    links = find_links(model)
    if links is not None and links.wiring in _SWITCHED and board.nvlink_version:
        rate = links.count * nvlink_bytes_per_second(board.nvlink_version)
        return Bound(rate, f"{links.count} NVLinks of one GPU, one way", "collective.links")
    return Bound(host_bytes_per_second(board), host_words(board), "collective.pcie")


def host_bytes_per_second(board: Board) -> float:
    """Bytes per second one way between a GPU and its host, before packet overhead; 0: one memory."""
    if board.pcie_generation:
        return pcie_bytes_per_second(board.pcie_generation, _PCIE_LANES)
    return board.host_gb_per_second * 1e9


def host_words(board: Board) -> str:
    """What attaches a GPU to its host, in words."""
    return f"PCIe {board.pcie_generation}.0 x{_PCIE_LANES}" if board.pcie_generation else "NVLink-C2C"


def network_bound(operation: str, nics: Nics, gpus: int, nodes: int, board: Board | None) -> Bound:
    """What one node can send to the others: the least of its cards, its GPUs' links to them, and NVLink.

    In an all-to-all of N nodes busbw is N/(N-1) of a GPU's share of the cards (nccl-tests issue 130).
    """
    per_node = max(1, gpus // nodes)
    cards = Bound(
        nics.bytes_per_second, f"{nics.count} x {nics.gbits_per_second:g} Gb/s of one node", "collective.nics"
    )
    bounds = [cards]
    if board is not None and host_bytes_per_second(board):
        reach = per_node * host_bytes_per_second(board) * _PCIE_SHARE
        gpus_of_node = "1 GPU sends" if per_node == 1 else f"{per_node} GPUs send"
        bounds.append(Bound(reach, f"what {gpus_of_node} over {host_words(board)}", "collective.nics"))
    if operation.startswith("alltoall"):
        share = nodes / (nodes - 1) / per_node
        bounds = [
            Bound(one.bytes_per_second * share, f"{one.words}, shared by {per_node} GPUs", one.limit)
            for one in bounds
        ]
    return min(bounds, key=lambda one: one.bytes_per_second)


def fits_ring(busbw: float, rings: Sequence[float]) -> bool:
    """Whether a speed is usual for a ring and slow for NVLS: then NVLS is off, and no link is bad."""
    share = speed_limits()["collective.measured"].warn
    return bool(rings) and share * min(rings) <= busbw <= BEST_RING * max(rings)
