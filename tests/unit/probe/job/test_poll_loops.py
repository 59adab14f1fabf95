"""Which loops only ask whether something has come, by their source."""

import os
from pathlib import Path

import pytest

from gpudiag.checks.job.polling import stood
from gpudiag.model.job import Frame
from gpudiag.probe.job.frames import glance_frames
from gpudiag.probe.job.poll_loops import find_poll_loop
from gpudiag.probe.job.py_spy import RawFrame, Variable

POLLS = {
    "a flag in shared memory": ("while memory.buf[at] != 1:", "    time.sleep(0)"),
    "a spin": ("while flag[0] == 0:", "    pass"),
    "a function of the user's": ("while not is_there(path):", "    time.sleep(1)"),
    "a file": ("while os.path.exists(path):", "    time.sleep(0.2)"),
    "a deadline": (
        *("while True:", "    if work.is_completed():", "        break"),
        *("    if time.monotonic() > end:", "        raise Late(end)", "    time.sleep(0.1)"),
    ),
    "a queue": (
        *("while True:", "    try:", "        item = q.get(timeout=1)", "        break"),
        *("    except queue.Empty:", "        continue"),
    ),
    "an event": ("while not event.wait(timeout=0.1):", "    pass"),
    "slots, with what leaves the loop": (
        *("while True:", "    flags = self.memory.buf[at:end]", "    if all(f == 2 for f in flags):"),
        *("        return pack(at)", "    time.sleep(0)"),
    ),
    "attempts that are counted and logged": (
        *("while not done:", "    attempt += 1"),
        *('    log.debug("attempt %d", attempt)', "    time.sleep(1)", "    done = store.check(keys)"),
    ),
}
WORKS = {
    "steps": ("while step < steps:", "    loss = train(batch)", "    step += 1"),
    "a consumer": (
        *("while True:", "    try:", "        item = q.get(timeout=1)", "    except queue.Empty:"),
        *("        continue", "    train(item)"),
    ),
    "sums": ("while n < 10**9:", "    total = total + n * 3", "    n += 1"),
    "work in the condition": ("while train_one():", "    pass"),
    "what is written for others": ("while n < 9:", "    memory.buf[0] = n", "    time.sleep(0.1)"),
    "a loop over batches": ("for batch in loader:", "    time.sleep(0.1)"),
    "batches inside of epochs": ("while epoch < 3:", "    for batch in loader:", "        time.sleep(0.1)"),
    "what cannot be parsed": ("while True:", "    if (", "    time.sleep(1)"),
}


@pytest.mark.parametrize("lines", POLLS.values(), ids=POLLS.keys())
def test_a_loop_that_only_asks_polls_at_each_of_its_lines(lines: tuple[str, ...]) -> None:
    source = ["def wait():", '    """Wait."""', *("    " + line for line in lines), "    return 1"]
    found = {find_poll_loop(source, number) for number in range(3, 3 + len(lines))}
    assert found == {f"{lines[0].rstrip(':')} (line 3)"}
    assert not find_poll_loop(source, 1)
    assert not find_poll_loop(source, len(source))


@pytest.mark.parametrize("lines", WORKS.values(), ids=WORKS.keys())
def test_a_loop_that_may_work_does_not_poll(lines: tuple[str, ...]) -> None:
    source = ["def work():", *("    " + line for line in lines)]
    assert not any(find_poll_loop(source, number) for number in range(1, len(source) + 1))


def test_a_loop_that_tries_again_polls_where_it_sleeps_and_not_where_it_tries() -> None:
    lines = ("def again():", "    while True:", "        try:", "            return train(batch)")
    source = [
        *lines,
        "        except OSError as error:",
        "            log.info(error)",
        "            time.sleep(2)",
    ]
    assert [bool(find_poll_loop(source, number)) for number in (4, 6, 7)] == [False, True, True]


def test_what_a_loop_asks_for_long_shows_whether_it_works(tmp_path: Path) -> None:
    """`while not train_epoch(): sleep(1)`, seen twice within the epoch: at one line it stands, at two it
    works.
    """
    script = tmp_path / "job.py"
    script.write_text(
        "def train_epoch():\n    step()\n    step()\nwhile not train_epoch():\n    time.sleep(1)\n"
    )
    os.utime(script, (0, 0))

    def glance(line: int) -> tuple[Frame, ...]:
        frames = (RawFrame(str(script), "train_epoch", line, ()), RawFrame(str(script), "<module>", 4, ()))
        return glance_frames(os.getpid(), frames)

    assert not stood(glance(2), glance(3))
    assert stood(glance(2), glance(2))


def test_a_thread_stands_within_a_poll_and_not_once_anything_around_it_ran(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "def wait(n):\n    while buf[n] == 0:\n        time.sleep(0)\n\nfor n in range(9):\n    wait(n)\n"
    )
    os.utime(script, (0, 0))
    pid = os.getpid()

    def glance(line: int, inner: int, step: int) -> tuple[Frame, ...]:
        frames = (
            RawFrame(str(script), "wait", line, (Variable("seen", "0", inner),)),
            RawFrame(str(script), "<module>", 6, (Variable("batch", "<Batch>", 1000 + step),)),
        )
        return glance_frames(pid, frames)

    assert stood(glance(2, 1, 5), glance(3, 2, 5))
    assert glance(2, 1, 5)[0].polls
    assert glance(2, 1, 5)[0].text == "while buf[n] == 0:"
    assert not stood(glance(2, 1, 5), glance(2, 1, 6))
    assert not stood((), ())
