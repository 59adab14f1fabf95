"""Logs of NCCL under NCCL_DEBUG=INFO, as each version words them, of jobs that are described by a few facts.

The wording is that of the INFO and WARN calls of NCCL's sources at the tags named in VERSIONS, 2.32 that of
the strings in its library. Hosts and addresses are invented.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

VERSIONS = {
    (2, 18): "2.18.6+cuda12.1",
    (2, 20): "2.20.5+cuda12.4",
    (2, 21): "2.21.5+cuda12.4",
    (2, 23): "2.23.4+cuda12.6",
    (2, 24): "2.24.3+cuda12.6",
    (2, 26): "2.26.6+cuda12.9",
    (2, 27): "2.27.7+cuda12.9",
    (2, 28): "2.28.9+cuda13.0",
    (2, 29): "2.29.7+cuda13.1",
    (2, 30): "2.30.7+cuda13.2",
    (2, 32): "2.32.3+cuda13.4",
}
PLUGIN_GONE = "cannot open shared object file: No such file or directory"


@dataclass(frozen=True)
class NcclJob:
    """A job, and how NCCL finds its hosts; `of_host` and `of_rank` say what differs there from the rest."""

    version: tuple[int, int] = (2, 21)
    hosts: int = 1
    gpus: int = 8  # of each host
    inside: str = "P2P/CUMEM"  # or SHM
    network: str = "IB"  # IB, Socket, AWS Libfabric
    nics: tuple[str, ...] = tuple(f"mlx5_{index}:1/IB" for index in range(8))
    used_nics: int | None = None  # the first of them; None: all
    gpu_direct: bool = True
    sends_direct: bool = True
    dma_buf: bool = True
    nvls: bool | None = False  # None: no line
    channels: int = 8
    nvls_channels: int = 0
    interface: str = "eth0"
    address: str = "10.1.0"
    sockets: tuple[str, ...] = ()  # all that NET/Socket lists; empty: `interface`
    looked_for_ib: bool = True
    settings: dict[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()  # messages before the communicator is made
    ends: bool = True
    of_host: dict[int, dict[str, object]] = field(default_factory=dict)
    of_rank: dict[int, dict[str, object]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The ranks of the job."""
        return self.hosts * self.gpus


def rank_lines(job: NcclJob, rank: int) -> list[str]:
    """The lines that one rank prints, with their heads."""
    host, local = divmod(rank, job.gpus)
    facts = NcclJob(**{**vars(job), **job.of_host.get(host, {}), **job.of_rank.get(rank, {})})
    head = f"node-{host}:{4000 + local}:{5000 + local} [{local}] NCCL INFO "
    lines = [head + message for message in _messages(facts, host, local, rank)]
    if rank == 0 and facts.version < (2, 24):
        lines.insert(2, f"NCCL version {VERSIONS[facts.version]}")
    return lines


def job_log(job: NcclJob) -> str:
    """All ranks in one file, their lines mixed."""
    return "\n".join(mixed(job)) + "\n"


def mixed(job: NcclJob) -> Iterator[str]:
    """The ranks' lines, a few of each in turn, as one file gets them."""
    waiting = [rank_lines(job, rank) for rank in range(job.size)]
    while any(waiting):
        for place, lines in enumerate(waiting):
            yield from lines[: 1 + place % 3]
            del lines[: 1 + place % 3]


def _messages(job: NcclJob, host: int, local: int, rank: int) -> Iterator[str]:
    address = f"{job.address}.{host + 1}"
    for name, value in job.settings.items():
        yield f"{name} set by environment to {value}{'.' * value.isdecimal()}"
    colon = ": " if job.version >= (2, 24) else " : "
    yield f"Bootstrap{colon}Using {job.interface}:{address}<0>"
    yield "cudaDriverVersion 12040"
    if job.version >= (2, 24):
        yield f"NCCL version {VERSIONS[job.version]}"
    yield from _plugin(job)
    yield from _network(job, address)
    yield from job.extra
    yield f"Using network {job.network}"
    if job.dma_buf:
        yield f"DMA-BUF is available on GPU device {local}"
    yield _init(job, local, rank, "START")
    if job.nvls is not None:
        suffix = {True: f" (NVLS_NCHANNELS {16 if job.nvls else 0})"}.get(
            (2, 27) <= job.version < (2, 30), ""
        )
        yield f"NVLS multicast support is {'' if job.nvls else 'not '}available on dev {local}{suffix}"
    if job.version >= (2, 20):
        yield (
            f"comm 0x55d0{rank:04x} rank {rank} nRanks {job.size} nNodes {job.hosts} localRanks {job.gpus} "
            f"localRank {local} MNNVL 0"
        )
    if rank == 0:
        ring = " ".join(f"{one:3d}" for one in range(job.size))
        yield from (f"Channel {channel:02d}/{job.channels:02d} : {ring}" for channel in range(job.channels))
    yield f"Trees [0] {rank + 1}/-1/-1->{rank}->{rank - 1} [1] {rank + 1}/-1/-1->{rank}->{rank - 1}"
    yield "P2P Chunksize set to 524288"
    yield from _channels(job, host, local, rank)
    yield "Connected all rings" if job.version < (2, 24) else "Connected all rings, use ring PXN 0 GDR 1"
    yield "threadThresholds 8/8/64 | 64/8/64 | 512 | 512"
    collnet = "" if job.version < (2, 20) else "0 collnet channels, "
    yield (
        f"{job.channels} coll channels, {collnet}{job.nvls_channels} nvls channels, 32 p2p channels, "
        f"{2} p2p channels per peer"
    )
    if job.ends:
        yield _init(job, local, rank, "COMPLETE")
        if job.version >= (2, 23):
            yield (
                f"Init timings - ncclCommInitRank: rank {rank} nranks {job.size} total "
                f"{1 + rank / 100:.2f} (kernels 0.30, alloc 0.10,"
                " bootstrap 0.40, allgathers 0.00, topo 0.10, graphs 0.05, connections 0.05, rest 0.00)"
            )


