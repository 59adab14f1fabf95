"""A rank's own look at its main thread, once a second: where it is, what it waits for, what still moves."""

import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpudiag.model.codec import encode
from gpudiag.model.job import Frame, ProcessLook, ThreadLook
from gpudiag.model.job_state import FlightRecord
from gpudiag.model.script import OWN_STACKS, OwnLook, ScriptError
from gpudiag.probe.job.flight_recorder import DumpRefused, parse_dump, shorten
from gpudiag.probe.job.py_spy import RawFrame, RawThread
from gpudiag.probe.job.stacks import look_at_self
from gpudiag.ranks.diagnosis.dump import dump_flight_recorder
from gpudiag.ranks.rank.context import Progress
from gpudiag.reference.stacks import Call, find_awaited, read_call
from gpudiag.reference.waits import FOR_OTHERS, NETWORK, find_wait, is_library
from gpudiag.training.signs_of_work import USE_THE_PROCESSOR, SignsOfWork

_LOOK_SECONDS = 1.0
_SHOWN_FRAMES = 12
_SENT_FRAMES = 60
_TEXT_CHARACTERS = 160
_SENT_CALLS = 10  # of each group
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
        self._closer: threading.Thread | None = None

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
            awaited = _awaited_at(frames, self._script)
            left = self._hang_seconds * PATIENCE - (now - self._still_since)
            work = self._signs.read(left, network=awaited == NETWORK)
            work = None if waits_for_others(awaited, work) else work
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
            self._look_closer(frames)

    def _emit_work(self, frames: list[FrameType], now: float, work: str) -> None:
        """Emit that the rank works if it has long been in one function; ever less often while it stays."""
        if now - max(self._function_since, self._reported_at) >= self._pause:
            self._reported_at, self._pause = now, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._emit("works", frames, work)

    def _emit(self, kind: str, frames: list[FrameType], work: str | None) -> None:
        self._progress.emit({"kind": kind, **encode(describe(frames, self._script, self._counts, work))})

    def _look_closer(self, frames: list[FrameType]) -> None:
        """Emit what the kernel and torch's recorder show too, by a thread of its own: either may hang."""
        if self._closer is None or not self._closer.is_alive():
            self._closer = threading.Thread(
                target=self._emit_closer_look, args=(frames,), name="gpudiag-own-look", daemon=True
            )
            self._closer.start()

    def _emit_closer_look(self, frames: list[FrameType]) -> None:
        found = describe_closely(frames, self._script, self._counts)
        self._progress.emit({"kind": "looked_closely", **encode(found)})


def waits_for_others(awaited: str, work: str | None) -> bool:
    """Whether a rank waits for other ranks, whatever else goes on in its process.

    Waiting uses the processor only where a GPU is in use: CUDA and NCCL spin.
    """
    return awaited in FOR_OTHERS and (work not in USE_THE_PROCESSOR or _uses_gpu())


def describe(frames: list[FrameType], script: str, counts: BatchCount, work: str | None = None) -> OwnLook:
    """The rank's look at itself by its main thread's frames alone, and what only the rank knows."""
    call, pid = _call_of(frames, script), os.getpid()
    thread = ThreadLook(pid, "MainThread", "S", 0.0, frames=_with_text(_raw(frames, script)))
    return OwnLook(
        ProcessLook(0.0, pid, "S", 0.0, threads=(thread,), stacks=OWN_STACKS),
        work,
        awaited=_awaited_at(frames, script),
        uses_gpu=_uses_gpu(),
        batches=counts.batches,
        steps=counts.backwards + _is_in_forward(frames, call),
    )


def describe_closely(frames: list[FrameType], script: str, counts: BatchCount) -> OwnLook:
    """The rank's look at itself as from outside, with its flight record; it may not return in a hang."""
    main = RawThread("MainThread", _raw(frames, script))
    found = describe(frames, script, counts)
    look = look_at_self(_stacks(main, script), OWN_STACKS) or found.look
    return replace(found, look=look, record=read_own_record())


def read_own_record() -> FlightRecord | None:
    """The last collectives of this process by torch's flight recorder; None where it records none."""
    dump = dump_flight_recorder()
    if dump is None:
        return None
    try:
        record = parse_dump(
            dump.encode() if isinstance(dump, str) else dump, source="the rank's flight recorder"
        )
    except DumpRefused:
        return None
    return shorten(record, _SENT_CALLS)


