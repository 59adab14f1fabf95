"""Each finding about NCCL's lines fires where it should, names who is meant, and leaves near misses alone."""

from dataclasses import dataclass, field, replace
from io import BytesIO

from gpudiag.checks.software.nccl_log import NCCL_LOG_FINDINGS
from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.model.finding import Owner
from gpudiag.model.nccl_log import NcclFinding
from tests.corpus.nccl_jobs import PLUGIN_GONE, VERSIONS, NcclJob, job_log, rank_lines
from tests.walking import walk

IN_FOUR = ((2, 18), (2, 21), (2, 24), (2, 27), (2, 28), (2, 32))
ROCE = tuple(f"mlx5_{index}:1/RoCE" for index in range(8))
TWO = NcclJob(hosts=2)
NVSWITCH = NcclJob(nvls=True, nvls_channels=16, channels=24)
SOCKET = NcclJob(hosts=2, network="Socket", nics=(), channels=2, inside="SHM")
EFA = NcclJob(hosts=2, network="AWS Libfabric", nics=("efa",) * 8, nvls=True, nvls_channels=16)
PCIE = NcclJob(gpus=4, inside="SHM", channels=2)

HEALTHY = {
    "8 GPUs with NVLink": NcclJob(),
    "8 GPUs with NVSwitch": NVSWITCH,
    "2 hosts with InfiniBand": TWO,
    "2 hosts with NVSwitch and InfiniBand": replace(NVSWITCH, hosts=2, channels=16),
    "2 hosts with RoCE": NcclJob(hosts=2, nics=ROCE),
    "2 hosts with EFA": EFA,
    "16 hosts": NcclJob(hosts=16),
    "sockets without RDMA": SOCKET,
    "sockets without RDMA, NCCL_IB_DISABLE=1 on one host": replace(PCIE, settings={"NCCL_IB_DISABLE": "1"},
        network="Socket", nics=()),
    "GPUs on PCIe": PCIE,
    "consumer cards": NcclJob(gpus=2, inside="SHM", channels=2, network="Socket", nics=(), dma_buf=False,
        nvls=None),
    "one GPU": NcclJob(gpus=1, network="Socket", nics=(), channels=32, nvls=None),
    "GPUs before Ampere, whose sends are not direct": replace(TWO, sends_direct=False),
    "variables that cost nothing": replace(
        TWO, settings={"NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "0", "NCCL_NVLS_ENABLE": "1",
            "NCCL_IB_TIMEOUT": "22"}
    ),
    "two hosts whose interfaces have other names": replace(
        TWO,
        of_host={
            0: {"settings": {"NCCL_SOCKET_IFNAME": "eth0"}},
            1: {"settings": {"NCCL_SOCKET_IFNAME": "ens5"}, "interface": "ens5"},
        },
    ),
    "a card for storage beside four": NcclJob(
        hosts=2, nics=(*(f"mlx5_{index}:1/IB" for index in range(4)), "mlx5_4:1/IB"), used_nics=4
    ),
    "cards of another link layer": NcclJob(hosts=2, nics=(*TWO.nics, "mlx5_8:1/RoCE", "mlx5_9:1/RoCE"),
        used_nics=8),
    "two ranks on hosts with eight cards": NcclJob(hosts=2, gpus=2, used_nics=2, channels=2),
    "the default plugin is missing": replace(TWO,
        extra=("TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",)),
    "no plugin is wanted": replace(TWO, settings={"NCCL_NET_PLUGIN": "none"},
        extra=("NET/Plugin: Could not find: none.",)),
    "a plugin that was asked for and loaded": replace(EFA,
        settings={"NCCL_NET_PLUGIN": "libnccl-net-ofi.so"}),
    "symbols of older plugins": replace(EFA, extra=("NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.",
        )),
    "DGX Spark, which has no GPUDirect RDMA": NcclJob(
        hosts=2, gpus=1, nics=("rocep1s0f0:1/RoCE", "roceP2p1s0f0:1/RoCE"), gpu_direct=False, dma_buf=False,
        channels=4
    ),
    "EFA of an instance without GPUDirect RDMA": replace(
        NcclJob(hosts=2, gpus=1, nics=("rdmap0:1/IB",), channels=2), network="OFI", gpu_direct=False,
        dma_buf=False
    ),
    "an interface of Docker on one host": replace(PCIE, interface="docker0", address="172.17.0"),
    "pods of one network": replace(TWO, interface="eth0", address="10.244.3"),
    "a bridge that is listed and not used": replace(
        SOCKET, sockets=("eth0:10.1.0.1<0>", "virbr0:192.168.122.1<0>")
    ),
    "a connection that a retry mended": replace(
        TWO, extra=("socketPollConnect: connect to 10.1.0.2<4711> returned Connection timed out, retrying (1/34) after sleep for 100 msec",)
    ),
    "peer access that was refused where none was wanted": replace(PCIE, settings={"NCCL_P2P_LEVEL": "SYS"}),
    "few channels, as a framework wants them": NcclJob(channels=4),
}  # fmt: skip


