"""Each program's forms that differ by version or option, read into tables."""

import pytest

from gpudiag.measured.recipe import judge_files
from gpudiag.model.benchmark import JudgedTable, Metric, Nics, Setup
from gpudiag.model.reading import Missing

HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"


@pytest.fixture
def read(tmp_path):
    def read_text(text: str, given: Setup | None = None) -> list[JudgedTable]:
        (tmp_path / "a.log").write_text(text)
        return list(judge_files((str(tmp_path / "a.log"),), given or Setup()).tables)

    return read_text


def codes(tables: list[JudgedTable]) -> list[str]:
    return [finding.code for judged in tables for finding in judged.findings]


def test_iteration_columns_of_nccl_tests_are_passed_over(read):
    row = "1073741824 268435456 float sum -1 4484.9 239.41 448.90 0 1.0 2.0 3.0 4.0 4470.2 240.20 450.37 0 1.0 2.0 3.0 4.0\n"
    [judged] = read(HEAD + row)
    assert [value.value for value in judged.table.values] == [448.90e9, 450.37e9]


def test_lines_of_nccl_within_a_row_do_not_part_it(read):
    text = (
        HEAD
        + "  1073741824     268435456     float     sum      -1\nh:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P\n"
    )
    text += "   4484.9  239.41  448.90      0\n   4470.2  240.20  450.37      0\n"
    [judged] = read(text)
    assert [value.in_place for value in judged.table.values] == [False, True]


def test_two_runs_in_one_file_are_two_tables(read):
    row = "  8589934592    2147483648     float     sum      -1    31356  273.95  479.41      0    31308  274.36  480.14      0\n"
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 479.775\n"
    tables = read(
        HEAD + row + end + HEAD + row.replace("      0\n", "      7\n") + end.replace("0 OK", "7 FAILED")
    )
    assert sorted(codes(tables)) == ["measured.platform_unknown", "measured.wrong_data"]


def test_the_document_of_nccl_tests_is_read(read):
    result = '{"size": 8589934592, "count": 2147483648, "type": "float", "redop": "sum", "root": "-1",'
    result += ' "out_of_place": {"time": 31356, "alg_bw": 273.95, "bus_bw": 479.41, "nwrong": 0},'
    result += ' "in_place": {"time": 31308, "alg_bw": 274.36, "bus_bw": 480.14, "nwrong": 0}}'
    devices = ", ".join(
        f'{{"rank": {rank}, "hostname": "h1", "device": {rank}, "device_name": "NVIDIA H100 80GB HBM3"}}'
        for rank in range(8)
    )
    text = f'{{"version": "2.17.6", "nccl_version": "2.28.3", "devices": [{devices}],\n "results": [{result}], "out_of_bounds": 0}}\n'
    [judged] = read(text)
    assert (judged.table.setup.gpus, judged.table.setup.nodes) == (8, 1)
    assert codes([judged]) == ["measured.right"]


def test_a_table_of_deepspeed_is_read(read):
    text = "---- Performance of all_reduce on 8 devices ---------------------------------------------------------\n"
    text += "Size (Bytes)         Description          Duration             Throughput (Gbps)    BusBW (Gbps)        \n"
    text += "-" * 80 + "\n"
    text += "8.0 GB               2147483648x4         31.4 ms              4383.2               3835.3              \n"
    [judged] = read(text, Setup(gpu="NVIDIA H100 80GB HBM3", nodes=1))
    assert judged.table.values[0].size_bytes == 8 << 30
    assert judged.table.values[0].value == pytest.approx(479.4e9, rel=0.001)
    assert codes([judged]) == ["measured.right"]


def test_a_collective_of_osu_has_no_figure(read):
    text = "# OSU MPI-CUDA Allreduce Latency Test v7.2\n# Datatype: MPI_INT.\n# Size       Avg Latency(us)   Min Latency(us)\n4    15.31   14.9\n1048576  120.5 119.0\n"
    [judged] = read(text)
    assert (judged.table.operation, judged.table.metric, len(judged.table.values)) == (
        "osu_allreduce",
        Metric.LATENCY,
        2,
    )
    assert codes([judged]) == ["measured.no_reference"]