def _plugin(job: NcclJob) -> Iterator[str]:
    if job.network == "AWS Libfabric":
        yield "NET/Plugin: Loaded net plugin AWS Libfabric (v8)"
        yield "NET/OFI Initializing aws-ofi-nccl 1.9.1-aws"
        yield (
            "NET/OFI Running on p5.48xlarge platform, Setting NCCL_TOPO_FILE environment variable to "
            "/opt/amazon/ofi/p5.48xl-topo.xml"
        )
        yield "NET/OFI Selected Provider is efa (found 32 nics)"
        return
    library = "libnccl-net.so"
    if job.version < (2, 20):
        yield f"NET/Plugin : Plugin load ({library}) returned 2 : {library}: {PLUGIN_GONE}"
        yield "NET/Plugin : No plugin found, using internal implementation"
    elif job.version < (2, 21):
        yield (
            f"NET/Plugin : dlerror={library}: {PLUGIN_GONE} No plugin found ({library}), "
            "using internal implementation"
        )
    elif job.version < (2, 23):
        yield f"NET/Plugin: No plugin found ({library})"
        yield f"NET/Plugin: Plugin load returned 2 : {library}: {PLUGIN_GONE} : when loading {library}"
        yield "NET/Plugin: Using internal network plugin."
    elif job.version < (2, 28):
        yield f"NET/Plugin: Could not find: {library}. Using internal network plugin."
    else:
        yield f"NET/Plugin: Could not find: {library}"
        yield "ENV/Plugin: Could not find: libnccl-env.so"


def _network(job: NcclJob, address: str) -> Iterator[str]:
    if job.network == "IB":
        listed = "".join(f" [{index}]{nic}" for index, nic in enumerate(job.nics))
        yield f"NET/IB : Using{listed} [RO]; OOB {job.interface}:{address}<0>"
    elif job.network == "Socket":
        if job.looked_for_ib:
            yield "NET/IB : No device found."
        if job.looked_for_ib and job.version >= (2, 24):
            yield f"NET/IB : Using [RO]; OOB {job.interface}:{address}<0>"
        listed = " ".join(
            f"[{index}]{name}" for index, name in enumerate(job.sockets or (f"{job.interface}:{address}<0>",))
        )
        yield f"NET/Socket : Using {listed}"
    if job.version >= (2, 27):
        yield f"Initialized NET plugin {job.network}"
        yield f"Assigned NET plugin {job.network} to comm"


def _init(job: NcclJob, local: int, rank: int, step: str) -> str:
    name = "" if job.version < (2, 21) else "ncclCommInitRank "
    begin = f"[Rank {rank}] " if job.version >= (2, 29) and step == "START" else ""
    return (
        f"{begin}{name}comm 0x55d0{rank:04x} rank {rank} nranks {job.size} cudaDev {local} nvmlDev {local}"
        f" busId {0x1B + local:x}000 commId 0x8f3a21c07d5e9b64 - Init {step}"
    )


def _channels(job: NcclJob, host: int, local: int, rank: int) -> Iterator[str]:
    """The ways of one rank: to the next of its host, and over the card of its own to the other hosts."""
    following = host * job.gpus + (local + 1) % job.gpus
    for channel in range(job.channels):
        if job.gpus > 1 and (job.hosts == 1 or (local + 1) % job.gpus != channel % job.gpus):
            yield (
                f"Channel {channel:02d}{'/0' if job.inside != 'SHM' else ''} : "
                f"{rank}[{local}] -> {following}[{(local + 1) % job.gpus}] via {_inside(job)}"
            )
        if job.hosts > 1 and channel % job.gpus == local:
            there = (host + 1) % job.hosts * job.gpus + local
            before = (host - 1) % job.hosts * job.gpus + local
            card = channel % (job.used_nics or (len(job.nics) if job.network != "Socket" else 1))
            pci = "(PCI)" if job.version == (2, 99) else ""
            send = "/GDRDMA" + pci if job.gpu_direct and job.sends_direct and job.network != "Socket" else ""
            receive = "/GDRDMA" + pci if job.gpu_direct and job.network != "Socket" else ""
            yield (
                f"Channel {channel:02d}/0 : {before}[{local}] -> {rank}[{local}] [receive] via "
                f"NET/{job.network}/{card}{receive}"
            )
            yield (
                f"Channel {channel:02d}/0 : {rank}[{local}] -> {there}[{local}] [send] via "
                f"NET/{job.network}/{card}{send}"
            )


def _inside(job: NcclJob) -> str:
    if job.inside == "SHM":
        return "SHM/direct" if job.version >= (2, 30) else "SHM/direct/direct"
    return job.inside