@walk([(name, version) for name in HEALTHY for version in IN_FOUR], lambda case: f"{case[0]}, NCCL {case[1]}")
def test_a_healthy_job_is_not_accused(case):
    name, version = case
    told = findings(replace(HEALTHY[name], version=version))
    assert told == (), told


@walk(VERSIONS)
def test_no_version_of_a_healthy_job_is_accused(version):
    for job in (TWO, NVSWITCH, SOCKET, EFA, PCIE):
        assert findings(replace(job, version=version)) == ()


@dataclass(frozen=True)
class Fault:
    """A job with one fault, what must be told of it, and whom."""

    code: str
    job: NcclJob
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    words: str = ""  # in the message or the remedy
    evidence: str = ""  # in a line that is shown
    also: tuple[str, ...] = field(default=())  # findings that the same fault brings


ALL_16, BOTH = tuple(range(16)), ("node-0", "node-1")
UUID = "3143b15bc2cd192b.28cc9b5473fb5b93"
MERGED_NIC_TOPOLOGY = (
    "Pattern 4, crossNic 0, nChannels 8, bw 20.000000/20.000000, type NVL/{}, sameChannels 1"
)
FAULTS = {
    "NCCL_IB_DISABLE=1": Fault(
        "nccl.sockets", replace(SOCKET, settings={"NCCL_IB_DISABLE": "1"}, looked_for_ib=False), ALL_16, BOTH,
        "NCCL_IB_DISABLE", "NCCL_IB_DISABLE set by environment to 1"
    ),
    "no device in the container, the host has IPoIB": Fault(
        "nccl.sockets", replace(SOCKET, interface="ib0"), ALL_16, BOTH, "/dev/infiniband", "No device found"
    ),
    "one host finds no card": Fault(
        "nccl.sockets", replace(TWO, of_host={1: {"network": "Socket", "nics": ()}}), tuple(range(8, 16)),
        ("node-1",), "node-0"
    ),
    "NCCL_IB_HCA matches nothing": Fault(
        "nccl.sockets", replace(SOCKET, settings={"NCCL_IB_HCA": "mlx4_0"}), ALL_16, BOTH, "mlx4_0"
    ),
    "NCCL_NET=Socket, told by 2.28": Fault(
        "nccl.sockets", replace(SOCKET, looked_for_ib=False,
            extra=("Comm config netName reset to NCCL_NET=Socket",)), ALL_16, BOTH, "NCCL_NET"
    ),
    "a device that cannot be opened": Fault(
        "nccl.sockets", replace(SOCKET, extra=("NET/IB : Unable to open device mlx5_0",)), ALL_16, BOTH,
        "cannot open"
    ),
    "EFA plugin did not start": Fault(
        "nccl.sockets",
        replace(SOCKET, extra=("NET/OFI Running on p5.48xlarge platform, Setting NCCL_TOPO_FILE",
            "NET/OFI No eligible providers were found"), nvls=True),
        ALL_16, BOTH, "fi_info", also=("nccl.shm_over_nvlink", "nccl.few_channels"),
    ),
    "no module for GPUDirect RDMA": Fault(
        "nccl.no_gpu_direct", replace(TWO, gpu_direct=False, dma_buf=False), ALL_16, BOTH, "nvidia_peermem",
        "via NET/IB/"
    ),
    "the driver of the card does not reach GPU memory": Fault(
        "nccl.no_gpu_direct",
        replace(TWO, gpu_direct=False, extra=tuple(f"NET/IB : GPU Direct RDMA Disabled for HCA {index} 'mlx5_{index}'" for index in range(8))),
        ALL_16, BOTH, "mlx5_0", "GPU Direct RDMA Disabled for HCA",
    ),
    "NCCL_NET_GDR_LEVEL=LOC": Fault(
        "nccl.no_gpu_direct", replace(TWO, gpu_direct=False, settings={"NCCL_NET_GDR_LEVEL": "LOC"}), ALL_16,
        BOTH, "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_LEVEL set"
    ),
    "the card is too far": Fault(
        "nccl.no_gpu_direct", replace(TWO, gpu_direct=False,
            extra=("GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 8 > 5)",)), ALL_16, BOTH, "topo -m",
            "distance 8 > 5"
    ),
    "one host without it, over RoCE": Fault(
        "nccl.no_gpu_direct", NcclJob(hosts=2, nics=ROCE, of_host={1: {"gpu_direct": False,
            "dma_buf": False}}), tuple(range(8, 16)), ("node-1",)
    ),
    "EFA without it on p5": Fault("nccl.no_gpu_direct", replace(EFA, gpu_direct=False), ALL_16, BOTH),
    "NCCL_P2P_DISABLE=1": Fault(
        "nccl.peer_access_off", replace(PCIE, settings={"NCCL_P2P_DISABLE": "1"}), (0, 1, 2, 3), ("node-0",),
        "NCCL_P2P_DISABLE", "NCCL_P2P_DISABLE set"
    ),
    "NCCL_P2P_LEVEL=LOC": Fault("nccl.peer_access_off", replace(PCIE, settings={"NCCL_P2P_LEVEL": "LOC"}),
        (0, 1, 2, 3), ("node-0",), "NCCL_P2P_LEVEL"),
    "the driver refuses": Fault(
        "nccl.peer_access_off",
        replace(PCIE, of_rank={0: {"extra": ("P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",)}}),
        (0,), ("node-0",), "the driver refuses", "P2P is disabled between connected GPUs 1 and 0",
    ),
    "peer query fails": Fault(
        "nccl.peer_access_off", replace(PCIE,
            extra=("peer query failed between dev 0(=1b000) and dev 1(=1c000)",)), (0, 1, 2, 3), ("node-0",)
    ),
    "host memory in spite of NVSwitch": Fault("nccl.shm_over_nvlink", replace(NVSWITCH, inside="SHM"),
        tuple(range(8)), ("node-0",), "", "via SHM"),
    "binding fails": Fault(
        "nccl.nvls_off",
        replace(NVSWITCH, nvls_channels=0,
            of_rank={3: {"extra": ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'. Proceeding without NVLS support.",)}}),
        (3,), ("node-0",), "fabricmanager", "CUDA error 401",
    ),
    "one host lacks NVLS": Fault(
        "nccl.nvls_off", replace(NVSWITCH, hosts=2, of_host={1: {"nvls": False, "nvls_channels": 0}}),
        tuple(range(8, 16)), ("node-1",), "fabricmanager", "not available"
    ),
    "NCCL_NVLS_ENABLE=0": Fault(
        "nccl.nvls_off", NcclJob(nvls=None, channels=24, settings={"NCCL_NVLS_ENABLE": "0"}), tuple(range(8)),
        ("node-0",), "NCCL_NVLS_ENABLE"
    ),
    "NCCL_MAX_NCHANNELS=2": Fault(
        "nccl.few_channels", replace(NVSWITCH, channels=2, settings={"NCCL_MAX_NCHANNELS": "2"}),
        tuple(range(8)), ("node-0",), "NCCL_MAX_NCHANNELS=2"
    ),
    "NCCL_MAX_CTAS=4": Fault(
        "nccl.few_channels", replace(NVSWITCH, channels=4, settings={"NCCL_MAX_CTAS": "4"}), tuple(range(8)),
        ("node-0",), "NCCL_MAX_CTAS=4"
    ),
    "a limit of channels on eight GPUs without NVLS": Fault(
        "nccl.few_channels", NcclJob(channels=1, settings={"NCCL_MAX_NCHANNELS": "1"}), tuple(range(8)),
        ("node-0",), "NCCL_MAX_NCHANNELS=1"
    ),
    "cards that are found and not taken": Fault(
        "nccl.sockets", replace(SOCKET, looked_for_ib=False,
            extra=("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.1.0.1<0>",)), ALL_16, BOTH,
            "does not use them", "NET/IB : Using"
    ),
    "another GID on one host": Fault(
        "nccl.settings_differ", replace(TWO, settings={"NCCL_IB_GID_INDEX": "3"},
            of_host={1: {"settings": {"NCCL_IB_GID_INDEX": "0"}}}), ALL_16, BOTH,
            "NCCL_IB_GID_INDEX=0 on ranks 8-15 on node-1"
    ),
    "an interface's name that one of four hosts has for itself": Fault(
        "nccl.settings_differ", replace(TWO, hosts=4, settings={"NCCL_SOCKET_IFNAME": "eth0"},
            of_host={3: {"settings": {"NCCL_SOCKET_IFNAME": "eth1"}}}), tuple(range(24, 32)), ("node-3",),
            "eth1"
    ),
    "the loopback over two hosts": Fault(
        "nccl.interface_leads_nowhere", replace(SOCKET, of_host={1: {"interface": "lo",
            "address": "127.0.0"}}), tuple(range(8, 16)), ("node-1",), "NCCL_SOCKET_IFNAME==eth0",
            "lo:127.0.0"
    ),
    "docker0 over two hosts": Fault(
        "nccl.interface_leads_nowhere", replace(TWO, interface="docker0", address="172.17.0"), ALL_16, BOTH,
        "docker0", "docker0:172.17.0"
    ),
    "virbr0 over two hosts": Fault(
        "nccl.interface_leads_nowhere", replace(SOCKET, interface="virbr0", address="192.168.122"), ALL_16,
        BOTH, "virbr0"
    ),
    "a link-local address": Fault(
        "nccl.interface_leads_nowhere", replace(TWO, interface="enx0a", address="169.254.3", ends=False),
        ALL_16, BOTH, "link-local", "169.254.3"
    ),
    "no route to a host": Fault(
        "nccl.interface_leads_nowhere",
        replace(TWO, ends=False, of_rank={5: {"extra": ("socketPollConnect: connect to 10.9.0.2<4711> returned No route to host, exceeded error retry count after 34 attempts",)}}),
        (5,), ("node-0",), "10.9.0.2", "No route to host",
    ),
    "a host with a card less": Fault(
        "nccl.nics_differ", replace(TWO, hosts=3, of_host={2: {"nics": TWO.nics[:7]}}), tuple(range(16, 24)),
        ("node-2",), "7 IB ports"
    ),
    "two of eight cards in use": Fault(
        "nccl.nics_unused", NcclJob(hosts=2, used_nics=2), ALL_16, BOTH, "2 of 8", "NET/IB : Using"
    ),
    "a card on the other CPU": Fault(
        "nccl.nic_remote",
        replace(TWO, extra=(MERGED_NIC_TOPOLOGY.format("PIX"),),
            of_rank={7: {"extra": (MERGED_NIC_TOPOLOGY.format("SYS"),)}}),
        (7,), ("node-0",), "topo -m", "NVL/SYS",
    ),
    "another NCCL on one host": Fault("nccl.version_mismatch",
        replace(TWO, hosts=3, of_host={2: {"version": (2, 26)}}), tuple(range(16, 24)), ("node-2",),
        "2.26.6"),
    "two versions of NCCL without a majority": Fault(
        "nccl.version_mismatch", replace(TWO, of_host={1: {"version": (2, 26)}}), ALL_16, BOTH,
        "NCCL 2.26.6 on ranks 8-15 on node-1"
    ),
    # github.com/NVIDIA/nccl/issues/1328: two sides that differ, and nothing says which is wrong.
    "another algorithm on one host": Fault(
        "nccl.settings_differ", replace(TWO, settings={"NCCL_ALGO": "Ring"},
            of_host={1: {"settings": {"NCCL_ALGO": "Tree"}}}), ALL_16, BOTH,
        "NCCL_ALGO=Ring on ranks 0-7 on node-0; NCCL_ALGO=Tree on ranks 8-15 on node-1. No value has a majority",
    ),
    "another algorithm on one host of three": Fault(
        "nccl.settings_differ", replace(TWO, hosts=3, settings={"NCCL_ALGO": "Ring"},
            of_host={1: {"settings": {"NCCL_ALGO": "Tree"}}}), tuple(range(8, 16)), ("node-1",),
            "NCCL_ALGO=Tree"
    ),
    "a variable that one rank lacks": Fault(
        "nccl.settings_differ",
        replace(TWO, settings={"NCCL_PROTO": "Simple", "NCCL_IB_TIMEOUT": "22"},
            of_rank={3: {"settings": {"NCCL_IB_TIMEOUT": "22"}}}),
        (3,), ("node-0",), "no NCCL_PROTO",
    ),
    "an interface's name that differs inside a host": Fault(
        "nccl.settings_differ", replace(TWO, settings={"NCCL_SOCKET_IFNAME": "eth0"},
            of_rank={3: {"settings": {"NCCL_SOCKET_IFNAME": "eth1"}}}), (3,), ("node-0",), "eth1"
    ),
    "a network plugin that was asked for": Fault(
        "nccl.plugin_not_loaded", replace(TWO,
            extra=("NET/Plugin: Plugin name set by env to libnccl-net-ofi.so",)), ALL_16, BOTH,
            "libnccl-net-ofi.so", "Plugin name set by env"
    ),
    "a network plugin, as 2.28 tells it": Fault(
        "nccl.plugin_not_loaded",
        replace(TWO, settings={"NCCL_NET_PLUGIN": "/opt/ofi/libnccl-net.so"},
            extra=(f"NET/Plugin: /opt/ofi/libnccl-net.so: libhwloc.so.15: {PLUGIN_GONE}",)),
        ALL_16, BOTH, "NCCL_NET_PLUGIN",
    ),
    "a host outside the fabric of the other's NVLink": Fault(
        "nccl.fabric_unused", replace(TWO, extra=(f"MNNVL busId 0x9 fabric UUID {UUID} cliqueId 0x7ffe state 3",),
            of_host={1: {"extra": ("MNNVL busId 0x9 fabric UUID 0.0 cliqueId 0x0 state 3",)}}),
        tuple(range(8, 16)), ("node-1",), "and not these", "UUID 0.0",
    ),
    "NVLink between hosts that NCCL leaves": Fault(
        "nccl.fabric_unused", replace(TWO, extra=(f"MNNVL busId 0x9 fabric UUID {UUID} cliqueId 0x7ffe state 3",)),
        ALL_16, BOTH, "MNNVL 0", "fabric UUID",
    ),
    "NCCL_MNNVL_ENABLE=0": Fault(
        "nccl.fabric_unused", replace(TWO, settings={"NCCL_MNNVL_ENABLE": "0"},
            extra=(f"MNNVL busId 0x9 fabric UUID {UUID} cliqueId 0x7ffe state 3",)),
        ALL_16, BOTH, "NCCL_MNNVL_ENABLE=0", "set by environment",
    ),
    "a tuner that was asked for": Fault(
        "nccl.plugin_not_loaded",
        replace(TWO, extra=("TUNER/Plugin: NCCL_TUNER_PLUGIN set to libmytuner.so",
            "TUNER/Plugin: Could not find: libmytuner.so. Using internal tuner plugin.")),
        ALL_16, BOTH, "libmytuner.so",
    ),
}  # fmt: skip
# What only some versions say, or what the version itself is the fault of.
OF_ONE_VERSION = {
    "NCCL_NET=Socket, told by 2.28": ((2, 28),),
    "NVLink between hosts that NCCL leaves": ((2, 24), (2, 28), (2, 32)),  # `MNNVL 0`
    "NCCL_MNNVL_ENABLE=0": ((2, 24), (2, 28), (2, 32)),
    "another NCCL on one host": ((2, 24), (2, 27), (2, 28), (2, 32)),
    "two versions of NCCL without a majority": ((2, 24), (2, 32)),
}


@walk(
    [(name, version) for name in FAULTS for version in OF_ONE_VERSION.get(name, IN_FOUR)],
    lambda case: f"{case[0]}, NCCL {case[1]}",
)
def test_a_fault_is_told_of_whom_it_concerns(case):
    name, version = case
    fault = FAULTS[name]
    told = findings(replace(fault.job, version=version))
    assert {finding.code for finding in told} == {fault.code, *fault.also}, told
    mine = next(finding for finding in told if finding.code == fault.code)
    assert len(told) == 1 + len(fault.also), told  # a fault of many ranks is told once
    assert (mine.ranks, mine.hosts) == (fault.ranks, fault.hosts), mine
    assert fault.words in f"{mine.message} {mine.remedy}", mine
    assert mine.evidence or fault.code == "nccl.nics_differ"
    assert any(fault.evidence in place.text for place in mine.evidence) or not fault.evidence, mine
    lines = job_log(replace(fault.job, version=version)).splitlines()
    assert all(place.text[:200] in lines[place.line - 1] for place in mine.evidence)


NAMED = "#  Rank  0 Group  0 Pid   4000 on     node-0 device  0 [0x1b] NVIDIA {}\n"


def test_the_names_of_gpus_that_nccl_tests_prints_count():
    no_nvls = job_log(NcclJob(channels=24))
    assert [finding.code for finding in findings_in(NAMED.format("H100 80GB HBM3") + no_nvls)] == [
        "nccl.nvls_off"
    ]
    assert findings_in(NAMED.format("A100-SXM4-80GB") + no_nvls) == ()
    assert findings_in(NAMED.format("H100 PCIe") + no_nvls) == ()
    indirect = job_log(NcclJob(hosts=2, gpus=1, channels=2, gpu_direct=False, dma_buf=False))
    geforce = NAMED.format("GeForce RTX 4090") + NAMED.format("GeForce RTX 4090").replace("node-0", "node-1")
    assert findings_in(geforce + indirect) == ()
    assert [finding.code for finding in findings_in(indirect)] == ["nccl.no_gpu_direct"]


def test_one_card_that_does_not_reach_gpu_memory_is_a_fault_where_a_way_takes_it():
    log = job_log(replace(TWO, extra=("NET/IB : GPU Direct RDMA Disabled for HCA 5 'mlx5_5'",)))
    assert findings_in(log) == ()
    (finding,) = findings_in(log.replace("NET/IB/5/GDRDMA", "NET/IB/5"))
    assert (finding.code, finding.hosts) == ("nccl.no_gpu_direct", BOTH)
    assert "mlx5_5" in finding.message


def test_a_plugin_that_the_loader_refuses_is_a_fault_between_hosts_though_nobody_asked_for_it():
    reasons = {
        "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /opt/ofi/libnccl-net.so)": BOTH,
        f"libfabric.so.1: {PLUGIN_GONE}": BOTH,
        PLUGIN_GONE: (),
        f"libnccl-net.so: {PLUGIN_GONE}": (),
        "undefined symbol: ncclNetPlugin_v9": (),
    }
    for words in ("NET/Plugin: libnccl-net.so: ", "NET/Plugin: Plugin load returned 2 : "):
        for why, hosts in reasons.items():
            extra = (f"{words}{why} : when loading libnccl-net.so",)
            found = findings(replace(TWO, version=(2, 28), extra=extra))
            assert [(one.code, one.hosts) for one in found] == [("nccl.plugin_not_loaded", hosts)] * bool(
                hosts
            )
            assert findings(NcclJob(version=(2, 28), extra=extra)) == ()


def test_efa_without_gpu_direct_is_a_fault_on_instances_that_have_it():
    lines = "".join(
        f"ip-{host}:99:100 [0] NCCL INFO Using network AWS Libfabric\n"
        f"ip-{host}:99:100 [0] NCCL INFO Channel 01 : {1 - host}[101d0] -> {host}[101c0] [receive] via NET/AWS"
        f" Libfabric/0\nip-{host}:99:100 [0] NCCL INFO comm 0x7f rank {host} nranks 2 cudaDev 0 busId 101c0 -"
        f" Init COMPLETE\n#   Rank  {host} Pid   99 on ip-{host} device  0 [0x10] GPU-NAME\n"
        for host in range(2)
    )
    (finding,) = findings_in(lines.replace("GPU-NAME", "A100-SXM4-40GB"))
    assert (finding.code, finding.ranks) == ("nccl.no_gpu_direct", (0, 1))
    assert findings_in(lines.replace("GPU-NAME", "Tesla T4")) == ()


def test_the_words_of_nccl_2_4_are_read():
    lines = "NCCL version 2.4.7+cuda10.0\n" + "".join(
        f"h{rank}:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 0[0] / HCA 0 (distance 4 >= 2)\n"
        f"h{rank}:1:2 [0] NCCL INFO comm 0x7f rank {rank} nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE\n"
        f"h{rank}:1:2 [0] NCCL INFO Ring 00 : {1 - rank} -> {rank} [receive] via NET/IB/0\n"
        for rank in range(2)
    )
    (finding,) = findings_in(lines)
    assert (finding.code, finding.ranks) == ("nccl.no_gpu_direct", (0, 1))
    assert "too far" in finding.message
    assert findings_in(lines.replace("NET/IB/0", "NET/IB/0/GDRDMA")) == ()


def test_a_fabric_that_ends_at_the_host_or_is_used_is_no_fault():
    line = "MNNVL busId 0x9 fabric UUID {} state 3"
    assert findings(replace(TWO, extra=(line.format("0.0 cliqueId 0x0"),))) == ()
    used = job_log(replace(TWO, extra=(line.format(f"{UUID} cliqueId 0x7ffe"),)))
    assert findings_in(used.replace("MNNVL 0", "MNNVL 1")) == ()


def test_refused_peer_access_over_nvlink_asks_for_the_fabric():
    words = "P2P is disabled between {} GPUs 1 and 0."
    for kind, remedy in (("NVLINK connected", "Fabric"), ("connected", "GeForce")):
        (finding,) = findings(NcclJob(inside="SHM", channels=2, extra=(words.format(kind),)))
        assert (finding.code, remedy in finding.remedy) == ("nccl.peer_access_off", True)


def test_rank_0_alone_shows_what_its_lines_show():
    for version in VERSIONS:
        job = replace(SOCKET, version=version, settings={"NCCL_IB_DISABLE": "1"})
        (finding,) = findings_in("\n".join(rank_lines(job, 0)))
        assert (finding.code, finding.ranks) == ("nccl.sockets", (0,))
        assert findings_in("\n".join(rank_lines(replace(TWO, version=version), 0))) == ()
        assert findings_in("\n".join(rank_lines(replace(NVSWITCH, version=version), 0))) == ()


def test_the_job_must_act_where_a_variable_is_the_fault():
    for name, fault in FAULTS.items():
        if name.startswith("NCCL_"):
            assert findings(fault.job)[0].owner is Owner.JOB, name
    for name in ("no module for GPUDirect RDMA", "the driver refuses", "a device that cannot be opened"):
        assert findings(FAULTS[name].job)[0].owner is Owner.HOST, name


def test_every_code_has_a_fault():
    assert {fault.code for fault in FAULTS.values()} == {kind.code for kind in NCCL_LOG_FINDINGS}


def findings(job: NcclJob) -> tuple[NcclFinding, ...]:
    return findings_in(job_log(job))


def findings_in(log: str) -> tuple[NcclFinding, ...]:
    answer = explain_logs([open_log("job.log", BytesIO(log.encode()))])
    assert answer.nccl is not None
    return answer.nccl.findings
