"""What is kept of NCCL's lines while logs are read: facts of each process and of each communicator in it."""

from dataclasses import dataclass, field

from gpudiag.model.nccl_log import LogPlace, NcclChannels, NcclChoice, NcclInterface, NcclNic


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the message of a line: who printed it."""

    host: str
    pid: int
    thread: int
    cuda_ordinal: int


@dataclass(frozen=True, slots=True)
class Way:
    """How one rank sends to another, as a line about a channel names it."""

    transport: str  # P2P/CUMEM, SHM, NET/IB
    device: int = -1  # the index of NET's device
    direct: bool = False  # GPUDirect RDMA
    receives: bool = False  # printed by the receiving end
    proxied: bool = False  # over another GPU's card (PXN)


@dataclass(slots=True)
class WayFacts:
    """Where a way was seen first, and how many channels each pair of ranks has on it.

    A pair is one number, for a log may hold a million: see `pair_of` and `ranks_of`.
    """

    place: LogPlace
    channels: dict[int, int] = field(default_factory=dict)  # by pair


def pair_of(source: int, destination: int) -> int:
    """A pair of ranks as one number."""
    return source << 32 | destination


def ranks_of(pair: int) -> tuple[int, int]:
    """The source and the destination of a pair."""
    return pair >> 32, pair & 0xFFFFFFFF


@dataclass(slots=True)
class CommunicatorFacts:
    """One communicator as one rank of it sees it."""

    name: str  # NCCL's id, or the address that stands for it in this process
    rank: int
    size: int
    cuda_ordinal: int
    bus_id: str = ""
    place: LogPlace | None = None
    completed: bool = False
    seconds: float | None = None
    timings: str = ""
    nodes: int | None = None
    local_ranks: int | None = None
    mnnvl: bool = False
    channels: NcclChannels | None = None
    channels_place: LogPlace | None = None
    ways: dict[Way, WayFacts] = field(default_factory=dict)
    rings: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class ProcessFacts:
    """One process that printed lines of NCCL."""

    host: str
    pid: int
    version: str | None = None
    version_place: LogPlace | None = None
    settings: dict[str, tuple[str, LogPlace]] = field(default_factory=dict)
    bootstrap: tuple[NcclInterface, LogPlace] | None = None
    network: tuple[str, LogPlace] | None = None
    interfaces: tuple[NcclInterface, ...] = ()
    interfaces_place: LogPlace | None = None
    nics: tuple[NcclNic, ...] = ()
    nics_place: LogPlace | None = None
    nic_speeds: dict[str, int] = field(default_factory=dict)  # Mb/s
    merged: bool = False  # NICs were merged to virtual ones, whose indices go on after the real ones
    no_nic: LogPlace | None = None
    closed_nic: LogPlace | None = None  # found, and not to be opened
    out_of_band: tuple[NcclInterface, LogPlace] | None = None
    asked_plugins: dict[str, tuple[str, LogPlace]] = field(default_factory=dict)  # by NET, TUNER
    # The loader's message, by NET, TUNER.
    plugin_reasons: dict[str, tuple[str, LogPlace]] = field(default_factory=dict)
    no_verbs: LogPlace | None = None  # libibverbs is not installed
    failed_plugins: dict[str, tuple[str, LogPlace]] = field(default_factory=dict)
    loaded_plugins: dict[str, str] = field(default_factory=dict)
    dma_buf: bool = False
    nics_without_direct: dict[str, LogPlace] = field(default_factory=dict)  # by the NIC's name
    direct_too_far: LogPlace | None = None
    direct_refused: LogPlace | None = None  # by the network's plugin
    nvls: dict[int, tuple[bool, LogPlace]] = field(default_factory=dict)  # by CUDA ordinal
    nvls_failed: LogPlace | None = None
    fabric: tuple[str, LogPlace] | None = None  # of NVLink between hosts: its name, empty where there is none
    nvlink: bool = False  # the topology names NVLink
    p2p_refused: dict[str, LogPlace] = field(default_factory=dict)  # by the first words of NCCL's message
    far_networks: dict[int, LogPlace] = field(default_factory=dict)  # by CUDA ordinal
    near_networks: set[int] = field(default_factory=set)
    unreachable: dict[str, tuple[str, bool, LogPlace]] = field(default_factory=dict)  # why, final; by address
    platform: str = ""  # the instance type that a plugin names
    communicators: dict[str, CommunicatorFacts] = field(default_factory=dict)  # by address
    of_thread: dict[int, CommunicatorFacts] = field(default_factory=dict)
    loose: CommunicatorFacts | None = None  # ways that no line assigns to a communicator

    @property
    def has_facts(self) -> bool:
        """Whether any line about the process is kept."""
        return any(
            (
                self.communicators,
                self.loose,
                self.bootstrap,
                self.settings,
                self.network,
                self.interfaces,
                self.nics,
                self.no_nic,
                self.nvls,
                self.nvls_failed,
                self.p2p_refused,
                self.unreachable,
                self.asked_plugins,
                self.loaded_plugins,
            )
        )

    @property
    def completed(self) -> bool:
        """Whether a communicator was made here."""
        return any(communicator.completed for communicator in self.communicators.values())

    @property
    def all_communicators(self) -> list[CommunicatorFacts]:
        """Those of which there are lines."""
        return [*self.communicators.values(), *([self.loose] if self.loose else [])]


@dataclass(slots=True)
class NcclFacts:
    """What the lines of NCCL in all logs show."""

    lines: int = 0
    processes: dict[tuple[str, int], ProcessFacts] = field(default_factory=dict)
    choices: dict[tuple[str, str, str], NcclChoice] = field(default_factory=dict)
    versions: dict[str, LogPlace] = field(default_factory=dict)  # also of lines that name no process
    gpus: dict[str, str] = field(default_factory=dict)  # models by host, where nccl-tests names them
