"""A rank's look at its own main thread: what it waits for, the user's line, what still moves, how often it
tells.
"""

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.waits import find_call, find_wait, is_library
from gpudiag.training.signs_of_work import SignsOfWork
from gpudiag.training.stack_watch import (
    BatchCount,
    StackWatch,
    describe,
    describe_closely,
    describe_error,
    frames_of,
    is_users,
)

SITE = "/opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("frames", "awaited"),
    [
        (((f"{SITE}/torch/distributed/distributed_c10d.py", "barrier"),), "ranks"),
        (((f"{SITE}/torch/autograd/graph.py", "_engine_run_backward"),
            (f"{SITE}/torch/_tensor.py", "backward")), "ranks"),
        (
            (
                (f"{SITE}/torch/_ops.py", "__call__"),
                (f"{SITE}/torch/distributed/_functional_collectives.py", "wait_tensor"),
            ),
            "ranks",
        ),
        (
            (
                (f"{SITE}/torch/distributed/distributed_c10d.py", "all_gather_single"),
                (f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", "unshard"),
                (f"{SITE}/torch/_dynamo/eval_frame.py", "_fn"),
            ),
            "ranks",
        ),
        (((f"{SITE}/torch/distributed/pipelining/schedules.py", "_wait_batch_p2p"),), "ranks"),
        (((f"{SITE}/torch/nn/parallel/distributed.py", "_sync_buffers"),), "ranks"),
        (((f"{SITE}/horovod/torch/mpi_ops.py", "synchronize"),), "ranks"),
        (((f"{SITE}/deepspeed/comm/comm.py", "all_reduce"),), "ranks"),
        (((f"{SITE}/torch/cuda/__init__.py", "synchronize"),), "gpu"),
        (
            (
                ("/usr/lib/python3.12/selectors.py", "select"),
                ("/usr/lib/python3.12/multiprocessing/connection.py", "wait"),
                (f"{SITE}/torch/utils/data/dataloader.py", "_try_get_data"),
            ),
            "loader",
        ),
        (
            (
                ("/usr/lib/python3.12/threading.py", "wait"),
                (f"{SITE}/torch/distributed/checkpoint/filesystem.py", "write_data"),
            ),
            "storage",
        ),
        ((("/usr/lib/python3.12/subprocess.py", "wait"),), "program"),
        ((("/usr/lib/python3.12/threading.py", "join"),), "lock"),
        (((f"{SITE}/torch/nn/functional.py", "linear"), (f"{SITE}/torch/nn/parallel/distributed.py",
            "forward")), None),
        (((f"{SITE}/torch/utils/data/distributed.py", "__iter__"),), "loader"),
    ],
)  # fmt: skip
def test_waiting_is_recognised_by_what_the_stack_is_in(frames, awaited):
    wait = find_wait(frames)
    assert (wait and wait.awaited) == awaited


@pytest.mark.parametrize(
    ("call", "awaited"),
    [
        ("work.wait()", "ranks"),
        ("comm.Barrier()", "ranks"),
        ("loss.item()", "gpu"),
        ("float(loss)", "gpu"),
        ("time.sleep(3600)", "sleep"),
        ("lock.acquire()", "lock"),
        ("prepare(data)", None),
        ("items()", None),
    ],
)
def test_a_wait_without_a_frame_is_recognised_by_the_users_own_call(call, awaited):
    wait = find_call(call)
    assert (wait and wait.awaited) == awaited


def test_the_script_is_the_users_wherever_it_lies():
    assert is_users(f"{SITE}/mine/train.py", f"{SITE}/mine/train.py")
    assert not is_users(f"{SITE}/torch/autograd/graph.py", f"{SITE}/mine/train.py")
    assert is_library("/usr/lib/python3.12/json/decoder.py")
    assert is_library("/usr/lib64/python3.12/json/decoder.py")
    assert not is_library("/data/lib/training/train.py")


