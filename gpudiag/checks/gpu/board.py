"""Checks of a machine's GPUs as a set: a board that is short of some, or has one of another model."""

from dataclasses import dataclass

from gpudiag.checks.gpu.availability import granted
from gpudiag.checks.gpu.products import is_data_center
from gpudiag.checks.majority import majority_of
from gpudiag.checks.per_device import answering
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged
from gpudiag.checks.subjects import device_subject, host_finding, is_virtual, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import DISPLAY_CLASSES
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing


@dataclass(frozen=True, slots=True)
class Board:
    """GPUs that are sold on one board, by words of NVML's name for them, and how many a whole machine has."""

    name: str
    words: tuple[str, ...]
    counts: tuple[int, ...]


# NVIDIA's product pages and user guides of HGX A100 (4 or 8 GPUs, 16 in two boards), HGX H100 and H200 (4 or
# 8), HGX B200 and B300 (8), GB200 and GB300 NVL72 (4 on a compute tray, 2 on NVL2), DGX Spark (1), read
# 2026-11. Words are parts of the name that end at its end or at a space, so that `H200 NVL` and `H100 PCIe`
# are none of them.
_BOARDS = (
    Board("HGX A100", ("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-SXM-80GB"), (4, 8, 16)),
    Board("HGX H100", ("H100 80GB HBM3", "H800"), (4, 8)),
    Board("HGX H200", ("NVIDIA H200",), (4, 8)),
    Board("HGX B200", ("NVIDIA B200",), (8,)),
    Board("HGX B300", ("NVIDIA B300", "NVIDIA B300 SXM6 AC"), (8,)),
    Board("GB200 tray", ("NVIDIA GB200",), (2, 4)),
    Board("GB300 tray", ("NVIDIA GB300",), (4,)),
    Board("DGX Spark", ("NVIDIA GB10",), (1,)),
)

_MANY_OF_ONE = 3
BOARD_INCOMPLETE = FindingKind(
    code="gpu.board_incomplete",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning=(
        "A board of this kind is made with more GPUs than this machine shows,"
        " on the PCI bus or in the driver's list."
    ),
    remedy=(
        "[hardware] Look for the one that is missing: `lspci -d 10de:` and the BMC's event log"
        " (`ipmitool sel list`). [power cycle: Power-cycle the machine];"
        " if it does not come back, reseat or replace"
        " it. If fewer are right here: `--expect-gpus`."
    ),
    basis=Basis(
        reads="The names of the GPUs, how many NVML lists, and how many of them are on the PCI bus.",
        limit=(
            "HGX A100, H100 and H200: 4 or 8 (A100: 16 too); HGX B200 and B300: 8; a tray of GB200 or GB300:"
            " 4 (NVL2: 2); DGX Spark: 1. Not judged for half of a board or less, in virtual machines and"
            " containers, nor where a job was given its GPUs."
        ),
        look_also=("lspci -d 10de:", "gpu.gone", "gpu.missing", "gpu.count"),
    ),
)

MODEL_DIFFERS = FindingKind(
    code="gpu.model_differs",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning=(
        "A data-center GPU is of another model than most of the machine's: a job over all of them goes at"
        " the pace and with the memory of the smallest."
    ),
    remedy=(
        "If that is meant, give jobs the GPUs of one model (CUDA_VISIBLE_DEVICES);"
        " if not, have the board exchanged."
    ),
    basis=Basis(
        reads="The names of the GPUs, as NVML gives them.",
        limit=(
            f"the name of most data-center GPUs here, where there are {_MANY_OF_ONE} of it for each other"
            " one (our choice: a machine that is mixed by intent has several of each). Consumer and"
            " workstation cards, and those for a screen, are not compared."
        ),
        look_also=("nvidia-smi -L", "gpu.board_incomplete", "driver.vbios_differs"),
    ),
)


def find_shortage(snapshot: Snapshot) -> tuple[Board, int, int] | None:
    """The board, how many GPUs it has by design and how many are here; None for a whole or unknown one.

    Half a board or less is taken for a part that a guest, container or job was given: our choice.
    """
    board, here = _board_of(snapshot), _count(snapshot)
    whole = () if board is None else tuple(count for count in board.counts if count >= here)
    if board is None or not whole or whole[0] == here or 2 * here <= whole[0]:
        return None
    return board, whole[0], here


