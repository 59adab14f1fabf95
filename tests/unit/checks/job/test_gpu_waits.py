"""What shows that a thread waits for a GPU: C functions, frames of libraries, the call in a line; and what
does not.
"""

from dataclasses import dataclass, replace

from gpudiag.checks.job.gpu_waits import GpuWait, KnownBy, find_gpu_wait
from gpudiag.checks.job.movement import backward_seconds_ago, moved
from gpudiag.model.job import Frame, ProcessLook, TensorSeen, ThreadLook
from gpudiag.reference.waits import find_native_wait
from tests.walking import walk

OWN, SITE = "/home/ann/train.py", "/opt/venv/lib/python3.12/site-packages"
TENSORS = (("loss", TensorSeen((), "float32")), ("mask", TensorSeen((4,), "bool")))


def own(text: str) -> tuple[Frame, ...]:
    return (Frame(OWN, "main", 9, text, tensors=TENSORS), Frame(OWN, "<module>", 20, "main()"))


def inside(file: str, function: str, text: str = "") -> tuple[Frame, ...]:
    return (Frame(f"{SITE}/{file}", function, 7, text), *own("model(batch)"))


def thread(
    frames: tuple[Frame, ...], *native: str, state: str = "R", syscall: str = "", gil: bool | None = False
) -> ThreadLook:
    return ThreadLook(
        1, "MainThread", state, 1.0, syscall=syscall, frames=frames, native=native, holds_gil=gil
    )


@dataclass(frozen=True)
class Case:
    """A thread, and what shows its wait; None where it is none."""

    name: str
    seen: ThreadLook
    known_by: KnownBy | None
    call: str = ""


def by_frame(name: str, file: str, function: str) -> Case:
    return Case(name, thread(inside(file, function)), KnownBy.FRAME, function)


def by_native(name: str, *native: str) -> Case:
    """A wait that the last of these C functions shows."""
    return Case(name, thread(own("step()"), *native), KnownBy.NATIVE, native[-1].partition(" ")[0])


LOGS = inside("transformers/trainer.py", "_maybe_log", "loss = tr_loss.mean().item()")
PYTHON = "_PyEval_EvalFrameDefault"
CASES = (
    Case("item", thread(own("log(step, value.flatten()[0].item())")), KnownBy.LINE, ".item()"),
    Case("assigned", thread(own("total += loss.item()")), KnownBy.LINE, ".item()"),
    Case("cpu", thread(own("seen.append(out.cpu().numpy())")), KnownBy.LINE, ".cpu()"),
    Case("tolist", thread(own("ids = tokens.tolist()")), KnownBy.LINE, ".tolist()"),
    Case("to", thread(own("x = next(batches).to(DEV)")), KnownBy.LINE, ".to()"),
    Case("float", thread(own("x = float(loss)")), KnownBy.LINE, "float()"),
    Case("print", thread(own("print(loss)")), KnownBy.LINE, "the value of a tensor"),
    Case("if tensor", thread(own("if loss > 3:")), KnownBy.LINE, "the value of a tensor"),
    Case("format", thread(own('name = f"{loss}"')), KnownBy.LINE, "the value of a tensor"),
    Case("cupy", thread(own("a = cp.asnumpy(b)")), KnownBy.LINE, ".asnumpy()"),
    Case("jax's line", thread(own("y = step(x).block_until_ready()")), KnownBy.LINE, ".block_until_ready()"),
    by_frame("synchronize", "torch/cuda/__init__.py", "synchronize"),
    by_frame("event", "torch/cuda/streams.py", "Event.synchronize"),
    by_frame("fsdp's event", "torch/cuda/streams.py", "Event.wait"),
    by_frame("a tensor printed", "torch/_tensor_str.py", "_str_intern"),
    by_frame("jax", "jax/_src/interpreters/pxla.py", "ExecuteReplicated.__call__"),
    by_frame("jax's array", "jax/_src/array.py", "ArrayImpl._value"),
    by_frame("numba", "numba/cuda/cudadrv/driver.py", "Stream.synchronize"),
    Case("trainer", thread(LOGS), KnownBy.LINE, ".item()"),
    by_native("native", "clock_gettime (libc.so.6)", "cuStreamSynchronize (libcuda.so.580)"),
    by_native("event's", "cuEventSynchronize (libcuda.so.1)"),
    by_native("context's", "cuCtxSynchronize (libcuda.so.1)"),
    by_native("copy", "cuMemcpyDtoHAsync_v2 (libcuda.so.1)"),
    by_native("full queue", "cuLaunchKernelEx (libcuda.so.1)"),
    by_native("hip", "hipStreamSynchronize (libamdhip64.so.6)"),
    by_native("hsa", "hsa_signal_wait_scacquire (libhsa-runtime64.so.1)"),
    Case("by a lock", thread(own("loss.item()"), state="S", syscall="futex"), KnownBy.LINE, ".item()"),
    # What is none.
    Case("python's own loop", thread(own("loss.item()"), PYTHON), None),
    Case("a product on the processor", thread(own("loss.item()"), "mkl_blas_sgemm (libtorch_cpu.so)"), None),
    Case("holds the interpreter's lock", thread(own("loss.item()"), gil=True), None),
    Case("reads a file", thread(own("x = load(path).to(DEV)"), state="S", syscall="read"), None),
    Case("sleeps", thread(own("time.sleep(0.25)"), state="S", syscall="clock_nanosleep"), None),
    Case("no tensor of the line's", thread(own("if other > 3:")), None),
    Case("a dict's items", thread(own("for k in table.items():")), None),
    Case("a loader", thread(inside("torch/utils/data/dataloader.py", "_next_data", "data.cpu()")), None),
    Case("nccl", thread(own("step()"), "accept (libc.so.6)", "pncclAllReduce (libnccl.so.2)"), None),
)