def in_thread(call, *, seconds: float = 0.3):
    """The frames of a thread that is inside `call`."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    time.sleep(seconds)
    return frames_of(sys._current_frames()[thread.ident])


def test_a_place_is_the_users_and_says_the_call():
    lock = threading.Lock()
    lock.acquire()

    def load() -> None:
        lock.acquire()

    found = describe_closely(in_thread(load), __file__, BatchCount(batches=3))
    lock.release()
    main = found.look.main
    assert main is not None
    innermost = main.frames[0]
    assert (innermost.file, innermost.function, innermost.text) == (__file__, "load", "lock.acquire()")
    assert (found.batches, found.look.pid, found.awaited) == (3, os.getpid(), "lock")
    assert main.tid == os.getpid()
    assert main.last_ran_seconds_ago != NOT_ASKED  # the kernel was asked


def test_the_call_that_a_line_executes_is_read_and_not_the_line():
    lock = threading.Lock()
    lock.acquire()

    def load() -> None:
        print(lock.acquire(), "and more")

    found = describe(in_thread(load), __file__, BatchCount())
    lock.release()
    exact = sys.version_info >= (3, 11)
    assert found.awaited == ("lock" if exact else "")


def test_frames_alone_are_a_look_that_asks_nobody():
    found = describe(in_thread(lambda: time.sleep(5.0)), __file__, BatchCount(), work="it uses the processor")
    assert [one.tid for one in found.look.threads] == [os.getpid()]
    assert found.look.main is not None
    assert found.look.main.frames[0].file == __file__


def test_an_exception_in_a_library_is_placed_at_the_users_line():
    import json

    try:
        json.loads("{bad")
    except ValueError as error:
        place = describe_error(error, __file__)
    assert place.place.startswith(f"{__file__}:")
    assert "json" in place.stack[0]
    assert place.shared_memory is not None


class Told:
    def __init__(self) -> None:
        self.events, self.places = [], []

    def before_iteration(self, iteration: int) -> None:
        pass

    def note_place(self, file: str, line: int) -> None:
        self.places.append(line)

    def emit(self, event) -> None:
        self.events.append(event)


def looked(signs: list[str | None], *, moves: bool = False, frames=None, hang: float = 10.0) -> list[str]:
    """What a watch tells when it looks once a second and finds those signs of work."""
    told = Told()
    watch = StackWatch(told, __file__, hang, BatchCount())
    found = iter(signs)
    watch._signs = type("Signs", (), {"read": lambda self, patience, network: next(found)})()
    now = time.monotonic()
    watch._look_closer = lambda frames: None
    stands = frames or in_thread(lambda: time.sleep(5.0), seconds=0.1)
    for second in range(len(signs)):
        if moves:
            watch._position = ()
        watch._look(stands, now + second)
    return [event["kind"] for event in told.events]


def test_a_rank_that_does_nothing_stands_still_after_the_limit():
    assert looked([None] * 9) == []
    assert looked([None] * 14) == ["still"]


def test_a_rank_that_works_is_not_still_and_tells_ever_more_rarely():
    assert looked(["it uses the processor"] * 14) == ["works"]
    assert looked(["it uses the processor"] * 60) == ["works", "works"]
    assert looked(["it reads or writes"] * 20, moves=True) == ["works"]


def test_a_rank_that_stops_working_stands_still_from_then_on():
    assert looked(["it uses the processor"] * 14 + [None] * 14) == ["works", "still"]


def test_a_rank_that_works_again_says_that_it_moves():
    assert looked([None] * 14 + ["it reads or writes"] * 2) == ["still", "moves", "works"]


def run_probe(code: str, *, network: bool = False) -> list[str]:
    """What signs of work a program of its own shows, look by look."""
    program = textwrap.dedent(
        """
        import subprocess, sys, threading, time
        from gpudiag.training.signs_of_work import SignsOfWork
        signs, found = SignsOfWork(), []
        def look():
            for _ in range(4):
                found.append(signs.read(30.0, network=NETWORK))
                time.sleep(0.4)
            print("\\n".join(map(str, found[1:])), flush=True)
        watcher = threading.Thread(target=look)
        watcher.start()
        """
    )
    program = program.replace("NETWORK", str(network))
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{textwrap.dedent(code)}\nwatcher.join()"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    return done.stdout.splitlines()


def test_processor_time_is_a_sign_of_work():
    assert "it uses the processor" in run_probe("while watcher.is_alive(): pass")


def test_the_processor_time_of_a_child_is_a_sign_of_work():
    code = """
        child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
        watcher.join()
        child.kill()
    """
    assert any("child" in sign and "uses the processor" in sign for sign in run_probe(code))


def test_files_that_are_written_are_a_sign_of_work(tmp_path):
    code = f"""
        with open({str(tmp_path / "data")!r}, 'wb', buffering=0) as file:
            while watcher.is_alive():
                file.write(b'x' * 4096)
                time.sleep(0.1)
    """
    assert "it reads or writes" in run_probe(code)


def test_one_sleep_that_ends_soon_enough_is_work_and_a_longer_one_is_not():
    assert any(sign.startswith("it sleeps for") for sign in run_probe("time.sleep(3)"))
    code = "threading.Timer(2.0, lambda: __import__('os')._exit(0)).start(); time.sleep(600)"
    assert set(run_probe(code)) == {"None"}


def test_what_comes_over_the_network_is_a_sign_of_work_and_a_silent_connection_is_none():
    code = """
        import socket
        ours, theirs = socket.socketpair()
        def send():
            while watcher.is_alive():
                theirs.send(b'x')
                time.sleep(0.1)
            theirs.close()
        {start}
        while ours.recv(1): pass
    """
    assert "data still arrives over the network" in run_probe(
        code.format(start="threading.Thread(target=send).start()"), network=True
    )
    silent = "threading.Thread(target=lambda: (watcher.join(), theirs.close())).start()"
    assert run_probe(code.format(start=silent), network=True)[-1] == "None"


def test_a_lock_and_a_poll_are_no_signs_of_work():
    code = "lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=3)"
    assert set(run_probe(code)) == {"None"}
    assert not any(
        sign.startswith("it sleeps") for sign in run_probe("while watcher.is_alive(): time.sleep(0.05)")
    )


def test_counts_of_processes_that_are_gone_cost_nothing(tmp_path):
    assert SignsOfWork(root=tmp_path).read(10.0) is None
