"""The entry point of a rank of `gpudiag train --script`: run the script as torchrun would, and watch it."""

import os
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from gpudiag.linux.namespaces import read_machine
from gpudiag.model.codec import decode, encode
from gpudiag.ranks.rank.context import Progress, RankContext
from gpudiag.ranks.stages import MEASURE
from gpudiag.training.script_look import ScriptLook
from gpudiag.training.stack_watch import BatchCount, StackWatch, describe_error, users_traceback


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """What every rank is given: the script, its arguments, and where its output goes."""

    path: str
    arguments: tuple[str, ...]
    output_pid: int  # this rank's agent; `output_descriptor` is its descriptor for the output
    output_descriptor: int
    master_port: int
    hang_seconds: float


def run(context: RankContext) -> Mapping[str, Any]:
    """The size of the process group that the script opened, 0 if none; its end is the rank's."""
    job = decode(ScriptJob, context.arguments)
    output = _Output(job)
    _export_meeting_point(job, context)
    _begin_with_own_generators()
    context.progress.emit({"kind": "process", "pid": os.getpid(), "namespace": read_pid_namespace()})
    sizes = _note_process_groups(context.progress)
    context.progress.enter_stage(MEASURE)
    counts = BatchCount()
    counts.watch()
    look = _look(context.progress)
    watch = StackWatch(context.progress, job.path, job.hang_seconds, counts)
    watch.start()
    sys.argv = [job.path, *job.arguments]
    sys.path.insert(0, str(Path(job.path).resolve().parent))
    try:
        runpy.run_path(job.path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            context.progress.emit({"kind": "raised", **encode(describe_error(end, job.path))})
            raise
    except Exception as error:
        context.progress.emit({"kind": "raised", **encode(describe_error(error, job.path))})
        output.show(f"rank {context.rank}: {users_traceback(error, job.path)}")
        output.give_back()
        raise
    finally:
        watch.stop()
        if look is not None:
            look.emit()
    size = max([*sizes, *_horovod_size()], default=0)
    context.progress.emit({"kind": "done", "size": size, "pid": os.getpid()})
    return {"group": size}


def read_pid_namespace() -> str:
    """The pid namespace of this process's pid, with the boot id; empty if the system does not report it."""
    try:
        return read_machine().process_table
    except OSError:
        return ""


def _look(progress: Progress) -> ScriptLook | None:
    """A started ScriptLook; None if torch.distributed is not available."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    look = ScriptLook(progress, torch)
    look.begin()
    return look


class _Output:
    """Sends what the script prints to the agent, which shows it."""

    def __init__(self, job: ScriptJob) -> None:
        self._own = os.dup(2)
        descriptor = os.open(f"/proc/{job.output_pid}/fd/{job.output_descriptor}", os.O_WRONLY)
        sys.stdout.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def show(self, text: str) -> None:
        """Show a text after what the script printed, in a single write, as other ranks write too."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, text.encode(errors="replace"))

    def give_back(self) -> None:
        """Restore standard error: the user has already seen the traceback that the rank prints next."""
        os.dup2(self._own, 2)


def _export_meeting_point(job: ScriptJob, context: RankContext) -> None:
    """Set what env:// reads, where no launcher has."""
    if context.init_method == "env://":
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(job.master_port))


def _begin_with_own_generators() -> None:
    """Reseed the random number generators, which forked ranks have alike, unlike under torchrun.

    `random` reseeds itself after a fork, and CUDA's generators do not exist yet.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _note_process_groups(progress: Progress) -> list[int]:
    """A list that gets the size of each process group that the script opens."""
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
    """Horovod's number of ranks, as a list; empty if the script does not use it, or has shut it down."""
    module: Any = sys.modules.get("horovod.torch") or sys.modules.get("horovod.tensorflow")
    return [int(module.size())] if module is not None and module.is_initialized() else []
