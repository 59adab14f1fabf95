"""What is read of NCCL's lines: each version, each way, prefixes, cut and glued lines, several files."""

from io import BytesIO

from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.explain.nccl.reader import parse_way
from gpudiag.explain.nccl.report import parse_bus_id
from gpudiag.model.codec import dumps
from gpudiag.model.documents import loads
from gpudiag.model.nccl_log import NcclLog, NcclNic
from gpudiag.model.reading import Missing
from tests.corpus.nccl_jobs import VERSIONS, NcclJob, job_log, rank_lines
from tests.walking import walk

WAYS = {
    "P2P/IPC": ("P2P/IPC", -1, False),
    "P2P/IPC comm 0x55d0 nRanks 08": ("P2P/IPC", -1, False),
    "P2P/CUMEM": ("P2P/CUMEM", -1, False),
    "P2P/CUMEM/read": ("P2P/CUMEM", -1, False),
    "P2P/CUMEM/CE": ("P2P/CUMEM", -1, False),
    "P2P/MNNVL": ("P2P/MNNVL", -1, False),
    "P2P/direct pointer": ("P2P/direct pointer", -1, False),
    "P2P/direct pointer/read": ("P2P/direct pointer", -1, False),
    "P2P/indirect/3[3]": ("P2P/indirect", -1, False),
    "SHM/direct/direct": ("SHM", -1, False),
    "SHM/direct": ("SHM", -1, False),
    "SHM/CE/direct": ("SHM", -1, False),
    "NET/Socket/0": ("NET/Socket", 0, False),
    "NET/IB/7": ("NET/IB", 7, False),
    "NET/IB/0/GDRDMA": ("NET/IB", 0, True),
    "NET/IB/0/GDRDMA(PCI)": ("NET/IB", 0, True),
    "NET/IB/3(11)/GDRDMA/Shared": ("NET/IB", 3, True),
    "NET/IB/1/Shared": ("NET/IB", 1, False),
    "NET/IBext_v8/2": ("NET/IBext_v8", 2, False),
    "NET/AWS Libfabric/31/GDRDMA": ("NET/AWS Libfabric", 31, True),
}
CUT = ("NET/IB/", "NET/IB/0/G", "NET/IB/0/GDRDM", "NET/", "P2P", "P2P/CUM", "SH", "")


def read(*logs: str) -> NcclLog:
    answer = explain_logs(
        [open_log(f"{number}.log", BytesIO(log.encode())) for number, log in enumerate(logs)]
    )
    assert answer.nccl is not None
    return answer.nccl


@walk(WAYS.items(), lambda case: case[0])
def test_a_way_is_read(case):
    words, expected = case
    way = parse_way(False, words)
    assert way is not None
    assert (way.transport, way.device, way.direct) == expected


@walk(CUT)
def test_a_way_that_was_cut_is_left_alone(words):
    assert parse_way(True, words) is None


@walk(VERSIONS)
def test_every_version_tells_ranks_ways_and_channels(version):
    nccl = read(job_log(NcclJob(version, hosts=2, nvls=True, nvls_channels=16)))
    assert nccl.versions == (VERSIONS[version],)
    assert nccl.hosts == ("node-0", "node-1")
    (world,) = nccl.communicators
    assert [(rank.rank, rank.host, rank.pid, rank.cuda_ordinal) for rank in world.ranks] == [
        (rank, f"node-{rank // 8}", 4000 + rank % 8, rank % 8) for rank in range(16)
    ]
    assert world.ranks[0].bus_id == "00000000:1b:00.0"
    assert all(rank.completed for rank in world.ranks)
    assert (world.size, world.hosts) == (16, 2)
    assert {(path.transport, path.between_hosts, path.pairs) for path in world.paths} == {
        ("P2P/CUMEM", False, 16),
        ("NET/IB/GDRDMA", True, 16),
    }
    assert not isinstance(world.channels, Missing)
    assert (world.channels.collective, world.channels.nvls, world.channels.p2p) == (8, 16, 32)
    assert len(world.rings) == 8
    assert nccl.processes[0].nics[1] == NcclNic("mlx5_1", 1, "IB")
    assert nccl.processes[0].network == "IB"
    if version >= (2, 23):
        assert (world.init_seconds, world.slowest_rank) == (1.15, 15)


def test_a_file_for_each_rank_is_one_job():
    job = NcclJob((2, 26), hosts=2, gpus=4)
    apart = read(*("\n".join(rank_lines(job, rank)) for rank in range(job.size)))
    together = read(job_log(job))
    assert apart.communicators == together.communicators


PREFIXES = (
    "[rank3]: ",
    "[default0]:",
    "7: ",
    "[1,2]<stderr>:",
    "[1,2]<stdout>:",
    "[pod/trainer-0/worker] ",
    "2025-11-21T10:00:00.123456789Z stdout F ",
    "[2025-11-21 10:00:00] ",
    "(RayWorkerWrapper pid=612, ip=10.0.0.7) ",
    "\x1b[36m(Worker pid=7)\x1b[0m ",
)