@walk(CASES, lambda case: case.name)
def test_a_wait_for_the_gpu_is_told_from_work(case: Case) -> None:
    expected = None if case.known_by is None else GpuWait(case.known_by, case.call)
    assert find_gpu_wait(case.seen, rank_uses_gpu=True) == expected


@walk([case for case in CASES if case.known_by in (KnownBy.LINE, KnownBy.FRAME)], lambda case: case.name)
def test_without_a_gpu_a_line_waits_for_none(case: Case) -> None:
    assert find_gpu_wait(case.seen, rank_uses_gpu=False) is None


def test_a_wait_within_nccl_is_for_the_ranks() -> None:
    wait = find_native_wait(
        ("accept (libc.so.6)", "pncclAllReduce (libnccl.so.2)", "cuLaunchKernel (libcuda.so.1)")
    )
    assert wait is not None
    assert wait.awaited == "ranks"


def look(
    at: float, *, mark: str = "a", cpu: float = 0.0, frames: tuple[Frame, ...] = (), backward: int = 5
) -> ProcessLook:
    main = ThreadLook(7, "MainThread", "R", cpu, frames=frames or own("loss.item()"), mark=mark)
    engine = ThreadLook(8, "pt_autograd_0", "S", 0.1, switches=backward, last_ran_seconds_ago=9.0)
    return ProcessLook(at, 7, "R", cpu, threads=(main, engine))


def test_processor_time_alone_is_no_movement() -> None:
    assert not moved((look(0.0), look(1.0, cpu=1.0), look(3.5, cpu=3.5)))


def test_a_line_a_variable_or_a_backward_pass_is_movement() -> None:
    assert moved((look(0.0), look(1.0, cpu=1.0, frames=own("loss.backward()")[1:])))
    assert moved((look(0.0), look(1.0, cpu=1.0, mark="b")))
    assert moved((look(0.0), look(1.0, cpu=1.0, backward=6)))


def test_what_moved_and_came_back_between_the_first_and_the_last_look_counts() -> None:
    assert moved((look(0.0), look(1.0, cpu=1.0, mark="b"), look(3.5, cpu=3.5)))


def test_when_a_backward_pass_last_ran_is_told_by_torchs_thread() -> None:
    assert backward_seconds_ago((look(0.0),)) == 9.0
    assert backward_seconds_ago((ProcessLook(0.0, 7, "R", 0.0, threads=look(0.0).threads[:1]),)) is None


def test_a_stop_for_c_functions_wakes_every_thread_and_is_no_backward_pass() -> None:
    stopped = replace(look(1.0, cpu=1.0), stopped_seconds=0.12)
    woken = replace(look(3.5, cpu=3.5, backward=7), stopped_seconds=0.12)
    assert not moved((look(0.0), stopped, woken))
    assert backward_seconds_ago((look(0.0), stopped, woken)) == 11.5
