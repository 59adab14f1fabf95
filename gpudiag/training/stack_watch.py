"""A rank's own look at its main thread, once a second: where it is, what it waits for, what still moves."""

import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpudiag.model.codec import encode
from gpudiag.model.script import ScriptPlace
from gpudiag.ranks.diagnosis.dump import read_last_collective
from gpudiag.ranks.rank.context import Progress
from gpudiag.reference.waits import FOR_OTHERS, GPU, NETWORK, Wait, find_call, find_wait, is_library
from gpudiag.training.signs_of_work import USE_THE_PROCESSOR, SignsOfWork

_LOOK_SECONDS = 1.0
_SHOWN_FRAMES = 12
_CALL_CHARACTERS = 100
# Ranks that wait for one that works do not count as hung for this many times --hang-after: 30 min by default,
# which is also torch's longest default timeout (gloo's).
PATIENCE = 30.0
_LONGEST_PAUSE_SECONDS = 3600.0
_MOVES = "its Python stack changes"


@dataclass(slots=True)
class BatchCount:
    """Batches and backward passes since the script began; 0 without torch's loader or autograd."""

    batches: int = 0
    backwards: int = 0

    def watch(self) -> None:
        """Count from now on, if torch is imported."""
        loader: Any = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None and hasattr(loader, "_BaseDataLoaderIter"):
            iterator = loader._BaseDataLoaderIter
            iterator.__next__ = self._count_batches(iterator.__next__)
        autograd: Any = sys.modules.get("torch.autograd")
        if autograd is not None and hasattr(autograd, "backward"):
            autograd.backward = self._count_backwards(autograd.backward)

    def _count_batches(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def take_next(*args: Any, **named: Any) -> Any:
            batch = call(*args, **named)
            self.batches += 1
            return batch

        return take_next

    def _count_backwards(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def run_backward(*args: Any, **named: Any) -> Any:
            self.backwards += 1
            return call(*args, **named)

        return run_backward


_OWN = Path(__file__).parents[1].as_posix()


class StackWatch(threading.Thread):
    """Emits when the main thread has not moved for `hang_seconds`, and whether it still works."""

    def __init__(self, progress: Progress, script: str, hang_seconds: float, counts: BatchCount) -> None:
        """Watch the thread that runs `script`."""
        super().__init__(name="gpudiag-stack-watch", daemon=True)
        self._progress = progress
        self._script = script
        self._hang_seconds = hang_seconds
        self._counts = counts
        self._ended = threading.Event()
        self._signs = SignsOfWork()
        self._position: tuple[Any, ...] = ()
        self._function: CodeType | None = None
        self._still_since = self._worked_at = self._function_since = self._reported_at = time.monotonic()
        self._pause = hang_seconds
        self._still_reported = False

    def stop(self) -> None:
        """End the thread: the script has ended."""
        self._ended.set()

    def run(self) -> None:
        """Look until the script ends."""
        main, looks = threading.main_thread().ident or 0, 0
        while not self._ended.wait(_LOOK_SECONDS):
            self._progress.before_iteration(looks)
            looks += 1
            self._look(frames_of(sys._current_frames().get(main)), time.monotonic())

    def _look(self, frames: list[FrameType], now: float) -> None:
        own = _users_frame(frames, self._script)
        if own is not None:
            self._progress.note_place(own.f_code.co_filename, own.f_lineno)
            if own.f_code is not self._function:
                self._function, self._function_since, self._pause = own.f_code, now, self._hang_seconds
        position = tuple((frame.f_code, frame.f_lasti) for frame in frames)
        work: str | None = _MOVES
        if position == self._position:
            wait = _wait_of(frames, self._script)
            network = wait is not None and wait.awaited == NETWORK
            left = self._hang_seconds * PATIENCE - (now - self._still_since)
            work = self._signs.read(left, network=network)
            work = None if waits_for_others(wait, work) else work
        else:
            self._still_since = now
        self._position = position
        if work is not None:
            self._worked_at = now
            if self._still_reported:
                self._progress.emit({"kind": "moves"})
                self._still_reported = False
            self._emit_work(frames, now, work)
        elif not self._still_reported and now - max(self._still_since, self._worked_at) >= self._hang_seconds:
            self._still_reported = True
            self._emit("still", frames, None)

    def _emit_work(self, frames: list[FrameType], now: float, work: str) -> None:
        """Emit that the rank works if it has long been in one function; ever less often while it stays."""
        if now - max(self._function_since, self._reported_at) >= self._pause:
            self._reported_at, self._pause = now, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._emit("works", frames, work)

    def _emit(self, kind: str, frames: list[FrameType], work: str | None) -> None:
        self._progress.emit({"kind": kind, **encode(describe(frames, self._script, self._counts, work))})


def waits_for_others(wait: Wait | None, work: str | None) -> bool:
    """Whether a rank waits for other ranks, whatever else goes on in its process.

    Waiting uses the processor only where a GPU is in use: CUDA and NCCL spin.
    """
    if wait is None or wait.awaited not in FOR_OTHERS:
        return False
    return work not in USE_THE_PROCESSOR or _uses_gpu()


def describe(
    frames: list[FrameType], script: str, counts: BatchCount, work: str | None = None
) -> ScriptPlace:
    """Where those frames of the main thread are, in terms of the user's code."""
    wait = _wait_of(frames, script)
    own = _users_frame(frames, script)
    return ScriptPlace(
        place=_place(own) if own is not None else "nowhere",
        stack=tuple(_place(frame) for frame in _shown(frames))[:_SHOWN_FRAMES],
        call=_call_of(own) if own is not None else "",
        awaited=wait.awaited if wait else None,
        awaited_words=wait.words if wait else "",
        work=work,
        in_kernel=_wait_channel(),
        batches=counts.batches,
        steps=counts.backwards + _is_in_forward(frames, wait),
    )


def _is_in_forward(frames: Sequence[FrameType], wait: Wait | None) -> bool:
    """Whether the rank waits in a step's forward pass, before its backward pass."""
    in_backward = any(frame.f_code.co_name == "_engine_run_backward" for frame in frames)
    return wait is not None and wait.step and not in_backward


def describe_error(error: BaseException, script: str, counts: BatchCount) -> ScriptPlace:
    """Where an exception reached the user's code, and its frames, innermost first."""
    steps = [
        step
        for step in reversed(traceback.extract_tb(error.__traceback__))
        if not step.filename.startswith((_OWN, "<frozen"))
    ]
    places = [f"{step.filename}:{step.lineno} in {step.name}" for step in steps]
    users = (place for step, place in zip(steps, places, strict=True) if is_users(step.filename, script))
    return ScriptPlace(
        place=next(users, places[-1] if places else script),
        stack=tuple(places[:_SHOWN_FRAMES]),
        batches=counts.batches,
        steps=counts.backwards,
        shared_memory=_shared_memory(),
        collective=read_last_collective(),
    )


def users_traceback(error: BaseException, script: str) -> str:
    """The traceback from the script's own frame on, without gpudiag's frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    trace_of_user = traceback.TracebackException(type(error), error, trace)
    trace_of_user.stack = traceback.StackSummary.from_list(
        [step for step in trace_of_user.stack if not step.filename.startswith(_OWN)]
    )
    return "".join(trace_of_user.format())


def _shared_memory() -> tuple[int, int] | None:
    """Total and free bytes of /dev/shm, through which data loaders' workers hand over their batches."""
    with suppress(OSError):
        found = os.statvfs("/dev/shm")  # noqa: S108 - asked how full it is
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    return None


def frames_of(frame: FrameType | None) -> list[FrameType]:
    """A thread's frames, the innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _shown(frames: Sequence[FrameType]) -> list[FrameType]:
    return [frame for frame in frames if not frame.f_code.co_filename.startswith((_OWN, "<frozen"))]


def _users_frame(frames: Sequence[FrameType], script: str) -> FrameType | None:
    """The innermost frame of the user's own code, else the outermost one shown; None if there is none."""
    shown = _shown(frames)
    own = (frame for frame in shown if is_users(frame.f_code.co_filename, script))
    return next(own, shown[-1] if shown else None)


def is_users(file: str, script: str) -> bool:
    """Whether a file is the script, or code that is neither Python's nor an installed library's."""
    return file == script or not (is_library(file) or file.startswith(_OWN))


def users_place(stack: Sequence[str], script: str) -> str:
    """The user's own line of an emitted stack, whose lines are `file:line in function`, innermost first."""
    own = (place for place in stack if is_users(place.rpartition(" in ")[0].rpartition(":")[0], script))
    return next(own, stack[-1] if stack else "nowhere")


def _wait_of(frames: Sequence[FrameType], script: str) -> Wait | None:
    """What the frames wait for: by the library frames below the user's line, else by that line's call."""
    inner: list[tuple[str, str]] = []
    for frame in _shown(frames):
        if is_users(frame.f_code.co_filename, script):
            break
        inner.append((frame.f_code.co_filename, frame.f_code.co_name))
    if inner:
        return find_wait(inner)
    own = _users_frame(frames, script)
    wait = find_call(_call_of(own)) if own is not None else None
    return None if wait is not None and wait.awaited == GPU and not _uses_gpu() else wait


def _uses_gpu() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    return bool(cuda is not None and cuda.is_initialized())


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _call_of(frame: FrameType) -> str:
    """The expression that the frame is executing, as its source line has it; Python 3.10 only knows the line."""
    read_positions = getattr(frame.f_code, "co_positions", None)
    if read_positions is None:
        return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()[:_CALL_CHARACTERS]
    positions = list(read_positions())
    index = frame.f_lasti // 2
    if not 0 <= index < len(positions):
        return ""
    line, end_line, start, end = positions[index]
    if line is None or start is None or end is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, line)
    if end_line != line:
        return text.strip()[:_CALL_CHARACTERS]
    return text.encode()[start:end].decode(errors="replace")[:_CALL_CHARACTERS]


def _wait_channel() -> str:
    """Where in the kernel the main thread waits, if the kernel shows it."""
    with suppress(OSError):
        found = Path(f"/proc/self/task/{os.getpid()}/wchan").read_text()
        return "" if found == "0" else found
    return ""
