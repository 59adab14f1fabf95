"""What a rank does, from the moment it is forked until it ends."""

import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gpudiag.model import codec
from gpudiag.ranks import stages
from gpudiag.ranks.diagnosis.dump import DumpFiles
from gpudiag.ranks.event_log import EventKind, EventWriter
from gpudiag.ranks.process import die_with_parent, name_process
from gpudiag.ranks.rank.board import PositionBoard
from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.rank.job import Job, LocalRank
from gpudiag.ranks.rank.progress import RankProgress

EXIT_DONE = 0
EXIT_RAISED = 1


def run_rank(job: Job, local: LocalRank, board: PositionBoard, template_pid: int) -> None:
    """Run the entry as that rank; never returns: the process ends here."""
    die_with_parent(template_pid)
    name_process(f"gpudiag-rank{local.rank}")
    directory = Path(job.run_directory)
    _redirect_output(directory / f"rank{local.rank}.stderr")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the agent, which ends the ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    DumpFiles(directory, local.rank).answer_requests()
    events = EventWriter(directory / f"rank{local.rank}.events")
    position = board.writer(job.ranks.index(local))
    faults = tuple(fault for fault in job.faults if fault.rank == local.rank)
    status = EXIT_RAISED
    try:
        _run_entry(job, local, RankProgress(position, events, faults), events)
        status = EXIT_DONE
    except BaseException as error:  # noqa: BLE001 - whatever ends a rank is evidence, SystemExit too
        traceback.print_exc()
        events.write(EventKind.RAISED, describe_exception(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # this is a fork of the template's interpreter, which must not be torn down twice


def _run_entry(job: Job, local: LocalRank, progress: RankProgress, events: EventWriter) -> None:
    _export_rank(job, local)
    progress.enter_stage(stages.IMPORT)
    entry = load_entry(job.entry)
    context = RankContext(
        rank=local.rank,
        local_rank=local.local_rank,
        world_size=job.world_size,
        local_world_size=job.local_world_size,
        init_method=job.init_method,
        rendezvous_timeout_seconds=job.rendezvous_timeout_seconds,
        operation_timeout_seconds=job.operation_timeout_seconds,
        arguments=job.arguments,
        progress=progress,
        run_directory=job.run_directory,
    )
    result = dict(entry(context))
    arrivals = progress.arrivals.read()
    if arrivals is not None:
        events.write(EventKind.ARRIVALS, codec.encode(arrivals))
    events.write(EventKind.RESULT, result)
    progress.enter_stage(stages.TEARDOWN)
    _destroy_process_group()


def load_entry(name: str) -> Callable[[RankContext], Mapping[str, Any]]:
    """The function that `module:function` names; the caller must report import errors."""
    module_name, _, function_name = name.partition(":")
    entry: Callable[[RankContext], Mapping[str, Any]] = getattr(
        importlib.import_module(module_name), function_name
    )
    return entry


def describe_exception(error: BaseException) -> dict[str, Any]:
    """An exception as evidence: its type, message and traceback, and the file:line that raised it."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "place": _innermost_place(error.__traceback__),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _innermost_place(trace: TracebackType | None) -> str | None:
    frames = traceback.extract_tb(trace)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _export_rank(job: Job, local: LocalRank) -> None:
    """Set the environment variables by which libraries know their rank, as torchrun does."""
    os.environ["RANK"] = str(local.rank)
    os.environ["LOCAL_RANK"] = str(local.local_rank)
    os.environ["WORLD_SIZE"] = str(job.world_size)
    os.environ["LOCAL_WORLD_SIZE"] = str(job.local_world_size)


def _redirect_output(path: Path) -> None:
    """Redirect stdout and stderr to `path`, and stdin to /dev/null, for C libraries too."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.close(nothing)


def _destroy_process_group() -> None:
    """Destroy torch's process group, if the entry created one and left it open."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
