"""What NCCL reports about itself in logs (NCCL_DEBUG=INFO): ranks, networks, transports, what is wrong."""

from gpudiag.model.codec import noun
from gpudiag.model.finding import Outcome, Owner
from gpudiag.model.reading import Reading


@noun
class LogPlace:
    """One line of one log, as evidence."""

    log: str
    line: int  # from 1
    text: str


@noun
class NcclInterface:
    """A network interface that NCCL found, with the address that it has there."""

    name: str
    address: str


@noun
class NcclNic:
    """One port of an RDMA device that NCCL found."""

    name: str
    port: int
    link: str  # `IB` or `RoCE`, as NCCL writes it


@noun
class NcclProcess:
    """One process that printed lines of NCCL."""

    host: str
    pid: int
    version: Reading[str]  # 2.21.5+cuda12.4
    bootstrap: Reading[NcclInterface]  # over which the ranks first meet
    network: Reading[str]  # Socket, IB, AWS Libfabric
    interfaces: tuple[NcclInterface, ...]  # of NET/Socket, in NCCL's order
    nics: tuple[NcclNic, ...]  # of NET/IB, in NCCL's order
    plugins: tuple[str, ...]  # that were loaded: `NET: libnccl-net.so`
    settings: dict[str, str]  # variables that NCCL reports as set


@noun
class NcclRank:
    """One rank of a communicator, and where it is."""

    rank: int
    host: str
    pid: int
    cuda_ordinal: int
    bus_id: Reading[str]  # as gpudiag writes bus ids
    completed: bool  # its log shows that the communicator was made


@noun
class NcclPath:
    """How ranks send to each other, for all pairs that do it alike."""

    transport: str  # P2P/CUMEM, SHM/direct, NET/IB/GDRDMA, NET/Socket
    between_hosts: Reading[bool]
    pairs: int
    channels: int  # of all these pairs


@noun
class NcclPair:
    """How one rank sends to another."""

    source: int
    destination: int
    transport: str  # with the device: NET/IB/0/GDRDMA
    channels: int


@noun
class NcclChannels:
    """How many channels a communicator has, for each use."""

    collective: int
    nvls: int
    p2p: int


@noun
class NcclCommunicator:
    """One communicator: its ranks, how they reach each other, and what making it took."""

    name: str  # NCCL's own id where the log has it
    size: int  # ranks that it has, also those whose log is not here
    ranks: tuple[NcclRank, ...]  # whose lines are here
    hosts: Reading[int]
    channels: Reading[NcclChannels]
    init_seconds: Reading[float]  # of the slowest rank
    slowest_rank: Reading[int]
    paths: tuple[NcclPath, ...]
    pairs: tuple[NcclPair, ...]  # the first `MAX_PAIRS`
    rings: tuple[str, ...]  # `0 1 2 3`, as its first rank prints them


@noun
class NcclChoice:
    """The algorithm and protocol that NCCL took for one operation, and for which sizes."""

    operation: str
    algorithm: str
    protocol: str
    count: int
    smallest_bytes: int
    largest_bytes: int


@noun
class NcclFinding:
    """One thing that makes NCCL slow, or lets it fail, and that its own lines show."""

    code: str
    outcome: Outcome
    owner: Owner
    message: str
    ranks: tuple[int, ...]  # of the largest communicator
    hosts: tuple[str, ...]
    evidence: tuple[LogPlace, ...]
    meaning: str
    remedy: str


@noun
class NcclLog:
    """All that NCCL's lines in the given logs show."""

    lines: int
    versions: tuple[str, ...]
    hosts: tuple[str, ...]
    processes: tuple[NcclProcess, ...]
    communicators: tuple[NcclCommunicator, ...]  # the largest first, `MAX_COMMUNICATORS` of them
    choices: tuple[NcclChoice, ...]
    findings: tuple[NcclFinding, ...]


MAX_PAIRS = 512  # of one communicator; `paths` counts all of them
MAX_COMMUNICATORS = 16