def _stacks(main: RawThread, script: str) -> dict[int, RawThread]:
    """The stacks of this process's threads by their number, but of gpudiag's own."""
    found, running = {}, sys._current_frames()
    for thread in threading.enumerate():
        frames = frames_of(running.get(thread.ident or 0))
        if thread.native_id is not None and (shown := _raw(frames, script)):
            found[thread.native_id] = RawThread(thread.name, shown)
    return {**found, os.getpid(): main}


def _raw(frames: Sequence[FrameType], script: str) -> tuple[RawFrame, ...]:
    """The frames as py-spy gives them: those of the library's call, and then the user's."""
    shown = _shown(frames, script)
    users = [place for place, one in enumerate(shown) if is_users(one.f_code.co_filename, script)]
    first = users[0] if users else len(shown)
    kept = (*shown[:first], *(shown[place] for place in users))
    return tuple(
        RawFrame(one.f_code.co_filename, one.f_code.co_name, one.f_lineno or 0, ())
        for one in kept[:_SENT_FRAMES]
    )


def _awaited_at(frames: Sequence[FrameType], script: str) -> str:
    """What the main thread waits for, by its frames and the user's line; empty where neither shows a wait."""
    call, own = _call_of(frames, script), _users_frame(frames, script)
    if call.own is not None and own is not None:
        call = replace(call, own=replace(call.own, text=_expression(own)))
    return find_awaited(call, on_gpu=_uses_gpu())


def _call_of(frames: Sequence[FrameType], script: str) -> Call:
    """What the main thread's stack is in."""
    return read_call(_with_text(_raw(frames, script)))


def _expression(frame: FrameType) -> str:
    """The expression that the frame executes, in its source line; Python 3.10 has only the line."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    read_positions = getattr(frame.f_code, "co_positions", None)
    positions = list(read_positions()) if read_positions is not None else []
    index = frame.f_lasti // 2
    if not 0 <= index < len(positions):
        return line.strip()[:_TEXT_CHARACTERS]
    first, last, start, end = positions[index]
    if first is None or start is None or end is None or last != first:
        return line.strip()[:_TEXT_CHARACTERS]
    text = linecache.getline(frame.f_code.co_filename, first)
    return text.encode()[start:end].decode(errors="replace")[:_TEXT_CHARACTERS]


def _with_text(frames: Sequence[RawFrame]) -> tuple[Frame, ...]:
    """The frames, the user's with the text of their line."""
    return tuple(
        Frame(one.file, one.function, one.line, "" if is_library(one.file) else _text(one)) for one in frames
    )


def _text(frame: RawFrame) -> str:
    return linecache.getline(frame.file, frame.line).strip()[:_TEXT_CHARACTERS]


def _is_in_forward(frames: Sequence[FrameType], call: Call) -> bool:
    """Whether the rank waits in a step's forward pass, before its backward pass."""
    wait = find_wait([(one.file, one.function) for one in call.library])
    in_backward = any(frame.f_code.co_name == "_engine_run_backward" for frame in frames)
    return wait is not None and wait.step and not in_backward


def describe_error(error: BaseException, script: str) -> ScriptError:
    """Where an exception reached the user's code, and its frames, innermost first."""
    steps = [
        step
        for step in reversed(traceback.extract_tb(error.__traceback__))
        if not step.filename.startswith((_OWN, "<frozen"))
    ]
    places = [f"{step.filename}:{step.lineno} in {step.name}" for step in steps]
    users = (place for step, place in zip(steps, places, strict=True) if is_users(step.filename, script))
    record = read_own_record()
    return ScriptError(
        place=next(users, places[-1] if places else script),
        stack=tuple(places[:_SHOWN_FRAMES]),
        shared_memory=_shared_memory(),
        call=record.calls[-1] if record is not None and record.calls else None,
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


def _shown(frames: Sequence[FrameType], script: str) -> list[FrameType]:
    return [
        frame
        for frame in frames
        if frame.f_code.co_filename == script or not frame.f_code.co_filename.startswith((_OWN, "<frozen"))
    ]


def _users_frame(frames: Sequence[FrameType], script: str) -> FrameType | None:
    """The innermost frame of the user's own code, else the outermost one shown; None if there is none."""
    shown = _shown(frames, script)
    own = (frame for frame in shown if is_users(frame.f_code.co_filename, script))
    return next(own, shown[-1] if shown else None)


def is_users(file: str, script: str) -> bool:
    """Whether a file is the script, or code that is neither Python's nor an installed library's."""
    return file == script or not (is_library(file) or file.startswith(_OWN))


def _uses_gpu() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    return bool(cuda is not None and cuda.is_initialized())
