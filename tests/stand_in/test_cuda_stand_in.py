"""The stand-in itself: it refuses what CUDA refuses, and lets the host run ahead as CUDA does."""

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tests.stand_in.running import run_program

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]


@pytest.fixture
def program(extension):
    def run(text: str, scenario: str = "h100x8", **variables: str) -> str:
        ended = run_program(scenario, sys.executable, "-c", textwrap.dedent(text), variables=variables)
        assert ended.status == 0, ended.error
        return ended.output

    return run


@pytest.mark.each_run
def test_it_is_cuda_to_torch(program):
    told = program("""
        import os, sys, torch
        x = torch.arange(6., device="cuda:1", requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.is_cuda and x.grad.get_device() == 1 and x.grad.tolist() == [0, 2, 4, 6, 8, 10]
        for wrong in (lambda: x + torch.ones(6), lambda: x + torch.ones(6, device="cuda:0"),
                      lambda: torch.empty(1, device="cuda:8")):
            try:
                wrong()
            except RuntimeError as error:
                print(str(error).splitlines()[0][:60])
        print(torch.cuda.device_count(), torch.cuda.get_device_capability(3), torch.cuda.get_device_properties(0).uuid)
        sys.stdout.flush()
        # A thread of autograd, of which each GPU has one, aborts the process where it first waits for the
        # interpreter when that ends (torch 2.13); this program ends sooner than eight threads start.
        os._exit(0)
    """)
    lines = told.splitlines()
    assert lines[0].startswith("Expected all tensors to be on the same device")
    assert lines[1].startswith("Expected all tensors to be on the same device")
    assert lines[2] == "CUDA error: invalid device ordinal"
    assert lines[3].startswith("8 (9, 0) ")


def test_the_host_runs_ahead_of_copies_and_kernels(program):
    program(
        """
        import torch
        here = torch.zeros(8, dtype=torch.uint8, pin_memory=True)
        there = torch.ones(8, dtype=torch.uint8, device="cuda")
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        before.record()
        here.copy_(there, non_blocking=True)
        assert int(here.sum()) == 0  # not there yet
        there += 1  # a kernel that takes a fifth of a second
        after.record()
        assert not after.query()
        torch.cuda.synchronize()
        assert after.query() and int(here.sum()) == 8
        assert before.elapsed_time(after) >= 200
        """,
        CUDA_STAND_IN_KERNEL_MICROSECONDS="200000",
    )


def test_a_copy_between_gpus_is_the_sources_and_the_target_waits_for_it(program):
    program("""
        import torch
        here, there = torch.ones(8, device="cuda:0"), torch.zeros(8, device="cuda:1")
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(100):
            there.copy_(here, non_blocking=True)
        behind = torch.cuda.Event()
        behind.record(torch.cuda.current_stream(1))
        after.record()
        assert not behind.query()
        after.synchronize()
        assert before.elapsed_time(after) >= 30  # 0.3 ms each
        torch.cuda.synchronize(1)
        assert there.tolist() == [1] * 8
    """)


def test_streams_work_beside_each_other_and_wait_where_they_are_told_to(program):
    program(
        """
        import torch
        there = torch.ones(8, device="cuda")
        side = torch.cuda.Stream()
        done, here, behind = (torch.cuda.Event() for _ in range(3))
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            there + 1  # a kernel that takes a second
            done.record()
        here.record()
        torch.cuda.current_stream().synchronize()
        assert here.query() and not done.query() and not side.query()  # nobody waited for the other stream
        torch.cuda.current_stream().wait_event(done)
        behind.record()
        assert not behind.query()
        behind.synchronize()
        assert done.query() and side.query()
        """,
        CUDA_STAND_IN_KERNEL_MICROSECONDS="1000000",
    )


def test_a_stuck_stream_holds_up_the_gpu_and_not_another_stream(program):
    program(
        """
        import threading, torch
        x = torch.zeros(4, device="cuda:1")
        side = torch.cuda.Stream(1)
        with torch.cuda.device(1):
            with torch.cuda.stream(side):
                for _ in range(30):
                    x + 1
            torch.cuda.current_stream().synchronize()
            assert not side.query()
            waiting = threading.Thread(target=torch.cuda.synchronize, args=(1,), daemon=True)
            waiting.start()
            waiting.join(3)
            assert waiting.is_alive()
        torch.cuda.synchronize(0)
        import os
        os._exit(0)
        """,
        CUDA_STAND_IN_FAULTS="stuck:1@12",
    )


def test_an_asynchronous_error_comes_later_and_stays(program):
    program(
        """
        import torch
        x = torch.zeros(4, device="cuda:1")
        y = torch.zeros(4, device="cuda:0")
        for _ in range(30):
            try:
                x += 1
                torch.cuda.synchronize(1)
            except torch.AcceleratorError as error:
                assert "illegal memory access" in str(error)
                break
        else:
            raise SystemExit("no error")
        try:
            y += 1
        except torch.AcceleratorError:
            pass
        else:
            raise SystemExit("the context is of use again")
        """,
        CUDA_STAND_IN_FAULTS="error:1@12",
    )