def test_a_real_job_has_room_for_what_it_does_beside(read):
    line = '{{"header": {{"rank": 0, "n_ranks": 16, "nnodes": 2}}, "coll_perf": {{"coll": "AllReduce", "coll_msg_size_bytes": 4294967296, "coll_busbw_gbs": {}}}}}\n'
    given = Setup(gpu="NVIDIA H100 80GB HBM3", nics=Nics(8, 400.0))
    assert codes(read(line.format(387.2) * 3, given)) == ["measured.right"]


def test_the_columns_show_how_many_ranks_there_are(read):
    row = "  8589934592    2147483648     float     sum      -1    43980  195.31  386.56      0    44094  194.81  385.56      0\n"
    [judged] = read(HEAD + row)
    assert judged.table.setup.gpus == 96


def test_what_the_user_says_goes_before_what_the_file_shows(read):
    text = "#  Rank  0 Group  0 Pid   1 on h device  0 [0x19] NVIDIA H100 80GB HBM3\n#  Rank  1 Group  0 Pid   1 on h device  1 [0x3b] NVIDIA H100 80GB HBM3\n"
    row = "  8589934592    2147483648     float     sum      -1    31356  273.95  273.95      0    31308  274.36  274.36      0\n"
    [judged] = read(text + HEAD + row, Setup(gpu="NVIDIA H200", nodes=2))
    setup = judged.table.setup
    assert (setup.gpu, setup.gpus, setup.nodes) == ("NVIDIA H200", 2, 2)


def test_ranks_that_share_a_gpu_measure_no_link(read):
    row = "   134217728      33554432     float     sum      -1  51726.0    2.59    2.59       0  50660.9    2.65    2.65       0\n"
    ranks = "#  Rank  0 Group  0 Pid   1 on lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090\n"
    ranks += "#  Rank  1 Group  0 Pid   2 on lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090\n"
    assert codes(read(ranks + HEAD + row)) == ["measured.not_comparable"]
    # The bus alone, which older versions print, may be that of several GPUs.
    assert codes(read(ranks.replace("0000:02:00", "0x02") + HEAD + row)) == ["measured.slow"]


def test_a_matrix_that_ends_early_is_not_judged(read):
    text = "Device 0: NVIDIA H100 80GB HBM3 (00000000:19:00)\nRunning device_to_device_memcpy_read_ce.\n"
    text += "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1         2\n 0       N/A    370.26    370.10\n"
    assert codes(read(text)) == ["measured.not_comparable"]


def test_one_slow_gpu_of_a_table_is_named(read):
    text = "Device 0: NVIDIA H100 80GB HBM3 (00000000:19:00)\nRunning host_to_device_memcpy_ce.\n"
    text += "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n 0 1 2 3\n 0 55.3 55.3 36.0 55.2\n\nSUM host_to_device_memcpy_ce 201.8\n"
    [judged] = read(text)
    assert codes([judged]) == ["measured.slow_part"]
    assert "GPU 2 is" in judged.findings[0].message


def test_the_setting_that_makes_it_slow_is_named(read):
    ranks = "".join(
        f"#  Rank  {n} Group  0 Pid   1 on h device  {n} [0x19] NVIDIA H100 80GB HBM3\n" for n in range(8)
    )
    row = "  8589934592    2147483648     float     sum      -1    429496   20.00   35.00      0   429496   20.00   35.00      0\n"
    [judged] = read("NCCL_P2P_DISABLE=1 ./all_reduce_perf -b 8G -e 8G -g 8\n" + ranks + HEAD + row)
    assert codes([judged]) == ["measured.known_setting"]
    assert "NCCL_P2P_DISABLE=1 is set" in judged.findings[0].message


def test_a_job_that_stopped_in_the_program_is_no_speed(read):
    text = (
        HEAD
        + "h: Test NCCL failure common.cu:303 'unhandled cuda error (run with NCCL_DEBUG=INFO for details)'\n"
    )
    tables = read(
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20\n" + text
    )
    assert codes(tables) == ["measured.not_comparable"]
    assert isinstance(tables[0].table.setup.gpu, Missing)
