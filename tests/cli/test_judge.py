import gzip
import io
import sys
from types import SimpleNamespace

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.model.documents import loads
from gpudiag.model.finding import Outcome

ROW = "  8589934592    2147483648     float     sum      -1    31356  273.95  479.41      0    31308  274.36  480.14      0\n"
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 479.775\n"
H100 = ("--gpu", "h100", "--gpus", "8", "--nodes", "1")
SMI = "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |\n"


def words(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def healthy(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(HEAD + ROW + END)
    return path


def test_a_right_speed_passes(healthy, capsys):
    assert main(["judge", *H100, str(healthy)]) == ExitStatus.PASS
    assert words(capsys).startswith("PASS 1 table in ")


def test_without_the_machine_it_asks_which(healthy, capsys):
    assert main(["judge", str(healthy)]) == ExitStatus.ERROR
    assert "--gpu NAME" in words(capsys)


def test_a_file_beside_it_shows_the_machine(healthy, tmp_path, capsys):
    (tmp_path / "smi.txt").write_text(SMI)
    assert main(["judge", str(healthy), str(tmp_path / "smi.txt")]) == ExitStatus.PASS
    assert "it shows NVIDIA H100 80GB HBM3" in words(capsys)


def test_wrong_data_fails_whatever_the_machine(tmp_path):
    path = tmp_path / "wrong.log"
    path.write_text(
        HEAD + ROW.replace("     0    31308", "     3    31308") + "# Out of bounds values : 3 FAILED\n"
    )
    assert main(["judge", str(path)]) == ExitStatus.FAIL


def test_standard_input_is_read(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((HEAD + ROW + END).encode())))
    assert main(["judge", *H100, "-", "--json"]) == ExitStatus.PASS
    assert loads(capsys.readouterr().out).outcome is Outcome.PASS


def test_a_compressed_file_is_read(tmp_path):
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress((HEAD + ROW + END).encode()))
    assert main(["judge", *H100, str(path)]) == ExitStatus.PASS


def test_a_folder_is_read(healthy, tmp_path):
    assert main(["judge", *H100, str(tmp_path)]) == ExitStatus.PASS


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--gpu", "h10", "a"], "did you mean h100?"),
        (["--nics", "eight", "a"], "such as 8x400"),
        (["nothing-of-that-name.log"], "no such file"),
        ([""], "the argument after judge is empty"),
        (["-", "-"], "read once"),
        (["a\0b"], "no such file"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(argv, word, capsys):
    assert main(["judge", *argv]) == ExitStatus.USAGE
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "nothing is in it"),
        (b"\n\n", "no table of a benchmark"),
        (b"\x7fELF\x02\x01\x01" + bytes(5000), "nothing was read"),
        (b"{", "no table of a benchmark"),
        (b"[" * 5000 + b"{" * 5000, "no table of a benchmark"),
        (b'{"schema": "gpudiag.report/1"}', "no table of a benchmark"),
        (b'{"results": [{"out_of_place": 3, "size": "x"}, 4]}', "NOT JUDGED"),
        (
            b'{"nvbandwidth": {"testcases": [{"bandwidth_matrix": [3, ["a"]]}, 7], "GPU Device list": [1]}}',
            "NOT JUDGED",
        ),
        (
            b'{"DCGM Diagnostic": {"test_categories": [{"tests": [{"results": [{"status": 3}]}]}]}}',
            "NOT JUDGED",
        ),
        (b'{"coll_perf": {"coll": 3, "coll_msg_size_bytes": "x"}, "header": []}', "NOT JUDGED"),
    ],
)
def test_what_holds_no_table_is_not_judged(content, word, tmp_path, capsys):
    path = tmp_path / "odd.log"
    path.write_bytes(content)
    assert main(["judge", str(path)]) == ExitStatus.ERROR
    assert word in words(capsys)


def test_a_run_that_stopped_is_not_judged(tmp_path, capsys):
    path = tmp_path / "stopped.log"
    path.write_text(
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20\n"
        + HEAD
        + ROW[:40]
    )
    assert main(["judge", *H100, str(path)]) == ExitStatus.ERROR
    assert "the run stopped" in words(capsys)


def test_a_run_without_warm_up_is_not_judged(tmp_path, capsys):
    path = tmp_path / "cold.log"
    start = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 0 iters: 1 agg iters: 1 validation: 1 graph: 0\n"
    path.write_text(start + HEAD + ROW + END)
    assert main(["judge", *H100, str(path)]) == ExitStatus.ERROR
    assert "without warm-up" in words(capsys)


def test_a_file_that_was_not_read_does_not_pass(healthy, tmp_path, capsys):
    (tmp_path / "b.bin").write_bytes(bytes(range(256)) * 40)
    assert main(["judge", *H100, str(healthy), str(tmp_path / "b.bin")]) == ExitStatus.ERROR
    assert "not read" in words(capsys)


def test_a_long_log_around_a_table_costs_little(healthy, tmp_path):
    path = tmp_path / "long.log"
    path.write_text("step 1 loss 2.5 lr 0.1\n" * 20_000 + HEAD + ROW + END)
    assert main(["judge", *H100, str(path)]) == ExitStatus.PASS
