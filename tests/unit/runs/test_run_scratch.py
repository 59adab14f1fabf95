"""The files by which a job's processes answer `gpudiag run`, and what Python does at its start in such a
process.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from gpudiag.runs.job_run import scratch
from gpudiag.runs.job_run.environment import PIPE_FILE, RUN_VARIABLE, build_environment
from gpudiag.runs.job_run.members import read_error_file

IN_JOB = Path(scratch.__file__).with_name("in_job")
ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


def started(code: str, *paths: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join(map(str, (IN_JOB, *paths))),
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_the_exception_that_ends_a_process_is_left_and_printed_as_usual(tmp_path: Path) -> None:
    code = "def load():\n    {}['dog']\nload()"
    prefix = f"{tmp_path}/error-"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    done = started(code, GPUDIAG_RUN_ERRORS=prefix)
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    error = read_error_file(str(file))
    assert error is not None
    assert error.text == "KeyError: 'dog'"
    assert error.at is not None


def test_what_is_no_error_of_its_own_leaves_nothing(tmp_path: Path) -> None:
    for code in ("raise KeyboardInterrupt", "raise SystemExit(3)", "print(1)", "import os; os._exit(4)"):
        started(code, GPUDIAG_RUN_ERRORS=f"{tmp_path}/error-")
    assert list(tmp_path.iterdir()) == []
    done = started("raise ValueError('x')", GPUDIAG_RUN_ERRORS="/no/such/folder/error-")
    assert "ValueError: x" in done.stderr
    assert "folder" not in done.stderr


def test_the_jobs_own_start_runs_and_ours_is_not_to_be_seen(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.own = 'ran'\n")
    show = "import json, sys; print(json.dumps([own, sys.modules['sitecustomize'].__file__, sys.path]))"
    own, file, path = json.loads(started(show, tmp_path).stdout)
    assert own == "ran"
    assert file == str(tmp_path / "sitecustomize.py")
    assert str(IN_JOB) not in path
    without = started(
        "import sys; print('sitecustomize' in sys.modules, sys.excepthook is sys.__excepthook__)"
    )
    assert without.stdout.split()[1] == "True"  # no run: nothing is changed


def test_files_of_a_run_are_removed_and_those_of_others_are_not(tmp_path: Path) -> None:
    prefix = scratch.find_prefix(ONE, tmp_path)
    assert prefix is not None
    assert list(tmp_path.iterdir()) == []
    os.mkfifo(f"{prefix}rank-0.pipe")
    Path(f"{prefix}error-7.json").write_text("{}")
    kept = tmp_path / f"gpudiag-run-{OTHER}-rank-0.pipe"
    os.mkfifo(kept)
    (tmp_path / "gpudiag-run-notes.txt").touch()
    scratch.remove_files(prefix)
    assert sorted(one.name for one in tmp_path.iterdir()) == [kept.name, "gpudiag-run-notes.txt"]
    assert scratch.find_prefix(ONE, tmp_path / "none") is None


def test_what_a_killed_run_left_goes_once_its_job_has_ended(tmp_path: Path) -> None:
    left = [tmp_path / f"gpudiag-run-{run_id}-rank-0.pipe" for run_id in (ONE, OTHER)]
    for path in left:
        os.mkfifo(path)
        os.utime(path, (1, 1))
    young = tmp_path / f"gpudiag-run-{'0' * 16}-error-7.json"
    young.touch()
    environment = {**os.environ, RUN_VARIABLE: ONE}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write(b"here\n")
        job.stdin.flush()
        assert job.stdout.readline() == b"here\n"  # by now it has its environment
        scratch.remove_left_files(RUN_VARIABLE, tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted((left[0], young))
        job.communicate()
    scratch.remove_left_files(RUN_VARIABLE, tmp_path)
    assert list(tmp_path.iterdir()) == [young]


def test_pipes_are_made_only_where_torch_can_make_them_and_dumps_are_ours(tmp_path: Path) -> None:
    """torch ends a rank that cannot make its pipe.

    A dump that the caller keeps elsewhere would stay there.
    """
    prefix = f"{tmp_path}/gpudiag-run-{ONE}-"
    job = [sys.executable, "train.py"]
    added = build_environment(job, {"PYTHONPATH": "/own"}, tmp_path, ONE, prefix, nan_check=True).added
    assert added[PIPE_FILE] == f"{prefix}rank-"
    assert added["TORCH_NCCL_NAN_CHECK"] == "1"
    assert added["PYTHONPATH"].split(os.pathsep) == [str(IN_JOB), "/own"]
    assert PIPE_FILE not in build_environment(["srun", *job], {}, tmp_path, ONE, prefix).added
    own = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/own/dump"}
    assert PIPE_FILE not in build_environment(job, own, tmp_path, ONE, prefix).added
    nothing = build_environment(job, {}, tmp_path, ONE, None).added
    assert PIPE_FILE not in nothing
    assert "PYTHONPATH" not in nothing
    assert "TORCH_NCCL_NAN_CHECK" not in nothing