def test_memory_ends_and_peaks_are_per_gpu(program):
    program(
        """
        import torch
        x = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda:1")
        assert torch.cuda.max_memory_allocated(1) == 1 << 20 and torch.cuda.max_memory_allocated(0) == 0
        free, total = torch.cuda.mem_get_info(1)
        assert free == (64 << 20) - (1 << 20) and total > 79 << 30
        try:
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
        except torch.OutOfMemoryError as error:
            assert "CUDA out of memory" in str(error)
        else:
            raise SystemExit("it has no end")
        """,
        CUDA_STAND_IN_FREE_BYTES=str(64 << 20),
    )


def test_peers_and_processes_are_refused_where_a_fault_says_so(program):
    program(
        """
        import subprocess, sys, torch
        assert [torch.cuda.can_device_access_peer(0, peer) for peer in (1, 2)] == [False, True]
        torch.zeros(1, device="cuda:2")
        code = "import torch; torch.zeros(1, device='cuda:{}')"
        others = [
            subprocess.run([sys.executable, "-c", code.format(gpu)], capture_output=True, text=True)
            for gpu in (0, 2)
        ]
        assert others[0].returncode == 0, others[0].stderr
        assert others[1].returncode == 1 and "busy or unavailable" in others[1].stderr
        """,
        CUDA_STAND_IN_FAULTS="no_peer:1,exclusive:2",
    )


def test_what_needs_memory_that_is_still_to_come_is_computed_by_the_stream(program):
    program(
        """
        import torch
        from torch import nn
        given = torch.arange(4.0, pin_memory=True)
        x = torch.zeros(4, device="cuda")
        weight = torch.ones(4, device="cuda", requires_grad=True)
        stepper = torch.optim.SGD([weight], lr=0.5)
        torch.cuda.synchronize()
        torch.cuda._sleep(2 * 10**9)  # a second
        x.copy_(given, non_blocking=True)
        y = x * 2 + 1
        drawn = torch.empty(4, device="cuda").uniform_()
        (weight * y).sum().backward()
        stepper.step()
        mean = nn.functional.layer_norm(y, (4,)).mean()
        assert not torch.cuda.current_stream().query()  # the host waited for nothing
        assert y.tolist() == [1, 3, 5, 7] and abs(mean.item()) < 1e-6
        assert weight.tolist() == [0.5, -0.5, -1.5, -2.5] and 0 < drawn.max().item() < 1
        """
    )


WAITS = {
    "x.sum().item()": "cuStreamSynchronize",
    "torch.cuda.current_stream().synchronize()": "cuStreamSynchronize",
    "torch.cuda.synchronize()": "cuCtxSynchronize",
    "event.synchronize()": "cuEventSynchronize",
    "x.cpu()": "cuMemcpyDtoHAsync_v2",
}


@pytest.mark.skipif(shutil.which("py-spy", path=str(Path(sys.executable).parent)) is None, reason="no py-spy")
def test_a_wait_burns_a_processor_in_the_driver_and_leaves_the_interpreter_to_others(program):
    """As on an H100: state R, no system call, native frames of libcuda under libcudart."""
    told = program(
        f"""
        import os, subprocess, sys, threading, time
        from pathlib import Path
        import torch
        spy = str(Path(sys.executable).with_name("py-spy"))
        for wait, function in {WAITS!r}.items():
            reading, writing = os.pipe()
            pid = os.fork()
            if not pid:
                x, event = torch.ones(4, device="cuda"), torch.cuda.Event()
                torch.cuda.synchronize()
                torch.cuda._sleep(10**13)
                event.record()
                def tell():
                    while True:
                        time.sleep(0.05)
                        os.write(writing, b".")
                threading.Thread(target=tell, daemon=True).start()
                eval(wait)
            stack, ticks = "", []
            while function not in stack:
                done = subprocess.run([spy, "dump", "--native", "--pid", str(pid)], capture_output=True, text=True)
                stack = done.stdout
            os.read(reading, 1 << 20)
            assert len(os.read(reading, 1)) == 1  # the other thread has the interpreter's lock
            while len(ticks) < 2 or ticks[-1] < ticks[0] + 20:
                state, *_, = Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()
                assert state == "R" and Path(f"/proc/{{pid}}/syscall").read_text().split() == ["running"], wait
                ticks.append(int(Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[11]))
                time.sleep(0.05)
            frames = [line.strip() for line in stack.splitlines() if "libcud" in line]
            assert any(f"{{function}} (libcuda.so.1)" in line for line in frames), stack
            assert any("(libcudart.so.12)" in line for line in frames), stack
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            print(wait)
        """
    )
    assert told.splitlines() == list(WAITS)
