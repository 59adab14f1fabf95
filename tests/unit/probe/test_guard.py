import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpudiag.probe.guard import collect, run_guarded, start_guarded, start_program

PROBES = "tests.unit.probe.guarded_probes"
REPOSITORY = Path(__file__).parents[3]
# Where the test runner has a thread, Python 3.12 warns of every fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
SOON = 60.0  # wide: it proves that nothing hung, not how fast anything is


def run(probe, *arguments, deadline=SOON):
    return run_guarded(f"{PROBES}:{probe}", deadline, *arguments)


def run_python(code, *, deadline=SOON):
    child = start_program([sys.executable, "-c", code], os.environ)
    collect([(child, child.started_at + deadline)])
    return child


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(pid):
    until = time.monotonic() + SOON
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_alive(pid)


def open_descriptors():
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("forked")
def test_a_probe_that_answers_has_finished_in_a_process_of_its_own():
    child = run("answer", 7)
    assert child.ending == "finished"
    assert child.messages == [("answer", 7, {"pid": child.pid})]
    assert child.pid != os.getpid()
    assert 0 < child.seconds < SOON


@pytest.mark.usefixtures("forked")
def test_a_probe_that_raises_keeps_what_it_said_before():
    child = run("fail")
    assert (child.ending, child.detail) == ("raised", "ValueError: no such reading")
    assert child.messages == [("answer", 1)]


def test_a_probe_that_does_not_exist_has_raised():
    assert run("nonsense").ending == "raised"
    assert run_guarded("gpudiag.probe.nonsense:read", SOON).ending == "raised"


@pytest.mark.usefixtures("forked")
def test_a_probe_that_crashes_names_the_signal():
    child = run("crash")
    assert child.ending == "crashed"
    assert "SIGSEGV" in child.detail
    assert child.messages == [("answer", 1)]


@pytest.mark.usefixtures("forked")
def test_a_probe_that_hangs_is_killed_at_its_deadline_and_reaped():
    before = time.monotonic()
    child = run("hang", deadline=0.3)
    assert child.ending == "timed_out"
    assert child.messages == [("pid", child.pid)]
    assert 0.3 <= child.seconds < SOON
    assert time.monotonic() - before < SOON
    assert wait_until_dead(child.pid)
    run("answer", 7)  # one that a busy machine did not end at once is reaped with the next one
    assert not Path(f"/proc/{child.pid}").exists()


def test_a_thread_that_never_returns_does_not_keep_a_probe_alive():
    child = run("hang_in_a_thread")
    assert child.ending == "finished"
    assert wait_until_dead(child.pid)


def test_children_are_collected_together_each_by_its_own_deadline():
    hung, done = start_guarded(f"{PROBES}:hang"), start_guarded(f"{PROBES}:answer", 1)
    now = time.monotonic()
    collect([(hung, now + 0.4), (done, now + SOON)])
    assert (hung.ending, done.ending) == ("timed_out", "finished")


def test_collecting_an_ended_child_again_changes_nothing():
    child = run("answer", 1)
    messages = list(child.messages)
    collect([(child, time.monotonic() + SOON)])
    assert (child.ending, child.messages) == ("finished", messages)


