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
        (["4194303"], "process 4194303 does not exist here"),
        (["--slurm-job", "987654321"], "srun --overlap --jobid 987654321"),
        (["7", "--all"], "exclude each other"),
        (["--limit", "0", "7"], "limit"),
    ],
)
def test_wrong_input_is_one_sentence(words, said, capsys):
    assert main(["hang", *words]) == ExitStatus.USAGE
    assert said in " ".join(capsys.readouterr().err.split())


def test_without_py_spy_the_command_that_installs_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(hang, "find_py_spy", lambda: None)
    assert main(["hang", "1"]) == ExitStatus.ERROR
    assert install_command("hang") in capsys.readouterr().err
