import os
import time

import pytest

from gpudiag.probe.job.frames import Sources, describe_frames
from gpudiag.probe.job.py_spy import RawFrame, Variable, read_stacks

SOURCE = """\
def step(number):
    try:
        if number % 2:
            share(
                number,
            )
        else:
            wait()
    except ValueError:
        log()
    try:
        share(1)
    except OSError:
        raise
    with lock:
        work()
"""


def _write(file, text, *, age_seconds=86400.0):
    """A source as it is when a process has run for long: older than this one."""
    file.write_text(text)
    os.utime(file, (time.time() - age_seconds,) * 2)


@pytest.fixture
def sources(tmp_path):
    file = tmp_path / "train.py"
    _write(file, SOURCE)
    read = Sources()
    return lambda number: read.line(os.getpid(), str(file), number)


def test_a_line_is_told_with_what_is_around_it(sources):
    line = sources(4)
    assert line.text == "share( number, )"
    assert line.inside == ("if number % 2 (line 3)", "try (line 2) that continues after ValueError (line 9)")
    assert sources(8).inside[0] == "else of if number % 2 (line 3)"
    assert sources(10).inside == ("except ValueError (line 9)",)
    assert sources(12).inside == ()  # its exception goes on up
    assert sources(16).inside == ("with lock (line 15)",)


def test_a_line_that_is_not_there_is_none(sources, tmp_path):
    assert sources(99) is None
    assert Sources().line(os.getpid(), str(tmp_path / "gone.py"), 1) is None


def test_a_file_that_was_changed_since_the_start_shows_no_line_of_it(tmp_path):
    file = tmp_path / "train.py"
    _write(file, SOURCE, age_seconds=-10.0)
    read = Sources()
    line = read.line(os.getpid(), str(file), 4)
    assert "changed after the process started" in line.text
    assert not line.inside
    assert not read.text(os.getpid(), str(file), 4)
    assert not read.poll_loop(os.getpid(), str(file), 4)


def test_variables_are_numbers_and_words_without_secrets():
    variables = (
        Variable("step", "41", 0),
        Variable("path", '"/data/x"', 0),
        Variable("api_key", '"abcdefgh"', 0),
        Variable("url", '"https://ann:hunter2@host/x"', 0),
        Variable("model", "<Model at 0x1>", 0),
    )
    (frame,) = describe_frames(os.getpid(), [RawFrame("/home/ann/train.py", "main", 3, variables)])
    assert dict(frame.variables)["step"] == "41"
    assert dict(frame.variables)["path"] == '"/data/x"'
    assert "api_key" not in dict(frame.variables)
    assert "hunter2" not in str(frame)
    assert "model" not in dict(frame.variables)


def test_a_process_that_is_gone_is_said(monkeypatch):
    read = read_stacks(2**22 - 1, may_stop=False, timeout_seconds=30)
    assert "ended" in read.detail or "py-spy" in read.detail


GUARDED = """\
def make(plan, rank):
    for name, members in plan.items():
        if rank not in members:
            continue
        if name == "off":
            note(name)
        build(members)
    return plan
"""


def test_conditions_that_lead_away_before_a_line_are_told(tmp_path):
    file = tmp_path / "meshes.py"
    _write(file, GUARDED)
    inside = Sources().line(os.getpid(), str(file), 7).inside
    assert inside == (
        "after if rank not in members: continue (line 3)",
        "for (name, members) in plan.items() (line 2)",
    )
    assert not Sources().line(os.getpid(), str(file), 8).inside


ONE_LINE = """def train(rank, group):
    if rank == 0: log(gather(group))
    if dist.get_rank() == 0: gather(group)
    if gather(group): log(1)
"""


def test_a_condition_on_the_line_of_its_call_is_around_it_where_it_cannot_be_what_waits(tmp_path):
    file = tmp_path / "one_line.py"
    _write(file, ONE_LINE)
    inside = [Sources().line(os.getpid(), str(file), number).inside for number in (2, 3, 4)]
    assert inside == [("if rank == 0 (line 2)",), ("if dist.get_rank() == 0 (line 3)",), ()]


GENERATOR = """def batches(source):
    while True:
        batch = source.random((8, 8))
        yield batch
def drain(source):
    while True:
        batch = source.random((8, 8))
"""


def test_the_loop_of_a_generator_differs_from_one_without_an_end(tmp_path):
    file = tmp_path / "generator.py"
    _write(file, GENERATOR)
    inside = [Sources().line(os.getpid(), str(file), number).inside for number in (3, 7)]
    assert inside == [("while True (line 2), which yields",), ("while True (line 6)",)]
