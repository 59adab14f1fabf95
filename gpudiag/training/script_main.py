"""The entry of a rank of `gpudiag train --script`: the user's script, as torchrun would start it, watched from within."""

import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from gpudiag.model.codec import decode
from gpudiag.ranks.context import Progress, RankContext
from gpudiag.ranks.stages import MEASURE

_LOOK_SECONDS = 1.0
_SHOWN_FRAMES = 12
_IDLE_SHARE = 0.2  # of a processor: below it the rank waits
# Where a rank that uses the processor may wait all the same: NCCL and CUDA spin.
_WAITING_FILES = ("torch/distributed", "horovod")
_WAITING_FUNCTIONS = frozenset(("synchronize", "_engine_run_backward", "item", "tolist", "cpu"))


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """What every rank is told: the script, its arguments, and where what it prints goes."""

    path: str
    arguments: tuple[str, ...]
    output_pid: int  # the agent of this rank, and the descriptor of it that takes the output
    output_descriptor: int
    master_port: int
    hang_seconds: float


def run(context: RankContext) -> Mapping[str, Any]:
    """The size of the process group that the script opened, 0 if none; whatever ends the script ends the rank."""
    job = decode(ScriptJob, context.arguments)
    _redirect_output(job)
    _export_meeting_point(job, context)
    sizes = _note_process_groups(context.progress)
    context.progress.enter_stage(MEASURE)
    watch = _StackWatch(context.progress, job.hang_seconds)
    watch.start()
    sys.argv = [job.path, *job.arguments]
    sys.path.insert(0, str(Path(job.path).resolve().parent))
    try:
        runpy.run_path(job.path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        watch.stop()
    size = max([*sizes, *_horovod_size()], default=0)
    context.progress.emit({"kind": "done", "size": size})
    return {"group": size}


def _redirect_output(job: ScriptJob) -> None:
    """Send what the script prints to the agent, which shows it."""
    descriptor = os.open(f"/proc/{job.output_pid}/fd/{job.output_descriptor}", os.O_WRONLY)
    sys.stdout.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _export_meeting_point(job: ScriptJob, context: RankContext) -> None:
    """Set what env:// reads, where no launcher has."""
    if context.init_method == "env://":
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(job.master_port))


def _note_process_groups(progress: Progress) -> list[int]:
    """The sizes of the process groups that the script opens; empty until it does."""
    sizes: list[int] = []
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None:
        return sizes

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def init(*args: Any, **named: Any) -> Any:
            result = call(*args, **named)
            sizes.append(int(distributed.get_world_size()))
            progress.emit({"kind": "group", "size": sizes[-1]})
            return result

        return init

    distributed.init_process_group = distributed.distributed_c10d.init_process_group = noting(
        distributed.init_process_group
    )
    return sizes


def _horovod_size() -> list[int]:
    """How many ranks Horovod counts, if the script used it and has not left it."""
    module: Any = sys.modules.get("horovod.torch") or sys.modules.get("horovod.tensorflow")
    return [int(module.size())] if module is not None and module.is_initialized() else []


class _StackWatch(threading.Thread):
    """Looks once a second where the main thread is, and tells when it has not moved for long."""

    def __init__(self, progress: Progress, hang_seconds: float) -> None:
        super().__init__(name="gpudiag-stack-watch", daemon=True)
        self._progress = progress
        self._hang_seconds = hang_seconds
        self._ended = threading.Event()

    def stop(self) -> None:
        """End with the script."""
        self._ended.set()

    def run(self) -> None:
        """Look until the script ends."""
        main = threading.main_thread().ident or 0
        position: tuple[Any, ...] = ()
        still_since, told, looks = time.monotonic(), False, 0
        processor = time.process_time()
        while not self._ended.wait(_LOOK_SECONDS):
            self._progress.before_iteration(looks)
            looks += 1
            frames = _frames(sys._current_frames().get(main))
            spent, processor = time.process_time() - processor, time.process_time()
            now = tuple((frame.f_code, frame.f_lasti) for frame in frames)
            if now != position or not (spent < _IDLE_SHARE * _LOOK_SECONDS or _waits(frames)):
                position, still_since = now, time.monotonic()
                if told:
                    self._progress.emit({"kind": "moves"})
                told = False
            elif not told and time.monotonic() - still_since >= self._hang_seconds:
                told = True
                self._progress.emit({"kind": "still", "stack": _describe(frames)})


def _frames(frame: FrameType | None) -> list[FrameType]:
    """A thread's frames, the innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _waits(frames: list[FrameType]) -> bool:
    return any(
        frame.f_code.co_name in _WAITING_FUNCTIONS
        or any(part in frame.f_code.co_filename for part in _WAITING_FILES)
        for frame in frames
    )


def _describe(frames: list[FrameType]) -> list[str]:
    own = Path(__file__).parents[1].as_posix()
    places = [
        f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        for frame in frames
        if not frame.f_code.co_filename.startswith((own, "<frozen"))
    ]
    return places[:_SHOWN_FRAMES]
