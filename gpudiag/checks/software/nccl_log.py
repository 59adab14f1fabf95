"""What NCCL's own lines in a job's logs may show: the kinds that `gpudiag explain` reports."""

from functools import partial

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

_SOURCES = "NCCL's sources from 2.18 to 2.32 (src/init.cc, src/transport, src/graph, src/plugin)"
_kind = partial(
    FindingKind, outcome=Outcome.WARN, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST
)


def _basis(reads: str, limit: str, *look_also: str) -> Basis:
    return Basis(f"Lines of NCCL_DEBUG=INFO in the given logs: {reads}", limit, look_also)


SOCKETS = _kind(
    code="nccl.sockets",
    meaning=(
        "Ranks on several hosts send over TCP sockets, although RDMA is available or was switched off:"
        " data passes through the kernel and host memory, and no GPU is reached directly."
    ),
    remedy=(
        "Unset NCCL_IB_DISABLE and NCCL_NET, and check that RDMA devices are active in the ranks'"
        " host or container: `ibv_devinfo`."
    ),
    basis=_basis(
        "`Using network`, `NET/IB`, `NET/Socket`, the variables.",
        "Sockets between hosts, and a line that shows RDMA or why it is off."
        " Hosts without an RDMA device are not judged.",
        "ibv_devinfo",
        "network.rdma_error",
        "environment.nccl",
    ),
)
NO_GPU_DIRECT = _kind(
    code="nccl.no_gpu_direct",
    meaning=(
        "The network cards do not read and write GPU memory themselves (GPUDirect RDMA): each message is"
        " copied through host memory. A public case of 16 ranks: 33 GB/s on average before it was on,"
        " 93 GB/s at 1 GB after (nccl#1412)."
    ),
    remedy=(
        "[driver] Load the module, `modprobe nvidia_peermem`, or use a driver and a kernel with DMA-BUF;"
        " then look for GDRDMA in the log again."
    ),
    basis=_basis(
        "`Channel .. via NET/..`, `GPU Direct RDMA Disabled`, `DMA-BUF is available`.",
        "Receiving channels between hosts over InfiniBand, RoCE or EFA without /GDRDMA. Sending channels"
        " work without it before Ampere by design ({_SOURCES}).",
        "lsmod",
        "nvidia-smi topo -m",
    ),
)
PEER_ACCESS_OFF = _kind(
    code="nccl.peer_access_off",
    meaning="GPUs of one host do not read each other's memory: their data passes through host memory.",
    remedy=(
        "Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; where the driver refuses, see `nvidia-smi topo -p2p r`."
    ),
    basis=_basis(
        "`Channel .. via SHM`, `P2P is disabled between`, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL.",
        "A line with the reason. NCCL itself uses host memory if the path crosses"
        " the CPU: that alone is no finding.",
        "nvidia-smi topo -p2p r",
        "gpu.peer_access_broken",
    ),
)
SHM_OVER_NVLINK = _kind(
    code="nccl.shm_over_nvlink",
    meaning="GPUs that NVLink connects send through host memory, and no line gives the reason.",
    remedy=(
        "Check which links are up (`nvidia-smi nvlink -s`), and whether each process sees all GPUs of its"
        " host: containers with one GPU each cannot use NVLink."
    ),
    basis=_basis(
        "`Channel .. via SHM`, `NVLS multicast support is available`, NVL in the topology.",
        "Ranks of one host on GPUs with NVLink, if most of their pairs use SHM or the network.",
        "nvidia-smi nvlink -s",
        "nvidia-smi topo -m",
    ),
)
NVLS_OFF = _kind(
    code="nccl.nvls_off",
    meaning=(
        "The NVSwitches do not reduce for the GPUs (NVLS is off): all-reduce inside a host is slower."
        " On 8 H200 rings reached 367 GB/s and NVLS 482 (stas00/ml-engineering)."
    ),
    remedy=(
        "[driver] Unset NCCL_NVLS_ENABLE; if binding fails, check that the fabric manager runs in the"
        " driver's"
        " version: `systemctl status nvidia-fabricmanager`."
    ),
    basis=_basis(
        "`NVLS multicast support`, `Failed to bind NVLink SHARP`, NCCL_NVLS_ENABLE.",
        "A failure that NCCL names, ranks without NVLS beside ranks with it, or the variable."
        " GPUs without NVLS are not judged.",
        "nvlink.multicast_failed",
        "systemctl status nvidia-fabricmanager",
    ),
)
FABRIC_UNUSED = _kind(
    code="nccl.fabric_unused",
    meaning=(
        "NVLink joins GPUs of several hosts (GB200, GB300), and the job does not use it between them."
        " 16 GB200 are published with 191 GB/s over their network cards and 838 GB/s over NVLink."
    ),
    remedy=(
        "[driver] See `nvidia-smi -q | grep -A4 Fabric` and `nvidia-imex-ctl -N` on these hosts: every host"
        " of the domain must be READY; a container needs /dev/nvidia-caps-imex-channels."
    ),
    basis=_basis(
        "`MNNVL busId .. fabric UUID .. cliqueId`, `nNodes .. MNNVL`.",
        "No UUID beside hosts that have one; or one UUID and clique on several hosts of a communicator with"
        " `MNNVL 0`. Without a UUID on any host NVLink ends at the host.",
        "nvidia-smi -q",
        "nvidia-imex-ctl -N",
    ),
)
FEW_CHANNELS = _kind(
    code="nccl.few_channels",
    owner=Owner.JOB,
    meaning="A communicator on NVLink has fewer channels than the links need.",
    remedy=(
        "Unset NCCL_MAX_NCHANNELS, NCCL_MAX_NRINGS and NCCL_MAX_CTAS, and measure with `gpudiag nccl-test`."
    ),
    basis=_basis(
        "`coll channels`, the variables.",
        "For ranks that NVLink connects: at most 8 if a variable sets the limit, at most 4"
        " without one. 2 are usual on PCIe.",
        "environment.nccl_costly",
    ),
)
BAD_INTERFACE = _kind(
    code="nccl.interface_leads_nowhere",
    meaning=(
        "Ranks on several hosts use an interface that does not reach the other hosts:"
        " they hang or fail when they connect."
    ),
    remedy=(
        "Set NCCL_SOCKET_IFNAME to the interface that reaches the other hosts, with = before its"
        " name; `ip -brief address` lists them."
    ),
    basis=_basis(
        "`Bootstrap`, `NET/Socket : Using`, `OOB`, connections that fail.",
        "Loopback, bridges of Docker and libvirt, link-local addresses, addresses that two hosts have at"
        " once; connections that fail after all retries.",
        "network.wrong_interface",
        "network.no_route",
    ),
)
NICS_UNUSED = _kind(
    code="nccl.nics_unused",
    meaning="NCCL found more network cards of one kind than it uses between hosts.",
    remedy=(
        "Unset NCCL_MAX_NCHANNELS; compare `nvidia-smi topo -m` with the cards"
        " in use; run one rank for each GPU."
    ),
    basis=_basis(
        "`NET/IB : Using`, `Channel .. via NET/..`.",
        "Half of the cards or fewer in use, if the host has a rank for each. Cards of another"
        " speed or link layer do not count.",
        "nvidia-smi topo -m",
    ),
)
NICS_DIFFER = _kind(
    code="nccl.nics_differ",
    meaning="A host has fewer active network cards than the other hosts of the job, and these wait for it.",
    remedy="Find the port that is down there: `ibstat`; NCCL lists active ports only.",
    basis=_basis(
        "`NET/IB : Using` of each host.",
        "The number of cards of each link layer that more than half of the hosts"
        " have; of two hosts, the larger number.",
        "ibstat",
        "network.rdma_error",
    ),
)
NIC_REMOTE = _kind(
    code="nccl.nic_remote",
    meaning="A GPU reaches its network card only across the link between two CPUs.",
    remedy=(
        "Find the card near each GPU (`nvidia-smi topo -m`), and name the near"
        " ones in NCCL_IB_HCA, or unset it."
    ),
    basis=_basis(
        "`Pattern 4 .. type`, which NCCL_DEBUG_SUBSYS=INIT,GRAPH prints.",
        "SYS between GPU and network card, if another GPU of the job has a nearer one.",
        "nvidia-smi topo -m",
    ),
)
SETTINGS_DIFFER = _kind(
    code="nccl.settings_differ",
    owner=Owner.JOB,
    meaning=(
        "Ranks of one job run NCCL with different variables: they may choose different algorithms, networks"
        " or interfaces, hang, or wait for the slowest."
    ),
    remedy="Give all hosts the same variables: compare `env | grep NCCL` and /etc/nccl.conf.",
    basis=_basis(
        "`NCCL_.. set by environment to`.",
        "The value that most ranks have. Without a majority all are named. Names of interfaces and cards may"
        " differ between hosts, but not within one host.",
        "environment.nccl",
    ),
)
VERSIONS_DIFFER = _kind(
    code="nccl.version_mismatch",
    owner=Owner.SOFTWARE,
    category=Category.SW_LIBRARY,
    meaning="Ranks of one job load different versions of NCCL: the job fails, or works by chance.",
    remedy="Use one image, or one torch wheel, on every host: `gpudiag list --sources torch`.",
    basis=_basis(
        "`NCCL version`.",
        "The version that most ranks have. Without a majority all ranks are named.",
        "machines.versions_differ",
    ),
)
PLUGIN_FAILED = _kind(
    code="nccl.plugin_not_loaded",
    owner=Owner.JOB,
    category=Category.SW_LIBRARY,
    meaning="A plugin that the job asks for, or that is there, was not loaded; NCCL continued without it.",
    remedy=(
        "Put the plugin's folder into LD_LIBRARY_PATH of the ranks, or unset"
        " NCCL_NET_PLUGIN and NCCL_TUNER_PLUGIN."
    ),
    basis=_basis(
        "`Plugin name set by env`, `Could not find`, `Plugin load returned`, `No eligible providers`.",
        "The plugin that a variable names, or that the loader refuses. Others may be missing.",
        "nccl.network_plugin",
    ),
)

NCCL_LOG_FINDINGS = (
    VERSIONS_DIFFER,
    SETTINGS_DIFFER,
    PLUGIN_FAILED,
    BAD_INTERFACE,
    SOCKETS,
    NO_GPU_DIRECT,
    NICS_DIFFER,
    NICS_UNUSED,
    NIC_REMOTE,
    PEER_ACCESS_OFF,
    SHM_OVER_NVLINK,
    NVLS_OFF,
    FABRIC_UNUSED,
    FEW_CHANNELS,
)
