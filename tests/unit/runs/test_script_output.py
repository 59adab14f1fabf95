"""The output of a user's script is shown while somebody reads it, and holds nothing up where nobody does."""

import fcntl
import os
import subprocess
import sys

import pytest

from gpudiag.cli import main as entry
from gpudiag.runs import script_output
from gpudiag.runs.script_output import show_output


@pytest.fixture
def unread_pipe(monkeypatch):
    """Standard error is a pipe that is full, and that nobody reads."""
    reading, writing = os.pipe()
    os.write(writing, b"x" * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
    with open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield reading
        monkeypatch.undo()
    os.close(reading)


def test_what_ranks_write_is_shown_whole_and_kept(monkeypatch):
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with show_output() as output:
            os.write(output.descriptor, b"a\n" * 5000)
            output.explanations()
        monkeypatch.undo()
    with open(reading, "rb") as file:
        assert file.read() == b"a\n" * 5000


def test_a_run_ends_though_nobody_reads_its_output(unread_pipe, monkeypatch):
    monkeypatch.setattr(script_output, "_OVER_SECONDS", 0.0)
    with show_output() as output:
        os.write(output.descriptor, b"step 1\n")
    sys.stderr.flush()  # what Python does before it ends: nothing waits in it, and nobody holds its lock


def test_an_interrupt_is_not_told_where_that_would_wait_for_a_reader(unread_pipe):
    assert entry._report(KeyboardInterrupt()) == 130


def test_an_interrupt_is_told_where_somebody_reads(capsys):
    assert entry._report(KeyboardInterrupt()) == 130
    told = capsys.readouterr().err
    program = "import sys; from gpudiag.cli import main; sys.exit(main._report(KeyboardInterrupt()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, told)
