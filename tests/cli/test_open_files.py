"""A limit of open files that is too low is told in a sentence: it is a setting, and no bug."""

import errno
import resource
import subprocess
import sys

import pytest

from gpudiag.cli.failures import describe_failure
from gpudiag.errors import ExitStatus


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_who_may_open_no_more_files_is_told_so(number):
    failure = describe_failure(OSError(number, "too many", "/run/rank0.events"))
    assert failure.status is ExitStatus.ERROR
    assert "bug" not in " ".join(failure.lines)
    assert "files" in failure.lines[0]


@pytest.mark.ranks
def test_a_run_of_more_ranks_than_files_says_what_to_raise():
    command = [sys.executable, "-m", "gpudiag", "nccl-test", "--backend", "gloo", "--nproc", "14"]
    done = subprocess.run(
        [*command, "--max-bytes", "8"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "limit of open files" in done.stderr
    assert "ulimit -n" in done.stderr