@walk(PREFIXES)
def test_a_prefix_changes_nothing(prefix):
    log = job_log(NcclJob((2, 28), hosts=2))
    prefixed = "".join(f"{prefix}{line}\n" for line in log.splitlines())
    assert read(prefixed).communicators == read(log).communicators


def test_lines_of_docker_are_read():
    log = job_log(NcclJob((2, 28)))
    lines = [
        '{"log":"' + line.replace("'", "") + '\\n","stream":"stdout","time":"2025-11-21T10:00:00Z"}'
        for line in log.splitlines()
    ]
    assert read("\n".join(lines)).communicators == read(log).communicators


def test_two_lines_in_one_are_both_read():
    lines = job_log(NcclJob((2, 21), hosts=2)).splitlines()
    start, rest = lines[:3], lines[3:]
    glued = [first + second for first, second in zip(rest[::2], rest[1::2], strict=False)]
    kept = rest[: 2 * len(glued)]
    assert read("\n".join([*start, *glued])).communicators == read("\n".join([*start, *kept])).communicators


def test_lines_cut_anywhere_accuse_nobody():
    log = job_log(NcclJob((2, 27), hosts=2, nvls=True))
    for cut in range(len(log) - 4000, len(log), 37):
        assert read(log[:cut]).findings == ()


def test_a_jobs_own_output_does_not_disturb():
    lines = job_log(NcclJob((2, 24), hosts=2)).splitlines()
    mixed = "\n".join(
        f"{line}\nstep {number} loss 2.{number} NCCL is fast" for number, line in enumerate(lines)
    )
    assert read(mixed).communicators == read("\n".join(lines)).communicators


def test_a_log_without_nccl_has_no_such_part():
    answer = explain_logs([open_log("a.log", BytesIO(b"step 1 loss 2\nTORCH_NCCL_BLOCKING_WAIT is set\n"))])
    assert answer.nccl is None


def test_heads_that_were_taken_off_are_read():
    bare = "\n".join(
        line.split(" [")[0].split(":")[0] and line[line.index("[") :]
        for line in rank_lines(NcclJob((2, 28), hosts=2, gpus=1), 0)
    )
    anonymous = bare.replace("[0] NCCL", "pod-id:num:num [0] NCCL")
    for log in (bare, anonymous):
        nccl = read(log)
        assert nccl.communicators[0].size == 2
        assert nccl.processes[0].network == "IB"


CHOICES = {
    "AllReduce: 26214400 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}": (
        "AllReduce",
        "RING",
        "SIMPLE",
    ),
    "AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3} cgaClusterSize 4": (
        "AllReduce",
        "TREE",
        "LL",
    ),
    "AllGather: 1048576 Bytes -> Algo 1 proto 2 time 21.5": ("AllGather", "RING", "SIMPLE"),
    "1048576 Bytes -> Algo 0 proto 1 time 21.5": ("any", "TREE", "LL128"),
}


@walk(CHOICES.items(), lambda case: case[0])
def test_what_was_chosen_is_counted(case):
    line, expected = case
    (choice,) = read(
        f"node-0:1:2 [0] NCCL INFO {line}\n" * 3 + "node-0:1:2 [0] NCCL INFO Using network IB"
    ).choices
    assert (choice.operation, choice.algorithm, choice.protocol) == expected
    assert choice.count == 3


def test_a_split_communicator_is_told_apart():
    head = "node-0:{pid}:{pid} [{local}] NCCL INFO "
    lines = []
    for rank in range(4):
        start = head.format(pid=70 + rank, local=rank)
        lines += [
            f"{start}ncclCommInitRank comm 0xa{rank} rank {rank} nranks 4 cudaDev {rank} nvmlDev "
            f"{rank} busId 1b000 commId 0x77 - Init COMPLETE",
            f"{start}ncclCommSplit comm 0xb{rank} rank {rank // 2} nranks 2 cudaDev {rank} nvmlDev "
            f"{rank} busId 1b000"
            f" parent 0xa{rank} splitCount 1 color {rank % 2} key {rank} - Init COMPLETE",
        ]
    world, *split = read("\n".join(lines)).communicators
    assert (world.size, len(world.ranks)) == (4, 4)
    assert [(one.size, [rank.pid for rank in one.ranks]) for one in split] == [(2, [70, 72]), (2, [71, 73])]


def test_bus_ids_are_written_as_elsewhere():
    assert [parse_bus_id(number) for number in ("1b000", "67030", "901000", "1901000")] == [
        "00000000:1b:00.0",
        "00000000:67:03.0",
        "00000009:01:00.0",
        "00000019:01:00.0",
    ]


def test_the_document_comes_back_as_it_was():
    log = job_log(NcclJob((2, 28), hosts=2, gpu_direct=False, dma_buf=False))
    answer = explain_logs([open_log("a.log", BytesIO(log.encode()))])
    assert loads(dumps(answer)) == answer
