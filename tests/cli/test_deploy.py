"""`gpudiag deploy`: every file that a site needs, printed and written.

tests/meta/test_wheel.py finds them in the wheel.
"""

import errno
import os
from pathlib import Path

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.runs.deploy import FILE_SETS, read_files
from tests.walking import walk

ROOT = Path(__file__).parents[2]


def test_every_file_for_a_site_belongs_to_a_set():
    """A file that somebody adds to deploy/ or docs/ci reaches those who install gpudiag."""
    there = {
        path.read_text()
        for folder in ("deploy", "docs/ci")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.name != "README.md"
    }
    shipped = {file.text for name in FILE_SETS for file in read_files(name)}
    assert there - shipped == set()


@walk(FILE_SETS)
def test_a_set_is_listed_printed_and_written(name):
    files = read_files(name)
    assert files
    for file in files:
        assert [file] == list(read_files(f"{name}/{file.path}"))


def test_the_sets_are_listed(capsys):
    assert main(["deploy"]) == ExitStatus.PASS
    listed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{listed}" for name in FILE_SETS)
    assert all(len(line) <= 80 for line in listed.splitlines())


def test_one_file_is_printed_as_it_is_and_several_are_named(capsys):
    assert main(["deploy", "systemd/gpudiag.service"]) == ExitStatus.PASS
    assert capsys.readouterr().out == (ROOT / "deploy/systemd/gpudiag.service").read_text()
    assert main(["deploy", "slurm", "--output", "-"]) == ExitStatus.PASS
    printed = capsys.readouterr().out
    assert printed.startswith("==> check-node.sh <==\n")
    assert (ROOT / "docs/ci/slurm/prolog.sh").read_text() in printed


def test_files_are_written_with_their_rights_and_nothing_else_is_overwritten(tmp_path, capsys):
    folder = tmp_path / "etc" / "gpudiag"
    assert main(["deploy", "slurm", "--output", str(folder)]) == ExitStatus.PASS
    assert str(folder / "prolog.sh") in capsys.readouterr().out
    assert (folder / "prolog.sh").stat().st_mode & 0o111
    assert main(["deploy", "slurm", "--output", str(folder)]) == ExitStatus.PASS  # the same again
    (folder / "check-node.sh").write_text("GPUDIAG=/site/gpudiag\n")
    (folder / "prolog.sh").unlink()
    assert main(["deploy", "slurm", "--output", str(folder)]) == ExitStatus.USAGE
    assert "check-node.sh exists and differs" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["check-node.sh", "epilog.sh"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sytemd"], "no files called 'sytemd'"),
        (["slurm/prolog"], "slurm has no file 'prolog'"),
        (["--output", "x"], "--output needs the NAME"),
        (["slurm", "--output", "/proc/gpudiag/x"], "cannot write to /proc/gpudiag"),
    ],
)
def test_wrong_input_is_one_sentence(words, said, capsys):
    assert main(["deploy", *words]) == ExitStatus.USAGE
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_full_disk_is_no_wrong_usage(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", refuse)
    assert main(["deploy", "slurm", "--output", str(tmp_path)]) == ExitStatus.ERROR
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