def describe_shortage(snapshot: Snapshot) -> str:
    """`an HGX B200 has 8 GPUs and 7 are here`; empty for a whole board, and where nobody can know."""
    found = find_shortage(snapshot)
    if found is None:
        return ""
    board, whole, here = found
    article = "an" if board.name[0] == "H" else "a"
    return (
        f"{article} {board.name} has {count_of(whole, 'GPU')} and {here} {'is' if here == 1 else 'are'} here"
    )


@check(
    "gpu.board",
    title="a board of a known kind has all of its GPUs",
    needs=("gpus", "host_state"),
    reports=(BOARD_INCOMPLETE,),
    readings=("name", "NVML's list", "pci_devices"),
)
def gpu_board(context: Context) -> Judgement:
    """WARN if a board has fewer GPUs than by design; GPUs known to have been here are another check's."""
    if not isinstance(context.expected_gpus, Missing) or not isinstance(context.at_least_gpus, Missing):
        return does_not_apply("the user set how many GPUs to expect")
    known, here = context.known_gpus, {device.id.uuid for device in context.snapshot.devices}
    if not isinstance(known, Missing) and any(gpu.uuid not in here for gpu in known.gpus):
        return does_not_apply("machine.gpus compares with the GPUs that were here")
    if _board_of(context.snapshot) is None:
        return does_not_apply(
            "these GPUs are on no board with a known number of them, or a part of it was given"
        )
    found = find_shortage(context.snapshot)
    if found is None:
        return judged()
    _, whole, listed = found
    evidence = Evidence(
        "gpu_count", listed, unit="GPUs", limit=whole, source="NVML and PCI bus; limit: NVIDIA"
    )
    return judged(host_finding(context, BOARD_INCOMPLETE, describe_shortage(context.snapshot), evidence))


@check(
    "gpu.model",
    title="data-center GPUs of one machine are of one model",
    needs=("gpus",),
    reports=(MODEL_DIFFERS,),
    readings=("name",),
)
def gpu_model(context: Context) -> Judgement:
    """WARN for each data-center GPU that is of another model than most are."""
    snapshot = context.snapshot
    servers = [device for device in answering(snapshot) if is_data_center(device)]
    usual = majority_of(device.name for device in servers)
    others = [device for device in servers if device.name != usual]
    if len(servers) < 2:
        return does_not_apply("fewer than two data-center GPUs are here to compare")
    if usual is None or len(servers) - len(others) < _MANY_OF_ONE * len(others):
        return judged()
    return judged(*(_other_model(snapshot, device, str(usual)) for device in others))


def _other_model(snapshot: Snapshot, device: Device, usual: str) -> Finding:
    message = f"{name_device(device)} is another model, {device.name}; most others are {usual}"
    evidence = Evidence("name", str(device.name), limit=usual, source="NVML; limit: peers")
    return MODEL_DIFFERS.finding(device_subject(snapshot, device), message, evidence)


def _board_of(snapshot: Snapshot) -> Board | None:
    """The board of a machine whose GPUs are all of one kind, and all its own; else None."""
    machine = snapshot.machine
    names = {device.name for device in snapshot.devices if not isinstance(device.name, Missing)}
    shared = machine.container is not None or granted(machine.allocation) is not None
    if shared or not isinstance(machine.job_cgroup, Missing) or len(names) != 1:
        return None
    if isinstance(machine.state, Missing) or is_virtual(machine.state):
        return None
    (name,) = names
    return next((one for one in _BOARDS if _is_of(name, one)), None)


def _is_of(name: str, board: Board) -> bool:
    return any(name == word or name.endswith(f" {word}") for word in board.words)


def _count(snapshot: Snapshot) -> int:
    """How many GPUs NVML or the bus shows, with those of virtual machines (vfio-pci) and unbound ones."""
    functions = snapshot.machine.pci_devices
    rows = {device.id.bus_id for device in snapshot.devices if not isinstance(device.id.bus_id, Missing)}
    if isinstance(functions, Missing):
        return len(snapshot.devices)
    models = {one.device_id for one in functions if one.bus_id in rows}
    alike = {
        one.bus_id
        for one in functions
        if one.device_id in models
        and one.class_id[:4] in DISPLAY_CLASSES
        and one.virtual_function is not True
    }
    return max(len(snapshot.devices), len(rows | alike))