def test_an_interrupted_wait_gives_up_all_children():
    children = [start_guarded(f"{PROBES}:hang"), start_guarded(f"{PROBES}:hang")]

    def interrupt(signal_number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        # A program that interrupts us while we wait, as a person does.
        code = f"import os, time; time.sleep(0.3); os.kill({os.getpid()}, {int(signal.SIGUSR1)})"
        with subprocess.Popen([sys.executable, "-c", code]), pytest.raises(KeyboardInterrupt):
            collect([(child, time.monotonic() + SOON) for child in children])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [child.ending for child in children] == ["timed_out", "timed_out"]


def test_no_descriptor_is_left_whatever_the_ending():
    before = open_descriptors()
    for probe, deadline in (("answer", SOON), ("fail", SOON), ("crash", SOON), ("hang", 0.1)):
        run(probe, *([1] if probe == "answer" else []), deadline=deadline)
    run_python("print('noise')")
    run_python("import time; time.sleep(600)", deadline=0.2)
    start_program(["/nonexistent/program"], os.environ).give_up()
    assert open_descriptors() == before


@pytest.mark.usefixtures("forked")
def test_a_child_holds_none_of_our_descriptors():
    with open(os.devnull, "rb") as ours:
        found = dict(run("list_descriptors").messages)["descriptors"]
        assert str(ours.fileno()) not in found or found[str(ours.fileno())].startswith("pipe:")
    assert {found[name] for name in ("0", "1", "2")} == {os.devnull}
    assert len(found) <= 5  # those three, its pipe, and perhaps the directory that it lists


def test_messages_from_many_threads_arrive_whole():
    child = run("emit_from_threads", 8, 50, 5000)  # 2 MB, many times what a pipe holds
    assert child.ending == "finished"
    assert sorted((number, at) for number, at, _ in child.messages) == [
        (number, at) for number in range(8) for at in range(50)
    ]
    assert {len(text) for _, _, text in child.messages} == {5000}


def test_in_a_process_of_several_threads_the_child_is_an_interpreter_of_its_own():
    release = threading.Event()
    other = threading.Thread(target=release.wait)
    other.start()
    try:
        child = run("describe_interpreter")
    finally:
        release.set()
        other.join()
    assert child.ending == "finished", child.detail
    kind, argv, parent = child.messages[0]
    assert (kind, parent) == ("interpreter", os.getpid())
    assert argv[1].endswith("describe_interpreter")


@pytest.mark.parametrize("entry", ["hang", "program"])
def test_nothing_outlives_a_caller_that_is_killed(entry):
    start = {
        "hang": f"start_guarded('{PROBES}:hang')",
        # A program that hangs with a child of its own, as GPUtil does with nvidia-smi.
        "program": "start_program([sys.executable, '-c', 'import time; time.sleep(600)'], os.environ)",
    }[entry]
    code = (
        "import os, sys, time\nfrom gpudiag.probe.guard import *\n"
        f"child = {start}\nprint(child.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as caller:
        pid = int(caller.stdout.readline())
        time.sleep(0.2)  # the child sets its death signal first thing
        assert is_alive(pid)
        caller.send_signal(signal.SIGKILL)
    assert wait_until_dead(pid)


def test_a_hung_child_does_not_hold_the_output_of_a_caller_that_exits():
    code = (
        "from gpudiag.probe.guard import start_guarded\nimport os\n"
        f"start_guarded('{PROBES}:hang')\nprint('done', flush=True)\nos._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=SOON, check=True
    )
    assert done.stdout == "done\n"


def test_a_program_writes_json_lines_and_its_noise_is_kept():
    child = run_python(
        "import os; print('a warning'); os.write(3, b'[\"answer\", 1]\\n[\"finished\", 0.1]\\n')"
    )
    assert child.ending == "finished"
    assert child.messages == [["answer", 1]]
    assert child.detail == "a warning"


def test_a_program_that_dies_says_how_and_what_it_printed():
    child = run_python("import sys; sys.exit('no driver')")
    assert child.ending == "crashed"
    assert "status 1" in child.detail
    assert "no driver" in child.detail


def test_a_program_that_is_not_there_says_so():
    child = start_program(["/nonexistent/program"], os.environ)
    collect([(child, child.started_at + SOON)])
    assert child.ending == "crashed"
    assert "/nonexistent/program could not be started: No such file or directory" in child.detail


def test_a_line_that_is_no_json_is_a_message_too():
    child = run_python("import os; os.write(3, b'oops\\n[\"finished\", 0.1]\\n')")
    assert child.messages == [["garbled", "oops"]]


def test_a_program_is_killed_with_what_it_started():
    code = "import os, subprocess, sys\np = subprocess.Popen(['sleep', '600'])\nos.write(3, b'[%d]\\n' % p.pid)\np.wait()"
    child = run_python(code, deadline=6.0)
    assert child.ending == "timed_out"
    [[sleeper]] = child.messages
    assert wait_until_dead(sleeper)


def test_a_program_that_finishes_leaves_nothing_behind():
    code = (
        "import os, subprocess\np = subprocess.Popen(['sleep', '600'])\n"
        "os.write(3, b'[%d]\\n[\"finished\", 0.1]\\n' % p.pid)"
    )
    child = run_python(code)
    assert child.ending == "finished"
    assert wait_until_dead(child.messages[0][0])
