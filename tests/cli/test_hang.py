import subprocess

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.installed import install_command
from gpudiag.runs import hang


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["0"], "0"),
        (["abc"], "abc"),
        (["4194303"], "there is no process 4194303 here"),
        (["--slurm-job", "987654321"], "srun --overlap --jobid 987654321"),
        (["7", "--all"], "exclude each other"),
        (["--limit", "0", "7"], "limit"),
    ],
)
def test_wrong_input_is_one_sentence(words, said, capsys):
    assert main(["hang", *words]) == ExitStatus.USAGE
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_program_that_is_no_rank_and_started_none_is_named_as_such(capsys):
    with subprocess.Popen(["sleep", "600"]) as program:
        try:
            assert main(["hang", str(program.pid)]) == ExitStatus.USAGE
        finally:
            program.kill()
    said = " ".join(capsys.readouterr().err.split())
    assert f"process {program.pid} (sleep) runs no Python, and no rank of a job is below it" in said


def test_without_py_spy_the_command_that_installs_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(hang, "find_py_spy", lambda: None)
    assert main(["hang", "1"]) == ExitStatus.ERROR
    assert install_command("hang") in capsys.readouterr().err
