import io
import sys
from types import SimpleNamespace

import pytest

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus


@pytest.mark.parametrize("code", [kind.code for kind in finding_kinds()])
def test_every_code_is_explained(code, capsys):
    assert main(["explain", code]) == ExitStatus.PASS
    assert capsys.readouterr().out.startswith(f"{code}: ")


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
    assert "CAUSE cuda.out_of_memory" in out
    assert "(line 2)" in out


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
    assert "no known failure in 1 line" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gpu.lots"], "did you mean gpu.lost?"),
        (["rendezvous.port_inuse"], "did you mean rendezvous.port_in_use?"),
        (["no-such-thing"], "is no finding code and no file"),
        (["79"], "did you mean xid 79?"),
        (["xid"], "say which Xid"),
        (["xid", "many"], "'many' is no number of an Xid"),
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


def test_a_folder_is_no_log(tmp_path, capsys):
    assert main(["explain", str(tmp_path)]) == ExitStatus.USAGE
    assert "Is a directory" in capsys.readouterr().err
