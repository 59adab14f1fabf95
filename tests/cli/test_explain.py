import contextlib
import gzip
import io
import sys
from types import SimpleNamespace

import pytest

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.explain.recipe import explain
from gpudiag.model.documents import loads
from gpudiag.model.explanation import VerdictKind
from gpudiag.model.finding import Owner
from tests.walking import walk


@walk(finding_kinds(), lambda kind: kind.code)
def test_every_code_is_explained(kind):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["explain", kind.code]) == ExitStatus.PASS
    assert out.getvalue().startswith(f"{kind.code}: ")


@pytest.mark.parametrize("words", [["xid", "79"], ["Xid", "79"], ["xid79"], ["XID-79"]])
def test_an_xid_is_explained(words, capsys):
    assert main(["explain", *words]) == ExitStatus.PASS
    assert capsys.readouterr().out.startswith("Xid 79: ")


def test_an_sxid_is_explained(capsys):
    assert main(["explain", "sxid", "20034"]) == ExitStatus.PASS
    assert capsys.readouterr().out.startswith("SXid 20034: ")


def test_a_log_is_explained(tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("start\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert main(["explain", str(log)]) == ExitStatus.PASS
    out = capsys.readouterr().out
    assert out.startswith("Failed first: a GPU ran out of memory (cuda.out_of_memory).")
    assert "job.log:2\n" in out


def test_standard_input_is_explained(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"CUDA error: device-side assert triggered\n"))
    )
    assert main(["explain", "-"]) == ExitStatus.PASS
    assert "cuda.device_assert" in capsys.readouterr().out


def test_a_log_without_a_known_failure_is_an_answer_too(tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("all is well\n")
    assert main(["explain", str(log)]) == ExitStatus.PASS
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Nothing wrong found.")
    assert "1 line." in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gpu.lots"], "did you mean gpu.lost?"),
        (["rendezvous.port_inuse"], "did you mean rendezvous.port_in_use?"),
        (["no-such-thing"], "is no finding code and no file"),
        (["job.log"], "cannot read job.log: no such file"),
        (["slurm-42.out", "rank*.log.gz"], "cannot read slurm-42.out: no such file"),
        (["xid"], "name the Xid"),
        (["xid", "many"], "'many' is no Xid number"),
        (["gpu.lost", "gpu.hung"], "cannot explain"),
        ([], "missing argument"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(words, expected, capsys):
    assert main(["explain", *words]) == ExitStatus.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 2


def test_an_empty_log_is_not_taken_for_one_without_a_fault(tmp_path, capsys):
    (tmp_path / "job.log").touch()
    assert main(["explain", str(tmp_path / "job.log")]) == ExitStatus.PASS
    assert "job.log: it is empty." in " ".join(capsys.readouterr().out.split())


def test_a_text_is_explained(capsys):
    assert (
        main(["explain", "RuntimeError: CUDA error: uncorrectable ECC error encountered"]) == ExitStatus.PASS
    )
    assert "HARDWARE cuda.uncorrectable_ecc" in capsys.readouterr().out
    assert main(["explain", "CUDA_ERROR_ECC_UNCORRECTABLE"]) == ExitStatus.PASS
    assert "cuda.uncorrectable_ecc" in capsys.readouterr().out
    assert main(["explain", "ValueError: my own"]) == ExitStatus.PASS
    assert "UNKNOWN" in capsys.readouterr().out


def test_files_and_folders_are_explained_together(tmp_path, capsys):
    folder = tmp_path / "logs"
    (folder / "attempt_0/1").mkdir(parents=True)
    (folder / "attempt_0/1/stderr.log").write_bytes(
        gzip.compress(b"OSError: [Errno 28] No space left on device\n")
    )
    (folder / "train.py").write_text("raise RuntimeError('CUDA out of memory')\n")
    (folder / ".cache").mkdir()
    (folder / ".cache/old.log").write_text("CUDA error: out of memory\n")
    other = tmp_path / "rank0.log"
    other.write_text("start\nWatchdog caught collective operation timeout: x\n")
    assert main(["explain", str(folder), str(other)]) == ExitStatus.PASS
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Rank 1 failed first: a disk is full (disk.full).")
    assert (
        "Consequences, not causes (1 line): 1 x a collective waited for a rank that never entered it "
        "by rank 0" in out
    )
    assert "Read: 2 logs, 3 lines." in out
    assert "cuda.out_of_memory" not in out


def test_json_is_one_document(tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("start\nOSError: [Errno 28] No space left on device\n")
    assert main(["explain", "--json", str(log)]) == ExitStatus.PASS
    told = loads(capsys.readouterr().out)
    assert (told.verdict.kind, told.verdict.topic, told.verdict.line) == (
        VerdictKind.RANK_FAILED,
        "disk.full",
        2,
    )
    assert told.sightings[0].explanation.topic == "disk.full"
    assert (told.sightings[0].owner, told.sightings[0].lines) == (Owner.JOB, (2,))
    assert main(["explain", "gpu.lost", "--json"]) == ExitStatus.PASS
    assert loads(capsys.readouterr().out).explanation.topic == "gpu.lost"


def test_what_to_do_is_said_once():
    for kind in finding_kinds():
        told = explain((kind.code,))
        assert told.remedy not in " ".join(told.facts), kind.code


def test_a_binary_file_is_refused_in_a_sentence(tmp_path, capsys):
    (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(1000))
    assert main(["explain", str(tmp_path / "core")]) == ExitStatus.ERROR
    assert "not read: it is a program or a core dump" in " ".join(capsys.readouterr().out.split())


def test_nothing_wrong_is_not_said_of_a_file_that_was_not_read(tmp_path, capsys):
    (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(1000))
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n")
    assert main(["explain", str(tmp_path)]) == ExitStatus.PASS
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Nothing wrong found. But 1 file was not read.")
    assert "core: not read: it is a program or a core dump" in out


def test_a_folder_without_logs_is_said(tmp_path, capsys):
    assert main(["explain", str(tmp_path)]) == ExitStatus.USAGE
    assert "looks like a log" in capsys.readouterr().err


def test_a_missing_file_among_others_is_said(tmp_path, capsys):
    (tmp_path / "a.log").write_text("x\n")
    assert main(["explain", str(tmp_path / "a.log"), str(tmp_path / "b.log")]) == ExitStatus.USAGE
    assert "b.log: no such file" in capsys.readouterr().err


def test_a_number_alone_is_an_xid_and_errors_of_cuda_have_their_own(capsys):
    for words, topic in (
        (["79"], "Xid 79: "),
        (["cuda", "802"], "CUDA error 802: "),
        (["CUDA_ERROR_CONTAINED"], "CUDA error 226: "),
    ):
        assert main(["explain", *words]) == ExitStatus.PASS
        assert capsys.readouterr().out.startswith(topic)
    assert main(["explain", "cuda"]) == ExitStatus.USAGE
    assert "such as: gpudiag explain cuda 802" in capsys.readouterr().err
